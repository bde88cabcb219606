"""Whether a GPU may get new jobs, judged by what it reports. Pure: time is handed in.

What will not mend by itself (memory errors, a card off the bus) keeps the GPU out until the daemon
is restarted. Heat passes: the GPU is back when it has cooled down.
"""

from __future__ import annotations

from gflow.gpu.port import Card

# The driver's error numbers that mean the card, and not the program on it, is at fault.
BAD_XIDS = {
    48: "double-bit memory error",
    62: "internal controller halted",
    64: "memory rows could not be remapped",
    74: "NVLink error",
    79: "fell off the bus",
    95: "uncontained memory error",
    119: "its controller does not answer",
    120: "its controller failed",
    140: "unrecovered memory error",
    143: "initialisation error",
}
# Slowed by heat or a power brake, as the driver's bits.
HEAT = 0x20 | 0x40
BRAKE = 0x80
SLOW_FOR_S = 60.0
COOL_BY = 5
NARROW_FOR_S = 30.0


class Health:
    """What is remembered about one GPU between looks."""

    def __init__(self) -> None:
        self._ecc: int | None = None
        self._stuck = ""
        self._hot = False
        self._slow_since: float | None = None
        self._narrow_since: float | None = None

    def xid(self, number: int) -> None:
        """The driver reported an error."""
        if number in BAD_XIDS and not self._stuck:
            self._stuck = f"Xid {number}: {BAD_XIDS[number]}"

    def judge(self, card: Card, now: float) -> str:
        """Why the GPU must not get new jobs; empty: it may."""
        self._note_memory(card)
        return self._stuck or self._too_hot(card) or self._too_slow(card, now) or self._too_narrow(card, now)

    def _note_memory(self, card: Card) -> None:
        errors, before = card.vitals.ecc_errors, self._ecc
        if card.vitals.remapping_failed and not self._stuck:
            self._stuck = "its memory has more bad rows than it can replace"
        if errors is not None:
            self._ecc = errors
            if before is not None and errors > before and not self._stuck:
                self._stuck = f"{errors - before} uncorrectable memory errors (ECC)"

    def _too_hot(self, card: Card) -> str:
        heat, limit = card.sample.temperature, card.vitals.slowdown_at
        if heat is None or not limit:
            return ""
        self._hot = heat >= limit - (COOL_BY if self._hot else 0)
        return f"too hot: {limit} °C reached" if self._hot else ""

    def _too_slow(self, card: Card, now: float) -> str:
        bits = card.sample.slowed & (HEAT | BRAKE)
        if not bits:
            self._slow_since = None
            return ""
        if self._slow_since is None:
            self._slow_since = now
        if now - self._slow_since < SLOW_FOR_S:
            return ""
        return "slowed down by heat" if bits & HEAT else "slowed down by its power supply"

    def _too_narrow(self, card: Card, now: float) -> str:
        """A quarter of the lanes or less, for longer than saving power explains."""
        width, most = card.vitals.width, card.vitals.most_width
        if not width or not most or width * 4 > most:
            self._narrow_since = None
            return ""
        if self._narrow_since is None:
            self._narrow_since = now
        return f"PCIe has only {width} of {most} lanes" if now - self._narrow_since >= NARROW_FOR_S else ""
