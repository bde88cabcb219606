"""Stable GPU indices. An index means one card for as long as a job has that card.

The driver renumbers GPUs when one disappears: card 2 may become 1 while a job still runs on it. Jobs hold
indices, so that ours stay with the card (its UUID) until the daemon restarts.
"""

from __future__ import annotations

from collections.abc import Collection

from gflow.core.model import Gpu
from gflow.gpu.port import Card


class Numbering:
    """UUID -> index. Begins with the cards that running jobs have."""

    def __init__(self, held: dict[str, int] | None = None, parents: dict[str, str] | None = None) -> None:
        self._numbers = dict(held or {})
        # MIG slice -> its card, including slices that no longer exist.
        self._parents = dict(parents or {})
        self._gpus: dict[str, Gpu] = {}

    def see(self, cards: tuple[Card, ...], held: Collection[int] = ()) -> None:
        """Give indices to new cards: the driver's own if it is free; slices come after all whole cards.

        `held`: indices that jobs have. A slice that is gone was removed on purpose, and its index is free
        again unless a job has it: the slice may return under its old UUID.
        """
        present = {card.uuid for card in cards}
        gone = [gpu for uuid, gpu in self._gpus.items() if gpu.parent and uuid not in present]
        for gpu in gone:
            if gpu.index not in held:
                del self._numbers[gpu.uuid], self._gpus[gpu.uuid]
        first = max([len(cards), *(card.number + 1 for card in cards)])
        for card in sorted(cards, key=lambda card: (bool(card.parent), card.number)):
            if card.uuid not in self._numbers:
                self._numbers[card.uuid] = self._free(card.number if not card.parent else first)
        for card in cards:
            self._gpus[card.uuid] = self._gpu(card)
            if card.parent:
                self._parents[card.uuid] = card.parent

    def _free(self, wanted: int) -> int:
        taken = set(self._numbers.values())
        while wanted in taken:
            wanted += 1
        return wanted

    def _gpu(self, card: Card) -> Gpu:
        return Gpu(
            index=self._numbers[card.uuid],
            uuid=card.uuid,
            model=card.model,
            memory_mib=card.memory_mib,
            number=card.number,
            parent=card.parent,
            node=card.node,
            links=tuple(sorted(self._numbers[uuid] for uuid in card.links if uuid in self._numbers)),
        )

    def number_of(self, uuid: str) -> int | None:
        return self._numbers.get(uuid)

    def slices_of(self, uuid: str) -> list[str]:
        """Present and former slices of this card."""
        return [each for each, parent in self._parents.items() if parent == uuid]

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every card ever seen, by index: a card that disappeared is reported as lost."""
        return tuple(sorted(self._gpus.values(), key=lambda gpu: gpu.index))
