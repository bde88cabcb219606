"""What a job needs, read off what was asked for it.

Functions and not only properties of `Spec`: they are called for every job at every turn, and a record of
msgspec is not compiled (see "The compiled engine" in docs/architecture.md).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

INFINITE: Final = float("inf")
# Makes a named tuple of its type and a plain tuple, as its own constructor does in four times the time.
named: Final[Any] = tuple.__new__


class Shape(NamedTuple):
    """What a job needs in order to start. Jobs of one shape fit or wait together."""

    gpus: int
    cpus: int
    memory_mib: int
    gpu_memory_mib: int
    shared: bool
    gpu_type: str


class Asked(Protocol):
    """The part of a spec that names resources."""

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
    """CPU slots: a job without GPUs takes one, a job with GPUs none, unless it asks."""
    asked = spec.cpus
    if asked is not None:
        return asked
    return 0 if spec.gpus else 1


def shape_of(spec: Asked) -> Shape:
    gpus, cpus, memory_mib = spec.gpus, slots_of(spec), spec.memory_mib
    shape: Shape = named(Shape, (gpus, cpus, memory_mib, spec.gpu_memory_mib, spec.shared, spec.gpu_type))
    return shape
