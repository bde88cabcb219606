"""What a source of GPUs tells: cards, what they do, who is on them. NVML is one; tests have others."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Process(NamedTuple):
    """A process on a GPU. `memory_mib` None: the driver does not say."""

    pid: int
    memory_mib: int | None
    graphics: bool = False


class Sample(NamedTuple):
    """What a GPU does at the moment; None: it cannot tell (a MIG slice has no meter of its own)."""

    memory_mib: int = 0
    utilisation: int | None = None
    power_w: float | None = None
    temperature: int | None = None
    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    # Why its clocks are held down, as the driver's bits.
    slowed: int = 0


class Vitals(NamedTuple):
    """What health is judged by."""

    ecc_errors: int | None = None
    remapping_failed: bool = False
    width: int | None = None
    most_width: int | None = None
    slowdown_at: int | None = None


class Card(NamedTuple):
    """One GPU or MIG slice at one look. `problem`: the driver's word for why it is of no use."""

    uuid: str
    number: int
    model: str
    memory_mib: int
    bus: str = ""
    parent: str = ""
    node: int = -1
    links: tuple[str, ...] = ()
    problem: str = ""
    sample: Sample = Sample()
    vitals: Vitals = Vitals()
    processes: tuple[Process, ...] = ()


class Look(NamedTuple):
    """Everything a source sees at one moment. `trouble`: why it sees nothing."""

    cards: tuple[Card, ...] = ()
    trouble: str = ""
    # Whether there is nothing to see because the machine has no driver, which is no trouble.
    absent: bool = False
    # Errors the driver reported since the last look: (UUID, Xid number).
    xids: tuple[tuple[str, int], ...] = ()
    driver: str = ""


class GpuSource(Protocol):
    """Where GPUs come from. Called from one thread, which it may keep waiting."""

    def look(self) -> Look:
        """All of it."""

    def processes(self, uuid: str) -> tuple[Process, ...]:
        """Only who is on this GPU now."""
