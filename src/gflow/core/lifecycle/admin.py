"""Quotas and GPU reservations, as operators set them."""

from __future__ import annotations

import msgspec

from gflow.core.effects import AddAuditEntry, Effect, Keep
from gflow.core.events import ChangeReservation, Reserve, SetQuota, Unreserve
from gflow.core.model import Moment
from gflow.core.scheduling.eviction import jobs_to_evict
from gflow.core.scheduling.scheduler import run_round
from gflow.core.state.reservations import Reservation, choose_gpus
from gflow.core.state.state import State
from gflow.errors import Hint, NotFound, Refused

# Names of the stored settings.
QUOTAS, RESERVATIONS = "quotas", "reservations"


def set_quota(state: State, event: SetQuota, effects: list[Effect]) -> None:
    """Set or remove the quota of a user or a project. A quota from gflow.toml can only be overridden."""
    usage = state.accounting.quota_usage
    if event.limits is None and event.name not in usage.said.named(event.scope):
        whose = f"{event.scope} {event.name!a}" if event.name else f"every {event.scope}"
        if event.name in usage.given.named(event.scope):
            hint = Hint("override_quota", "change it there and restart the daemon, or set another quota")
            raise Refused(f"the quota for {whose} is in gflow.toml", hint=hint)
        raise NotFound(f"there is no quota for {whose}", hint=Hint("list_quotas", "see the list of quotas"))
    usage.say(usage.said.changed(event.scope, event.name, event.limits))
    effects.append(Keep(QUOTAS, msgspec.json.encode(usage.said).decode()))
    run_round(state, event.at, effects)


def reserve(state: State, event: Reserve, effects: list[Effect]) -> None:
    """Create a GPU reservation."""
    _put(state, "created", plan_reservation(state, event), event.at, effects)


def plan_reservation(state: State, event: Reserve) -> Reservation:
    """The reservation that the event makes. With a count, prefers GPUs that need no eviction."""
    _check_end(event.end, event.at)
    span, known = (event.start, event.end), state.machine.gpus
    occupied = {gpu for gpu in known if jobs_to_evict(state, event.user, (gpu,), event.start, event.at)}
    gpus = choose_gpus(state.reserved, known, event.gpus, event.count, span, occupied)
    number = max(state.reserved.all, default=0) + 1
    return Reservation(number, event.user, gpus, event.start, event.end, event.at.wall)


def change_reservation(state: State, event: ChangeReservation, effects: list[Effect]) -> None:
    """Move a GPU reservation that is not over to another time span or to other GPUs."""
    _put(state, "changed", plan_change(state, event), event.at, effects)


def plan_change(state: State, event: ChangeReservation) -> Reservation:
    """The reservation as the event changes it."""
    found = _unfinished(state, event.id, event.at)
    _check_end(event.end, event.at)
    span = (event.start, event.end)
    gpus = choose_gpus(state.reserved, state.machine.gpus, event.gpus, 0, span, besides=found.id)
    return msgspec.structs.replace(found, gpus=gpus, start=event.start, end=event.end)


def unreserve(state: State, event: Unreserve, effects: list[Effect]) -> None:
    """Cancel a GPU reservation that is not over."""
    found = _unfinished(state, event.id, event.at)
    ended = msgspec.structs.replace(found, cancelled_at=event.at.wall)
    _put(state, "cancelled", ended, event.at, effects)


def _unfinished(state: State, number: int, at: Moment) -> Reservation:
    found = state.reserved.all.get(number)
    if found is None:
        hint = Hint("list_reservations", "see the list of reservations")
        raise NotFound(f"there is no reservation {number}", hint=hint)
    if found.is_over(at.wall):
        raise Refused(f"reservation {number} is over already")
    return found


def _check_end(end: float, at: Moment) -> None:
    if end <= at.wall:
        raise Refused("that time is over already", hint=Hint("reserve_later", "give a later start or end"))


def _put(state: State, what: str, one: Reservation, at: Moment, effects: list[Effect]) -> None:
    state.reserved.put(one, at.wall)
    effects += (_audit_reservation(what, one), Keep(RESERVATIONS, state.reserved.record()))
    run_round(state, at, effects)


def _audit_reservation(what: str, reservation: Reservation) -> AddAuditEntry:
    """The audit entry. It omits the user name, because every listener receives it."""
    gpus = ",".join(map(str, reservation.gpus))
    return AddAuditEntry(None, f"reservation {what}", f"reservation {reservation.id} of GPU {gpus}")
