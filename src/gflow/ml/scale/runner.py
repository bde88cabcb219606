"""One run of a script for a measurement: as a job, on this machine or a cluster, or as a child process."""

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
from gflow.ml.launch.plan import available_gpus
from gflow.ml.launch.supervisor import UNFINISHED
from gflow.ml.scale.measurement import Measurement, from_clock, from_meter
from gflow.ml.scale.sizes import Size
from gflow.ml.train.metering import FILE, PRINTED, SECONDS, WARMUP, printed_lines
from gflow.options.job_options import CAPTURE, JOB
from gflow.options.parse import parse


class ScaleRequest(NamedTuple):
    """The script to run, and how to measure it."""

    # Arguments of `gflow launch`: the script and its arguments, with -m before a module.
    script: tuple[str, ...]
    # Directory for the meter files; it must be visible to all nodes.
    folder: str
    warmup: int = 5
    seconds: int = 20
    # Samples of a run, for scripts that report none; per GPU if `samples_each`.
    samples: int = 0
    samples_each: bool = False
    effective_batch: int = 0
    # Threads per process in runs without GPUs, equal for all sizes; 0: no limit.
    threads: int = 0
    # Options of gbatch.
    job: tuple[str, ...] = ()
    # Whether the runs share no folder with this machine (a cluster over SSH). They print their meter.
    is_elsewhere: bool = False


class RunResult(NamedTuple):
    """Exit code of a run, its duration, the end of its output, and the meter lines that it printed."""

    code: int
    seconds: float
    last: str
    printed: str = ""


Runner = Callable[[ScaleRequest, Size, Sequence[str]], RunResult]


def measure(request: ScaleRequest, size: Size, run: Runner, effective: int = 0) -> Measurement:
    """Run the script at this size and measure it. Refused if the run fails or reports nothing."""
    name = f"{size.shape.replace(' ', '-')}{f'-batch-{effective}' if effective else ''}"
    path = os.path.join(request.folder, f"{name}.meter")
    result = run(request, size, command(request, size, path, effective or request.effective_batch))
    text = result.printed or _text_of(path)
    found = from_meter(size, text, request.warmup)
    if result.code not in ((0, UNFINISHED) if found else (0,)):
        raise Refused(f"the run with {size.what} failed with code {result.code}", hint=result.last.strip())
    if found is not None:
        return found
    if request.samples:
        samples = request.samples * (size.gpus if request.samples_each else 1)
        return from_clock(size, samples, result.seconds)
    if text:
        raise Refused(
            f"the run with {size.what} ended within the {request.warmup} steps of warm-up or soon after",
            hint="a longer run, or fewer steps of warm-up: --warmup 1",
        )
    raise Refused(
        "the script does not report its speed",
        hint="use gflow.train or train.report(step, samples=…); or give the samples of a run: --samples N",
    )


def command(request: ScaleRequest, size: Size, meter: str, effective: int) -> list[str]:
    """Return the command of one run: `gflow launch` with the meter's variables."""
    variables = {FILE: PRINTED if request.is_elsewhere else meter}
    variables |= {WARMUP: str(request.warmup), SECONDS: str(request.seconds)}
    variables |= {"GFLOW_EFFECTIVE_BATCH": str(effective)} if effective else {}
    variables |= {"OMP_NUM_THREADS": str(request.threads)} if request.threads else {}
    count = ("--gpus", str(size.each)) if size.on_gpus else ("--processes", str(size.each))
    program = ["gflow"] if request.is_elsewhere else [sys.executable, "-m", "gflow", "gflow"]
    settings = [f"{name}={value}" for name, value in variables.items()]
    return ["env", *settings, *program, "launch", *count, *request.script]


def run_directly(request: ScaleRequest, size: Size, words: Sequence[str]) -> RunResult:
    """Run as a child process. Its output goes to a file; the last lines are shown if it fails."""
    path = os.path.join(request.folder, "output")
    began = time.monotonic()
    with open(path, "wb") as file:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            code = process.wait()
        except BaseException:  # e.g. Ctrl-C: end the child too
            process.terminate()
            process.wait()
            raise
    return RunResult(128 - code if code < 0 else code, time.monotonic() - began, _tail(_text_of(path)))


def check(request: ScaleRequest, sizes: Sequence[Size], run: Runner) -> None:
    """Refuse sizes that cannot run, before any of them is started."""
    for size in sizes:
        words = command(request, size, os.path.join(request.folder, "meter"), request.effective_batch)
        if run is run_as_job:
            check_description(_description(request, size, words))
        elif size.on_gpus and size.each > (there := available_gpus())[0]:
            raise Refused(
                f"--gpus {size.each}: {there[1]} {there[0] or 'none'}",
                hint="--processes 1,2,4 starts processes without GPUs",
            )


def run_as_job(request: ScaleRequest, size: Size, words: Sequence[str]) -> RunResult:
    """Run as a job of the daemon. It waits in the queue like any other job."""
    (job,) = submit_description(_description(request, size, words))
    try:
        job.wait()
    except BaseException:
        job.cancel()
        raise
    found, log = job.info(), job.log()
    printed = printed_lines(log) if request.is_elsewhere else ""
    last = f"{_tail(log)}\nthe whole log: gjob log {job.id}"
    return RunResult(exit_code_of(found), _runtime_s(found), last, printed)


def _description(request: ScaleRequest, size: Size, words: Sequence[str]) -> str:
    options = ["--name", f"scale-{size.shape.replace(' ', '-')}"]
    options += ["--nodes", str(size.nodes)] if size.nodes > 1 else []
    options += ["--gpus", str(size.each)] if size.on_gpus else []
    values, rest = parse([*options, *request.job], JOB + CAPTURE)
    if rest:
        raise Refused(f"--job {rest[0]!a:.60} is no option of gbatch", hint="--job '--partition a100'")
    return describe(values, list(words))


def _runtime_s(job: dict[str, Any]) -> float:
    """Return the runtime that the daemon measured."""
    return 0.0 if job["ran_s"] is None else max(1e-3, float(job["ran_s"]))


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _tail(text: str, lines: int = 8) -> str:
    return "\n".join(text.splitlines()[-lines:])
