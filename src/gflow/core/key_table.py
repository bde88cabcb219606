"""Values by job key, and sets of job keys, in dictionaries of bounded size.

One dictionary holds the loop for 60 ms when it grows to 700,000 jobs: the lower bits of most keys are zero,
so that they collide, and several such dictionaries grow in the same step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

from gflow.core.ids import TASK_BITS, JobKey

V = TypeVar("V")
# Bits of a key within one part, which holds 4,096 job numbers.
PART_BITS: Final = TASK_BITS + 12


class KeyTable(Generic[V]):
    """What the engine uses of a dictionary. Iterates by part, and within a part in the order of insertion."""

    def __init__(self) -> None:
        # By the upper bits of the key. No part is empty.
        self._parts: dict[int, dict[JobKey, V]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyTable | dict) and dict(self.items()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[JobKey]:
        for part in self._parts.values():
            yield from part

    def __contains__(self, key: JobKey) -> bool:
        part = self._parts.get(key >> PART_BITS)
        return part is not None and key in part

    def __getitem__(self, key: JobKey) -> V:
        return self._parts[key >> PART_BITS][key]

    def get(self, key: JobKey) -> V | None:
        part = self._parts.get(key >> PART_BITS)
        return None if part is None else part.get(key)

    def __setitem__(self, key: JobKey, value: V) -> None:
        part = self._parts.get(key >> PART_BITS)
        if part is None:
            part = self._parts[key >> PART_BITS] = {}
        before = len(part)
        part[key] = value
        self._count += len(part) - before

    def pop(self, key: JobKey) -> V:
        """Remove a key and return its value. KeyError: it is not here."""
        part = self._parts[key >> PART_BITS]
        value = part.pop(key)
        self._count -= 1
        if not part:
            del self._parts[key >> PART_BITS]
        return value

    def __delitem__(self, key: JobKey) -> None:
        self.pop(key)

    def take(self) -> tuple[JobKey, V]:
        """Remove one entry. KeyError: there is none."""
        for part in self._parts.values():
            key = next(reversed(part))
            return key, self.pop(key)
        raise KeyError

    def absorb(self, other: KeyTable[V]) -> None:
        """Add all entries of another table, and leave it empty. Parts that are new here are moved."""
        for number, part in other._parts.items():
            mine = self._parts.get(number)
            if mine is None:
                self._parts[number] = part
            else:
                self._count -= len(mine)
                mine.update(part)
                part = mine
            self._count += len(part)
        other._parts, other._count = {}, 0

    def consumed(self) -> Iterator[tuple[JobKey, V]]:
        """The entries in order of their keys. Each is removed as it is read."""
        for number in sorted(self._parts):
            part = self._parts[number]
            for key in sorted(part):
                yield key, self.pop(key)

    def copy(self) -> KeyTable[V]:
        copy: KeyTable[V] = KeyTable()
        copy._parts = {number: part.copy() for number, part in self._parts.items()}
        copy._count = self._count
        return copy

    def values(self) -> Iterator[V]:
        for part in self._parts.values():
            yield from part.values()

    def items(self) -> Iterator[tuple[JobKey, V]]:
        for part in self._parts.values():
            yield from part.items()


class KeySet(KeyTable[None]):
    """A set of job keys."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySet | set) and set(self) == set(other)

    __hash__ = None

    def add(self, key: JobKey) -> None:
        self[key] = None

    def discard(self, key: JobKey) -> None:
        if key in self:
            del self[key]

    def update(self, keys: Iterable[JobKey]) -> None:
        for key in keys:
            self.add(key)

    def difference_update(self, keys: Iterable[JobKey]) -> None:
        for key in keys:
            self.discard(key)
