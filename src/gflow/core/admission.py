"""Whether a request can be taken at all: judged against the machine and against its parents."""

from __future__ import annotations

from gflow.core.deps import Wait
from gflow.core.ids import JobKey, label
from gflow.core.model import JobState, Spec
from gflow.core.place import impossible
from gflow.core.state import State
from gflow.errors import NotFound, Refused


def check_possible(state: State, spec: Spec) -> None:
    """Refuse what this machine could never run. What is merely busy or restricted is waited for."""
    if not spec.allow_unsatisfiable and (why := impossible(state, spec.shape)):
        raise Refused(why, hint="see what there is with ginfo; --allow-unsatisfiable queues it all the same")


def judged(state: State, spec: Spec, outcomes: dict[JobKey, JobState]) -> Wait | None:
    """What the job has to wait for (None: nothing), or a refusal if it would wait in vain."""
    if not spec.parents:
        return None

    def outcome(key: JobKey) -> JobState | None:
        return None if state.is_active(key) else state.outcome(key) or outcomes.get(key)

    for key in spec.parents:
        if outcome(key) is None and not state.is_active(key):
            raise NotFound(f"there is no job {label(key)} to depend on")
    wait = Wait.of(spec, outcome)
    if wait.broken is not None and not spec.no_auto_cancel:
        ended = outcome(wait.broken)
        raise Refused(
            f"job {label(wait.broken)} ended {ended.value if ended else ''}: "
            "a job that depends on it would never start",
            hint="--no-auto-cancel queues it all the same",
        )
    return None if wait.is_over else wait
