"""What a job needs, read off what was asked for it.

Functions and not only properties of `Spec`: they are called for every job at every turn, and a record of
msgspec is not compiled (see "The compiled engine" in docs/architecture.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from gflow.core.model import Spec


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


def standing_of(priority: int, preemptible: bool) -> int:
    """The more, the sooner: by priority, and within one those who do not make way."""
    return 2 * priority + (not preemptible)


def slots_of(spec: Spec) -> int:
    """CPU slots: a job without GPUs takes one, a job with GPUs none, unless it asks."""
    asked = spec.cpus
    if asked is not None:
        return asked
    return 0 if spec.gpus else 1


def shape_of(spec: Spec) -> Shape:
    gpus, cpus, memory_mib = spec.gpus, slots_of(spec), spec.memory_mib
    shape: Shape = named(Shape, (gpus, cpus, memory_mib, spec.gpu_memory_mib, spec.shared, spec.gpu_type))
    return shape


def size_of(spec: Spec) -> int:
    """About how many bytes of memory it takes besides the usual; of what cannot change while it runs."""
    size = len(spec.cwd) + len(spec.script_path) + len(spec.output) + len(spec.error)
    size += len(spec.venv) + len(spec.conda_env)
    for text in spec.command:
        size += len(text)
    for text in spec.template:
        size += len(text)
    for name, value in spec.parameters:
        size += len(name) + len(value)
    return size + 8 * links_of(spec)


def links_of(spec: Spec) -> int:
    """How many parents it names."""
    return len(spec.depends_on) + len(spec.depends_any)
