from collections import Counter

import pytest

from gflow.core.model import Moment
from gflow.core.policy import Policy
from gflow.core.resources import Shape
from gflow.core.scheduling.placement import available, choose, gib, placement, why_impossible
from gflow.core.state.machine import MOST_KINDS
from gflow.core.state.state import State
from gflow.testing import progress

from .builders import NOON, job, running
from .machine import GIB, gpu

NOW = Moment(NOON, 1000.0)


def shape(gpus=0, *, cpus=0, memory=0, gpu_gib=0, shared=False, kind=""):
    return Shape(gpus, cpus, memory * GIB, int(gpu_gib * GIB), shared, kind)


def state_with(*jobs, gpus=(), cpus=8, memory=64):
    state = State(cpus=cpus, memory_mib=memory * GIB)
    state.machine.see_gpus(gpus)
    for one in jobs:
        state.add(one)
        state.book(one)
    return state


def sharing(number, *indices, gib):
    return running(number, *indices, shared=True, gpu_memory_mib=gib * GIB)


FOUR = [gpu(index) for index in range(4)]
MIXED = [gpu(0, "NVIDIA GeForce RTX 4090", 24), gpu(1), gpu(2, "NVIDIA H100 80GB HBM3", 80), gpu(3)]
BUSY = state_with(running(1, 0, 2), gpus=FOUR)
SHARED = state_with(
    running(1, 0), sharing(2, 1, gib=60), sharing(3, 1, gib=10), sharing(4, 2, gib=30), gpus=FOUR
)


@pytest.mark.parametrize(
    ("state", "wanted", "found"),
    [
        (state_with(), shape(), ()),
        (state_with(gpus=FOUR), shape(2), (0, 1)),
        (state_with(gpus=FOUR), shape(4), (0, 1, 2, 3)),
        (state_with(gpus=FOUR), shape(5), None),
        (state_with(gpus=FOUR[::-1]), shape(1), (0,)),
        (BUSY, shape(1), (1,)),
        (BUSY, shape(2), (1, 3)),
        (BUSY, shape(3), None),
        # shared: beside shared jobs only, and only as far as the memory goes
        (SHARED, shape(1, shared=True, gpu_gib=10), (1,)),
        (SHARED, shape(1, shared=True, gpu_gib=12), (2,)),
        (SHARED, shape(2, shared=True, gpu_gib=10), (1, 2)),
        (SHARED, shape(2, shared=True, gpu_gib=60), None),
        (SHARED, shape(3, shared=True, gpu_gib=10), (1, 2, 3)),
        (SHARED, shape(4, shared=True, gpu_gib=1), None),
        (SHARED, shape(1), (3,)),
        (SHARED, shape(2), None),
        # kind and size
        (state_with(gpus=MIXED), shape(1, kind="A100"), (1,)),
        (state_with(gpus=MIXED), shape(2, kind="a100"), (1, 3)),
        (state_with(gpus=MIXED), shape(1, kind="h100"), (2,)),
        (state_with(gpus=MIXED), shape(2, kind="H100"), None),
        (state_with(gpus=MIXED), shape(1, gpu_gib=40), (1,)),
        (state_with(gpus=MIXED), shape(3, gpu_gib=80), (1, 2, 3)),
        (state_with(gpus=MIXED), shape(1, gpu_gib=24), (0,)),
        (state_with(gpus=MIXED), shape(1, kind="RTX", gpu_gib=40), None),
        # host memory and CPUs
        (state_with(cpus=2), shape(cpus=2), ()),
        (state_with(cpus=2), shape(cpus=3), None),
        (state_with(running(1, cpus=1), cpus=2), shape(cpus=2), None),
        (state_with(memory=8), shape(memory=8), ()),
        (state_with(running(1, memory_mib=1), memory=8), shape(memory=8), None),
        (state_with(gpus=FOUR, memory=8), shape(1, memory=9), None),
    ],
    ids=range(30),
)
def test_the_gpus_that_a_job_gets(state, wanted, found):
    assert choose(state, wanted) == found


