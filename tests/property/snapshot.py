"""All that a state knows, in one comparable form: what a restart must bring back exactly."""

from __future__ import annotations

from typing import Any

from gflow.core.state.state import State


def snapshot(state: State) -> dict[str, Any]:
    """For comparing at once: it shares what the state goes on changing.

    Lazy heaps are compared by what they answer, everything else by content.
    """
    return {
        "jobs": state.jobs,
        "ready": {key: (group.head(), group.members) for key, group in state.ready.groups.items()},
        "ready size": len(state.ready),
        "waits": {
            key: (wait.unmet, wait.any_of, wait.broken is not None) for key, wait in state.waits.items()
        },
        "arriving": state.arriving,
        "claimed": state.claimed,
        "staged": {first: (one.count, one.jobs) for first, one in state.open.items()},
        "people": state.of_person,
        "ledger": (state.ledger.users, state.ledger.projects, state.ledger.bytes, state.ledger.links),
        "later": state.later,
        "outbound": state.outbound,
        "abroad": state.abroad,
        "children": {parent: state.children_of(parent) for parent in state.children},
        "tasks": state.tasks,
        "holders": state.machine.holders,
        "idle": state.machine.idle,
        "open": state.machine.open,
        "free": (state.machine.free_cpus, state.machine.free_memory_mib),
        "groups": state.group_running,
        "recent": {uid: list(keys) for uid, keys in state.recent.items()},
        "next number": state.next_number,
        "allowed": state.machine.allowed,
        "drained": state.machine.drained,
        "foreign": state.machine.foreign,
        "gpus": state.machine.gpus,
        "faults": state.machine.faults,
        "shares": {uid: (use.seconds, use.at, use.gpus) for uid, use in state.shares.uses.items()},
        "foretold": state.foretold.record,
        "lengths": {
            (kind, span): batch.ended
            for kind, spans in state.history.kinds.items()
            for span, batch in spans.items()
            if batch.ended
        },
        "running": state.running,
        "unused": state.unused,
        "next limit": state.alarms.next_limit(),
        "next warning": state.alarms.next_warning(),
        "next begin": state.alarms.next_begin(),
    }


def assert_same(one: State, other: State, what: str) -> None:
    """Equal in every respect; the message names those that differ."""
    first, second = snapshot(one), snapshot(other)
    different = {
        name: _only_different(first[name], second[name]) for name in first if first[name] != second[name]
    }
    assert not different, f"{what}: {different}"


def _only_different(one: Any, other: Any) -> Any:
    if not isinstance(one, dict):
        return one, other
    return {key: (one.get(key), other.get(key)) for key in {**one, **other} if one.get(key) != other.get(key)}
