"""Updates of arrays, parameters and limits; what a cancel would take along; the queue's own book-keeping."""

import pytest

from gflow.core.events import Update
from gflow.core.forecast.cancel_impact import blocked_by
from gflow.core.ids import label
from gflow.core.lifecycle import submit
from gflow.core.lifecycle.update import MOST_SHOWN, _describe_change
from gflow.core.model import Moment
from gflow.core.policy import Policy
from gflow.core.state.queue_index import MOST_STALE

from .machine import Machine, gpu, key_of


def extend(machine, job, seconds, **fields):
    machine._step(Update, uid=1001, keys=(key_of(job),), fields=fields, outcomes={}, extend_s=seconds)


def test_an_array_passes_a_new_limit_on_to_its_started_tasks():
    machine = Machine(cpus=1)
    machine.submit(array="0-2", time_limit_s=60)
    machine.update(1, time_limit_s=600, priority=7)
    assert machine["1_0"].spec.time_limit_s == machine[1].spec.time_limit_s == 600
    assert machine["1_0"].spec.priority == 7
    machine.passes(599)
    assert "stop 1_0 #1" not in machine.did
    machine.passes(1)
    assert "stop 1_0 #1" in machine.did


def test_fixed_field_of_array_changes_waiting_tasks_only():
    machine = Machine(cpus=2)
    machine.submit(array="0-3", cpus=2)
    machine.update(1, cpus=1, priority=9)
    assert (machine["1_0"].spec.cpus, machine["1_0"].spec.priority) == (2, 9)
    machine.ends("1_0")
    assert machine.running() == ["1_1", "1_2"]


def test_a_limit_is_extended_for_each_by_its_own():
    machine = Machine()
    machine.submit(time_limit_s=60)
    machine.submit(time_limit_s=100, hold=True)
    machine._step(Update, uid=1001, keys=(key_of(1), key_of(2)), fields={}, outcomes={}, extend_s=30)
    assert [machine[n].spec.time_limit_s for n in (1, 2)] == [90, 130]
    error = machine.refusal(extend, machine, machine.submit(), 30)
    assert error.message == "job 3 has no time limit that could be extended"


def test_updated_parameters_fill_the_name():
    machine = Machine()
    machine.submit(hold=True, name="run_1", name_template="run_{lr}", parameters=(("lr", "1"), ("s", "2")))
    machine.update(1, parameters=(("lr", "9"),))
    assert (machine[1].spec.name, machine[1].spec.name_template) == ("run_9", "run_{lr}")
    machine.update(1, name="other_{s}")
    assert (machine[1].spec.name, machine[1].spec.name_template) == ("other_2", "other_{s}")
    machine.update(1, name="plain")
    machine.update(1, parameters=(("lr", "3"),))
    assert (machine[1].spec.name, machine[1].spec.name_template) == ("plain", "")
    machine.update(1, name="x" * 199 + "{lr}")
    long = machine.refusal(machine.update, 1, parameters=(("lr", "100"),))
    assert (long.exit_code, "cannot be the name of a job" in long.message) == (2, True)


def test_a_changed_job_must_make_sense_as_a_new_one_must():
    machine = Machine(gpu(0))
    machine.submit(hold=True, max_retries=2)
    machine.update(1, retry_on=("oom",))
    for fields in ({"max_retries": 0}, {"shared": True}):
        assert machine.refusal(machine.update, 1, **fields).exit_code == 2
    machine.update(1, max_retries=0, retry_on=())


def test_updated_parameters_fill_the_command():
    machine = Machine()
    machine.submit(
        hold=True, command=("run", "1"), template=("run", "{lr}"), parameters=(("lr", "1"), ("s", "2"))
    )
    machine.update(1, parameters=(("lr", "9"),))
    assert (machine[1].spec.command, dict(machine[1].spec.parameters)) == (
        ("run", "9"),
        {"lr": "9", "s": "2"},
    )
    machine.update(1, command=("other", "{s}", "{}"))
    assert (machine[1].spec.command, machine[1].spec.template) == (
        ("other", "2", "{}"),
        ("other", "{s}", "{}"),
    )
    assert "no parameter 'x'" in machine.refusal(machine.update, 1, parameters=(("x", "1"),)).message
    assert "not a parameter" in machine.refusal(machine.update, 1, command=("{y}",)).message


def test_sharing_needs_its_limit_also_afterwards():
    machine = Machine(gpu(0))
    machine.submit(hold=True, gpus=1)
    assert "needs --gpus and --gpu-memory" in machine.refusal(machine.update, 1, shared=True).message
    machine.update(1, shared=True, gpu_memory_mib=1024)
    assert machine[1].spec.shared


def test_jobs_submitted_together_may_wait_for_those_before_them():
    machine = Machine()
    machine.submit_specs({"array": "0-1"}, {"depends_on": [1]}, {"depends_on": ["1_1", 2]})
    assert [machine.stands(n) for n in (2, 3)] == ["Queued (Dependency)"] * 2
    for job in ("1_0", "1_1", 2):
        machine.ends(job)
    assert machine.running() == ["3"]


