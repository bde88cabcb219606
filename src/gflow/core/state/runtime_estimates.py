"""How long jobs of a kind take, learnt from those that ended.

A kind is what one person calls by one name, or starts by the same words, with as many GPUs. Jobs
of a kind that were submitted within the same half day are a batch: people try one thing at a time, so
what most of a batch took says more about the rest of it than last month does. A batch without an end
yet goes by its neighbours.

All of it follows from finished jobs and the clock, in whatever order they came: a restart
learns the same again.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable

from gflow.core.ids import JobKey
from gflow.core.model import LOCAL, Job, Spec
from gflow.core.transitions import FINISHED

# Submitted within the same span, as they are counted since 1970.
SPAN_S = 43200.0
# How far, in spans, a batch without an end looks for one that has some.
NEAR = 14
FAR = 1 << 62
# Whoever has run longer than expected is expected to take so many times as long.
OUTLASTS = 4
# What nobody knows anything about.
UNKNOWN_S = 7200.0
SHORTEST_S = 1.0
# Of each kind so many batches are kept.
KEPT_SPANS = 120
# So many starts of jobs that ended may lie about before somebody tidies up.
MOST_STALE = 64


# Jobs that probably take about as long as each other: whose, what it is, how many GPUs.
Kind = tuple[int, str, int]


def what_of(spec: Spec) -> str:
    """What a person would call this work: its name, or the program and what it is given first."""
    if spec.name:
        return spec.name
    words = spec.template or spec.command
    if not words:
        return spec.script_path
    if len(words) > 1 and not words[1].startswith("-"):
        return f"{words[0]} {words[1]}"
    return words[0]


def length_of(job: Job) -> float:
    """How long a job that ended ran."""
    return 0.0 if job.ran_s is None else max(SHORTEST_S, job.ran_s)


class Batch:
    """Jobs of one kind and span: what most that ended took, and since when others run."""

    __slots__ = (
        "_order", "due", "ended", "is_known", "kind", "length", "most", "near", "span", "starts", "waiting",
    )  # fmt: skip

    def __init__(self, kind: Kind, span: int) -> None:
        self.kind = kind
        self.span = span
        # How long those took that ended, in order; what three in four of them did not exceed (0: none ended).
        self.ended: list[float] = []
        self.most = 0.0
        # Start of each running job of it; and the same as a heap, in which those that ended may still lie.
        self.starts: dict[JobKey, float] = {}
        self._order: list[tuple[float, JobKey]] = []
        # How many groups of the queue wait for a prediction of it.
        self.waiting = 0
        self.length = UNKNOWN_S
        # Whether anything is known of it, or of work like it; how far off the batches are that it goes by.
        self.is_known = False
        self.near = FAR
        # When that is exceeded by the one that has run longest, as `History` has noted it.
        self.due = 0.0

    def begin(self, key: JobKey, at: float) -> None:
        """A job of it runs from now on."""
        self.starts[key] = at
        heapq.heappush(self._order, (at, key))
        if len(self._order) > MOST_STALE + 2 * len(self.starts):
            self._order = sorted((start, other) for other, start in self.starts.items())

    def learn(self, length: float) -> bool:
        """One of it took so long; whether that says something new."""
        ended, before = self.ended, self.most
        insort(ended, length)
        self.most = ended[(3 * len(ended) + 3) // 4 - 1]
        return self.most != before

    def oldest(self) -> float:
        """Since when the one runs that has run longest; somebody must."""
        order = self._order
        while self.starts.get(order[0][1]) != order[0][0]:
            heapq.heappop(order)
        return order[0][0]


class History:
    """All batches, and the prediction of each as of the latest round."""

    def __init__(self) -> None:
        self.kinds: dict[Kind, dict[int, Batch]] = {}
        # Those of each kind without an end of their own: they go by the others.
        self._endless: dict[Kind, dict[int, Batch]] = {}
        # (when its prediction is exceeded, kind, span); `Batch.due` says which of them are still true.
        self._due: list[tuple[float, Kind, int]] = []
        self._now = 0.0
        # Batches whose prediction changed since the queue was last told.
        self.changed: set[Batch] = set()
        # Those with running jobs whose prediction changed since the ends of these were last looked at.
        self.moved: set[Batch] = set()

    def batch(self, kind: Kind, span: int) -> Batch:
        spans = self.kinds.get(kind)
        if spans is None:
            spans = self.kinds[kind] = {}
            self._endless[kind] = {}
        batch = spans.get(span)
        if batch is None:
            if len(spans) >= KEPT_SPANS:
                self._forget(spans)
            batch = spans[span] = self._endless[kind][span] = Batch(kind, span)
            batch.length = self._judge(spans, batch)
        return batch

    def batch_of(self, job: Job) -> Batch:
        spec = job.spec
        return self.batch((job.uid, what_of(spec), spec.gpus), int(job.submitted_at // SPAN_S))

    # ------------------------------------------------------------ what happens

    def started(self, job: Job, batch: Batch | None = None) -> Batch:
        """It runs now. `batch`: its own, where that is known."""
        assert job.started_boot is not None
        if batch is None:
            batch = self.batch_of(job)
        batch.begin(job.key, job.started_boot)
        self._refresh(self.kinds[batch.kind], batch)
        return batch

    def stopped(self, job: Job, batch: Batch) -> None:
        """It runs no longer, however it ended."""
        batch.starts.pop(job.key, None)
        self._refresh(self.kinds[batch.kind], batch)

    def learn(self, job: Job) -> None:
        """A job is final. Only success, and here, says how long the work takes."""
        if job.state is not FINISHED or job.progress is not None or job.target != LOCAL:
            return
        length = length_of(job)
        batch = self.batch_of(job)
        if not batch.learn(length):
            return
        kind, span = batch.kind, batch.span
        spans, endless = self.kinds[kind], self._endless[kind]
        endless.pop(span, None)
        if batch.waiting or batch.starts:
            self._refresh(spans, batch)
        for other in endless.values():
            # What goes by a nearer one does not go by this one.
            if (other.waiting or other.starts) and abs(other.span - span) <= other.near:
                self._refresh(spans, other)

    def learn_all(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self.learn(job)

    def pass_time(self, now: float) -> None:
        """Predictions that are exceeded by now (boot clock) grow."""
        self._now = now
        while self._due and self._due[0][0] <= now:
            due, kind, span = heapq.heappop(self._due)
            spans = self.kinds.get(kind, {})
            if span in spans and spans[span].due == due:
                spans[span].due = 0.0
                self._refresh(spans, spans[span])

    # ------------------------------------------------------------ what follows

    def look_at(self, batch: Batch) -> None:
        """Somebody wants to know again: predictions that nobody waits for are not kept up."""
        batch.length = self._judge(self.kinds[batch.kind], batch)

    def _refresh(self, spans: dict[int, Batch], batch: Batch) -> None:
        was_known = batch.is_known
        length = self._judge(spans, batch)
        if length != batch.length or was_known != batch.is_known:
            batch.length = length
            if batch.waiting:
                self.changed.add(batch)
            if batch.starts:
                self.moved.add(batch)

    def _judge(self, spans: dict[int, Batch], batch: Batch) -> float:
        """What most took that ended; a multiple of it once one that runs has exceeded it."""
        length, batch.is_known = batch.most, True
        if not length:
            length, batch.is_known, batch.near = _beside(spans, batch)
        if batch.starts:
            oldest = batch.oldest()
            # By the same sum as `due`: a difference may round otherwise, and then it is due for ever.
            while oldest + length <= self._now:
                length *= OUTLASTS
            if batch.due != oldest + length:
                batch.due = oldest + length
                heapq.heappush(self._due, (batch.due, batch.kind, batch.span))
        return length

    def _forget(self, spans: dict[int, Batch]) -> None:
        """Make room for one more. Whoever waits or runs goes by the oldest, too: those stay."""
        for span in sorted(spans)[: 1 - KEPT_SPANS]:
            batch = spans[span]
            if not batch.starts and not batch.waiting:
                del spans[span]
                self._endless[batch.kind].pop(span, None)


def _beside(spans: dict[int, Batch], batch: Batch) -> tuple[float, bool, int]:
    """What the nearest batches say, and for work that has a name also what it once took; whether that is to
    be relied on, and how far off they are."""
    is_named = bool(batch.kind[1])
    if len(spans) > 1:
        for distance in range(1, NEAR + 1):
            before, after = spans.get(batch.span - distance), spans.get(batch.span + distance)
            most = before.most if before is not None else 0.0
            if after is not None and after.most > most:
                most = after.most
            if most:
                return most, is_named or distance == 1, distance
        known = [span for span, other in spans.items() if other.most] if is_named else []
        if known:
            return spans[max(known)].most, True, FAR
    return UNKNOWN_S, False, FAR
