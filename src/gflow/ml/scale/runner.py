"""Running a script once: as a job of the daemon, on this machine or a cluster, or as a child of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gflow.client.request_builder import describe
from gflow.client.wait import exit_code_of
from gflow.errors import Refused
from gflow.library.jobs import check_description, submit_description
from gflow.ml.launch.plan import gpus_there
from gflow.ml.launch.supervisor import UNFINISHED
from gflow.ml.scale.measurement import Measured, by_the_clock, from_meter
from gflow.ml.scale.sizes import Size
from gflow.ml.train.metering import FILE, SECONDS, WARMUP
from gflow.options.parse import parse
from gflow.options.table import CAPTURE, JOB


class ScaleRequest(NamedTuple):
    """What is run, and how it is measured."""

    # Words for `gflow launch`: the script and its arguments, with -m before a module.
    script: tuple[str, ...]
    # Where the runs leave their figures: all nodes see it.
    folder: str
    warmup: int = 5
    seconds: int = 20
    # Samples in all, for scripts that tell nothing; of each GPU, if `samples_each`.
    samples: int = 0
    samples_each: bool = False
    effective_batch: int = 0
    # Of each process, where there are no GPUs: the same at each size; 0: as many as they like.
    threads: int = 0
    # Words for gbatch.
    job: tuple[str, ...] = ()


class Over(NamedTuple):
    """How a run ended, how long it took, and what it printed last."""

    code: int
    seconds: float
    last: str


Runner = Callable[[ScaleRequest, Size, Sequence[str]], Over]


def measured(wish: ScaleRequest, size: Size, run: Runner, effective: int = 0) -> Measured:
    """Run it at this size. Refused if it fails, or tells nothing."""
    name = f"{size.shape.replace(' ', '-')}{f'-batch-{effective}' if effective else ''}"
    path = os.path.join(wish.folder, f"{name}.meter")
    over = run(wish, size, command(wish, size, path, effective or wish.effective_batch))
    text = _text_of(path)
    found = from_meter(size, text, wish.warmup)
    if over.code not in ((0, UNFINISHED) if found else (0,)):
        raise Refused(f"the run with {size.what} failed with code {over.code}", hint=over.last.strip())
    if found is not None:
        return found
    if wish.samples:
        samples = wish.samples * (size.gpus if wish.samples_each else 1)
        return by_the_clock(size, samples, over.seconds)
    if text:
        raise Refused(
            f"the run with {size.what} was over before {wish.warmup} steps and a little more",
            hint="a longer run, or fewer steps of warm-up: --warmup 1",
        )
    raise Refused(
        "the script does not tell how fast it is",
        hint="gflow.train and train.report(step, samples=…) do; or say what a run has: --samples N",
    )


def command(wish: ScaleRequest, size: Size, meter: str, effective: int) -> list[str]:
    """What one run is: `gflow launch` with variables of ours."""
    told = {FILE: meter, WARMUP: str(wish.warmup), SECONDS: str(wish.seconds)}
    told |= {"GFLOW_EFFECTIVE_BATCH": str(effective)} if effective else {}
    told |= {"OMP_NUM_THREADS": str(wish.threads)} if wish.threads else {}
    count = ("--gpus", str(size.each)) if size.on_gpus else ("--processes", str(size.each))
    return [
        "env",
        *(f"{name}={value}" for name, value in told.items()),
        *(sys.executable, "-m", "gflow", "gflow", "launch", *count, *wish.script),
    ]


def directly(wish: ScaleRequest, size: Size, words: Sequence[str]) -> Over:
    """As a child of ours. What it prints goes to a file, and its end is shown if it fails."""
    path = os.path.join(wish.folder, "output")
    began = time.monotonic()
    with open(path, "wb") as file:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            code = process.wait()
        except BaseException:  # Ctrl-C: it goes with us
            process.terminate()
            process.wait()
            raise
    return Over(128 - code if code < 0 else code, time.monotonic() - began, _tail(_text_of(path)))


def check(wish: ScaleRequest, sizes: Sequence[Size], run: Runner) -> None:
    """Refuse sizes that cannot run, before anybody has waited for the others."""
    for size in sizes:
        words = command(wish, size, os.path.join(wish.folder, "meter"), wish.effective_batch)
        if run is as_job:
            check_description(_description(wish, size, words))
        elif size.on_gpus and size.each > (there := gpus_there())[0]:
            raise Refused(
                f"--gpus {size.each}: {there[1]} {there[0] or 'none'}",
                hint="--processes 1,2,4 starts processes without GPUs",
            )


def as_job(wish: ScaleRequest, size: Size, words: Sequence[str]) -> Over:
    """As a job of the daemon, which waits for its turn like any other."""
    (job,) = submit_description(_description(wish, size, words))
    try:
        job.wait()
    except BaseException:
        job.cancel()
        raise
    found = job.info()
    return Over(exit_code_of(found), _ran_s(found), f"{_tail(job.log())}\nthe whole log: gjob log {job.id}")


def _description(wish: ScaleRequest, size: Size, words: Sequence[str]) -> str:
    options = ["--name", f"scale-{size.shape.replace(' ', '-')}"]
    options += ["--nodes", str(size.nodes)] if size.nodes > 1 else []
    options += ["--gpus", str(size.each)] if size.on_gpus else []
    values, rest = parse([*options, *wish.job], JOB + CAPTURE)
    if rest:
        raise Refused(f"--job {rest[0]!a:.60} is no option of gbatch", hint="--job '--partition a100'")
    return describe(values, list(words))


def _ran_s(job: dict[str, Any]) -> float:
    """From its start to its end, by the daemon's word."""
    return 0.0 if job["ran_s"] is None else max(1e-3, float(job["ran_s"]))


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _tail(text: str, lines: int = 8) -> str:
    return "\n".join(text.splitlines()[-lines:])
