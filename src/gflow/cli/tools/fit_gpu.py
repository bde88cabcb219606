"""The GPU of `gflow fit`: whether the run fits, the largest batch, and setups that would fit."""

from __future__ import annotations

from typing import Any

from gflow.errors import Refused, UsageError


def room_of(values: dict[str, Any], gpu: Any) -> int | None:
    """Bytes of the named GPU that are available to the allocator."""
    if "cap" in values:
        if gpu is not None:
            raise UsageError("--gpu or --cap, not both")
        from gflow.ml.fit.cuda.architectures import MEASURED_CONTEXT

        return int(values["cap"]) * (1 << 20) - MEASURED_CONTEXT
    if gpu is None and "largest" in values:
        raise UsageError("--largest needs a GPU", hint="--gpu A100-40GB, or --cap 24G")
    return gpu.room if gpu is not None else None


def fits(trace: Any, found: Any, room: int) -> bool:
    from gflow.ml.fit import report

    return report.fits(trace, room) if trace is not None else found.peak_reserved_bytes <= room


def largest(values: dict[str, Any], recipe: Any, card: Any, room: int) -> int:
    import msgspec

    from gflow.cli.tools.fit_model import trace_of
    from gflow.ml.fit.batch_scaling import BatchScaling
    from gflow.ml.fit.fits import largest_batch

    def record(batch: int) -> Any:
        return trace_of(values, msgspec.structs.replace(recipe, batch=batch), card)

    return largest_batch(record, room, BatchScaling(record).largest(room))


def ways(values: dict[str, Any], recipe: Any, gpu: Any) -> list[Any]:
    """Training setups with the same batch that fit, fastest first (as found by `gflow plan`)."""
    from gflow.cli.common.status_line import show_status
    from gflow.cli.tools.plan import runs_of
    from gflow.ml.fit.plan import PlanRequest, plan

    card = gpu or _card(int(values["cap"]))
    batch = recipe.batch * recipe.accumulate
    has_states = recipe.optimizer in ("Adam", "AdamW")
    request = PlanRequest(card, 1, batch, recipe.sequence, recipe.precision, has_states)
    try:
        runs = runs_of(values, recipe, card.card, request)
        with show_status("comparing training setups"):
            found = plan(runs, request)
    except Refused:
        return []
    return [found.chosen, *found.alternatives]


def _card(mib: int) -> Any:
    """A GPU of which only the memory is known; assumed to be as fast as an H100."""
    import msgspec

    from gflow.ml.fit.catalogue import find_gpu

    return msgspec.structs.replace(find_gpu("H100-80GB"), name=f"{mib / 1024:g} GiB", memory_gib=mib / 1024)
