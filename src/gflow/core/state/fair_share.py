"""Fair share: decayed GPU-seconds per user, and the band that orders users within a priority.

A user's jobs occupy GPUs, CPU slots and memory. The largest of their shares of the machine counts (dominant
resource fairness), as so many GPUs. The GPU time that a user has used in this way decays with a half-life
(`policy.half_life_s`). Each user with waiting or running jobs is compared with their
quadratic mean, which gives one of two bands: under and over. Jobs of users under the mean start first.

The record is a few numbers. The daemon saves it with every commit after a change, so that a restart continues
with exactly the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log, sqrt

import msgspec

from gflow.core.resources import Shape
from gflow.core.state.machine import Machine

# The key of the record in the database's meta table.
FAIR_SHARE = "shares"
# Users who have used at most the mean, and those who have used more.
UNDER_BAND, OVER_BAND = 0, 1
BANDS = 2


class Use:
    """GPU-seconds that one user has used, decayed to the time `at` (boot clock)."""

    __slots__ = ("at", "cpus", "gpus", "memory_mib", "seconds")

    def __init__(self, seconds: float, at: float) -> None:
        self.seconds = seconds
        self.at = at
        # What the user's running jobs occupy. Not in the record: derived from the running jobs.
        self.gpus = self.cpus = self.memory_mib = 0

    def add(self, shape: Shape, times: int) -> None:
        """Count a job of this shape among the running ones (-1: no longer)."""
        self.gpus += times * shape.gpus
        self.cpus += times * shape.cpus
        self.memory_mib += times * shape.memory_mib

    @property
    def is_running(self) -> bool:
        """Whether any of the user's running jobs occupies anything."""
        return bool(self.gpus or self.cpus or self.memory_mib)


class Record(msgspec.Struct, omit_defaults=True):
    """The stored form. Members that older versions stored are ignored."""

    # uid -> decayed GPU-seconds, and the time to which they are decayed.
    uses: dict[int, tuple[float, float]] = {}


class FairShare:
    """Decayed GPU-seconds of all users."""

    def __init__(self, half_life_s: float, machine: Machine) -> None:
        self._machine = machine
        self.uses: dict[int, Use] = {}
        # Whether anything differs from the latest record.
        self.changed = False
        self._rate = log(2) / half_life_s if half_life_s else 0.0

    # ------------------------------------------------------------ counting

    def run(self, uid: int, shape: Shape, now: float, times: int = 1) -> None:
        """A job of this shape runs from now on (-1 times: no longer)."""
        self.changed = True
        use = self.uses.get(uid)
        if use is None:
            use = self.uses[uid] = Use(0.0, now)
        use.seconds = self._decay(use, now)
        use.at = now
        use.add(shape, times)

    def resume(self, uid: int, shape: Shape) -> None:
        """After a restart: a job of this shape has run since the record was made."""
        self.uses.setdefault(uid, Use(0.0, 0.0)).add(shape, 1)

    def use(self, uid: int, now: float) -> float:
        """The user's decayed GPU-seconds as of now, including those of running jobs so far."""
        use = self.uses.get(uid)
        return 0.0 if use is None else self._decay(use, now)

    def _decay(self, use: Use, now: float) -> float:
        passed, occupied = max(0.0, now - use.at), self._occupied(use)
        if not self._rate:
            return use.seconds + occupied * passed
        factor = exp(-self._rate * passed)
        return use.seconds * factor + occupied * (1.0 - factor) / self._rate

    def _occupied(self, use: Use) -> float:
        """What the user's running jobs occupy, in GPUs: the largest share of any resource counts."""
        machine = self._machine
        gpus = max(1, len(machine.gpus))
        return max(
            use.gpus,
            gpus * use.cpus / max(1, machine.cpus),
            gpus * use.memory_mib / max(1, machine.memory_mib),
        )

    # ------------------------------------------------------------ bands

    def bands(self, uids: Iterable[int], now: float) -> dict[int, int]:
        """The band of each of these users, compared with their quadratic mean.

        The plain mean falls with each user of little use who begins, and then puts users of moderate use
        beside those of most use.
        """
        used = {uid: self.use(uid, now) for uid in uids}
        mean = sqrt(sum(own * own for own in used.values()) / max(1, len(used)))
        return {uid: _band(own, mean) for uid, own in used.items()}

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


def _band(use: float, mean: float) -> int:
    return OVER_BAND if use > mean else UNDER_BAND
