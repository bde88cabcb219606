"""GPU health: whether a GPU may get new jobs, judged by what it reports. Pure: the time is passed in.

A fault (memory errors, an Xid that means the card) does not mend by itself: it drains the GPU until an
operator resumes it. Heat, slow clocks and lost PCIe lanes drain the GPU only while they last.
"""

from __future__ import annotations

from gflow.diagnosis.xids import LASTING_FAULTS
from gflow.gpu.port import Card
from gflow.gpu.settings import GpuSettings

# Throttle reasons of the driver, as bits: heat, and power brake.
HEAT = 0x20 | 0x40
BRAKE = 0x80
# A hot GPU must cool to this many degrees Celsius below the limit.
COOL_BY = 5


class Health:
    """The health of one GPU, kept between samples."""

    def __init__(self, rules: GpuSettings, fault: str = "") -> None:
        self._rules = rules
        # The fault that drains the GPU until an operator resumes it; empty: none.
        self.fault = fault
        self._ecc: int | None = None
        self._hot = False
        self._slow_since: float | None = None
        self._narrow_since: float | None = None
        # What an operator has accepted with `gctl resume`: failed row remapping, and a PCIe width.
        self._is_forgiven = False
        self._known_rows = False
        self._known_width: int | None = None

    def xid(self, number: int) -> None:
        """The driver reported an error."""
        meaning = LASTING_FAULTS.get(number)
        if (meaning or number in self._rules.drain_xids) and number not in self._rules.ignore_xids:
            self._find(f"Xid {number}" + (f": {meaning}" if meaning else ""))

    def clear_fault(self) -> None:
        """Clear the fault after `gctl resume`. From now on only a worse state counts."""
        self.fault = ""
        self._ecc = None
        self._is_forgiven = True

    def judge(self, card: Card, now: float) -> str:
        """Why the GPU must not get new jobs; empty: it may."""
        if self._is_forgiven:
            self._is_forgiven = False
            self._known_rows, self._known_width = card.vitals.remapping_failed, card.vitals.width
        self._note_memory(card)
        return self.fault or self._too_hot(card) or self._too_slow(card, now) or self._too_narrow(card, now)

    def _find(self, fault: str) -> None:
        self.fault = self.fault or fault

    def _note_memory(self, card: Card) -> None:
        errors, before = card.vitals.ecc_errors, self._ecc
        if card.vitals.remapping_failed and not self._known_rows:
            self._find("its memory has more bad rows than it can replace")
        if errors is None:
            return
        if before is None:  # errors of the first sample are old: they do not count
            before = errors
        elif errors < before:  # the driver was reloaded and counts from zero
            before = 0
        self._ecc = before
        enough = self._rules.drain_ecc_errors
        if enough and errors - before >= enough:
            self._find(f"{errors - before} uncorrectable memory errors (ECC)")

    def _too_hot(self, card: Card) -> str:
        heat, limit = card.sample.temperature, self._rules.drain_temperature or card.vitals.slowdown_at
        if heat is None or not limit:
            return ""
        self._hot = heat >= limit - (COOL_BY if self._hot else 0)
        return f"too hot: {limit} °C reached" if self._hot else ""

    def _too_slow(self, card: Card, now: float) -> str:
        bits = card.sample.slowed & (HEAT | BRAKE)
        if not bits or not self._rules.drain_slowed:
            self._slow_since = None
            return ""
        if self._slow_since is None:
            self._slow_since = now
        if now - self._slow_since < self._rules.drain_after_secs:
            return ""
        return "slowed down by heat" if bits & HEAT else "slowed down by its power supply"

    def _too_narrow(self, card: Card, now: float) -> str:
        """Whether the PCIe link is narrow for longer than power saving explains, as text."""
        width, most = card.vitals.width, card.vitals.most_width
        known = self._known_width
        if not width or not most or width * 100 > most * self._rules.drain_pcie_percent:
            self._known_width = self._narrow_since = None
            return ""
        if known is not None and width >= known:
            return ""
        if self._narrow_since is None:
            self._narrow_since = now
        late = now - self._narrow_since >= self._rules.drain_after_secs
        return f"PCIe has only {width} of {most} lanes" if late else ""
