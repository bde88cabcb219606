"""Resource requirements of a job, derived from its spec.

Functions, besides the properties of `Spec`: they are called for every job in every turn, and classes of
msgspec are not compiled (see "The compiled engine" in docs/architecture.md).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

INFINITE: Final = float("inf")
# Makes a named tuple from its type and a plain tuple, in less than half the time of its constructor, whether
# the engine is compiled or not. For tuples that are made for each job.
make_tuple: Final[Any] = tuple.__new__


class Shape(NamedTuple):
    """The resources that a job needs to start. Jobs of one shape fit or wait together."""

    gpus: int
    cpus: int
    memory_mib: int
    gpu_memory_mib: int
    shared: bool
    gpu_type: str


class Asked(Protocol):
    """The resource fields of a spec."""

    @property
    def gpus(self) -> int: ...
    @property
    def cpus(self) -> int | None: ...
    @property
    def memory_mib(self) -> int: ...
    @property
    def gpu_memory_mib(self) -> int: ...
    @property
    def shared(self) -> bool: ...
    @property
    def gpu_type(self) -> str: ...


def precedence_of(priority: int, preemptible: bool) -> int:
    """Sort key, higher first: priority, then non-preemptible before preemptible."""
    return 2 * priority + (not preemptible)


def slots_of(spec: Asked) -> int:
    """CPU slots: as requested; by default one for a job without GPUs, none for a job with GPUs."""
    asked = spec.cpus
    if asked is not None:
        return asked
    return 0 if spec.gpus else 1


def shape_of(spec: Asked) -> Shape:
    gpus, cpus, memory_mib = spec.gpus, slots_of(spec), spec.memory_mib
    shape: Shape = make_tuple(
        Shape, (gpus, cpus, memory_mib, spec.gpu_memory_mib, spec.shared, spec.gpu_type)
    )
    return shape
