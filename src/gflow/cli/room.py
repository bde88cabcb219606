"""The card of `gflow fit`: whether the run fits there, how large the batch may be, what would make it fit."""

from __future__ import annotations

from typing import Any

from gflow.errors import Refused, UsageError


def room_of(values: dict[str, Any], gpu: Any) -> int | None:
    """What the allocator gets of the named card."""
    if "cap" in values:
        if gpu is not None:
            raise UsageError("--gpu or --cap, not both")
        from gflow.fit.cards import MEASURED_CONTEXT

        return int(values["cap"]) * (1 << 20) - MEASURED_CONTEXT
    if gpu is None and "largest" in values:
        raise UsageError("--largest needs a card", hint="--gpu A100-40GB, or --cap 24G")
    return gpu.room if gpu is not None else None


def fits(tape: Any, found: Any, room: int) -> bool:
    from gflow.fit import answer

    return answer.fits(tape, room) if tape is not None else found.peak_reserved_bytes <= room


def largest(values: dict[str, Any], recipe: Any, card: Any, room: int) -> int:
    import msgspec

    from gflow.cli.fit_model import tape_of
    from gflow.fit.stretching import Stretched
    from gflow.fit.verdict import largest_batch

    def record(batch: int) -> Any:
        return tape_of(values, msgspec.structs.replace(recipe, batch=batch), card)

    return largest_batch(record, room, Stretched(record).largest(room))


def ways(values: dict[str, Any], recipe: Any, gpu: Any) -> list[Any]:
    """Ways to train with the same batch that fit there, the fastest first (as `gflow plan` finds them)."""
    from gflow.cli.plan import runs_of
    from gflow.cli.progress import shown
    from gflow.fit.planning import Wish, plan

    card = gpu or _card(int(values["cap"]))
    batch = recipe.batch * recipe.accumulate
    has_states = recipe.optimizer in ("Adam", "AdamW")
    wish = Wish(card, 1, batch, recipe.sequence, recipe.precision, has_states)
    try:
        runs = runs_of(values, recipe, card.card, wish)
        with shown("trying ways to train"):
            found = plan(runs, wish)
    except Refused:
        return []
    return [found.chosen, *found.alternatives]


def _card(mib: int) -> Any:
    """A card of which only the memory is known, taken to be as fast as an H100."""
    import msgspec

    from gflow.fit.catalogue import named

    return msgspec.structs.replace(named("H100-80GB"), name=f"{mib / 1024:g} GiB", memory_gib=mib / 1024)
