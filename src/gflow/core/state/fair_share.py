"""Fair share: decayed GPU-seconds per user, and the band that orders users within a priority.

The GPU time that a user has used decays with a half-life (`policy.half_life_s`). Each user with waiting or
running jobs is compared with the mean of the others, which gives one of four bands: under, about, over, far
over. Jobs of a lower band start first.

The record is a few numbers. The daemon saves it with every commit after a change, so that a restart continues
with exactly the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log

import msgspec

# The key of the record in the database's meta table.
FAIR_SHARE = "shares"
HOUR_S = 3600.0
# Lower bounds of the bands, as a ratio: a user's use to the mean of the other users'.
FAR_OVER, OVER, ABOUT = 8.0, 2.0, 0.5
UNDER_BAND, ABOUT_BAND, OVER_BAND, FAR_BAND = 0, 1, 2, 3
BANDS = 4


class Use:
    """GPU-seconds that one user has used, decayed to the time `at` (boot clock)."""

    __slots__ = ("at", "gpus", "seconds")

    def __init__(self, seconds: float, at: float) -> None:
        self.seconds = seconds
        self.at = at
        # GPUs of the user's running jobs. Not in the record: derived from the running jobs.
        self.gpus = 0


class Record(msgspec.Struct, omit_defaults=True):
    """The stored form. Members that older versions stored are ignored."""

    # uid -> decayed GPU-seconds, and the time to which they are decayed.
    uses: dict[int, tuple[float, float]] = {}


class FairShare:
    """Decayed GPU-seconds of all users."""

    def __init__(self, half_life_s: float) -> None:
        self.uses: dict[int, Use] = {}
        # Whether anything differs from the latest record.
        self.changed = False
        self._rate = log(2) / half_life_s if half_life_s else 0.0

    # ------------------------------------------------------------ counting

    def run(self, uid: int, gpus: int, now: float) -> None:
        """The user's jobs use `gpus` more GPUs from now on (fewer, if negative)."""
        if not gpus:
            return
        self.changed = True
        use = self.uses.get(uid)
        if use is None:
            use = self.uses[uid] = Use(0.0, now)
        use.seconds = self._decay(use, now)
        use.at = now
        use.gpus += gpus

    def resume(self, uid: int, gpus: int) -> None:
        """After a restart: the user's jobs have used these GPUs since the record was made."""
        if gpus:
            self.uses.setdefault(uid, Use(0.0, 0.0)).gpus += gpus

    def use(self, uid: int, now: float) -> float:
        """The user's decayed GPU-seconds as of now, including those of running jobs so far."""
        use = self.uses.get(uid)
        return 0.0 if use is None else self._decay(use, now)

    def _decay(self, use: Use, now: float) -> float:
        passed = max(0.0, now - use.at)
        if not self._rate:
            return use.seconds + use.gpus * passed
        factor = exp(-self._rate * passed)
        return use.seconds * factor + use.gpus * (1.0 - factor) / self._rate

    # ------------------------------------------------------------ bands

    def bands(self, uids: Iterable[int], pool: int, now: float) -> dict[int, int]:
        """The band of each of these users, compared with the others among them.

        An hour of all `pool` GPUs is added on both sides of the ratio, so that small differences do not
        matter.
        """
        used = {uid: self.use(uid, now) for uid in uids}
        if len(used) < 2:
            return dict.fromkeys(used, ABOUT_BAND)
        total, others, floor = sum(used.values()), len(used) - 1, HOUR_S * max(1, pool)
        return {uid: _band((own + floor) / ((total - own) / others + floor)) for uid, own in used.items()}

    # ------------------------------------------------------------ storing

    def record(self) -> str:
        """The record to store; marks the numbers as unchanged."""
        self.changed = False
        uses = {uid: (use.seconds, use.at) for uid, use in self.uses.items()}
        return msgspec.json.encode(Record(uses)).decode()

    def load(self, text: str) -> None:
        """Load a record. The GPUs in use are added by `resume`, for each running job."""
        kept = msgspec.json.decode(text, type=Record)
        self.uses = {uid: Use(seconds, at) for uid, (seconds, at) in kept.uses.items()}


def _band(ratio: float) -> int:
    if ratio >= FAR_OVER:
        return FAR_BAND
    if ratio >= OVER:
        return OVER_BAND
    return ABOUT_BAND if ratio >= ABOUT else UNDER_BAND
