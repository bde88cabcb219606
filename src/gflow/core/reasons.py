"""Reasons as data: why a job waits, is being stopped or has ended, and what a target reports about a run.

The engine decides by the kind of a reason. Its text is rendered here and nowhere else. The database, the API
and the shims carry the text; `parse` reads it where it enters the daemon.
"""

from __future__ import annotations

import enum

import msgspec

from gflow.core.ids import JobKey, label, parse_label


class ReasonKind(enum.Enum):
    """The kinds of reasons, with the code that begins their text."""

    NONE = ""
    # The job waits.
    HELD = "JobHeldUser"
    REQUEUE_LOOP = "RequeueLoop"
    REQUEUED = "Requeued"
    RETRY = "Retry"
    # It runs, or is being stopped. Preempted is also an end that another target reports.
    WARNED = "Warned"
    PREEMPTED = "Preempted"
    RESERVED = "Reservation"
    IDLE_GPUS = "IdleGPU"
    GPU_MEMORY = "GpuMemory"
    STOPPED_EARLY = "StoppedEarly"
    # It has ended.
    TIME_LIMIT = "TimeLimit"
    CANCELLED_BY_USER = "CancelledByUser"
    CANCELLED_THERE = "CancelledThere"
    EXIT_CODE = "ExitCode"
    SIGNAL = "Signal"
    OUT_OF_MEMORY = "OutOfMemory"
    START_FAILED = "StartFailed"
    LOST = "Lost"
    REBOOT = "Reboot"
    NODE_FAIL = "NodeFail"
    DEPENDENCY_FAILED = "DependencyFailed"
    TASKS_FAILED = "TasksFailed"
    TASKS_CANCELLED = "TasksCancelled"
    # The attempt never began: another daemon had leased the GPUs; the daemon or the machine lacked a
    # resource, as in `Deferred: Too many open files`; the job was withdrawn from another target.
    LEASED = "Leased"
    DEFERRED = "Deferred"
    WITHDRAWN = "Recalled"
    # Any other text, such as the reason that Slurm gives. The detail is all of it.
    OTHER = "Other"

    # Members are singletons, so identity suffices. The hash of Enum is written in Python and slow.
    __hash__ = object.__hash__


# A dictionary, because the attribute `value` of an enum is slow, and every saved job is rendered.
_CODES = {kind: kind.value for kind in ReasonKind}
# Kinds that have a detail, and the text between the code and the detail.
_SEPARATORS = dict.fromkeys(
    (
        ReasonKind.PREEMPTED,
        ReasonKind.RESERVED,
        ReasonKind.IDLE_GPUS,
        ReasonKind.GPU_MEMORY,
        ReasonKind.CANCELLED_BY_USER,
        ReasonKind.STOPPED_EARLY,
        ReasonKind.OUT_OF_MEMORY,
        ReasonKind.START_FAILED,
        ReasonKind.DEFERRED,
    ),
    ": ",
) | dict.fromkeys(
    (
        ReasonKind.EXIT_CODE,
        ReasonKind.SIGNAL,
        ReasonKind.DEPENDENCY_FAILED,
        ReasonKind.TASKS_FAILED,
        ReasonKind.TASKS_CANCELLED,
    ),
    ":",
)
# Kinds whose detail may be the id of another job.
_NAMING_JOBS = frozenset({ReasonKind.PREEMPTED, ReasonKind.DEPENDENCY_FAILED})


class Reason(msgspec.Struct, frozen=True, gc=False):
    """A reason: its kind, a detail for users, and the other job that it is about (0: none)."""

    kind: ReasonKind
    detail: str = ""
    job: JobKey = JobKey(0)

    def __bool__(self) -> bool:
        return self.kind is not NO_REASON.kind

    def __str__(self) -> str:
        """The text that the database, the API and users get; empty if there is no reason."""
        kind = self.kind
        detail = label(self.job) if self.job else self.detail
        if not detail:
            return _CODES[kind]
        return detail if kind is ReasonKind.OTHER else f"{_CODES[kind]}{_SEPARATORS[kind]}{detail}"

    @property
    def code(self) -> str:
        """The part of the text that programs compare."""
        return self.detail.partition(": ")[0] if self.kind is ReasonKind.OTHER else self.kind.value

    @property
    def explanation(self) -> str:
        """The part of the text after the code."""
        if self.kind is ReasonKind.OTHER:
            return self.detail.partition(": ")[2]
        return label(self.job) if self.job else self.detail


_PLAIN = {kind.value: Reason(kind) for kind in ReasonKind if kind is not ReasonKind.OTHER}
_DETAILED = {kind.value: kind for kind in _SEPARATORS}

NO_REASON = Reason(ReasonKind.NONE)
HELD = Reason(ReasonKind.HELD)
REQUEUED = Reason(ReasonKind.REQUEUED)
RETRY = Reason(ReasonKind.RETRY)
WARNED = Reason(ReasonKind.WARNED)
PREEMPTED = Reason(ReasonKind.PREEMPTED)
TIME_LIMIT = Reason(ReasonKind.TIME_LIMIT)
CANCELLED_BY_USER = Reason(ReasonKind.CANCELLED_BY_USER)
LOST = Reason(ReasonKind.LOST)
LEASED = Reason(ReasonKind.LEASED)
DEFERRED = Reason(ReasonKind.DEFERRED)
WITHDRAWN = Reason(ReasonKind.WITHDRAWN)


def parse(text: str) -> Reason:
    """Read a reason from its text. A text that is none of ours becomes the detail of kind OTHER."""
    plain = _PLAIN.get(text)
    if plain is not None:
        return plain
    code = text.partition(":")[0]
    kind = _DETAILED.get(code)
    if kind is None or not text.startswith(_SEPARATORS[kind], len(code)):
        return Reason(ReasonKind.OTHER, text)
    detail = text[len(code) + len(_SEPARATORS[kind]) :]
    job = parse_label(detail) if kind in _NAMING_JOBS else None
    if job and label(job) == detail:
        return Reason(kind, job=job)
    return Reason(kind, detail)
