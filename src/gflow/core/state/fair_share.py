"""Who had how much: GPU-seconds that fade.

Everything here is a few numbers; they are kept with every commit after a change, so that a restart goes on
with exactly the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log

import msgspec

# The name under which what people had is kept.
SHARES = "shares"
HOUR_S = 3600.0
# A person's use against the mean of the others who want something: from when on it is far over, over, about.
FAR_OVER, OVER, ABOUT = 8.0, 2.0, 0.5
UNDER_BAND, ABOUT_BAND, OVER_BAND, FAR_BAND = 0, 1, 2, 3
BANDS = 4


class Use:
    """GPU-seconds that one person had, faded up to `at`."""

    __slots__ = ("at", "gpus", "seconds")

    def __init__(self, seconds: float, at: float) -> None:
        self.seconds = seconds
        self.at = at
        # GPUs of theirs that run now; known from the running jobs.
        self.gpus = 0


class Record(msgspec.Struct, omit_defaults=True):
    """What is kept of it. Members that older versions kept besides are passed over."""

    # For each person, GPU-seconds and up to when they are faded.
    uses: dict[int, tuple[float, float]] = {}


class Shares:
    """Use per person."""

    def __init__(self, half_life_s: float) -> None:
        self.uses: dict[int, Use] = {}
        # Whether there is more than the latest record has.
        self.changed = False
        self._rate = log(2) / half_life_s if half_life_s else 0.0

    # ------------------------------------------------------------ counting

    def run(self, uid: int, gpus: int, now: float) -> None:
        """`gpus` more (or fewer) of this person's GPUs run from now on."""
        if not gpus:
            return
        self.changed = True
        use = self.uses.get(uid)
        if use is None:
            use = self.uses[uid] = Use(0.0, now)
        use.seconds = self._faded(use, now)
        use.at = now
        use.gpus += gpus

    def resume(self, uid: int, gpus: int) -> None:
        """After a restart: these GPUs have been running since the record was made."""
        if gpus:
            self.uses.setdefault(uid, Use(0.0, 0.0)).gpus += gpus

    def use(self, uid: int, now: float) -> float:
        """What this person had by now: what runs counts as it goes."""
        use = self.uses.get(uid)
        return 0.0 if use is None else self._faded(use, now)

    def _faded(self, use: Use, now: float) -> float:
        passed = max(0.0, now - use.at)
        if not self._rate:
            return use.seconds + use.gpus * passed
        left = exp(-self._rate * passed)
        return use.seconds * left + use.gpus * (1.0 - left) / self._rate

    # ------------------------------------------------------------ judging

    def bands(self, people: Iterable[int], pool: int, now: float) -> dict[int, int]:
        """The band of each of these, who want or have something now.

        An hour of the whole pool is added on both sides: less is not worth a difference.
        """
        used = {uid: self.use(uid, now) for uid in people}
        if len(used) < 2:
            return dict.fromkeys(used, ABOUT_BAND)
        total, others, little = sum(used.values()), len(used) - 1, HOUR_S * max(1, pool)
        return {uid: _band((had + little) / ((total - had) / others + little)) for uid, had in used.items()}

    # ------------------------------------------------------------ keeping

    def record(self) -> str:
        """What is to be kept: nothing of it is new then."""
        self.changed = False
        uses = {uid: (use.seconds, use.at) for uid, use in self.uses.items()}
        return msgspec.json.encode(Record(uses)).decode()

    def recall(self, text: str) -> None:
        """Go on from a record. Which GPUs run comes with the jobs."""
        kept = msgspec.json.decode(text, type=Record)
        self.uses = {uid: Use(seconds, at) for uid, (seconds, at) in kept.uses.items()}


def _band(ratio: float) -> int:
    if ratio >= FAR_OVER:
        return FAR_BAND
    if ratio >= OVER:
        return OVER_BAND
    return ABOUT_BAND if ratio >= ABOUT else UNDER_BAND