@pytest.mark.parametrize(
    ("has", "asks", "suits"),
    [
        (81_559, 80 * GIB, True),  # an A100 80GB as it reports itself
        (40_536, 40 * GIB, True),
        (24_564, 24 * GIB, True),
        (1000, 1020, True),
        (1000, 1021, False),
        (79_000, 80 * GIB, False),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_a_card_as_sold_has_two_percent_slack(has, asks, suits, shared):
    state = state_with(gpus=[gpu(0, gib=has / GIB)])
    assert available(state, Shape(1, 0, 0, asks, shared, "")) == ([0] if suits else [])


def test_two_halves_of_a_card_as_sold_fit():
    state = state_with(sharing(1, 0, gib=40), gpus=[gpu(0, gib=81_559 / GIB)])
    assert choose(state, shape(1, shared=True, gpu_gib=40)) == (0,)


def test_restricted_gpus_are_not_given_out():
    state = state_with(sharing(1, 2, gib=10), gpus=FOUR)
    state.machine.restrict(frozenset({2, 3}))
    assert choose(state, shape(1)) == (3,)
    assert choose(state, shape(1, shared=True, gpu_gib=1)) == (2,)
    assert why_impossible(state, shape(4)) is None, "what is restricted is waited for"


def test_the_last_shared_job_gives_the_gpu_back_whole():
    first, second = sharing(1, 0, gib=10), sharing(2, 0, gib=10)
    state = state_with(first, second, gpus=[gpu(0)])
    state.unbook(first, 0.0)
    assert choose(state, shape(1)) is None
    state.unbook(second, 0.0)
    assert choose(state, shape(1)) == (0,)


def test_a_capped_job_is_not_placed():
    state = state_with(running(1, group=7))
    assert placement(state, job(2, group=7, max_concurrent=1), NOW) is None
    assert placement(state, job(2, group=7, max_concurrent=2), NOW) == ()
    assert placement(state, job(2, group=8, max_concurrent=1), NOW) == ()
    assert placement(state, job(2, group=7), NOW) == ()


# ---------------------------------------------------------------- what can never be


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (shape(), None),
        (shape(4), None),
        (shape(1, kind="rtx", gpu_gib=24), None),
        (shape(1, shared=True, gpu_gib=80), None),
        (shape(cpus=8, memory=64), None),
        (shape(cpus=9), "the job asks for 9 CPUs, and this machine has 8"),
        (shape(memory=65), "the job asks for 65 GiB of memory, and this machine has 64 GiB"),
        (shape(5), "the job asks for 5 GPUs, and this machine has 4"),
        (shape(1, kind="V100"), "the job asks for 1 GPU of type 'V100', and this machine has none"),
        (shape(3, kind="A100"), "the job asks for 3 GPUs of type 'A100', and this machine has 2"),
        (shape(1, gpu_gib=100), "the job asks for 1 GPU with 100 GiB, and this machine has none"),
        (
            shape(3, kind="A100", gpu_gib=79.5),
            "the job asks for 3 GPUs of type 'A100' with 79.5 GiB, and this machine has 2",
        ),
        (
            shape(1, shared=True, gpu_gib=100),
            "the job asks for 1 GPU with 100 GiB, and this machine has none",
        ),
    ],
    ids=range(13),
)
def test_impossible_request_names_the_reason(wanted, sentence):
    assert why_impossible(state_with(gpus=MIXED), wanted) == sentence
    busy = state_with(running(1, 0, 1, 2, 3, cpus=8, memory_mib=64 * GIB), gpus=MIXED)
    assert why_impossible(busy, wanted) == sentence, "busy is not impossible"


@pytest.mark.parametrize(("count", "what"), [(1, "1 GPU"), (2, "2 GPUs")])
def test_a_machine_without_gpus_says_so(count, what):
    sentence = f"the job asks for {what}, and this machine has none that gflow can see"
    assert why_impossible(state_with(), shape(count)) == sentence


@pytest.mark.parametrize(
    ("mib", "text"),
    [
        (0, "0 MiB"),
        (100, "100 MiB"),
        (1023, "1023 MiB"),
        (1024, "1 GiB"),
        (1536, "1.5 GiB"),
        (81_920, "80 GiB"),
    ],
)
def test_memory_in_words(mib, text):
    assert gib(mib) == text


# ---------------------------------------------------------------- strategies


def by(strategy, *jobs, gpus):
    state = state_with(*jobs, gpus=gpus)
    state.policy = Policy(strategy=strategy)
    return state


def test_pack_takes_fullest_gpu_that_fits():
    assert choose(by("pack", gpus=MIXED), shape(1)) == (0,), "the smallest card that will do"
    assert choose(by("pack", gpus=MIXED), shape(1, gpu_gib=40)) == (1,)
    beside = by("pack", sharing(1, 1, gib=20), sharing(2, 2, gib=50), gpus=FOUR)
    assert choose(beside, shape(1, shared=True, gpu_gib=10)) == (2,)
    assert choose(beside, shape(1, shared=True, gpu_gib=40)) == (1,), "no room beside the 50"


def test_random_is_spread_and_decided_the_same_way_twice():
    state = by("random", gpus=FOUR)
    picks = [placement(state, job(number, gpus=1), NOW) for number in range(1, 401)]
    assert picks == [placement(state, job(number, gpus=1), NOW) for number in range(1, 401)]
    assert all(60 < picks.count((index,)) < 140 for index in range(4)), Counter(picks)


def test_random_placement_differs_between_tasks():
    state = by("random", gpus=FOUR)
    array = [job(1, gpus=1, progress=progress("5-100", ok=done)) for done in range(40)]
    assert len({placement(state, one, NOW) for one in array}) == 4


def test_sizes_have_no_exponent():
    assert [gib(mib) for mib in (512, 1536, 9998 << 10, 10 << 20)] == [
        "512 MiB",
        "1.5 GiB",
        "9998 GiB",
        "10240 GiB",
    ]


def test_memory_for_kinds_of_gpus_is_bounded_however_many_users_name():
    machine = state_with(gpus=MIXED).machine
    number = machine.type_number("rtx")
    for count in range(3 * MOST_KINDS):
        kind = shape(1, gpu_gib=count, kind="rtx" + "x" * count)
        assert machine.type_number(kind.gpu_type) == machine.type_number("rtx" if not count else "none")
        assert len(machine.fitting(kind)) == machine.of_kind(kind) == (count == 0)
    assert machine.type_number("RTX") == number != machine.type_number("none")
    assert max(map(len, machine.caches)) <= MOST_KINDS
