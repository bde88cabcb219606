"""The availability profile: which resources become free when."""

import gc
import weakref

from gflow.core.scheduling.availability import AvailabilityProfile

from .builders import spec
from .machine import Machine, gpu


def busy() -> Machine:
    machine = Machine(gpu(0), gpu(1))
    machine.submit(gpus=1, time_limit_s=60)
    machine.submit(gpus=1, time_limit_s=600)
    return machine


def test_gpus_become_free_one_after_the_other():
    state = busy().state
    profile = AvailabilityProfile(state, spec(gpus=1).shape, 0.0, frozenset())
    one, two = (profile.first_fit(count, 0, 0) for count in (1, 2))
    assert (profile.counts[one], profile.counts[two]) == (1, 2)
    assert 0.0 < profile.times[one] < profile.times[two]
    assert set(profile.gpus) == {0, 1}
    assert profile.first_fit(3, 0, 0) == -1


def test_profile_is_freed_without_garbage_collection():
    """A replay of a million jobs makes millions of them, and does not look for circles."""
    state = busy().state
    profile = AvailabilityProfile(state, spec(gpus=2).shape, 0.0, frozenset())
    assert profile.first_fit(1, 0, 0) >= 0
    there = weakref.ref(profile)
    gc.disable()
    try:
        del profile
        assert there() is None
    finally:
        gc.enable()
