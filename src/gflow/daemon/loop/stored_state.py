"""The engine's state in the store: the changes that a commit saves, and the state rebuilt from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec

from gflow.core.effects import Accepted, AddAuditEntry, Effect, Keep, Ran, Save, Staged, SubmissionArrived
from gflow.core.lifecycle.admin import QUOTAS, RESERVATIONS
from gflow.core.model import AuditEntry, Moment
from gflow.core.policy import DRAINED, Drained
from gflow.core.queries.audit_log import FEW, group_entries
from gflow.core.state.eta_calibration import ETA_CALIBRATION
from gflow.core.state.fair_share import FAIR_SHARE
from gflow.core.state.quotas import Quotas
from gflow.core.state.state import State, restore
from gflow.daemon.loop import timers
from gflow.daemon.loop.bulk_actions import claimed_by
from gflow.errors import StoreError
from gflow.store.open import WAY_OUT
from gflow.store.port import Changes, Store

log = logging.getLogger("gflow.loop")


def gather(changes: Changes, effects: list[Effect], uid: int | None, origin: str, at: Moment) -> None:
    """Add to the commit the effects that must be durable."""
    lines: list[AuditEntry] = []
    for effect in effects:
        if isinstance(effect, Save):
            changes.jobs[effect.job.key] = effect.job
        elif isinstance(effect, AddAuditEntry):
            who, where = (uid, origin) if effect.is_personal else (None, "daemon")
            if effect.origin:
                who, where = effect.uid, effect.origin
            lines.append(AuditEntry(at.wall, effect.key, who, where, effect.what, effect.detail))
        elif isinstance(effect, Ran):
            changes.attempts.append(effect)
        elif isinstance(effect, Staged):
            changes.staged.append(effect.job)
        elif isinstance(effect, SubmissionArrived):
            changes.bulk[effect.first] = None
        elif isinstance(effect, Accepted):
            changes.new.update(effect.keys)
        elif isinstance(effect, Keep):
            changes.meta[effect.name] = effect.value
            lines.append(AuditEntry(at.wall, None, uid, origin, effect.name, effect.value))
    changes.audit += group_entries(lines) if len(lines) > FEW else lines


def keep_counts(changes: Changes, state: State) -> None:
    """Add the engine's counters to the commit. They get no audit entry: no user caused them."""
    if changes.new or changes.bulk:
        changes.meta["next_number"] = state.jobs.next_number
    if state.accounting.fair_share.changed:
        changes.meta[FAIR_SHARE] = state.accounting.fair_share.record()
    if state.eta_calibration.is_changed:
        changes.meta[ETA_CALIBRATION] = state.eta_calibration.text()
    if state.groups.changed or state.groups.dropped:
        state.groups.save(changes.meta, changes.dropped)


def reload(old: State, store: Store) -> State:
    """Rebuild the state from the store, for the same machine."""
    state = State(cpus=old.machine.cpus, memory_mib=old.machine.memory_mib, policy=old.policy)
    state.part = old.part
    loaded = store.load()
    allowed = loaded.meta.get("allowed_gpus")
    if allowed is not None and not old.policy.gpus_win:
        chosen = frozenset(int(index) for index in str(allowed).split(",") if index.isdecimal())
        state.machine.allowed = None if allowed == "all" else chosen
    _restore_decisions(state, loaded.meta)
    _restore_counts(state, loaded.meta)
    restore(
        state,
        loaded.jobs,
        loaded.outcomes,
        loaded.recent,
        loaded.next_number,
        timers.now(),
        loaded.finished,
    )
    state.groups.prune(state.jobs)
    state.claimed = claimed_by(loaded.bulk)
    state.machine.foreign, state.machine.freed_at = old.machine.foreign, old.machine.freed_at
    state.machine.blocked, state.machine.taken, state.machine.gpu_trouble = (
        old.machine.blocked,
        old.machine.taken,
        old.machine.gpu_trouble,
    )
    state.machine.gpu_names = str(loaded.meta.get("gpu_names", ""))
    state.machine.leaving, state.machine.reclaimed = old.machine.leaving, old.machine.reclaimed
    state.machine.most_runs, state.deadlines.resume_at = old.machine.most_runs, old.deadlines.resume_at
    state.machine.stalled, state.machine.stalls = old.machine.stalled, old.machine.stalls
    state.running.unused = {key: idle for key, idle in old.running.unused.items() if key in state.jobs}
    state.running.stuck = {key: detail for key, detail in old.running.stuck.items() if key in state.jobs}
    state.see_gpus(old.machine.gpus.values())
    for key, job in old.jobs.items():  # progress that was reported since the last commit
        if job.progress_report is not None and key in state.jobs and state.jobs[key].attempt == job.attempt:
            state.jobs[key].progress_report = job.progress_report
    return state


def _restore_decisions(state: State, meta: Mapping[str, str | int]) -> None:
    """Restore decisions of operators and recorded GPU faults. Nothing may start without them."""

    def set_faults(text: str) -> None:
        state.machine.faults = msgspec.json.decode(text, type=dict[str, str])

    def set_drained(text: str) -> None:
        state.machine.drained = msgspec.json.decode(text, type=Drained)

    readers: dict[str, Callable[[str], None]] = {
        DRAINED: set_drained,
        QUOTAS: lambda text: state.accounting.quota_usage.say(msgspec.json.decode(text, type=Quotas)),
        RESERVATIONS: state.reserved.load,
        "gpu_faults": set_faults,
    }
    for name, read in readers.items():
        try:
            if name in meta:
                read(str(meta[name]))
        except msgspec.MsgspecError as error:
            raise StoreError(
                f"the record {name!a} in the database is damaged: {error}", hint=WAY_OUT
            ) from error


def _restore_counts(state: State, meta: Mapping[str, str | int]) -> None:
    """Restore counters. A record that cannot be read starts from zero: no job depends on it."""
    state.groups.load(meta)
    for name, read in (
        (FAIR_SHARE, state.accounting.fair_share.load),
        (ETA_CALIBRATION, state.eta_calibration.load),
    ):
        try:
            if name in meta:
                read(str(meta[name]))
        except msgspec.MsgspecError as error:
            log.warning("the record %s in the database cannot be read and starts from zero: %s", name, error)
