"""The contract of both stores: the one on disk and its double."""

import pytest

from gflow.core.ids import job_key
from gflow.core.model import AuditEntry, JobState
from gflow.core.reasons import parse
from gflow.core.state.job_tables import RECENT
from gflow.errors import StoreError
from gflow.store.memory import MemoryStore
from gflow.store.port import Changes, Loaded, Submission, address_of
from gflow.store.sqlite import SqliteStore
from gflow.testing import progress

from .builders import NOON, UIDS, ended, job, running


@pytest.fixture(params=["sqlite", "memory"])
def store(request, tmp_path):
    opened = SqliteStore(tmp_path / "gflow.db") if request.param == "sqlite" else MemoryStore()
    yield opened
    opened.close()


def save(store, *jobs, **more):
    store.commit(Changes(jobs={job.key: job for job in jobs}, **more))


def submit(store, *jobs, token="token", next_number=0):
    """As a turn of the loop does it."""
    submission = Submission(jobs[0].uid, token, tuple(job.key for job in jobs), NOON)
    number = next_number or jobs[-1].number + 1
    save(store, *jobs, submissions=[submission], meta={"next_number": number})


def numbers(jobs):
    return [job.number for job in jobs]


# ---------------------------------------------------------------- jobs


@pytest.mark.parametrize("is_new", [False, True], ids=["any", "new"])
@pytest.mark.parametrize(
    "saved",
    [
        job(1),
        job(7, task=3, user="bob", name="\u8a13\u7df4", priority=200, command=("a", "", "b c"), umask=0),
        job(2, depends_on=(job_key(1), job_key(1, 4))),
        job(3, state=JobState.HOLD, reason="JobHeldUser"),
        running(4, 0, 3, stopping=JobState.CANCELLED),
        ended(5, exit_code=0, attempt=2, gpu_ids=(1,), started_at=NOON),
        ended(6, JobState.FAILED, signal=9, reason="Signal:9"),
        job(
            8,
            array="0-9",
            progress=progress("4-9", active=2, ok=1, bad=1, worst=3),
            attempt=1,
            started_at=NOON,
        ),
        job(9, array="0-9", progress=progress("0-9")),
        job(10, reason="Retry", attempt=3, retries=2, quick_ends=1, exit_code=1, cpu_ms=70, peak_kib=9),
        running(11, 2, shared=True, gpu_memory_mib=512),
    ],
    ids=lambda saved: f"{saved.state.value}-{saved.label}",
)
def test_a_job_reads_back(store, saved, is_new):
    save(store, saved, new={saved.key} if is_new else set())
    assert store.job(saved.key) == saved
    assert list(store.jobs(active=False)) == [saved]


def test_a_job_that_never_was_is_none(store):
    assert store.job(job_key(1)) is None


def test_a_job_is_replaced_by_its_newer_self(store):
    save(store, job(1, gpus=1))
    save(store, running(1, 0))
    save(store, running(1, 0, stopping=JobState.TIMEOUT))
    assert store.job(job_key(1)) == running(1, 0, stopping=JobState.TIMEOUT)


def test_the_store_has_its_own_copy(store):
    mine = job(1)
    save(store, mine)
    mine.reason = parse("changed after the commit")
    store.job(mine.key).reason = parse("changed by a reader")
    for found in store.jobs(active=True):
        found.reason = parse("changed by another")
    assert store.job(mine.key) == job(1)


def test_jobs_come_by_key(store):
    held = job(2, state=JobState.HOLD)
    save(store, ended(5, user="bob"), running(4, 0, user="bob"), ended(3), held, job(1))
    assert numbers(store.jobs(active=True)) == [1, 2, 4]
    assert numbers(store.jobs(active=False)) == [1, 2, 3, 4, 5]


def test_tasks_come_after_their_array_and_before_the_next_job(store):
    save(store, job(3), job(2, task=1), job(2), job(2, task=0))
    assert [found.label for found in store.jobs(active=True)] == ["2", "2_0", "2_1", "3"]


def test_end_and_next_start_on_gpu_share_a_commit(store):
    save(store, running(1, 0, 1), job(2, gpus=2))
    save(store, running(2, 0, 1), ended(1, gpus=2, gpu_ids=(0, 1), started_at=NOON, attempt=1))
    assert numbers(store.jobs(active=True)) == [2]
    assert store.job(job_key(1)).gpu_ids == (0, 1), "a final job remembers where it ran"


def test_an_empty_commit_is_no_change(store):
    assert not Changes()
    store.commit(Changes())
    assert store.load() == Loaded([], {}, [], 1, {})


# ---------------------------------------------------------------- load


