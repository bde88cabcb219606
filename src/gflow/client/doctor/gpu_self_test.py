"""Run the self-test of GPUs: choose free GPUs, hold their leases, run the program, read its lines."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gflow.diagnosis.doctor.facts import DriverFacts, GpuFacts, PythonFacts
from gflow.diagnosis.doctor.self_test import TITLES, Measurement, SelfTest, SkippedGpu
from gflow.errors import Refused
from gflow.targets.local.gpu_leases import lease_folder, release, take

# Seconds that one step may take; importing torch and the first use of CUDA and NCCL take longest.
STEP_S = 15.0
FIRST_S = 60.0
PROGRAM = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "ml/self_test/gpu_benchmark.py"
)
FORCE = "grun --gpus 1 gflow doctor --gpu waits for a free GPU; --force slows the jobs on it"
Progress = Callable[[str], None]


def run_self_test(
    driver: DriverFacts,
    python: PythonFacts,
    wanted: tuple[int, ...] = (),
    *,
    is_forced: bool = False,
    progress: Progress = lambda text: None,
) -> SelfTest:
    """Test the wanted GPUs, or all that are free. Raises Refused if there is nothing to test."""
    gpus = _usable(driver)
    program = _program(python)
    with _leased(gpus, is_forced) as held:
        own = os.environ.get("GFLOW_JOB_ID", "")
        chosen, skipped = choose_gpus(gpus, wanted, held, is_forced=is_forced, own_job=own)
        start = time.monotonic()
        found = _measure(program, chosen, progress)
    return found._replace(skipped=skipped, seconds=round(time.monotonic() - start, 1))


def _usable(driver: DriverFacts) -> tuple[GpuFacts, ...]:
    if driver.is_absent or not driver.gpus:
        why = driver.trouble if driver.trouble and not driver.is_absent else "no NVIDIA driver"
        raise Refused(f"there is no GPU to test: {why}", hint="gflow doctor checks the rest of the machine")
    return tuple(gpu for gpu in driver.gpus if not gpu.problem)


def _program(python: PythonFacts) -> str:
    """The Python that has torch with CUDA: the one on PATH, or the one of gflow itself."""
    if python.torch_cuda:
        return python.executable
    from gflow.client.doctor.python_facts import read_python

    if read_python(sys.executable).torch_cuda:
        return sys.executable
    name = python.executable or "python3"
    raise Refused(
        f"the self-test needs PyTorch with CUDA, and {name} has none",
        hint="activate the environment of your training scripts, then gflow doctor --gpu",
    )


# ------------------------------------------------------------ which GPUs


@contextmanager
def _leased(gpus: tuple[GpuFacts, ...], is_forced: bool) -> Iterator[frozenset[int]]:
    """The numbers of the GPUs whose leases are held meanwhile: no daemon starts a job on them."""
    folder = lease_folder()
    if is_forced or not folder:
        yield frozenset(gpu.number for gpu in gpus)
        return
    held: dict[int, list[int]] = {}
    for gpu in gpus:
        try:
            fds = take([f"{folder}/{gpu.uuid}"])
        except OSError:  # the folder cannot be used: the processes on the GPU are checked all the same
            fds = []
        if fds is not None:
            held[gpu.number] = fds
    try:
        yield frozenset(held)
    finally:
        for fds in held.values():
            release(fds)


def choose_gpus(
    gpus: tuple[GpuFacts, ...],
    wanted: tuple[int, ...],
    free: frozenset[int],
    *,
    is_forced: bool,
    own_job: str = "",
) -> tuple[tuple[GpuFacts, ...], tuple[SkippedGpu, ...]]:
    """The GPUs to test, and those that are left out because they are in use.

    `own_job`: the job that the test runs in, which has its GPUs for itself.
    """
    numbers = [gpu.number for gpu in gpus]
    for number in wanted:
        if number not in numbers:
            raise Refused(f"there is no usable GPU {number} here", hint="ginfo lists the GPUs")
    own = {gpu.number for gpu in gpus if gpu.jobs == (own_job,)}
    asked = [gpu for gpu in gpus if gpu.number in (wanted or own or numbers)]
    judged = [] if is_forced else [gpu for gpu in asked if gpu.number not in own]
    busy = {gpu.number: why for gpu in judged if (why := why_busy(gpu, free))}
    if wanted and busy:
        number, why = next(iter(busy.items()))
        raise Refused(f"GPU {number} is not tested: {why}", hint=FORCE)
    if len(busy) == len(asked):
        raise Refused(f"no GPU is free: GPU {asked[0].number}: {busy[asked[0].number]}", hint=FORCE)
    chosen = tuple(gpu for gpu in asked if gpu.number not in busy)
    return chosen, tuple(SkippedGpu(number, why) for number, why in busy.items())


def why_busy(gpu: GpuFacts, free: frozenset[int]) -> str:
    """Why a GPU is in use; empty: it is free."""
    if gpu.jobs:
        return f"job {', '.join(gpu.jobs)} has it"
    if gpu.processes:
        return f"process {', '.join(map(str, gpu.processes[:3]))} uses it"
    return "" if gpu.number in free else "another gflow daemon has it"


# ------------------------------------------------------------ the program


def _measure(program: str, gpus: tuple[GpuFacts, ...], progress: Progress) -> SelfTest:
    environ = os.environ | {
        "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONUNBUFFERED": "1",
    }
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [program, PROGRAM],
            env=environ,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            found = _follow(child, [gpu.number for gpu in gpus], progress)
        finally:
            child.kill()
            child.wait()
        if found.trouble == ENDED:
            errors.seek(0)
            last = errors.read()[-2000:].decode(errors="replace").strip().splitlines()
            found = found._replace(trouble=f"{ENDED}: {last[-1] if last else f'code {child.returncode}'}")
    return found


ENDED = "the test program ended early"


def _follow(child: subprocess.Popen[str], numbers: list[int], progress: Progress) -> SelfTest:
    """Read the lines of the program until its end; a step that takes too long ends the test."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_pump, args=(child.stdout, lines), daemon=True).start()
    found, now, patience = SelfTest(trouble=ENDED), "the start of Python", FIRST_S
    while True:
        try:
            line = lines.get(timeout=patience)
        except queue.Empty:
            return found._replace(trouble=f"{now} takes longer than {patience:.0f} s")
        if line is None:
            return found
        said = _parse(line)
        if "begin" in said:
            now = title_of(said["begin"], [numbers[at] for at in said["gpus"]])
            patience = STEP_S if said["begin"] in TITLES and said["begin"] != "all_reduce" else FIRST_S
            progress(now)
        found = read_line(found, said, numbers)


def _pump(stream: Any, lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _parse(line: str) -> dict[str, Any]:
    """A line of the program; packages print other lines at times."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def title_of(step: str, gpus: list[int]) -> str:
    where = f"GPU {', '.join(map(str, gpus))}: " if gpus else ""
    return where + TITLES.get(step, (step, ""))[0]


def read_line(found: SelfTest, said: dict[str, Any], numbers: list[int]) -> SelfTest:
    """What the test knows after one line of the program."""
    if "fatal" in said:
        return found._replace(trouble=str(said["fatal"]))
    if "torch" in said:
        parts = [
            f"torch {said['torch']}",
            f"CUDA {said['cuda']}",
            f"NCCL {said['nccl']}",
            f"cuDNN {said['cudnn']}",
        ]
        return found._replace(torch=", ".join(parts))
    if "end" in said:
        return found._replace(trouble="")
    if said.get("name") in TITLES:
        gpus = tuple(numbers[at] for at in said["gpus"])
        one = Measurement(said["name"], gpus, said.get("value"), said.get("error", ""))
        return found._replace(measurements=(*found.measurements, one))
    return found
