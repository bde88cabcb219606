"""What becomes free when."""

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
    prospect = AvailabilityProfile(state, spec(gpus=1).shape, 0.0, frozenset())
    one, two = (prospect.first_fit(count, 0, 0) for count in (1, 2))
    assert (prospect.counts[one], prospect.counts[two]) == (1, 2)
    assert 0.0 < prospect.times[one] < prospect.times[two]
    assert set(prospect.gpus) == {0, 1}
    assert prospect.first_fit(3, 0, 0) == -1


def test_profile_is_freed_without_garbage_collection():
    """A replay of a million jobs makes millions of them, and does not look for circles."""
    state = busy().state
    prospect = AvailabilityProfile(state, spec(gpus=2).shape, 0.0, frozenset())
    assert prospect.first_fit(1, 0, 0) >= 0
    there = weakref.ref(prospect)
    gc.disable()
    try:
        del prospect
        assert there() is None
    finally:
        gc.enable()
