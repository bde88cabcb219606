"""Statistics of the database equal those counted by hand."""

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gflow.core.effects import Ran
from gflow.core.engine import step
from gflow.core.events import Drain, Exited, Submit
from gflow.core.ids import job_key
from gflow.core.model import JobState, Moment
from gflow.core.queries.usage_report import Question, Usage
from gflow.core.reasons import LEASED
from gflow.core.state.state import State
from gflow.daemon.loop.stored_state import gather
from gflow.store import statistics as counting
from gflow.store.port import Changes
from gflow.store.reader import Reader
from gflow.store.sqlite import SqliteStore
from gflow.store.statistics import statistics
from gflow.testing import gpus, progress

from .builders import NOON, ended, job, running, spec

NOW = NOON + 1000


@pytest.fixture
def ask(tmp_path):
    """Statistics of some jobs and of their earlier attempts."""
    opened = []

    def ask(*jobs, attempts=(), **question):
        path = tmp_path / f"{len(opened)}.db"
        store = SqliteStore(path)
        # Holds of shared GPUs are not what is asked here.
        store.commit(Changes(jobs={one.key: one for one in jobs}, attempts=list(attempts)))
        opened.append((store, Reader(path)))
        return statistics(opened[-1][1], Question(now=NOW, boot=NOW - NOON, **question))

    yield ask
    for store, reader in opened:
        reader.close()
        store.close()


def ran(number, start, end, *gpu_ids, state=JobState.FINISHED, **fields):
    """A job that ran from `start` to `end`, in seconds after noon."""
    return ended(
        number,
        state,
        gpus=len(gpu_ids),
        gpu_ids=gpu_ids,
        started_at=NOON + start,
        finished_at=NOON + end,
        attempt=1,
        **fields,
    )


def test_statistics_without_jobs(ask):
    found = ask()
    assert (found.total, found.peak_gpus, found.top, found.left_out) == (Usage(), 0, [], 0)


def test_statistics_sums(ask):
    found = ask(
        ran(1, 100, 200, 0, 1, project="p"),
        ran(2, 50, 60, state=JobState.FAILED),
        ended(3, JobState.CANCELLED, user="bob"),
        ran(4, 0, 40, 2, state=JobState.TIMEOUT, user="bob", project="p"),
        running(5, 3, project="p"),
        job(6, gpus=4),
        job(7, state=JobState.HOLD),
    )
    assert found.total == Usage(
        total=7, completed=1, failed=1, cancelled=1, timeout=1, running=1, queued=2,
        started=4, waited_s=100 + 50 + 0 + 10, ran=3, run_s=100 + 10 + 40,
        gpu_s=200 + 40 + 990, gpu_jobs=4, gpus=2 + 1 + 1 + 4,
    )  # fmt: skip
    assert {name: usage.total for name, usage in found.by_user.items()} == {"ann": 5, "bob": 2}
    assert {name: usage.total for name, usage in found.by_project.items()} == {"p": 3, "": 4}
    assert [(one.key >> 20, one.run_s) for one in found.top] == [(5, 990), (1, 100), (4, 40), (2, 10)]
    assert found.top[0].name == "job-5"


def test_statistics_of_one_user(ask):
    jobs = ran(1, 0, 10, 0), ran(2, 0, 10, 1, user="bob")
    assert ask(*jobs, user="bob").total.total == 1
    assert ask(*jobs, user="bob").peak_gpus == 1
    assert ask(*jobs).peak_gpus == 2


def test_since_counts_gpu_time_from_then_on(ask):
    found = ask(ran(1, 0, 10, 0), ran(2, 0, 500, 1), running(3, 2), since=NOON + 400)
    assert found.total.total == 2
    assert found.total.gpu_s == 100 + 600
    assert found.total.run_s == 500
    assert found.peak_gpus == 2


def test_tasks_that_wait_or_never_started_count_one_by_one(ask):
    arrays = (
        job(1, array="1-60", gpus=2, progress=progress("4-60")),
        job(1, task=3, array="1-60", state=JobState.RUNNING, gpus=2, gpu_ids=(0, 1)),
        ended(2, JobState.CANCELLED, array="1-10", progress=progress("1-10")),
        ended(3, array="1-2", progress=progress("", ok=2)),
    )
    total = ask(*arrays).total
    assert (total.total, total.queued, total.running, total.cancelled) == (57 + 1 + 10, 57, 1, 10)
    assert (total.gpu_jobs, total.gpus) == (58, 116)


