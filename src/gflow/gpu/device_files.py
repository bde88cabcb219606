"""Device files of NVIDIA's GPUs, and the rules about which of them a job may open.

The rules are for the program that restricts the devices of a control group
(`targets/local/native/devices.c`).
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

# Files that every program needs that uses a GPU; they give access to no card.
COMMON = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
# Names in /proc/devices whose numbers belong to GPUs as a whole. Not `drm`: it also has other cards.
GUARDED = frozenset({"nvidia", "nvidia-frontend", "nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-caps"})
# Seconds for which the list of cards is used: it changes with the driver or by hot-plugging.
KEEP_S = 60.0
# A folder in place of /, for tests.
ROOT = "GFLOW_DEVICE_ROOT"


class Card(NamedTuple):
    """A card as the driver lists it. `files`: those in /dev that only its jobs need."""

    uuid: str
    files: tuple[str, ...]


class DeviceFiles:
    """The device files of this machine's GPUs."""

    def __init__(self, root: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = os.environ.get(ROOT, "") if root is None else root
        self._clock = clock
        self._cards: dict[str, Card] = {}
        self._read_at = float("-inf")

    def rules(self, uuids: Collection[str]) -> str:
        """The rules for a job that has these cards; empty: this machine has none.

        For a MIG slice, give its card: the slices of a card are not kept apart.
        """
        cards = self._list_cards(uuids)
        if not cards:
            return ""
        chosen = [card for uuid, card in cards.items() if uuid in uuids]
        allowed = [*(COMMON if chosen else ()), *(file for card in chosen for file in card.files)]
        others = [file for uuid, card in cards.items() if uuid not in uuids for file in card.files]
        lines = [f"allow {major} {minor}" for major, minor in self._numbers(allowed)]
        lines += [f"deny {major} {minor}" for major, minor in self._numbers([*COMMON, *others])]
        lines += [f"deny {major} *" for major in self._guarded()]
        return "\n".join(lines)

    def _list_cards(self, wanted: Collection[str]) -> dict[str, Card]:
        """The cards by UUID. Read again for a card that is not known yet."""
        now = self._clock()
        if now - self._read_at >= KEEP_S or not self._cards.keys() >= set(wanted):
            self._cards = {card.uuid: card for card in self._read_cards()}
            self._read_at = now
        return self._cards

    def _read_cards(self) -> Iterator[Card]:
        folder = f"{self._root}/proc/driver/nvidia/gpus"
        for bus in _list(folder):
            text = _read(f"{folder}/{bus}/information")
            uuid = re.search(r"^GPU UUID:\s*(\S+)", text, re.MULTILINE)
            minor = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
            if uuid and minor:
                files = [f"nvidia{minor[1]}", *self._display_files(bus), *self._slice_files(minor[1])]
                yield Card(uuid[1], tuple(files))

    def _display_files(self, bus: str) -> list[str]:
        return [f"dri/{name}" for name in _list(f"{self._root}/sys/bus/pci/devices/{bus}/drm")]

    def _slice_files(self, minor: str) -> Iterator[str]:
        """The capability files of the card's MIG slices."""
        top = f"{self._root}/proc/driver/nvidia/capabilities/gpu{minor}/mig"
        for folder, _, names in os.walk(top):
            if "access" in names and (
                found := re.search(r"DeviceFileMinor:\s*(\d+)", _read(f"{folder}/access"))
            ):
                yield f"nvidia-caps/nvidia-cap{found[1]}"

    def _numbers(self, files: list[str]) -> Iterator[tuple[int, int]]:
        """Major and minor of those that exist."""
        for file in files:
            with suppress(OSError):
                found = os.stat(f"{self._root}/dev/{file}")
                if stat.S_ISCHR(found.st_mode):
                    yield os.major(found.st_rdev), os.minor(found.st_rdev)

    def _guarded(self) -> list[int]:
        """Majors that belong to GPUs as a whole."""
        text = _read(f"{self._root}/proc/devices").partition("Block devices")[0]
        rows = [line.split() for line in text.splitlines()]
        return sorted({int(row[0]) for row in rows if len(row) == 2 and row[1] in GUARDED})


def _list(folder: str) -> list[str]:
    with suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def _read(path: str) -> str:
    with suppress(OSError), open(path, errors="replace") as file:
        return file.read()
    return ""
