import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow import errors
from gflow.core.forecast.explain import Blocker
from gflow.core.ids import job_key
from gflow.core.model import AuditEntry, Gpu, Job, JobState
from gflow.errors import GflowError, NotFound
from gflow.testing import progress
from gflow.wire.answers.gpus import gpu_view
from gflow.wire.answers.job_details import entry_view
from gflow.wire.answers.jobs import JobView, job_view
from gflow.wire.answers.problems import error_view, problem
from gflow.wire.encoding import encode, key_label, rfc3339

from .builders import any_struct, ended, job, running

CONTRACT = (
    "id array_id task_id name user project state reason exit_code signal attempt gpus gpu_ids priority "
    "submitted_at started_at finished_at time_limit_s cpu_time_s peak_memory_mib memory_mib gpu_memory_mib "
    "target"
).split()


@pytest.mark.parametrize("key", CONTRACT)
def test_the_contracts_keys_are_there_in_every_state(key):
    for state in JobState:
        assert key in json.loads(encode(job_view(job(state=state))))


def test_a_queued_job():
    view = job_view(
        job(42, name="train", gpus=2, user="bob"), Blocker("Resources", "Need 2 GPUs, only 1 available")
    )
    expected = {
        "id": 42,
        "array_id": None,
        "task_id": None,
        "name": "train",
        "user": "bob",
        "state": "Queued",
        "reason": "Resources: Need 2 GPUs, only 1 available",
        "exit_code": None,
        "attempt": 0,
        "gpus": 2,
        "gpu_ids": [],
        "submitted_at": "2025-06-15T15:06:40.000Z",
        "started_at": None,
        "time_limit_s": None,
        "target": "local",
    }
    told = json.loads(encode(view))
    assert {key: told[key] for key in expected} == expected


def test_usage_is_null_until_known():
    def used(job):
        view = job_view(job)
        return view.cpu_time_s, view.peak_memory_mib

    assert used(running(1)) == (None, None)
    assert used(ended(1, cpu_ms=1250, peak_kib=1536)) == (1.25, 1.5)
    assert used(ended(1, cpu_ms=0, peak_kib=1024)) == (0.0, 1.0)


def test_an_array_task_names_its_array():
    view = job_view(job(42, task=3))
    assert (view.id, view.array_id, view.task_id, view.name) == ("42_3", 42, 3, "job-42_3")


def test_an_array_says_how_far_it_is():
    so_far = progress("4-60", active=2, ok=1, bad=3, cancelled=4, worst=9)
    view = job_view(job(42, array="0-60", progress=so_far), Blocker("JobArrayTaskLimit"))
    assert (view.id, view.array_id, view.task_id, view.name) == (42, 42, None, "job-42")
    assert (view.state, view.reason) == ("Queued", "JobArrayTaskLimit")
    assert json.loads(encode(view.tasks)) == {
        "pending": "4-60",
        "waiting": 57,
        "active": 2,
        "finished": 1,
        "failed": 3,
        "cancelled": 4,
    }


def test_only_an_array_has_tasks():
    assert job_view(job(42)).tasks is None
    assert job_view(running(42, 0, task=3, array="0-60")).tasks is None


def test_requested_options_are_shown_and_others_are_null():
    asked = {
        "project": "p1",
        "memory_mib": 2048,
        "gpu_memory_mib": 512,
        "shared": True,
        "time_limit_s": 60,
        "cpus": 3,
    }
    view = job_view(job(gpus=1, begin_at=1.5, **asked))
    assert {name: getattr(view, name) for name in asked} == asked
    assert view.begin_at == "1970-01-01T00:00:01.500Z"
    plain = job_view(job())
    nothing = ["project", "memory_mib", "gpu_memory_mib", "time_limit_s", "begin_at", "tasks", "reason"]
    assert [getattr(plain, name) for name in nothing] == [None] * 7
    assert (plain.shared, plain.cpus) == (False, 1)


def test_a_running_job_that_is_stopped_is_still_running():
    view = job_view(running(1, 0, 3, stopping=JobState.TIMEOUT))
    assert (view.state, view.stopping, view.gpu_ids) == ("Running", True, (0, 3))


