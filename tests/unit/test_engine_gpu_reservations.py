"""Reservations: only a hard end counts before one begins, and its GPUs are freed when it does."""

from __future__ import annotations

import pytest

from gflow.core.events import ChangeReservation, Reserve, Unreserve, Update
from gflow.core.policy import Policy
from gflow.core.state.state import next_wall_deadline
from gflow.errors import Refused

from .machine import UIDS, Machine, gpu, key_of

HOUR = 3600
DAY = 86400


def machine_of(gpus: int = 2) -> Machine:
    return Machine(*map(gpu, range(gpus)))


def reserve(machine: Machine, *gpus: int, user: str = "bob", after: float = HOUR, count: int = 0) -> None:
    start = machine.now.wall + after
    machine.hears(Reserve, uid=0, user=user, gpus=gpus, count=count, start=start, end=start + HOUR)


def extend(machine: Machine, job: int, seconds: int, *, user: str = "ann", is_operator: bool = False) -> None:
    machine.hears(
        Update,
        uid=UIDS[user],
        is_operator=is_operator,
        keys=(key_of(job),),
        fields={},
        outcomes={},
        extend_s=seconds,
    )


# ---------------------------------------------------------------- before it begins


@pytest.mark.parametrize(
    ("limit", "grace", "starts"),
    [
        (HOUR - 30, 30, True),
        (HOUR - 29, 30, False),
        (10, 10 * 365 * DAY, False),
        (0, 30, False),
        (10, 0, True),
    ],
)
def test_a_start_before_a_reservation_counts_limit_and_grace(limit, grace, starts):
    machine = machine_of()
    reserve(machine, 0, 1)
    machine.submit(gpus=1, time_limit_s=limit, grace_s=grace)
    assert machine.running() == (["1"] if starts else [])
    assert starts or machine.stands(1) == "Queued (Reservation: GPU 0,1 reserved for bob)"


def test_a_learnt_length_is_no_hard_end():
    machine = machine_of(1)
    for job in range(1, 6):
        machine.submit(gpus=1, name="tiny")
        machine.passes(1)
        machine.ends(job)
    reserve(machine, 0, after=DAY)
    machine.submit(gpus=1, name="tiny")
    assert machine.stands(6) == "Queued (Reservation: GPU 0 reserved for bob)"


def test_long_grace_does_not_block_other_jobs_of_user():
    machine = machine_of()
    reserve(machine, 0, 1)
    machine.submit(gpus=1, time_limit_s=60, grace_s=DAY)
    machine.submit(gpus=1, time_limit_s=60)
    assert machine.running() == ["2"]


def test_the_owner_starts_on_reserved_gpus_without_a_limit():
    machine = machine_of()
    reserve(machine, 0, 1)
    machine.submit(gpus=1, user="bob")
    assert machine.running() == ["1"]


# ---------------------------------------------------------------- changing a limit


def test_extending_a_limit_into_a_reservation_is_refused():
    machine = machine_of()
    reserve(machine, 0, 1)
    machine.submit(gpus=1, time_limit_s=60)
    refusal = machine.refusal(extend, machine, 1, HOUR)
    assert isinstance(refusal, Refused)
    assert refusal.message == "GPU 0 is reserved for bob before job 1 would be over"
    machine.refusal(machine.update, 1, time_limit_s=0)
    machine.refusal(machine.update, 1, time_limit_s=HOUR)
    extend(machine, 1, HOUR - 90)
    assert machine[1].spec.time_limit_s == HOUR - 30


def test_shorter_limit_is_accepted_before_reservation():
    machine = machine_of()
    machine.submit(gpus=1, time_limit_s=DAY)
    reserve(machine, 0, 1)
    machine.update(1, time_limit_s=2 * HOUR)
    assert machine[1].spec.time_limit_s == 2 * HOUR


def test_other_updates_are_accepted_before_reservation():
    machine = machine_of()
    machine.submit(gpus=1)
    reserve(machine, 0, 1)
    machine.update(1, priority=3)
    assert machine[1].spec.priority == 3


@pytest.mark.parametrize("who", [{"user": "root"}, {"user": "bob", "is_operator": True}])
def test_limit_extended_by_operator_yields_to_reservation(who):
    machine = machine_of()
    reserve(machine, 0, 1, user="zoe")
    machine.submit(gpus=1, time_limit_s=60)
    extend(machine, 1, HOUR, **who)
    assert machine[1].spec.time_limit_s == 60 + HOUR
    machine.passes(HOUR)
    assert machine.did[-1] == "stop 1 #1"


def test_a_limit_on_gpus_that_are_not_reserved_is_extended():
    machine = machine_of()
    machine.submit(gpus=1, time_limit_s=60)
    reserve(machine, 1)
    extend(machine, 1, DAY)
    assert machine[1].spec.time_limit_s == 60 + DAY


def test_refused_update_of_task_leaves_other_tasks():
    machine = machine_of()
    reserve(machine, 0)
    machine.submit(gpus=1, time_limit_s=60, array="0-3")
    machine.refusal(extend, machine, 1, DAY)
    assert {job.spec.time_limit_s for job in machine.state.jobs.values()} == {60}


def test_refusal_on_a_private_machine_names_no_user():
    machine = machine_of()
    machine.state.policy = Policy(is_private=True)
    reserve(machine, 0, 1)
    machine.submit(gpus=1, time_limit_s=60)
    assert "bob" not in str(machine.refusal(extend, machine, 1, HOUR))


# ---------------------------------------------------------------- when it begins


