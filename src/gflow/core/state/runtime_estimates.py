"""Runtime estimates: how long a job is expected to run, from finished jobs of the same kind.

A kind is one user, one name (of a sweep: its template; without a name: the same first words of the command)
and one number of GPUs. Jobs of a kind that were submitted within the same half day are a batch. The 75th
percentile of a batch is the estimate for the rest of it: users work on one experiment at a time, so that a
batch predicts itself better than last month's jobs do. A batch without a finished job uses the estimate of
the nearest batches. Of a name that is new, all names count that differ from it in numbers only (`run-17`,
`run-18`); of work that is new, the user's other jobs on as many GPUs.

Estimates depend only on the finished jobs and the clock, not on the order of ends: a restart computes the
same ones.
"""

from __future__ import annotations

import heapq
import re
from bisect import insort
from collections.abc import Iterable

from gflow.core.ids import JobKey
from gflow.core.model import LOCAL, Job, Spec
from gflow.core.resources import INFINITE
from gflow.core.transitions import FINISHED

# The length of a span, half a day; spans are numbered since 1970.
SPAN_S = 43200.0
# How far away, in spans, a batch without a finished job looks for one that has some.
NEAR = 14
FAR = 1 << 62
# If a running job exceeds its estimate, the estimate is multiplied by this.
OUTLASTS = 4
# The estimate where nothing is known.
UNKNOWN_S = 7200.0
SHORTEST_S = 1.0
# The parts of a name in which the runs of a sweep differ.
NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")
# Batches that are kept of each kind; and kinds of which no job waits or runs, between this many and twice as
# many. The jobs that are learnt from after a restart make at most as many.
KEPT_SPANS = 120
KEPT_KINDS = 10_000


# Jobs that probably run about as long as each other: uid, work (see `what_of`), number of GPUs.
Kind = tuple[int, str, int]


def what_of(spec: Spec) -> str:
    """The work that a job does: its name, or the program and its first argument.

    The jobs of a sweep are the same work: for them the templates count, as in `--name lr{lr}`.
    """
    if spec.name:
        return spec.name_template or spec.name
    words = spec.template or spec.command
    if not words:
        return spec.script_path
    if len(words) > 1 and not words[1].startswith("-"):
        return f"{words[0]} {words[1]}"
    return words[0]


def siblings_of(what: str) -> str:
    """What the names of runs have in common that differ in numbers, as in `run-17`."""
    return NUMBERS.sub("#", what)


def length_of(job: Job) -> float:
    """How long a finished job ran, in seconds."""
    return 0.0 if job.ran_s is None else max(SHORTEST_S, job.ran_s)