def test_an_empty_store_starts_at_job_one(store):
    assert store.load() == Loaded(jobs=[], outcomes={}, recent=[], next_number=1, meta={})


def test_a_daemon_starts_from_the_active_jobs_only(store):
    save(store, ended(1), running(2, 0), job(3), job(4, state=JobState.HOLD), ended(5, JobState.CANCELLED))
    assert store.load().jobs == [running(2, 0), job(3), job(4, state=JobState.HOLD)]


def test_load_tells_how_final_parents_ended(store):
    parents = (job_key(1), job_key(2), job_key(3))
    save(store, ended(1), ended(2, JobState.FAILED), job(3), job(4, depends_on=parents), ended(5))
    assert store.load().outcomes == {job_key(1): JobState.FINISHED, job_key(2): JobState.FAILED}


def test_recent_jobs_come_oldest_first_final_ones_too(store):
    save(store, job(3), ended(1), job(2, user="bob"))
    ann, bob = UIDS["ann"], UIDS["bob"]
    assert store.load().recent == [(ann, job_key(1)), (bob, job_key(2)), (ann, job_key(3))]


def test_recent_jobs_are_limited(store):
    save(store, *(job(number) for number in range(1, RECENT + 11)))
    recent = store.load().recent
    assert len(recent) == RECENT
    assert recent[-1] == (UIDS["ann"], job_key(RECENT + 10))


def test_a_busy_neighbour_does_not_hide_my_latest_job(store):
    save(store, job(1, user="bob"), *(job(number) for number in range(2, RECENT + 2)))
    assert (UIDS["bob"], job_key(1)) in store.load().recent


def test_the_next_number_goes_on_where_it_was(store):
    submit(store, job(1), job(2))
    assert store.load().next_number == 3


def test_commit_without_submission_keeps_next_number(store):
    submit(store, job(1), next_number=2)
    save(store, ended(1))
    assert store.load().next_number == 2


# ---------------------------------------------------------------- outcomes


def test_outcomes_are_those_of_jobs_that_ended(store):
    final = {number: state for number, state in enumerate(JobState, 1) if job(state=state).is_final}
    save(store, *(job(number, state=state) for number, state in enumerate(JobState, 1)))
    asked = [job_key(number) for number in range(1, 20)]
    assert store.outcomes(asked) == {job_key(number): state for number, state in final.items()}


def test_no_questions_no_outcomes(store):
    assert store.outcomes([]) == {}


def test_a_task_that_never_started_ended_with_its_array(store):
    tasks = {"array": "0-9", "progress": progress("4-9", ok=1)}
    save(store, job(1, **tasks), ended(2, JobState.CANCELLED, **tasks), ended(2, task=0))
    asked = [job_key(1, 4), job_key(2, 4), job_key(2, 0), job_key(2, 1), job_key(2, 10), job_key(3, 4)]
    assert store.outcomes(asked) == {job_key(2, 4): JobState.CANCELLED, job_key(2, 0): JobState.FINISHED}


# ---------------------------------------------------------------- arrays and stories


def test_the_tasks_of_an_array_are_those_that_became_jobs(store):
    save(store, job(2, task=0), job(2, array="0-3"), ended(2, task=3), job(1, task=1), job(3), job(3, task=0))
    assert [found.label for found in store.tasks(job_key(2))] == ["2_0", "2_3"]
    assert list(store.tasks(job_key(7))) == []


def test_at_means_whole_jobs_and_not_their_tasks(store):
    save(store, job(1), job(2, array="0-3"), job(2, task=0), ended(2, task=3))
    assert store.load().recent == [(UIDS["ann"], job_key(1)), (UIDS["ann"], job_key(2))]


def test_history_is_ordered_and_of_one_job(store):
    told = [
        AuditEntry(NOON, job_key(1), UIDS["ann"], "cli", "submitted", ""),
        AuditEntry(NOON, job_key(2), UIDS["bob"], "http", "submitted", ""),
        AuditEntry(NOON, job_key(1), None, "daemon", "started", "attempt 1"),
        AuditEntry(NOON - 5, None, 0, "cli", "allowed_gpus", "all"),
        AuditEntry(NOON - 9, job_key(1), None, "daemon", "finished", ""),
    ]
    store.commit(Changes(audit=told[:3]))
    store.commit(Changes(audit=told[3:]))
    assert store.audit_of(job_key(1)) == [told[0], told[2], told[4]]
    assert store.audit_of(job_key(7)) == []