def test_engine_wakes_at_start_and_end_of_reservation():
    machine = machine_of()
    began = machine.now.wall
    reserve(machine, 0)
    assert next_wall_deadline(machine.state) == began + HOUR
    machine.passes(HOUR)
    assert next_wall_deadline(machine.state) == began + 2 * HOUR
    machine.passes(HOUR)
    assert next_wall_deadline(machine.state) is None


@pytest.mark.parametrize(
    ("asked", "end"),
    [
        ({}, "Cancelled (Reservation: GPU 0 reserved for bob)"),
        ({"max_retries": 3}, "Cancelled (Reservation: GPU 0 reserved for bob)"),
        ({"requeue": True}, "Queued (Resources)"),
        ({"preemptible": True}, "Queued (Resources)"),
    ],
)
def test_job_on_reserved_gpus_is_stopped_at_start(asked, end):
    machine = machine_of(1)
    machine.submit(gpus=1, **asked)
    machine.passes(120)
    reserve(machine, 0)
    machine.passes(HOUR - 1)
    assert machine.did == []
    machine.passes(1)
    assert machine.did == [
        "save 1 Running/stopping", "note 1 reserved: GPU 0 reserved for bob", "stop 1 #1",
    ]  # fmt: skip
    assert str(machine[1].reason) == "Reservation: GPU 0 reserved for bob"
    machine.passes(1)
    assert machine.did == [], "once"
    machine.submit(gpus=1, user="bob")
    machine.ends(1, signal=15, code=None)
    assert machine.stands(1) == end
    assert machine.running() == ["2"]


def test_jobs_of_the_owner_and_on_other_gpus_go_on():
    machine = machine_of(3)
    machine.submit(gpus=1, user="bob")
    machine.submit(gpus=1)
    machine.submit(gpus=1)
    reserve(machine, 0, 1, after=0)
    assert [machine[job].stopping is not None for job in (1, 2, 3)] == [False, True, False]


def test_shared_jobs_on_a_reserved_gpu_are_stopped():
    machine = machine_of(1)
    machine.submit(gpus=1, shared=True, gpu_memory_mib=1024, count=2)
    machine.submit(gpus=1, shared=True, gpu_memory_mib=1024, user="bob")
    reserve(machine, 0, after=0)
    assert [machine[job].stopping is not None for job in (1, 2, 3)] == [True, True, False]


def test_tasks_of_an_array_are_stopped_and_the_rest_waits():
    machine = machine_of(1)
    machine.submit(gpus=1, array="0-1")
    reserve(machine, 0, after=0)
    machine.ends("1_0", signal=15, code=None)
    assert machine.stands("1_0") == "Cancelled (Reservation: GPU 0 reserved for bob)"
    assert machine.running() == []


def test_a_job_that_is_being_stopped_is_left_alone():
    machine = machine_of(1)
    machine.submit(gpus=1)
    machine.cancel(1)
    reserve(machine, 0, after=0)
    assert not any(line.startswith("stop") for line in machine.did)
    machine.ends(1)
    assert machine.stands(1) == "Cancelled (CancelledByUser)"


def test_cancelled_job_is_not_requeued_by_reservation():
    machine = machine_of(1)
    machine.submit(gpus=1, requeue=True)
    reserve(machine, 0, after=0)
    machine.cancel(1)
    machine.ends(1)
    assert machine.stands(1) == "Cancelled (CancelledByUser)"


def test_reservation_cancelled_early_stops_nothing():
    machine = machine_of(1)
    machine.submit(gpus=1)
    reserve(machine, 0)
    machine.hears(Unreserve, uid=0, id=1)
    machine.passes(HOUR)
    assert machine.did == []


def test_a_clock_that_is_set_forward_begins_the_reservation():
    machine = machine_of(1)
    machine.submit(gpus=1)
    reserve(machine, 0)
    machine.now = machine.now._replace(wall=machine.now.wall + HOUR)
    machine.passes(0)
    assert machine.did[-1] == "stop 1 #1"


# ---------------------------------------------------------------- which GPUs


def test_reservation_by_count_prefers_gpus_free_at_start():
    machine = machine_of(4)
    machine.submit(gpus=3, time_limit_s=60)
    machine.ends(1)
    for limit in (0, 60, 2 * HOUR, 0):
        machine.submit(gpus=1, time_limit_s=limit, user="bob" if limit == 0 else "ann")
    reserve(machine, count=2)  # GPUs 0 and 3 are the owner's, 1 is free by then
    assert machine.state.reserved.live[0].gpus == (1, 3)


# ---------------------------------------------------------------- moving one


def test_reservation_that_is_moved_away_lets_jobs_start_and_stops_them_where_it_goes():
    machine = machine_of()
    reserve(machine, 0, 1)
    machine.submit(gpus=1)
    assert machine.running() == []
    later, start = machine.now.wall + DAY, machine.now.wall
    machine.hears(ChangeReservation, uid=0, id=1, gpus=(1,), start=later, end=later + HOUR)
    assert machine.running() == ["1"]  # on GPU 0, which is not reserved any more
    machine.hears(ChangeReservation, uid=0, id=1, gpus=(0,), start=start, end=start + HOUR)
    assert machine[1].stopping is not None
    machine.hears(Unreserve, uid=0, id=1)
    refusal = machine.refusal(
        machine.hears, ChangeReservation, uid=0, id=1, gpus=(0,), start=start, end=later
    )
    assert refusal.message == "reservation 1 is over already"
