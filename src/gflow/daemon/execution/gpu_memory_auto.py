"""`--gpu-memory auto`: the larger of the prediction (`--fit`) and the peak of earlier runs, plus a margin."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from gflow.core.model import Gpu, Spec
from gflow.core.scheduling.placement import gib
from gflow.daemon.context import Context
from gflow.daemon.monitors.gpu_monitor import kind_of
from gflow.errors import Refused
from gflow.store.samples import peaks_of
from gflow.wire.requests import AUTO_MIB

# GPU memory is sampled once a second, so a short peak may be missed.
LEAST_MARGIN_MIB = 512
# The result is rounded up to a multiple of this.
STEP_MIB = 256
UNKNOWN = "no earlier run of this command is known"


class Need(NamedTuple):
    """Memory on each GPU, and where the figure comes from."""

    mib: int
    origin: str


async def resolve_auto_memory(context: Context, uid: int, specs: list[Spec]) -> list[Spec]:
    """The specs with `auto` replaced by a size. The history is read in a worker thread."""
    wanted = {kind_of(uid, spec): spec for spec in specs if spec.gpu_memory_mib == AUTO_MIB}
    if not wanted:
        return specs
    try:
        peaks = await context.threads.run(uid, peaks_of, context.settings.samples, list(wanted))
    except sqlite3.Error as error:
        raise Refused(f"--gpu-memory auto: the GPU samples cannot be read: {error}") from error
    margin = context.settings.gpu.auto_margin_percent
    gpus = context.loop.state.machine.gpus.values()
    needs = {kind: need_of(spec, *peaks[kind], gpus, margin) for kind, spec in wanted.items()}
    return [
        _with(spec, needs[kind_of(uid, spec)]) if spec.gpu_memory_mib == AUTO_MIB else spec for spec in specs
    ]


def _with(spec: Spec, need: Need) -> Spec:
    return msgspec.structs.replace(spec, gpu_memory_mib=need.mib, gpu_memory_from=need.origin)


def need_of(spec: Spec, peak_mib: int, runs: int, gpus: Iterable[Gpu], margin_percent: int) -> Need:
    """The need of a job whose `runs` earlier runs used at most `peak_mib` on a GPU."""
    most_mib = max(peak_mib, spec.predicted_mib)
    if not most_mib:
        if spec.shared:
            raise Refused(
                f"--gpu-memory auto: {UNKNOWN}, so its limit cannot be computed",
                hint="give a size (--gpu-memory 20G) or a prediction (--fit), or run it once unshared",
            )
        return Need(0, f"auto: {UNKNOWN}, so any GPU will do")
    wanted = most_mib + max(LEAST_MARGIN_MIB, -(-most_mib * margin_percent // 100))
    wanted = -(-wanted // STEP_MIB) * STEP_MIB
    largest = max((gpu.memory_mib for gpu in gpus if spec.gpu_type.lower() in gpu.model.lower()), default=0)
    if most_mib <= largest < wanted:  # it fits such a card without the full margin
        wanted = largest
    return Need(wanted, f"auto: {_origin(spec, peak_mib, runs)}")


def _origin(spec: Spec, peak_mib: int, runs: int) -> str:
    of = "the earlier run" if runs == 1 else f"{runs} earlier runs"
    parts = [f"{gib(spec.predicted_mib)} were predicted"] if spec.predicted_mib else []
    parts += [f"{of} used {gib(peak_mib)} at most"] if peak_mib else []
    return ", ".join(parts)


def auto_memory_note(specs: Iterable[Spec]) -> str:
    """A note that states the chosen sizes; empty if no job asked for `auto`."""
    found = {spec.gpu_memory_from: spec.gpu_memory_mib for spec in specs if spec.gpu_memory_from}
    if len(found) > 1:
        low, high = gib(min(found.values())), gib(max(found.values()))
        return f"--gpu-memory auto: {low} to {high}; gjob show ID says why"
    for origin, mib in found.items():
        figure = f"{gib(mib)} on each GPU; " if mib else ""
        return f"--gpu-memory auto: {figure}{origin.removeprefix('auto: ')}"
    return ""
