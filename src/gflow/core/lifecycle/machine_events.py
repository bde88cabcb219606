"""Events of the machine: GPUs, leases, drains, spot notices, and starts that stall.

Drain: nothing new starts, on the machine or on some GPUs, until `gctl resume`. Running jobs continue.

Spot notice: the cloud provider reclaims the machine. Running jobs are stopped within the time that is left,
and nothing new starts. Jobs with --requeue or --preemptible are requeued whatever their exit code, because
the failure is not theirs. The others end Failed, but get the time to save their work.

Stall: a start fails because the daemon or the machine lacks file descriptors, processes or memory. The job
is requeued and nothing is started for a while: 1 s after the first failure, doubled for each failure in a
row, up to 60 s.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gflow.core.effects import AddAuditEntry, Effect, Keep, Save, Stop
from gflow.core.events import Drain, GpusSeen, LeasesSeen, Reclaimed, Restrict
from gflow.core.model import LOCAL, JobState, Moment
from gflow.core.policy import DRAINED, Drained
from gflow.core.reasons import Reason, ReasonKind
from gflow.core.scheduling.scheduler import run_round
from gflow.core.state.state import State
from gflow.errors import no_gpu


def gpus_seen(state: State, event: GpusSeen, effects: list[Effect]) -> None:
    """Replace the known GPUs; save card names and faults if they changed."""
    effects += _audit_blocked(state, event)
    state.machine.blocked, state.machine.taken = dict(event.blocked), dict(event.taken)
    state.machine.gpu_trouble = event.trouble
    state.see_gpus(event.gpus)
    names = _gpu_names(state)
    if names and names != state.machine.gpu_names:
        state.machine.gpu_names = names
        effects.append(Keep("gpu_names", names))
    if event.faults is not None and event.faults != state.machine.faults:
        state.machine.faults = dict(event.faults)
        effects.append(Keep("gpu_faults", msgspec.json.encode(state.machine.faults).decode()))
    run_round(state, event.at, effects)


def _audit_blocked(state: State, event: GpusSeen) -> Iterator[Effect]:
    """An audit entry for every GPU that became blocked, or available."""
    for index in sorted({*state.machine.blocked, *event.blocked}):
        was, now = state.machine.blocked.get(index), event.blocked.get(index)
        if (was and was.kind) != (now and now.kind):
            yield AddAuditEntry(None, "gpu", f"GPU {index}: {now or 'available'}")


def _gpu_names(state: State) -> str:
    """Map each GPU index to a card: `0=GPU-…`, or `4=MIG-…@GPU-…` for a slice of a card.

    Stored for the next daemon: the driver may renumber cards while a job runs, and a card that a job holds
    may be invisible at the moment.
    """
    names = {
        gpu.index: f"{gpu.index}={gpu.uuid}" + (f"@{gpu.parent}" if gpu.parent else "")
        for gpu in state.machine.gpus.values()
        if not gpu.simulated
    }
    for part in filter(None, state.machine.gpu_names.split(",")):
        index = int(part.partition("=")[0])
        if index in state.machine.holders:
            names.setdefault(index, part)
    return ",".join(names[index] for index in sorted(names))


def leases_seen(state: State, event: LeasesSeen, effects: list[Effect]) -> None:
    """Replace the list of GPUs that other daemons have leased."""
    state.machine.foreign = dict(event.foreign)
    state.machine.recount()
    run_round(state, event.at, effects)


def restrict(state: State, event: Restrict, effects: list[Effect]) -> None:
    """Restrict new jobs to some GPUs (`gctl set-gpus`). It overrides the daemon's own option."""
    if event.allowed is not None and (unknown := sorted(set(event.allowed) - set(state.machine.gpus))):
        raise no_gpu(unknown[0])
    state.machine.restrict(None if event.allowed is None else frozenset(event.allowed))
    state.policy = msgspec.structs.replace(state.policy, gpus_win=False)  # the later setting wins
    value = "all" if event.allowed is None else ",".join(map(str, sorted(event.allowed)))
    effects.append(Keep("allowed_gpus", value))
    run_round(state, event.at, effects)


def drain(state: State, event: Drain, effects: list[Effect]) -> None:
    """Drain or resume the machine or some GPUs. A drain for a shutdown (`passing`) is not saved."""
    if unknown := sorted(set(event.gpus or ()) - set(state.machine.gpus)):
        raise no_gpu(unknown[0])
    if event.passing:
        state.machine.leaving = event.on
    else:
        if not event.on and event.gpus is None:  # also clears a shutdown or a spot notice that did not happen
            state.machine.leaving, state.machine.reclaimed = False, ""
        state.machine.drained = _apply_drain(state.machine.drained, event)
        effects.append(Keep(DRAINED, msgspec.json.encode(state.machine.drained).decode()))
        state.machine.recount()
    run_round(state, event.at, effects)


def _apply_drain(old: Drained, event: Drain) -> Drained:
    if event.gpus is None:  # GPUs that were drained by index stay so
        return Drained(everything=event.reason if event.on else None, gpus=old.gpus)
    gpus = {index: why for index, why in old.gpus.items() if index not in event.gpus}
    if event.on:
        gpus |= dict.fromkeys(event.gpus, event.reason)
    return Drained(everything=old.everything, gpus=gpus)


# Seconds of the notice kept back to record how jobs ended.
SPARE_S = 5.0
LEAST_GRACE_S = 2


def reclaimed(state: State, event: Reclaimed, effects: list[Effect]) -> None:
    """Handle a spot notice; with an empty `why`, its withdrawal."""
    state.machine.reclaimed = event.why
    if event.why:
        effects.append(AddAuditEntry(None, "spot notice", event.why))
        # 0: the notice has no deadline, so each job gets its own grace time.
        grace_s = 0 if event.left_s is None else max(LEAST_GRACE_S, int(event.left_s - SPARE_S))
        for _, job in sorted(state.running.items()):  # sorted: the same order after a restart
            if job.target != LOCAL or job.stopping is not None:
                continue
            goes_back = job.spec.requeue or job.spec.preemptible
            job.stopping = JobState.QUEUED if goes_back else JobState.FAILED
            job.reason = Reason(ReasonKind.PREEMPTED, event.why)
            state.running.note_stop(job)
            note = AddAuditEntry(job.key, "preempted", event.why)
            effects += (Save(job), note, Stop(job.key, job.attempt, grace_s=grace_s))
    else:
        effects.append(AddAuditEntry(None, "spot notice", "withdrawn"))
    run_round(state, event.at, effects)


FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


def stall(state: State, why: str, at: Moment) -> None:
    """Suspend starts after one failed for lack of a resource of the daemon or the machine."""
    machine = state.machine
    if not machine.stalled:  # starts that fail together count as one failure
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(machine.stalls, 16))
        machine.stalls += 1
        state.deadlines.resume_at = at.boot + pause_s
    machine.stalled = why


def resume_due(state: State, at: Moment) -> bool:
    """Resume starts if the pause has ended; return whether it ended with this call."""
    due = state.deadlines.resume_at
    if due is None or due > at.boot:
        return False
    state.deadlines.resume_at = None
    state.machine.stalled = ""
    return True
