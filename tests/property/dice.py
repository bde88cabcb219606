"""Sources of choices: a seeded generator, or hypothesis, which can shrink them.

Choice 0 is always the plainest one, so that what hypothesis shrinks to is plain.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
_RANGES = {n: st.integers(0, n - 1) for n in range(1, 129)}


class Dice:
    """Choices, all made of one: a number below n."""

    def below(self, n: int) -> int:
        raise NotImplementedError

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        return self.below(100) >= 100 - percent


class Rolled(Dice):
    """Choices of a seeded generator."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def below(self, n: int) -> int:
        return int(self._random.random() * n)


class _Data(Protocol):
    def draw(self, strategy: st.SearchStrategy[int]) -> int: ...


class Drawn(Dice):
    """Choices of hypothesis."""

    def __init__(self, data: _Data) -> None:
        self._data = data

    def below(self, n: int) -> int:
        if n <= 1:
            return 0
        return self._data.draw(_RANGES[n] if n in _RANGES else st.integers(0, n - 1))
