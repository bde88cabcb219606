"""The table of job states, one row each. Listings, events, metrics, statistics and the API derive from it.

A module that is on the path of a plain `gbatch` or `gqueue` must not import it: `enum` is slow to load.
"""

from __future__ import annotations

import enum

# Phases of a job, in the order of listings.
RUNS, WAITS, ENDED = range(3)
# Events for clients that follow only changes of state, or only ends of attempts.
CHANGED = "job_state_changed"
ATTEMPT_ENDED = "job_execution_finished"


class StateRow:
    """The declaration of a job state.

    name: the name in the database, in JSON and on the command line.
    short: the short name in listings, from squeue.
    style: the colour in listings, as parameters of the SGR escape sequence.
    phase: RUNS, WAITS or ENDED. The database check of a job's times depends on it.
    about: the help text of its metric: a counter of ended jobs, a gauge of others.
    events: event names by audit entry, for each entry after which a job has this state. The first entry and
        its first name stand for the state: `--notify-on` takes that name.
    metric: the name of its metric, without prefix; by default the name of the state.
    figure: the figure of `gstats` that counts such jobs, a field of `Usage`; by default the name.
    alias: a second name for `gqueue -s`.
    exit_code: the exit code of a command that represents such a job; None: that of the job.
    """

    def __init__(
        self,
        name: str,
        short: str,
        style: str,
        phase: int,
        about: str,
        events: dict[str, tuple[str, ...]],
        *,
        metric: str = "",
        figure: str = "",
        alias: str = "",
        exit_code: int | None = None,
    ) -> None:
        self.name = name
        self.short = short
        self.style = style
        self.phase = phase
        self.about = about
        self.events = events
        self.metric = metric or name.lower()
        self.figure = figure or name.lower()
        self.alias = alias
        self.exit_code = exit_code
        self.entry = next(iter(events))
        self.event = events[self.entry][0]


class JobState(enum.Enum):
    """The states of a job. Anything finer is a reason. `core.transitions` has the transitions."""

    _value_: str
    row: StateRow

    QUEUED = StateRow(
        "Queued", "PD", "3", WAITS, "Waiting jobs; an array counts once.",
        {
            "released": ("job_released", CHANGED),
            "retry": ("job_retried", CHANGED, ATTEMPT_ENDED),
            "requeued": ("job_requeued", CHANGED, ATTEMPT_ENDED),
        },
        alias="pending",
    )  # fmt: skip
    HOLD = StateRow(
        "Hold", "H", "1", WAITS, "Held jobs.",
        {"held": ("job_held", CHANGED)}, metric="held", figure="queued", alias="held",
    )  # fmt: skip
    RUNNING = StateRow(
        "Running", "R", "1;32", RUNS, "Jobs and tasks of arrays that run.",
        {"started": ("job_started", CHANGED)},
    )  # fmt: skip
    FINISHED = StateRow(
        "Finished", "CD", "2", ENDED, "Jobs that finished with exit code 0.",
        {"finished": ("job_completed", CHANGED, ATTEMPT_ENDED)}, figure="completed", alias="completed",
    )  # fmt: skip
    FAILED = StateRow(
        "Failed", "F", "1;31", ENDED, "Failed jobs.",
        {"failed": ("job_failed", CHANGED, ATTEMPT_ENDED)},
    )  # fmt: skip
    CANCELLED = StateRow(
        "Cancelled", "CA", "9", ENDED, "Cancelled jobs.",
        {"cancelled": ("job_cancelled", CHANGED)}, exit_code=130,
    )  # fmt: skip
    TIMEOUT = StateRow(
        "Timeout", "TO", "4;31", ENDED, "Jobs that reached their time limit.",
        {"timeout": ("job_timeout", "job_timed_out", CHANGED, ATTEMPT_ENDED)}, exit_code=124,
    )  # fmt: skip

    def __new__(cls, row: StateRow) -> JobState:
        state = object.__new__(cls)
        state._value_ = row.name
        state.row = row
        return state

    # Members are singletons, so identity suffices. The hash of Enum is written in Python and slow.
    __hash__ = object.__hash__


WAITING = frozenset(state for state in JobState if state.row.phase == WAITS)
FINAL = frozenset(state for state in JobState if state.row.phase == ENDED)
ACTIVE = frozenset(JobState) - FINAL
# The same for clients, which get names; in the order of the table.
WAITING_NAMES, FINAL_NAMES, ACTIVE_NAMES = (
    tuple(state.value for state in JobState if state in group) for group in (WAITING, FINAL, ACTIVE)
)
# The ends that `--failed` selects: the job ran and did not succeed.
FAILED_NAMES = (JobState.FAILED.value, JobState.TIMEOUT.value)
# In the order of listings: running, waiting, ended.
LISTED = tuple(sorted(JobState, key=lambda state: state.row.phase))
# Events of sweeps and arrays: the first of their jobs that fails, and the end of the last.
GROUP_EVENTS = ("group_first_failure", "group_end")
# Events of the ends of jobs. Those that always end an attempt come first.
END_EVENTS = tuple(
    state.row.event
    for state in sorted(
        (state for state in JobState if state in FINAL),
        key=lambda state: ATTEMPT_ENDED not in state.row.events[state.row.entry],
    )
)
