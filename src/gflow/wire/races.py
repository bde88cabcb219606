"""Races: `--race local:n1_gpu2,slurm:n4_gpu1` becomes a cluster and shapes without its name."""

from __future__ import annotations

from typing import Any

from gflow.core.model import LOCAL_PREFIX
from gflow.errors import UsageError
from gflow.options.node_shape import parse_shape

# The cluster of a race that names none.
USUAL = "slurm"
HINT = "gbatch --race local:n1_gpu2,n4_gpu1 …"


def resolve_race(fields: dict[str, Any]) -> None:
    """Resolve a race with target names: set `on` to its cluster, and strip the names from `race`.

    The shape of this machine (`local:`) also sets `gpus`.
    """
    race: tuple[str, ...] = fields.get("race", ())
    here = [shape for shape in race if shape.startswith(LOCAL_PREFIX)]
    named = {shape.rpartition(":")[0] for shape in race if ":" in shape and shape not in here}
    if not here and not named:
        return
    named |= {fields["on"]} if fields.get("on") else set()
    if len(named) > 1:
        raise UsageError(f"a race can use one cluster only, not {' and '.join(sorted(named))}", hint=HINT)
    there = [shape.rpartition(":")[2] for shape in race if shape not in here]
    if not there or len(here) > 1:
        raise UsageError("a race with this machine takes one shape of it, and others of a cluster", hint=HINT)
    fields["race"] = (*here, *there)
    fields["on"] = min(named, default=USUAL)
    if here:
        _, gpus = parse_shape(here[0].removeprefix(LOCAL_PREFIX))
        if fields.get("gpus", gpus) != gpus:
            raise UsageError(f"--gpus {fields['gpus']} and {here[0]} are contradictory", hint=HINT)
        fields["gpus"] = gpus