def test_history_includes_entries_about_many_jobs(store):
    def line(key, what, detail=""):
        return AuditEntry(1.0, key, 1000, "cli", what, detail)

    mine, other = job_key(3), job_key(50)
    store.commit(
        Changes(
            audit=[
                line(None, "updated", "20 jobs 1-20: of an earlier job of this number"),
                line(mine, "submitted"),
                line(None, "updated", "20 jobs 1-20: gpus = 1"),
                line(other, "held"),
                line(None, "gpu", "20 jobs 1-20: no"),
                line(None, "held", "20 jobs 1-20"),
                line(mine, "cancelled"),
            ]
        )
    )
    history = [(line.key, line.what, line.detail) for line in store.audit_of(mine)]
    assert history[-4:] == [
        (mine, "submitted", ""),
        (mine, "updated", "gpus = 1"),
        (mine, "held", ""),
        (mine, "cancelled", ""),
    ]
    assert [line.what for line in store.audit_of(other)] == ["held"]


def test_settings_are_kept_and_replaced(store):
    store.commit(Changes(meta={"allowed_gpus": "0,1", "next_number": 7}))
    store.commit(Changes(meta={"allowed_gpus": "all"}))
    assert store.load().meta == {"allowed_gpus": "all", "next_number": 7}


def test_shared_jobs_may_have_one_gpu_together(store):
    share = {"shared": True, "gpu_memory_mib": 512}
    save(store, running(1, 0, **share), running(2, 0, 1, **share))
    assert numbers(store.jobs(active=True)) == [1, 2]


# ---------------------------------------------------------------- submissions


def test_a_submission_is_found_by_its_token(store):
    submit(store, job(1), token="one")
    submit(store, job(2), job(3), job(4), token="three")
    assert store.submission(UIDS["ann"], "one") == (job_key(1),)
    assert store.submission(UIDS["ann"], "three") == (job_key(2), job_key(3), job_key(4))


def test_a_token_is_its_users_own(store):
    submit(store, job(1), token="same")
    assert store.submission(UIDS["bob"], "same") is None
    submit(store, job(2, user="bob"), token="same")
    assert store.submission(UIDS["ann"], "same") == (job_key(1),)
    assert store.submission(UIDS["bob"], "same") == (job_key(2),)


def test_an_unknown_token_is_none(store):
    assert store.submission(UIDS["ann"], "never") is None


# ---------------------------------------------------------------- blobs


@pytest.mark.parametrize("content", [b"", b"A=1\0B=2", bytes(range(256)), b"x" * 1_000_000], ids=len)
def test_a_blob_reads_back(store, content):
    address = address_of(content)
    store.commit(Changes(blobs={address: content}))
    assert store.blob(address) == content


def test_equal_texts_are_one_blob(store):
    for _ in range(2):
        store.commit(Changes(blobs={address_of(b"text"): b"text"}))
    assert store.blob(address_of(b"text")) == b"text"


def test_a_blob_that_is_gone_is_an_error(store):
    with pytest.raises(StoreError, match="is gone"):
        store.blob(address_of(b"never"))


def test_an_address_depends_on_the_content_alone():
    assert address_of(b"a") == address_of(b"a") != address_of(b"b")


# ---------------------------------------------------------------- ranges, and who was cut off by whom


def test_the_jobs_of_a_range_are_whole_jobs_that_are_there(store):
    save(store, job(2), job(3, task=4), ended(5), job(9))
    assert store.between(2, 8) == [job_key(2), job_key(5)]
    assert store.between(6, 8) == []
    one = store.job(job_key(2))
    assert store.between(2, 2, (one.uid, None)) == store.between(2, 2, (one.uid, one.user)) == [job_key(2)]
    assert store.between(2, 2, (one.uid, "eve")) == store.between(2, 2, (one.uid + 1, one.user)) == []


def test_jobs_cut_off_by_a_job_or_its_tasks_are_found(store):
    reasons = {2: "42", 3: "42_7", 4: "421", 5: "4", 6: "42_10", 7: "1"}
    save(store, *(ended(n, JobState.CANCELLED, reason=f"DependencyFailed:{r}") for n, r in reasons.items()))
    assert numbers(store.cancelled_with(job_key(42))) == [2, 3, 6]
    assert numbers(store.cancelled_with(job_key(42, 7))) == [3]
    assert numbers(store.cancelled_with(job_key(43))) == []


def test_cut_off_jobs_are_found_by_index(tmp_path):
    store = SqliteStore(tmp_path / "gflow.db")
    asked = []
    store._db.set_trace_callback(asked.append)
    store.cancelled_with(job_key(42))
    store._db.set_trace_callback(None)
    plans = [row[-1] for sql in asked for row in store._db.execute(f"EXPLAIN QUERY PLAN {sql}")]
    assert plans and all("USING INDEX jobs_cut_off" in plan for plan in plans)
    store.close()
