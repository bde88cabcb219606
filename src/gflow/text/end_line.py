"""How a job ended, in words: the last line of its log, and of `gjob log` on a terminal."""

from __future__ import annotations

import signal

from gflow.core.model import Job, JobState
from gflow.core.reasons import Reason, ReasonKind
from gflow.text.table import clock

# `{after}` is the run time, `{}` the explanation of the reason.
PHRASES = {
    ReasonKind.EXIT_CODE: "exited with code {}{after}",
    ReasonKind.SIGNAL: "was killed by signal {}{after}",
    ReasonKind.OUT_OF_MEMORY: "ran out of memory{after}: {}",
    ReasonKind.GPU_MEMORY: "was killed{after} for its GPU memory: {}",
    ReasonKind.IDLE_GPUS: "was cancelled{after}: {}",
    ReasonKind.RESERVED: "was stopped{after}: {}",
    ReasonKind.START_FAILED: "could not start: {}",
    ReasonKind.DEPENDENCY_FAILED: "was cancelled: job {} did not succeed",
    ReasonKind.CANCELLED_BY_USER: "was cancelled by {}{after}",
    ReasonKind.LOST: "was lost{after}: its end was not observed",
    ReasonKind.REBOOT: "ended when the machine restarted",
}


def spell_end(job: Job, boot: float) -> str:
    """How a job ended or why it is being stopped: `timed out after 02:00:00 (limit 02:00:00)`.

    `boot`: the present time on the boot clock. A preempted job does not name the other job, which may belong
    to another user.
    """
    state, ran_s = job.stopping or job.state, job.run_s(boot)
    after = "" if ran_s is None else f" after {clock(ran_s)}"
    if state is JobState.FINISHED:
        return f"finished{after}"
    if state is JobState.TIMEOUT:
        limit = f" (limit {clock(job.spec.time_limit_s)})" if job.spec.time_limit_s else ""
        return f"timed out{after}{limit}"
    if job.reason.kind is ReasonKind.PREEMPTED:
        return f"was preempted{after}" + (f": {job.reason.detail}" if job.reason.detail else "")
    if state is JobState.CANCELLED and job.reason.kind not in PHRASES:
        return f"was cancelled{after}" if job.reason else f"was cancelled by {job.user}{after}"
    phrase = PHRASES.get(job.reason.kind, f"ended as {state.value}{{after}}" + ": {}" * bool(job.reason))
    return phrase.format(_explain(job, job.reason), after=after)


def _explain(job: Job, reason: Reason) -> str:
    if reason.kind is ReasonKind.CANCELLED_BY_USER:
        return reason.detail or job.user
    if reason.kind is ReasonKind.SIGNAL and reason.detail.isdecimal():
        name = signal.strsignal(int(reason.detail)) if int(reason.detail) < signal.NSIG else None
        return f"{reason.detail} ({name})" if name else reason.detail
    return reason.explanation if reason.kind in PHRASES else str(reason)
