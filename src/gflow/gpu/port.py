"""The port of GPU drivers: cards, their samples, and the processes on them. NVML and tests implement it."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Process(NamedTuple):
    """A process on a GPU. `memory_mib` None: the driver does not say."""

    pid: int
    memory_mib: int | None
    graphics: bool = False


class Sample(NamedTuple):
    """A sample of a GPU; None: not reported (a MIG slice has no sensors of its own)."""

    memory_mib: int = 0
    utilisation: int | None = None
    power_w: float | None = None
    temperature: int | None = None
    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    # Throttle reasons, as bits of the driver.
    slowed: int = 0


class Vitals(NamedTuple):
    """Figures for the health check."""

    ecc_errors: int | None = None
    remapping_failed: bool = False
    width: int | None = None
    most_width: int | None = None
    slowdown_at: int | None = None


class Card(NamedTuple):
    """One GPU or MIG slice at one look. `problem`: the driver's error if it is unusable."""

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
    """All that a driver reports at one time. `trouble`: why it reports nothing."""

    cards: tuple[Card, ...] = ()
    trouble: str = ""
    # Whether the machine has no driver, which is not an error.
    absent: bool = False
    # Errors the driver reported since the last look: (UUID, Xid number).
    xids: tuple[tuple[str, int], ...] = ()
    driver: str = ""


class GpuSource(Protocol):
    """A GPU driver. Called from one thread; calls may block."""

    def look(self) -> Look:
        """All cards, with samples and processes."""

    def processes(self, uuid: str) -> tuple[Process, ...]:
        """Only the processes on this GPU now."""