def earlier(number, attempt, start, end, *gpu_ids):
    return Ran(job_key(number), attempt, NOON + start, NOON + end, gpu_ids, end - start)


def test_earlier_attempts_count(ask):
    again = msgspec.structs.replace(ran(1, 300, 400, 0), attempt=3)
    found = ask(again, ran(2, 120, 130, 2), attempts=[earlier(1, 1, 100, 150, 0, 1), earlier(1, 2, 200, 210)])
    assert found.total.gpu_s == 50 * 2 + 100 + 10
    assert found.total.run_s == 50 + 10 + 100 + 10
    assert found.total.waited_s == 100 + 120
    assert found.peak_gpus == 3
    assert found.top[0].run_s == 160


def test_gpus_of_jobs_on_clusters_count(ask):
    """They have no indices on this machine."""
    there = ended(
        1, JobState.FINISHED, gpus=4, nodes=2, target="slurm", on="slurm", attempt=2,
        started_at=NOON + 100, finished_at=NOON + 160, ran_s=60.0,
    )  # fmt: skip
    assert ask(there, attempts=[earlier(1, 1, 0, 10)]).total.gpu_s == 70 * 8


def test_a_job_that_waits_for_its_next_attempt_has_run_already(ask):
    waiting = job(1, gpus=1, attempt=1, retries=1, reason="Retry")
    found = ask(waiting, attempts=[earlier(1, 1, 10, 30, 0)])
    assert (found.total.queued, found.total.gpu_s, found.total.started, found.peak_gpus) == (1, 20, 1, 1)


def test_job_between_attempts_counts_for_one_kind_of_gpu(ask):
    waiting = job(1, gpus=1, attempt=1, retries=1, reason="Retry", simulated=True)
    attempts = [earlier(1, 1, 10, 30, 0)]
    assert ask(waiting, attempts=attempts).total.gpu_s == 0
    assert ask(waiting, attempts=attempts, is_simulated=True).total.gpu_s == 20


def test_statistics_match_the_engine(tmp_path):
    """A retry, an attempt that another daemon's lease undid at once, an hour of waiting, and the last one."""
    state, store = State(cpus=1, memory_mib=1024), SqliteStore(tmp_path / "gflow.db")
    state.machine.see_gpus(gpus(2))

    def happens(kind, at, **fields):
        moment = Moment(NOON + at, at)
        changes = Changes()
        gather(changes, step(state, kind(at=moment, **fields)), None, "test", moment)
        store.commit(changes)

    happens(Submit, 0, uid=1, user="ann", specs=(spec(gpus=2, max_retries=1),), outcomes={})
    happens(Exited, 100, key=job_key(1), attempt=1, code=1)
    happens(Exited, 100.5, key=job_key(1), attempt=2, code=None, problem=LEASED)
    happens(Exited, 101, key=job_key(1), attempt=3, code=None, problem=LEASED)
    happens(Drain, 101, uid=0, on=True, gpus=None, reason="", passing=False)
    happens(Exited, 102, key=job_key(1), attempt=4, code=None, problem=LEASED)
    happens(Drain, 3700, uid=0, on=False, gpus=None, reason="", passing=False)
    happens(Exited, 3711, key=job_key(1), attempt=5, code=0)
    reader = Reader(store.path)
    found = statistics(reader, Question(now=NOON + 4000, boot=4000, is_simulated=True))
    reader.close()
    store.close()
    assert (found.total.gpu_s, found.total.run_s, found.total.waited_s) == ((100 + 11) * 2, 100 + 11, 0)


def test_simulated_gpus_are_counted_apart(ask):
    jobs = ran(1, 0, 10, 0, simulated=True), ran(2, 0, 10, 0, 1), ran(3, 0, 10)
    real, simulated = ask(*jobs), ask(*jobs, is_simulated=True)
    assert (real.total.total, real.peak_gpus, real.left_out) == (2, 2, 1)
    assert (simulated.total.total, simulated.peak_gpus, simulated.left_out) == (2, 1, 1)


