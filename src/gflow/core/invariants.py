"""What must be true after every step. Tests call it; a daemon started with --paranoid does too."""

from __future__ import annotations

from collections import Counter

from gflow.core.model import JobState
from gflow.core.place import choose
from gflow.core.state import State


def check(state: State) -> None:
    """Raise AssertionError with the broken rule. O(jobs)."""
    _check_membership(state)
    _check_resources(state)
    _check_dependencies(state)
    _check_nothing_startable(state)


def _check_membership(state: State) -> None:
    for key, job in state.jobs.items():
        assert job.key == key, f"job {job.label} is filed under another key"
        assert not job.is_final, f"final job {job.label} is still in memory"
        ready = job in state.ready
        waits = key in state.parents
        if job.state is JobState.QUEUED:
            assert ready != waits, f"queued job {job.label} is in {ready + waits} places, not in one"
        else:
            assert not ready and not waits, f"{job.state.value} job {job.label} is still in the queue"
        assert (job.state is JobState.RUNNING) or job.stopping is None, f"{job.label} stops without running"
    assert len(state.ready) == sum(job in state.ready for job in state.jobs.values()), "a ghost is queued"


def _check_resources(state: State) -> None:
    running = [job for job in state.jobs.values() if job.state is JobState.RUNNING]
    held = Counter(index for job in running for index in job.gpu_ids)
    for index, count in held.items():
        assert count == 1, f"GPU {index} is given to {count} jobs"
    assert set(held) == set(state.holders), "the holders' table does not match the running jobs"
    for job in running:
        assert len(job.gpu_ids) == job.spec.gpus, f"job {job.label} has the wrong number of GPUs"
        assert all(state.holders[index] == job.key for index in job.gpu_ids), "a GPU names another holder"
    used = sum(job.spec.shape.cpus for job in running)
    assert state.free_cpus == state.cpus - used, "CPU slots do not add up"


def _check_dependencies(state: State) -> None:
    forwards = {(child, parent) for child, parents in state.parents.items() for parent in parents}
    backwards = {(child, parent) for parent, children in state.children.items() for child in children}
    assert forwards == backwards, "the two tables of dependencies disagree"
    for child, parent in forwards:
        assert parent in state.jobs, f"{child} waits for {parent}, which is not active"


def _check_nothing_startable(state: State) -> None:
    for group in state.ready.groups.values():
        head = group.head()
        assert head is not None, "an empty group is kept"
        spec = state.jobs[head].spec
        assert choose(state, spec) is None, f"job {state.jobs[head].label} could start and does not"