def upper_quartile(lengths: list[float]) -> float:
    """The 75th percentile of sorted run times."""
    return lengths[(3 * len(lengths) + 3) // 4 - 1]


class Batch:
    """Jobs of one kind and span: run times of the finished ones, start times of the running ones."""

    __slots__ = (
        "due", "ended", "is_known", "kind", "length", "most", "near", "span", "starts", "waiting",
    )  # fmt: skip

    def __init__(self, kind: Kind, span: int) -> None:
        self.kind = kind
        self.span = span
        # Run times of finished jobs, sorted; and their 75th percentile (0: none finished).
        self.ended: list[float] = []
        self.most = 0.0
        # Start of each running job (boot clock).
        self.starts: dict[JobKey, float] = {}
        # How many groups of the queue use the estimate of this batch.
        self.waiting = 0
        self.length = UNKNOWN_S
        # Whether the estimate rests on runs of this work; and how many spans away the nearest are.
        self.is_known = False
        self.near = FAR
        # When the longest running job exceeds the estimate, as in the heap of all batches; 0: not in it.
        self.due = 0.0

    def learn(self, length: float) -> bool:
        """Add the run time of a finished job; whether the percentile changed."""
        ended, before = self.ended, self.most
        insort(ended, length)
        self.most = upper_quartile(ended)
        return self.most != before


class RuntimeEstimates:
    """All batches, and the estimate of each as of the latest round."""

    def __init__(self, *, use_history: bool = True) -> None:
        # Whether finished jobs count, or time limits only.
        self._use_history = use_history
        # The batches of each kind; the kind that was learnt of last comes last.
        self.kinds: dict[Kind, dict[int, Batch]] = {}
        # The number of kinds at which unused ones are dropped.
        self._most_kinds = 2 * KEPT_KINDS
        # When the first job of each kind that has finished ended (wall clock).
        self._known_since: dict[Kind, float] = {}
        # By user and number of GPUs: run times of finished jobs, by the span in which they ended.
        self._of_width: dict[tuple[int, int], dict[int, list[float]]] = {}
        # Batches of each kind without a finished job: they use the estimates of others.
        self._endless: dict[Kind, dict[int, Batch]] = {}
        # A heap of (time at which the estimate is exceeded, kind, span); stale unless equal to `Batch.due`.
        self._due: list[tuple[float, Kind, int]] = []
        self._now = 0.0
        # The latest span of a batch that had waiting or running jobs.
        self._latest = 0
        # The longest run of each kind.
        self._longest: dict[Kind, float] = {}
        # Batches whose estimate or longest run changed since `ReadyQueue.refresh`.
        self.changed: set[Batch] = set()
        # Batches with running jobs whose estimate changed since `RunningJobs.ends`.
        self.moved: set[Batch] = set()

    def batch(self, kind: Kind, span: int) -> Batch:
        spans = self.kinds.get(kind)
        if spans is None:
            if len(self.kinds) >= self._most_kinds:
                self._forget_kinds()
            spans = self.kinds[kind] = {}
            self._endless[kind] = {}
        batch = spans.get(span)
        if batch is None:
            if len(spans) >= KEPT_SPANS:
                self._forget(spans)
            batch = spans[span] = self._endless[kind][span] = Batch(kind, span)
            batch.length = self._estimate(spans, batch)
        return batch

    def batch_of(self, job: Job) -> Batch:
        return self.batch(self.kind_of(job), int(job.submitted_at // SPAN_S))

    def kind_of(self, job: Job) -> Kind:
        """The kind of a job: that of its name, if such a job had finished when it was submitted, else that of
        all names that differ from it in numbers only."""
        spec = job.spec
        what = what_of(spec)
        own: Kind = (job.uid, what, spec.gpus)
        if not spec.name or self._known_since.get(own, INFINITE) < job.submitted_at:
            return own
        return job.uid, siblings_of(what), spec.gpus

    # ------------------------------------------------------------ events

    def started(self, job: Job, batch: Batch | None = None) -> Batch:
        """Note the start of a job. `batch`: that of the job, if the caller knows it."""
        assert job.started_boot is not None
        if batch is None:
            batch = self.batch_of(job)
        batch.starts[job.key] = job.started_boot
        self._latest = max(self._latest, batch.span)
        self._refresh(self.kinds[batch.kind], batch)
        return batch

    def stopped(self, job: Job, batch: Batch) -> None:
        """Note that a job no longer runs, however it ended."""
        batch.starts.pop(job.key, None)
        self._refresh(self.kinds[batch.kind], batch)

    def learn(self, job: Job) -> None:
        """Learn from a final job. Only successful jobs of this machine count."""
        if job.state is not FINISHED or job.progress is not None or job.target != LOCAL:
            return
        uid, what, gpus = job.uid, what_of(job.spec), job.spec.gpus
        if job.finished_at is not None:
            self._learn_width(job, job.finished_at)
        self._learn(job, (uid, what, gpus))
        if job.spec.name and (siblings := siblings_of(what)) != what:
            self._learn(job, (uid, siblings, gpus))

    def _learn_width(self, job: Job, ended_at: float) -> None:
        uid, gpus = job.uid, job.spec.gpus
        ended, span = self._of_width.setdefault((uid, gpus), {}), int(ended_at // SPAN_S)
        insort(ended.setdefault(span, []), length_of(job))
        if len(ended) > KEPT_SPANS:
            del ended[min(ended)]
        if span < self._latest:  # the clock was set back, or the end was long ago
            for kind, endless in self._endless.items():
                for batch in endless.values() if (kind[0], kind[2]) == (uid, gpus) else ():
                    if batch.span > span and (batch.waiting or batch.starts):
                        self._refresh(self.kinds[kind], batch)
                        self.changed.add(batch)

    def _learn(self, job: Job, kind: Kind) -> None:
        ended_at = job.finished_at
        if ended_at is not None and ended_at < self._known_since.get(kind, INFINITE):
            self._known_since[kind] = ended_at
        span = int(job.submitted_at // SPAN_S)
        batch, length = self.batch(kind, span), length_of(job)
        self.kinds[kind] = self.kinds.pop(kind)
        if length > self._longest.get(kind, 0.0):
            self._longest[kind] = length
            for other in self.kinds[kind].values():
                if other.waiting:
                    self.changed.add(other)
                if other.starts:  # running jobs may be expected to end as late
                    self._refresh(self.kinds[kind], other)
        if not batch.learn(length):
            return
        spans, endless = self.kinds[kind], self._endless[kind]
        endless.pop(span, None)
        if batch.waiting or batch.starts:
            self._refresh(spans, batch)
        for other in endless.values():
            # A batch that uses a nearer one is not affected.
            if (other.waiting or other.starts) and abs(other.span - span) <= other.near:
                self._refresh(spans, other)

    def learn_all(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self.learn(job)

    def pass_time(self, now: float) -> None:
        """Raise the estimates that running jobs have exceeded by now (boot clock)."""
        self._now = now
        while self._due and self._due[0][0] <= now:
            due, kind, span = heapq.heappop(self._due)
            spans = self.kinds.get(kind, {})
            if span in spans and spans[span].due == due:
                spans[span].due = 0.0
                self._refresh(spans, spans[span])

    # ------------------------------------------------------------ estimates

    def length(self, limit_s: int, batch: Batch) -> float:
        """The expected length of such a job: the runtime estimate, but at most the limit."""
        estimated_s = self.estimate(limit_s, batch)
        return limit_s if 0 < limit_s < estimated_s else estimated_s

    def estimate(self, limit_s: int, batch: Batch) -> float:
        """The runtime estimate from finished jobs; infinite if there is none, or if the limit is better.

        A limit is better than an estimate from other work with as many GPUs, and worse than one from earlier
        runs of the same work.
        """
        if not self._use_history or (limit_s and not (batch.kind[1] and batch.is_known)):
            return INFINITE
        return batch.length

    def longest(self, limit_s: int, batch: Batch) -> float:
        """How long such a job may run: the longest run of its kind, or if there is none of the user's jobs on
        as many GPUs, but at most the limit; if there is no estimate from earlier runs, the limit. Never less
        than the expected length."""
        limit, estimated = limit_s or INFINITE, self.estimate(limit_s, batch)
        if estimated == INFINITE:
            return limit
        return min(limit, max(estimated, self._longest_run(batch)))

    def look_at(self, batch: Batch) -> None:
        """Compute the estimate of a batch that had no waiting jobs: such estimates are not kept current."""
        self._latest = max(self._latest, batch.span)
        batch.length = self._estimate(self.kinds[batch.kind], batch)

    def _refresh(self, spans: dict[int, Batch], batch: Batch) -> None:
        was_known = batch.is_known
        length = self._estimate(spans, batch)
        if length != batch.length or was_known != batch.is_known:
            batch.length = length
            if batch.waiting:
                self.changed.add(batch)
            if batch.starts:
                self.moved.add(batch)

    def _estimate(self, spans: dict[int, Batch], batch: Batch) -> float:
        """The 75th percentile of finished jobs. Once a running job has exceeded it: a multiple of it, but at
        most the longest run, unless the job has exceeded that, too."""
        length = batch.most
        if not length:
            length, batch.near = _estimate_from_neighbours(spans, batch)
        batch.is_known = length > 0
        if not length:
            length = self._estimate_by_width(batch)
        if batch.starts:
            oldest = min(batch.starts.values())
            # The same sum as in `due`: a difference may round differently, and then the entry stays due.
            if oldest + length <= self._now:
                longest = self._longest_run(batch)
                while oldest + length <= self._now:
                    length *= OUTLASTS
                if longest < length and oldest + longest > self._now:
                    length = longest
            if batch.due != oldest + length:
                batch.due = oldest + length
                heapq.heappush(self._due, (batch.due, batch.kind, batch.span))
        return length

    def _longest_run(self, batch: Batch) -> float:
        """The longest run of this kind; of unknown work, of this user's jobs on as many GPUs, that ended in
        earlier half days than that of the batch. 0: there is none."""
        longest = self._longest.get(batch.kind, 0.0)
        if longest:
            return longest
        ended = self._of_width.get((batch.kind[0], batch.kind[2]), {})
        return max((ended[span][-1] for span in ended if span < batch.span), default=0.0)

    def _estimate_by_width(self, batch: Batch) -> float:
        """The estimate of unknown work: other jobs of this user on as many GPUs.

        Those count that ended in the latest half day before that of the batch, so that the estimate of a
        batch does not change with each end.
        """
        uid, what, gpus = batch.kind
        ended = self._of_width.get((uid, gpus), {}) if what else {}
        span = max((span for span in ended if span < batch.span), default=None)
        return UNKNOWN_S if span is None else upper_quartile(ended[span])

    def _forget(self, spans: dict[int, Batch]) -> None:
        """Drop the oldest batches, to make room for one. Batches with waiting or running jobs stay."""
        for span in sorted(spans)[: 1 - KEPT_SPANS]:
            batch = spans[span]
            if not batch.starts and not batch.waiting:
                del spans[span]
                self._endless[batch.kind].pop(span, None)

    def _forget_kinds(self) -> None:
        """Drop the kinds of which no job has ended for longest. Those with waiting or running jobs stay."""
        for kind in list(self.kinds)[:-KEPT_KINDS]:
            if not any(batch.starts or batch.waiting for batch in self.kinds[kind].values()):
                del self.kinds[kind], self._endless[kind]
                self._known_since.pop(kind, None)
                self._longest.pop(kind, None)
        self._most_kinds = len(self.kinds) + KEPT_KINDS


def _estimate_from_neighbours(spans: dict[int, Batch], batch: Batch) -> tuple[float, int]:
    """The estimate of the nearest batches, or for named work of its latest (0: there is none), and how many
    spans away they are."""
    if len(spans) > 1:
        for distance in range(1, NEAR + 1):
            before, after = spans.get(batch.span - distance), spans.get(batch.span + distance)
            most = before.most if before is not None else 0.0
            if after is not None and after.most > most:
                most = after.most
            if most:
                return most, distance
        known = [span for span, other in spans.items() if other.most] if batch.kind[1] else []
        if known:
            return spans[max(known)].most, FAR
    return 0.0, FAR