# ---------------------------------------------------------------- the most at one moment

moments = st.integers(0, 12)
uses = st.lists(
    st.tuples(moments, moments, st.frozensets(st.integers(0, 3), min_size=1).map(sorted)), max_size=12
)


@settings(max_examples=200, deadline=None)
@given(uses, moments)
def test_peak_is_most_gpus_in_use_at_one_moment(tmp_path_factory, uses, since):
    """Jobs may overlap on a GPU, as those do that share it."""
    path = tmp_path_factory.mktemp("peak") / "gflow.db"
    jobs = [
        ran(number, min(start, end), max(start, end), *gpus)
        for number, (start, end, gpus) in enumerate(uses, 1)
    ]
    store = SqliteStore(path)
    store.commit(Changes(jobs={one.key: one for one in jobs}))
    reader = Reader(path)
    found = statistics(reader, Question(now=NOW, boot=NOW - NOON, since=NOON + since))
    reader.close()
    store.close()
    busy = [
        {gpu for start, end, gpus in uses if min(start, end) <= at < max(start, end) for gpu in gpus}
        for at in range(since, 13)
    ]
    assert found.peak_gpus == max(map(len, busy), default=0)
    assert found.total.gpu_s == sum(
        max(0, max(start, end) - max(min(start, end), since)) * len(gpus) for start, end, gpus in uses
    )


def test_adjacent_jobs_do_not_overlap(ask):
    assert ask(ran(1, 0, 10, 0), ran(2, 10, 20, 1), ran(3, 10, 20, 0)).peak_gpus == 2
    assert ask(ran(1, 0, 10, 0), ran(2, 10, 20, 1)).peak_gpus == 1


def test_statistics_have_task_keys(ask):
    assert ask(ran(1, 0, 10, task=2)).top[0].key == job_key(1, 2)


# ---------------------------------------------------------------- summaries of the past

HOUR = 3600
hours = st.integers(0, 100)
runs = st.lists(
    st.tuples(
        hours,
        hours,
        st.frozensets(st.integers(0, 2), max_size=2).map(sorted),
        st.sampled_from(["ann", "bob"]),
        st.booleans(),
    ),
    max_size=10,
)


def of_runs(drawn, first=1):
    """Jobs that ran for some hours, and earlier attempts of some of them."""
    jobs, attempts = [], []
    for number, (start, end, cards, user, is_retried) in enumerate(drawn, first):
        start, end = min(start, end) * HOUR, max(start, end) * HOUR
        one = ran(number, start, end, *cards, user=user)
        jobs.append(msgspec.structs.replace(one, attempt=1 + is_retried))
        if is_retried:
            attempts.append(earlier(number, 1, start - 5 * HOUR, start - 3 * HOUR, *cards))
    return jobs, attempts


@settings(max_examples=15, deadline=None)
@example(  # a job that is known only later, and used a GPU in a span with a summary
    old=[(0, 0, [], "ann", False), (0, 1, [0], "ann", False)],
    new=[(0, 9, [], "ann", False), (0, 9, [1], "ann", False)],
    since=0,
    now=9,
    user=None,
)
@given(runs, runs, st.integers(-6, 101), st.integers(0, 110), st.sampled_from([None, "ann"]))
def test_kept_summaries_change_no_figure(tmp_path_factory, old, new, since, now, user):
    """Days pass, jobs end, others are thrown away: with summaries and without, it is the same."""
    folder = tmp_path_factory.mktemp("summaries")
    store, kept = SqliteStore(folder / "gflow.db"), folder / "statistics.db"
    ends = []
    for at, (jobs, attempts) in ((now, of_runs(old)), (now + 30, of_runs(new, first=100))):
        store.commit(Changes(jobs={one.key: one for one in jobs}, attempts=attempts))
        ends += [(one, attempts) for one in jobs]
        for begin in (0.0, NOON + since * HOUR, NOON + since * HOUR + 7):
            question = Question(now=NOON + at * HOUR, boot=at * HOUR, since=begin, user=user)
            reader = Reader(store.path)
            alone = statistics(reader, question)
            assert statistics(reader, question, kept) == alone
            assert statistics(reader, question, kept) == alone
            reader.close()
    spans = [
        (one.user, gpu, (start - NOON) / HOUR, (end - NOON) / HOUR)
        for one, attempts in ends
        for start, end in [
            (one.started_at, one.finished_at),
            *((ran.started_at, ran.finished_at) for ran in attempts if ran.key == one.key),
        ]
        for gpu in one.gpu_ids
        if user is None or one.user == user
    ]
    reader = Reader(store.path)
    found = statistics(
        reader, Question(now=NOON + 400 * HOUR, boot=400 * HOUR, since=NOON + since * HOUR, user=user), kept
    )
    asked = [span for span in spans if span[3] >= since]
    assert found.total.gpu_s / HOUR == pytest.approx(
        sum(max(0, end - max(start, since)) for *_, start, end in asked)
    )
    busy = [len({gpu for _, gpu, start, end in asked if start <= at < end}) for at in range(since, 102)]
    assert found.peak_gpus == max(busy, default=0)
    reader.close()
    store.close()