@pytest.mark.parametrize(
    ("shown", "why", "reason"),
    [
        (ended(1), None, None),
        (ended(1, JobState.FAILED, reason="ExitCode:2"), None, "ExitCode:2"),
        (job(reason="Requeued"), Blocker("Dependency"), "Dependency"),
    ],
)
def test_the_reason_is_why_it_waits_or_how_it_ended(shown, why, reason):
    assert job_view(shown, why).reason == reason


def test_dependencies_are_written_as_ids():
    view = job_view(job(9, depends_on=(job_key(7), job_key(8, 3)), depends_any=(job_key(1), job_key(2, 0))))
    assert (view.depends_on, view.depends_any) == ([7, "8_3"], [1, "2_0"])


def test_environment_and_script_are_not_shown():
    view = job_view(job(environ="address-of-environment", script="address-of-script", script_path="/a.sh"))
    assert b"address-of" not in encode(view)
    assert view.script == "/a.sh"


def test_the_contract_names_every_key_of_a_job():
    text = Path(__file__).parents[2].joinpath("docs/contract.md").read_text()
    named = text.partition("Job keys: ")[2].partition(". `signal`")[0]
    keys = [word.split()[0] for word in named.split(",") if not word.strip().endswith("UTC)")]
    assert sorted(keys) == sorted(JobView.__struct_encode_fields__)


@given(any_struct(Job))
def test_every_job_is_valid_json_without_losses(shown):
    view = job_view(shown)
    assert msgspec.json.decode(encode(view), type=JobView) == view


@pytest.mark.parametrize(("key", "text"), [(job_key(7), 7), (job_key(7, 0), "7_0")])
def test_an_id_is_a_number_unless_it_is_a_tasks(key, text):
    assert key_label(key) == text


# ---------------------------------------------------------------- GPUs, errors, times

GPU = Gpu(index=3, uuid="GPU-1", model="H100", memory_mib=81920)


@pytest.mark.parametrize(
    ("holders", "available", "names"),
    [
        ([], True, []),
        ([running(7, 3)], False, [7]),
        ([running(7, 3, task=1), running(8, 3, shared=True)], False, ["7_1", 8]),
    ],
)
def test_gpu_names_its_jobs(holders, available, names):
    view = gpu_view(GPU, holders)
    assert (view.available, view.jobs) == (available, names)
    assert (view.index, view.uuid, view.memory_mib, view.simulated) == (3, "GPU-1", 81920, False)


@pytest.mark.parametrize(("uid", "by"), [(1001, "user-1001"), (0, "user-0"), (None, None)])
def test_audit_entry_as_json(uid, by):
    line = AuditEntry(1.5, job_key(1), uid, "cli", "updated", "gpus = 1")
    assert json.loads(encode(entry_view(line, "user-{}".format))) == {
        "at": "1970-01-01T00:00:01.500Z",
        "event": "updated",
        "detail": "gpus = 1",
        "by": by,
        "origin": "cli",
    }


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GflowError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_has_the_same_code_in_both_documents(kind):
    error = kind("it is so", hint="do this")
    told = json.loads(encode(error_view(error)))
    assert told == {"error": {"code": kind.code, "message": "it is so", "hint": "do this"}}
    document = problem(error)
    assert (document.code, document.title, document.hint) == (kind.code, "it is so", "do this")
    assert (document.status, document.exit_code) == (kind.http_status, kind.exit_code)
    assert document.type.endswith(kind.code)


def test_errors_are_json_whatever_they_say():
    error = NotFound("\x1b[2J \u8a13 \"'")
    assert json.loads(encode(error_view(error)))["error"]["message"] == error.message


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, None),
        (0, "1970-01-01T00:00:00.000Z"),
        (1.5, "1970-01-01T00:00:01.500Z"),
        (951_782_400, "2000-02-29T00:00:00.000Z"),
    ],
)
def test_rfc3339_format(seconds, text):
    assert rfc3339(seconds) == text


@given(st.floats(0, 4e9))
def test_times_read_back_to_the_millisecond(seconds):
    text = rfc3339(seconds)
    assert abs(datetime.fromisoformat(text).timestamp() - seconds) <= 0.0011
    assert datetime.fromisoformat(text).tzinfo == UTC and text.endswith("Z")
