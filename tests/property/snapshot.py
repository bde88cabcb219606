"""The complete engine state in one comparable form: a restart must restore it exactly."""

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
            key: (wait.unmet, wait.any_of, wait.others, wait.broken is not None)
            for key, wait in state.dependencies.waits.items()
        },
        "names": state.jobs.names,
        "arriving": state.arriving,
        "claimed": state.claimed,
        "staged": {first: (one.count, one.jobs) for first, one in state.open.items()},
        "people": state.accounting.active_jobs,
        "quota_usage": (
            state.accounting.quota_usage.users,
            state.accounting.quota_usage.projects,
            state.accounting.quota_usage.bytes,
            state.accounting.quota_usage.links,
        ),
        "later": state.deadlines.later,
        "pending_handover": state.remote.pending,
        "remote": state.remote.jobs,
        "children": {
            parent: state.dependencies.children_of(parent) for parent in state.dependencies.children
        },
        "tasks": state.jobs.tasks,
        "holders": state.machine.holders,
        "idle": state.machine.idle,
        "open": state.machine.open,
        "free": (state.machine.free_cpus, state.machine.free_memory_mib),
        "groups": state.accounting.group_running,
        "group members": state.groups.active,
        "group tallies": state.groups.tallies,
        "judged rules": (state.groups.judged, state.groups.values),
        "recent": {uid: list(keys) for uid, keys in state.jobs.recent.items()},
        "next number": state.jobs.next_number,
        "allowed": state.machine.allowed,
        "drained": state.machine.drained,
        "foreign": state.machine.foreign,
        "gpus": state.machine.gpus,
        "faults": state.machine.faults,
        "shares": {
            uid: (use.seconds, use.at, use.gpus, use.cpus, use.memory_mib)
            for uid, use in state.accounting.fair_share.uses.items()
        },
        "eta_calibration": state.eta_calibration.record,
        "lengths": {
            (kind, span): batch.ended
            for kind, spans in state.runtime_estimates.kinds.items()
            for span, batch in spans.items()
            if batch.ended
        },
        "running": state.running,
        "unused": state.running.unused,
        "next limit": state.deadlines.next_limit(),
        "next warning": state.deadlines.next_warning(),
        "next begin": state.deadlines.next_begin(),
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