@pytest.fixture
def week(tmp_path):
    """A database with a job a day, and where summaries of it are kept."""
    store = SqliteStore(tmp_path / "gflow.db")
    jobs = [ran(day, day * 24 * HOUR, (day * 24 + 30) * HOUR, 0) for day in range(1, 8)]
    store.commit(Changes(jobs={one.key: one for one in jobs}))
    reader = store.reader()
    yield store, reader, Question(now=NOON + 30 * 24 * HOUR, boot=30 * 24 * HOUR), tmp_path / "statistics.db"
    reader.close()
    store.close()


def counted(monkeypatch):
    """The spans that are recounted from now on."""
    spans, count = [], counting._of_span

    def noted(reader, question, span, going):
        spans.append(span)
        return count(reader, question, span, going)

    monkeypatch.setattr(counting, "_of_span", noted)
    return spans


def test_days_that_have_passed_are_counted_once(week, monkeypatch):
    _, reader, question, kept = week
    first, spans = statistics(reader, question, kept), counted(monkeypatch)
    assert statistics(reader, question, kept) == first
    assert [span.is_whole for span in spans] == [False], "only the present hour"
    spans.clear()
    later = question._replace(now=question.now + 24 * HOUR, since=NOON + 4 * 24 * HOUR)
    statistics(reader, later, kept)
    assert len([span for span in spans if span.is_whole]) <= 1
    assert statistics(reader, question._replace(user="bob"), kept).total == Usage()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_day_with_deleted_jobs_is_recounted(week, monkeypatch):
    store, reader, question, kept = week
    before = statistics(reader, question, kept)
    store._db.execute("DELETE FROM jobs WHERE key = ?", (job_key(3),))
    later, spans = store.reader(), counted(monkeypatch)
    assert statistics(later, question, kept).total.total == before.total.total - 1
    recounted = [span for span in spans if span.is_whole]
    assert len(recounted) == 2, "the day before, in which it ran, and the day after, which has the gap now"
    later.close()


@pytest.mark.parametrize("trouble", ["damaged", "folder", "other"])
def test_unusable_summaries_file_costs_only_time(week, monkeypatch, trouble, caplog):
    _, reader, question, kept = week
    before = statistics(reader, question, kept)
    if trouble == "damaged":
        kept.write_bytes(b"no database" * 1000)
    elif trouble == "folder":
        kept.unlink()
        kept.mkdir()
    else:
        monkeypatch.setattr(counting, "_MADE_BY", "another way")
    assert statistics(reader, question, kept) == before
    assert bool(caplog.messages) == (trouble == "folder")


@pytest.mark.parametrize(("which", "index"), [("_OVER", "jobs_finished"), ("_ACTIVE", "jobs_active")])
def test_jobs_of_a_span_are_found_by_index(week, which, index):
    """A span costs what ended in it, not what ever ended."""
    _, reader, question, _ = week
    values = question._asdict() | {"low": 0.0, "high": 1.0}
    for sql in getattr(counting, which):
        plan = [row[3] for row in reader.rows(f"EXPLAIN QUERY PLAN {sql}", values)]
        assert not [
            step for step in plan if step.startswith(("SCAN jobs", "SCAN j", "SCAN a")) and index not in step
        ]
        assert any(index in step for step in plan), plan
