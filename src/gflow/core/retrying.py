"""Whether a job that ended badly is tried again, and after how long a pause."""

from __future__ import annotations

from gflow.core.events import Exited
from gflow.core.ids import parse_label
from gflow.core.model import PREEMPTED, Job, JobState
from gflow.core.states import CANCELLED, FAILED, FINISHED, QUEUED, TIMEOUT

REQUEUE_CODE = 75
# Ends that are not the job's own doing.
ACCIDENTS = ("Lost", "Reboot", "NodeFail", "Preempted")
# The attempt never began: another daemon had the GPUs. It goes back and counts as nothing.
LEASED = "Leased"
# Nor did this one: the daemon or the machine was short of something. `Deferred: Too many open files`.
DEFERRED = "Deferred"
# Nor did this one: another target had it, and gave it back.
RECALLED = "Recalled"
# The longest pause that doubling leads to; whoever asks for a longer one gets that.
LONGEST_PAUSE_S = 3600


def again(job: Job, event: Exited, to: JobState) -> str:
    """Why this job goes back into the queue: `Requeued`, `Retry`, `Preempted`, or empty if it does not.

    `Leased` and `Deferred`: the attempt never began.
    """
    spec = job.spec
    if to is QUEUED:  # it made way for a job, or the cloud takes the machine away
        return "Preempted" if parse_label(job.reason.removeprefix(PREEMPTED)) else "Requeued"
    if to is CANCELLED or to is FINISHED:
        return ""
    if event.problem == LEASED:
        return LEASED
    if event.problem.startswith(DEFERRED):
        return DEFERRED
    if spec.requeue and (to is TIMEOUT or event.problem in ACCIDENTS or event.code == REQUEUE_CODE):
        return "Requeued"
    return "Retry" if job.retries < spec.max_retries and _is_wanted(spec.retry_on, event, to) else ""


def _is_wanted(kinds: tuple[str, ...], event: Exited, to: JobState) -> bool:
    """Whether an end is one of `kinds`, as --retry-on spells them. None given: any failure."""
    if not kinds:
        return to is FAILED
    return not set(kinds).isdisjoint(_kinds_of(event, to))


def _kinds_of(event: Exited, to: JobState) -> set[str]:
    """Every name that --retry-on has for this end."""
    if to is TIMEOUT:
        return {"any", "timeout"}
    kinds = {"any", "failed"}
    if event.problem.startswith("OutOfMemory"):
        kinds.add("oom")
    elif event.problem.startswith("StartFailed"):
        kinds.add("start")
    elif event.problem in ACCIDENTS or (event.code is None and event.signal is None):
        kinds |= {"lost"}
    elif event.signal is not None:
        kinds |= {"signal", f"signal:{event.signal}"}
    else:
        kinds |= {"exit", f"exit:{event.code}"}
    return kinds


def pause_s(job: Job) -> int:
    """The pause before the retry that `job.retries` counts: twice as long each time, bounded."""
    first = job.spec.retry_delay_s
    doublings = min(job.retries - 1, 32)
    return min(first << max(0, doublings), max(first, LONGEST_PAUSE_S))
