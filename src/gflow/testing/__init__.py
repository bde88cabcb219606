"""Test doubles and builders, for tests of gflow and of programs that use it.

from gflow.testing import FakeClock, MemoryStore, gpus, spec, submit

clock = FakeClock()
state = State(cpus=4, memory_mib=65536)
step(state, GpusSeen(at=clock.now(), gpus=gpus(2)))
step(state, submit(clock, spec(gpus=1), spec(gpus=1, priority=50)))

No other package imports this one. Fixtures of gflow's own tests belong in `tests/`.
"""

from gflow.store.memory import MemoryStore
from gflow.testing.builders import exited, gpus, job, progress, running, spec, submit
from gflow.testing.clock import FakeClock
from gflow.testing.target import FakeTarget

__all__ = [
    "FakeClock",
    "FakeTarget",
    "MemoryStore",
    "exited",
    "gpus",
    "job",
    "progress",
    "running",
    "spec",
    "submit",
]
