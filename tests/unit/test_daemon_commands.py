"""Commands speak of the state they meet, and say what the commit must hold."""

import pytest

from gflow.core.effects import Accepted
from gflow.core.engine import step
from gflow.core.ids import job_key
from gflow.core.model import JobState
from gflow.daemon.loop.commands import EventCommand, SubmitCommand, UpdateCommand
from gflow.errors import GflowError
from gflow.store.port import Changes, Submission
from gflow.wire.requests import ParsedJob, References
from gflow.wire.update import Change

from .builders import NOON, UIDS, spec
from .machine import Machine

ANN = UIDS["ann"]


def described(*, after=(), after_any=(), blobs=None, **fields):
    return ParsedJob(spec=spec(**fields), references=References(after, after_any), blobs=blobs or {})


def submitted(machine, *jobs):
    command = SubmitCommand(ANN, "ann", "token", list(jobs), "cli")
    return command.event(machine.state, machine.store, machine.now)


def specs(machine, *jobs):
    return submitted(machine, *jobs).specs


def test_a_plain_command_is_its_event_at_that_moment():
    machine = Machine()
    command = EventCommand(lambda at: ("event", at))
    assert command.event(machine.state, machine.store, machine.now) == ("event", machine.now)
    assert (command.origin, command.after_step([], Changes(), machine.now)) == ("daemon", None)


@pytest.fixture
def machine():
    """Ann has the jobs 1, 2 and 4; 1 has finished and 2 has failed."""
    made = Machine()
    made.submit()
    made.submit()
    made.submit(user="bob")
    made.submit()
    made.ends(1)
    made.ends(2, code=1)
    return made


def test_references_mean_the_jobs_of_the_caller(machine):
    (found,) = specs(machine, described(after=("@", "1", "@~2"), after_any=("3",)))
    assert found.depends_on == (job_key(4), job_key(1))
    assert found.depends_any == (job_key(3),)


def test_outcomes_cover_only_parents_not_in_memory(machine):
    event = submitted(machine, described(after=("1", "4")), described(after_any=("2", "7")))
    assert event.outcomes == {job_key(1): JobState.FINISHED, job_key(2): JobState.FAILED}


def test_a_reference_to_nothing_is_refused(machine):
    with pytest.raises(GflowError, match="means none of your jobs"):
        submitted(machine, described(after=("@~9",)))


def test_jobs_under_one_cap_are_one_group_named_by_the_first(machine):
    found = specs(machine, described(max_concurrent=2), described(max_concurrent=2), described())
    assert [one.group for one in found] == [5, 5, 0]


def test_an_array_is_its_own_group_by_the_engine(machine):
    assert specs(machine, described(array="1-3", max_concurrent=2))[0].group == 0


def test_equal_specs_are_one_object(machine):
    one, other = specs(machine, described(gpus=1), described(gpus=1))
    assert one is other


def test_the_commit_holds_the_token_and_the_texts():
    jobs = [described(blobs={"a": b"1"}), described(blobs={"b": b"2"})]
    command, changes = SubmitCommand(ANN, "ann", "token", jobs, "cli"), Changes()
    keys = (job_key(1), job_key(2))
    at = Machine().now
    assert command.after_step([Accepted(keys)], changes, at) == keys
    assert changes.submissions == [Submission(ANN, "token", keys, NOON)]
    assert changes.blobs == {"a": b"1", "b": b"2"}


# ---------------------------------------------------------------- updates


def updating(machine, job, references=References(), **fields):
    command = UpdateCommand(ANN, (job_key(job),), Change(fields=fields, references=references), "cli")
    return command.event(machine.state, machine.store, machine.now)


def test_an_update_resolves_its_references(machine):
    event = updating(machine, 4, References(("1",), ("@", "2")), gpus=2)
    assert event.fields == {"gpus": 2, "depends_on": (job_key(1),), "depends_any": (job_key(4), job_key(2))}
    assert event.outcomes == {job_key(1): JobState.FINISHED, job_key(2): JobState.FAILED}


def test_an_update_without_references_leaves_the_parents_alone(machine):
    assert updating(machine, 4, gpus=2).fields == {"gpus": 2}


@pytest.mark.parametrize(
    ("references", "fields"), [(References(any_of=("3",)), {}), (References(), {"no_auto_cancel": True})]
)
def test_an_update_knows_how_the_old_parents_ended(machine, references, fields):
    machine.submit(depends_on=[1, 4])
    step(machine.state, updating(machine, 5, references, **fields))
    assert machine.stands(5) == "Queued (Dependency)"
