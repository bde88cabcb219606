"""gflow scale: run a training script at several sizes and report its scaling efficiency."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from gflow.errors import GflowError, Refused, Unreachable, UsageError
from gflow.options.commands.scale_options import OPTIONS
from gflow.options.parse import parse

if TYPE_CHECKING:
    from gflow.ml.scale.analysis import Scaling
    from gflow.ml.scale.measurement import Measurement
    from gflow.ml.scale.runner import Runner, ScaleRequest
    from gflow.ml.scale.sizes import Size

ABOUT = """Run a training script at several sizes, one after the other, and report how well it scales: samples
per second, speed-up, efficiency (95 % is good, below 85 % is poor), and the most likely bottleneck.

Scripts that use gflow.train are measured for --seconds after a warm-up and then stopped; they neither read
nor write checkpoints. Other scripts are measured by their calls of train.report, or by --samples and the run
time. The runs are jobs if a daemon is running; otherwise they run directly."""
EXAMPLES = """gflow scale --gpus 1,2,4 -- train.py --lr 0.1
gflow scale --gpus 1,2,4,8 --effective-batch 512 --plot scaling.png train.py
gflow scale --on slurm --shape n1_gpu4,n2_gpu4,n4_gpu4 --job '--time 10' train.py
gflow scale --processes 1,2,4 --seconds 5 examples/cpu.py --epochs 1000
gflow scale --gpus 1,2 --samples 50000 theirs.py"""


# Bottlenecks that a control run with a small batch on few GPUs may still rule out.
UNCERTAIN = ("communication", "not known")


def run(words: list[str]) -> int:
    values, script = parse(words, OPTIONS, until_word=True)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow scale [options] -- SCRIPT [ARGS…]", ABOUT, OPTIONS, EXAMPLES))
        return 0
    from gflow.cli.tools.launch import command_of
    from gflow.client.capture import is_elsewhere
    from gflow.ml.scale.runner import check
    from gflow.ml.scale.sizes import sizes_of

    command_of(script, is_module="module" in values)
    values = _with_default_target(values)
    sizes = sizes_of(*(values.get(name, "") for name in ("gpus", "shape", "processes")))
    samples, each = _samples(values.get("samples", ""))
    if "plot" in values:
        from gflow.plotting import check_plot

        check_plot(values["plot"])
    runner = _runner(values, sizes)
    # The nodes of a cluster over SSH do not see the working folder.
    is_remote = "on" in values and is_elsewhere(values)
    is_shared = "on" in values and not is_remote
    folder = tempfile.mkdtemp(
        prefix=".gflow-scale-" if is_shared else "gflow-scale-", dir=os.getcwd() if is_shared else None
    )
    try:
        request = _request(values, script, folder, samples, each)
        request = request._replace(threads=_threads(sizes), is_elsewhere=is_remote)
        check(request, sizes, runner)
        return _scale(values, request, sizes, runner)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_default_target(values: dict[str, Any]) -> dict[str, Any]:
    """The options with the target on which jobs without --on run, if it is a cluster."""
    from gflow.config.load import load

    usual = load({}, os.environ)["default_target"]
    return values if values.keys() & {"on", "direct"} or usual == "local" else {**values, "on": usual}


def _request(
    values: dict[str, Any], script: list[str], folder: str, samples: int, each: bool
) -> ScaleRequest:
    from gflow.ml.scale.runner import ScaleRequest

    try:
        job = tuple(shlex.split(values.get("job", "")))
    except ValueError:
        raise UsageError(f"--job: a quote is not closed in {values['job']!a:.60}") from None
    return ScaleRequest(
        script=(*(["-m"] if "module" in values else []), *script),
        folder=folder,
        warmup=values.get("warmup", 5),
        seconds=values.get("seconds", 20),
        samples=samples,
        samples_each=each,
        effective_batch=values.get("effective-batch", 0),
        job=(*(["--on", values["on"]] if "on" in values else []), *job),
    )


def _threads(sizes: list[Size]) -> int:
    """Threads of each CPU process, equal at all sizes so that only the processes differ; 0: unset."""
    if sizes[-1].on_gpus or "OMP_NUM_THREADS" in os.environ:
        return 0
    return max(1, len(os.sched_getaffinity(0)) // sizes[-1].each)


def _samples(text: str) -> tuple[int, bool]:
    number, slash, unit = text.partition("/")
    if not text:
        return 0, False
    if not (
        number.isascii() and number.isdecimal() and int(number) and unit in (("gpu",) if slash else ("",))
    ):
        raise UsageError(
            f"--samples: {text!a:.60} is not a number of samples", hint="--samples 50000, or 50000/gpu"
        )
    return int(number), bool(slash)


def _runner(values: dict[str, Any], sizes: list[Size]) -> Runner:
    """Run as jobs if a daemon is reachable, unless this process is itself in a job."""
    from gflow.client import http
    from gflow.ml.scale.runner import run_as_job, run_directly

    if "direct" in values or ("GFLOW_JOB_ID" in os.environ and "on" not in values):
        if "on" in values:
            raise UsageError("--direct runs on this machine and cannot be combined with --on")
        if "job" in values:
            raise UsageError("--direct submits no jobs and cannot be combined with --job")
    elif any(size.nodes > 1 for size in sizes) and "on" not in values:
        raise UsageError("several nodes need a cluster", hint="--on slurm")
    else:
        try:
            http.get("/status")
            return run_as_job
        except Unreachable:
            if "on" in values or "job" in values:
                raise
    return run_directly


def _scale(values: dict[str, Any], request: ScaleRequest, sizes: list[Size], runner: Runner) -> int:
    """Run all sizes and show the result. If a run fails, the sizes before it are still shown."""
    from gflow.ml.scale.analysis import analyse

    found: list[Measurement] = []
    declared = "unknown" if not request.samples else "weak" if request.samples_each else "strong"
    failed: GflowError | None = None
    for number, size in enumerate(sizes, start=1):
        _say(f"{number} of {len(sizes)}: {size.what}")
        try:
            found.append(_measure(request, size, runner))
        except Refused as error:
            failed = error
            break
    if failed is not None and len(found) < 2:
        raise failed
    scaling = analyse(found, declared=declared)
    if failed is None and scaling.kind == "strong" and scaling.bottleneck.name in UNCERTAIN:
        control = _control(request, found, runner)
        scaling = analyse(found, control, declared)
    _show(values, request, scaling)
    if failed is not None:
        raise failed
    return 0


def _measure(request: ScaleRequest, size: Size, runner: Runner, effective: int = 0) -> Measurement:
    from gflow.ml.scale.runner import measure

    return measure(request, size, runner, effective)


def _control(request: ScaleRequest, found: list[Measurement], runner: Runner) -> Measurement | None:
    """Run the first size with the last size's batch per GPU, if the script's batch can be set."""
    from gflow.ml.scale.measurement import RUN

    first, last = found[0], found[-1]
    if last.source != RUN or last.effective_batch is None:
        return None
    each = max(1, round(last.effective_batch / last.size.gpus))
    _say(f"control run: {first.size.what} with the batch per GPU of {last.size.what}")
    try:
        return _measure(request, first.size, runner, each * first.size.gpus)
    except Refused as error:
        _say(f"the control run failed: {error.message}")
        return None


def _say(text: str) -> None:
    sys.stderr.write(f"gflow scale: {text}\n")
    sys.stderr.flush()


def _show(values: dict[str, Any], request: ScaleRequest, scaling: Scaling) -> None:
    if "plot" in values:
        from gflow.ml.scale.analysis import plot

        plot(scaling, " ".join(request.script)[:80], values["plot"])
    if "json" in values:
        import msgspec

        page = {
            "script": list(request.script),
            "warmup_steps": request.warmup,
            **msgspec.to_builtins(scaling),
        }
        print(msgspec.json.format(msgspec.json.encode(page)).decode())
        return
    from gflow.text.scaling import scaling_page

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    sys.stdout.write(scaling_page(scaling, request.warmup, width))
