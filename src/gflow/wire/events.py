"""Event names of the API and of notifications, by kind of audit entry.

An entry may have several names: its own, and general ones for clients that follow only states, GPUs or
memory.
"""

from __future__ import annotations

from gflow.core.model import AuditEntry, Job
from gflow.core.reasons import ReasonKind, parse
from gflow.job_states import ATTEMPT_ENDED, GROUP_EVENTS, LISTED, WAITING, JobState

# By `AuditEntry.what`. The first name is the one that notifications use.
NAMES: dict[str, tuple[str, ...]] = {
    "submitted": ("job_submitted",),
    "updated": ("job_updated",),
    **{what: names for state in LISTED for what, names in state.row.events.items()},
    "cancel": ("job_cancel_asked",),
    "warned": ("job_warned",),
    "time limit": ("job_time_limit",),
    "gpu memory": ("job_gpu_memory",),
    "gpus idle": ("job_gpu_idle",),
    "gpus used again": ("job_gpu_used",),
    "idle limit": ("job_idle_limit",),
    "early stop": ("job_early_stop",),
    "group failure": GROUP_EVENTS[:1],
    "group ended": GROUP_EVENTS[1:],
    "reserved": ("job_reserved",),
    "progress": ("job_progress",),
    "gpu": ("gpu_availability_changed",),
    "allowed_gpus": ("manual_gpu_override_changed", "gpu_availability_changed"),
    "drained": ("drain_changed",),
    "spot notice": ("drain_changed",),
    "gpu_faults": ("gpu_health_changed", "gpu_availability_changed"),
    "reservation created": ("reservation_created",),
    "reservation changed": ("reservation_changed",),
    "reservation cancelled": ("reservation_cancelled",),
    "daemon started": ("daemon_started",),
    "notification failed": ("notification_failed",),
}
# Entries after which a job holds more or fewer resources.
MOVES = frozenset(
    what
    for state in JobState
    for what, names in state.row.events.items()
    if state not in WAITING or ATTEMPT_ENDED in names
)
# All event names, for filters.
EVENTS = tuple(
    dict.fromkeys(
        [name for names in NAMES.values() for name in names]
        + ["memory_availability_changed", "zombie_job_detected"]
    )
)


def names_of(line: AuditEntry, job: Job | None) -> tuple[str, ...]:
    """The names of the events of an entry; empty if the entry is internal."""
    names = NAMES.get(line.what, ())
    if job is None or line.what not in MOVES:
        return names
    if job.attempt and job.spec.gpus:
        names += ("gpu_availability_changed",)
    if job.attempt and job.spec.memory_mib:
        names += ("memory_availability_changed",)
    if line.what == "failed" and parse(line.detail).kind is ReasonKind.LOST:
        names += ("zombie_job_detected",)
    return names


# Event names of notifications, by `AuditEntry.what`.
NOTIFICATION_EVENTS = {
    what: names[0] for what, names in NAMES.items() if names[0].startswith(("job_", "group_"))
} | {
    "daemon started": "scheduler_online",
    "gpu": "gpu_available",
    "reservation created": "reservation_created",
    "reservation cancelled": "reservation_cancelled",
}
NOTIFICATION_NAMES = tuple(NOTIFICATION_EVENTS.values())
# The state of a job after an entry, by `AuditEntry.what`.
LEADS_TO = {"submitted": JobState.QUEUED.value} | {
    what: state.value for state in JobState for what in state.row.events
}


def notification_event(line: AuditEntry) -> str | None:
    """The event name of an entry for notifications; None if none is sent."""
    if line.what == "gpu" and not line.detail.endswith(": available"):
        return None
    return NOTIFICATION_EVENTS.get(line.what)