@pytest.mark.parametrize("parent", [5, 6, "4_7", "5_0"])
def test_dependency_on_unknown_or_later_job_is_refused(parent):
    machine = Machine()
    machine.submit(count=3)
    error = machine.refusal(machine.submit_specs, {"array": "0-1"}, {"depends_on": [parent]})
    assert error.message == f"there is no job {parent} to depend on"


# ---------------------------------------------------------------- foresight


def foreseen(machine, *jobs):
    found = blocked_by(machine.state, [key_of(job) for job in jobs])
    return {label(child): [label(parent) for parent in parents] for child, parents in found.items()}


def test_cancel_impact_is_exactly_the_dependents():
    machine = Machine()
    machine.submit(hold=True, count=2)
    machine.submit(depends_on=[1])  # 3
    machine.submit(depends_on=[1, 2])  # 4
    machine.submit(depends_any=[1, 2])  # 5
    machine.submit(depends_on=[3])  # 6
    machine.submit(depends_on=[1], no_auto_cancel=True)  # 7
    machine.submit(depends_on=[7])  # 8
    assert foreseen(machine, 1) == {"3": ["1"], "4": ["1"], "6": ["3"], "7": ["1"]}
    assert foreseen(machine, 1, 2)["5"] == ["1", "2"]
    assert foreseen(machine, 6) == {}


def test_cancel_impact_matches_the_cancel():
    machine = Machine()
    machine.submit(hold=True, array="0-3")
    machine.submit(depends_on=["1_2"])  # 2
    machine.submit(depends_on=[1])  # 3
    machine.submit(depends_on=["1_3"])  # 4
    machine.submit(depends_any=[2, 4])  # 5
    assert foreseen(machine, "1_2") == {"2": ["1_2"], "3": ["1"]}
    assert set(foreseen(machine, 1)) == {"2", "3", "4", "5"}
    machine.cancel(1)
    assert [machine[n].state.value for n in (2, 3, 4, 5)] == ["Cancelled"] * 4


# ---------------------------------------------------------------- the queue lists everything once


def entries(machine):
    return [entry for bucket in machine.state.ready.buckets.values() for entry in bucket.entries]


def test_hold_and_release_leave_no_second_entry_that_counts():
    machine = Machine(cpus=1)
    machine.submit(count=4)
    for _ in range(100):
        machine.hold(2, 3)
        machine.release(3)
        machine.release(2)
        machine.update(4, priority=20)
        machine.update(4, priority=10)
    true = [entry for entry in entries(machine) if entry[3].bucket_generation == entry[2]]
    assert len(true) == len(machine.state.ready.groups)
    assert len(entries(machine)) <= MOST_STALE + 2 * len(true), "what is stale does not pile up"
    for group in machine.state.ready.groups.values():
        assert list(group.order) == sorted(group.members)
    for number in (2, 3, 4):
        machine.ends(number - 1)
        assert machine.running() == [str(number)]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"time_limit_s": 7200}, "time limit = 7200 s"),
        ({"time_limit_s": 0}, "time limit = the default"),
        ({"gpu_memory_mib": 20480}, "gpu memory = 20 GiB"),
        ({"begin_at": 1_900_000_000.0}, "begin = 2030-03-17T17:46:40Z"),
        ({"warning": (10, 60)}, "signal = 10,60"),
        ({"requeue": True, "priority": 7}, "priority = 7, requeue = yes"),
        ({"depends_any": [2, 3]}, "depends on any = 2,3"),
    ],
)
def test_audit_entry_describes_an_update(fields, words):
    machine = Machine(gpu(0))
    for _ in range(3):
        machine.submit(hold=True)
    machine.update(1, **fields)
    assert f"note 1 updated: {words}" in machine.did


# ---------------------------------------------------------------- what people's jobs take


def test_long_commands_of_one_user_are_limited(monkeypatch):
    monkeypatch.setattr(submit, "MOST_BYTES", 1000)
    machine = Machine()
    machine.state.policy = Policy(most_jobs=10)
    machine.submit(hold=True, command=("x" * 600,))
    error = machine.refusal(machine.submit, hold=True, command=("x" * 600,))
    assert "MiB" in error.message
    machine.submit(hold=True, command=("x",))
    machine.refusal(machine.update, 2, command=("x" * 600,))
    machine.update(1, command=("y",))
    machine.submit(hold=True, command=("x" * 600,))
    machine.cancel(3)
    machine.update(2, command=("x" * 600,))
    assert machine.state.accounting.quota_usage.bytes == {1001: sum(machine[job].spec.size for job in (1, 2))}


def test_long_change_is_cut_in_the_audit_entry():
    event = Update(
        at=Moment(1.0, 1.0), uid=1000, keys=(), outcomes={}, fields={"parameters": (("x", "y" * 5000),)}
    )
    assert len(_describe_change(event)) == MOST_SHOWN + 1
