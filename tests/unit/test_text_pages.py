import time
from datetime import datetime

import pytest
from msgspec.structs import replace

from gflow.core.forecast.explain import Blocker
from gflow.core.ids import job_key
from gflow.core.model import AuditEntry, JobState, Moment
from gflow.gpu.simulated import simulated_gpus
from gflow.testing import progress
from gflow.text.gpus import gpu_table
from gflow.text.job_page import history_page, job_page, status_page
from gflow.wire.answers.daemon import StatusAnswer

from .builders import NOON, ended, job, running
from .machine import gpu


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


# ---------------------------------------------------------------- one job


def page(shown, why=None):
    return job_page(shown, why, Moment(NOON + 70, 70.0), "/logs/1.log")


def test_a_waiting_job():
    shown = job(
        7, gpus=4, depends_on=(job_key(3), job_key(4, 1)), time_limit_s=90, command=("python", "a b.py")
    )
    assert page(shown, Blocker("Resources", "Need 4 GPUs, only 1 available")) == (
        "Job: 7\n"
        "Name: job-7\n"
        "State: Queued (PD), Resources: Need 4 GPUs, only 1 available\n"
        "User: ann\n"
        "Priority: 10\n"
        "Command: python 'a b.py'\n"
        "Folder: /work\n"
        "GPUs: 4\n"
        "Time limit: 00:01:30\n"
        "Depends on: 3, 4_1\n"
        "Submitted: 2025-06-15 15:06:40\n"
    )


def test_a_running_job_of_a_later_attempt():
    lines = page(running(1, 0, 2, attempt=3, stopping=JobState.TIMEOUT)).splitlines()
    for line in (
        "State: Running (CG)",
        "GPU ids: 0,2",
        "Started: 2025-06-15 15:06:50 (waited 00:00:10)",
        "Running for: 00:01:00",
        "Attempt: 3",
        "Log: /logs/1.log",
    ):
        assert line in lines


def test_an_array_says_how_far_it_is():
    array = job(9, array="1-40", progress=progress(pending="8-40", active=2, ok=3, bad=1, cancelled=1))
    assert "Tasks: 2 running, 33 waiting (8-40), 3 finished, 1 failed, 1 cancelled\n" in page(array)
    array.progress = progress(pending="", active=2)
    assert "Tasks: 2 running\n" in page(array)


def test_a_job_says_all_that_was_asked_for():
    asked = job(1, warning=(10, 60), grace_s=90, requeue=True, error="err-%j.txt")
    lines = page(asked).splitlines()
    for line in (
        "Warning: USR1 00:01:00 before the time limit",
        "Grace: 00:01:30 between TERM and KILL",
        "Requeue: yes",
        "Error output: err-%j.txt",
    ):
        assert line in lines
    assert not [
        line for line in page(job(1)).splitlines() if line.startswith(("Warning", "Grace", "Requeue"))
    ]


def test_a_final_job_says_how_it_ended():
    failed = ended(1, JobState.FAILED, reason="Signal:9", signal=9, started_at=NOON + 40, attempt=1)
    lines = page(failed).splitlines()
    assert "State: Failed (F), Signal:9" in lines
    assert "Finished: 2025-06-15 15:08:20 (ran 00:01:00)" in lines
    assert "Signal: 9" in lines
    assert "Finished: 2025-06-15 15:08:20 (never started)" in page(ended(1, JobState.CANCELLED))


def test_a_job_says_what_it_used():
    lines = page(ended(1, cpu_ms=90_500, peak_kib=1536 << 10, attempt=1)).splitlines()
    assert "CPU time: 00:01:30" in lines and "Peak memory: 1.5 GiB" in lines
    lines = page(ended(1, cpu_ms=0, peak_kib=3000, attempt=1)).splitlines()
    assert "CPU time: 0.00 s" in lines and "Peak memory: 2 MiB" in lines


def test_unmeasured_usage_is_not_shown():
    text = page(ended(1, JobState.FAILED, reason="Lost", attempt=1))
    assert "CPU time" not in text and "Peak memory" not in text


def test_a_script_is_named_and_its_text_is_not_shown():
    lines = page(job(script="address", script_path="/work/a.sh", command=("--lr", "1"))).splitlines()
    assert "Script: /work/a.sh" in lines and "Arguments: --lr 1" in lines
    assert "address" not in page(job(script="address", environ="address", command=()))


@pytest.mark.parametrize("state", JobState, ids=lambda state: state.value)
def test_every_state_and_an_array_have_a_page(state):
    assert page(job(1, state=state)).startswith("Job: 1\n")
    assert page(job(1, state=state, array="0-9", progress=progress("3-9"))).startswith("Job: 1")


# ---------------------------------------------------------------- stories


def test_history_page_shows_time_event_and_user():
    lines = [
        AuditEntry(NOON, job_key(1), 1001, "cli", "submitted", ""),
        AuditEntry(NOON + 1, job_key(1), None, "daemon", "started", "attempt 1 on GPU 0"),
    ]
    assert history_page(lines, {1001: "ann"}.__getitem__) == (
        "WHEN                 EVENT      DETAIL              BY\n"
        "2025-06-15 15:06:40  submitted                      ann\n"
        "2025-06-15 15:06:41  started    attempt 1 on GPU 0  gflow\n"
    )


def test_empty_history_is_a_header():
    assert history_page([], str) == "WHEN  EVENT  DETAIL  BY\n"


# ---------------------------------------------------------------- GPUs

FOUR = [gpu(index) for index in range(4)]


def test_idle_gpus_then_one_row_for_each_job():
    train, alone = running(42, 1, 3, task=3, name="train"), running(7, 0)
    assert gpu_table(FOUR, {0: [alone], 1: [train], 3: [train]}) == (
        "PARTITION  GPUS  NODES  STATE      JOB(REASON)\n"
        "gpu        1     2      idle\n"
        "gpu        1     0      allocated  7 (job-7)\n"
        "gpu        2     1,3    allocated  42_3 (train)\n"
    )


def test_a_shared_gpu_has_a_row_for_each_of_its_jobs():
    jobs = [running(1, 0, shared=True), running(2, 0, 1, shared=True)]
    rows = gpu_table(FOUR[:2], {0: jobs, 1: jobs[1:]}).splitlines()[1:]
    assert [row.split()[2:] for row in rows] == [
        ["0", "allocated", "1", "(job-1)"],
        ["0,1", "allocated", "2", "(job-2)"],
    ]


@pytest.mark.parametrize(
    ("count", "note"),
    [
        (1, "(1 simulated GPU: it is allocated like real ones, without a device)"),
        (2, "(2 simulated GPUs: they are allocated like real ones, without a device)"),
    ],
)
def test_simulated_gpus_are_called_so(count, note):
    assert gpu_table(simulated_gpus(f"{count}x80G"), {}).splitlines()[-1] == note


def test_a_machine_without_gpus_says_that_jobs_run_all_the_same():
    assert gpu_table([], {}) == "No GPUs: jobs without --gpus run here as usual.\n"


# ---------------------------------------------------------------- the daemon

STATUS = StatusAnswer(
    pid=5,
    version="1",
    uptime_secs=90.5,
    gpu_total=4,
    gpu_available=3,
    gpu_simulated=False,
    cpu_total=8,
    cpu_available=7,
    memory_total_mib=65536,
    memory_available_mib=1536,
    running=1,
    waiting=2,
    read_only="",
    socket="/s",
    data="/d",
    config_files=[],
    notes=[],
    database="/d/gflow.db",
    flags=[],
    settings={},
    strays=[],
)


def test_the_status_of_a_daemon():
    assert status_page(STATUS) == (
        "Status: Running\n"
        "PID: 5\n"
        "Version: 1\n"
        "Uptime: 00:01:30\n"
        "GPUs: 4 (3 free)\n"
        "CPU slots: 8 (7 free)\n"
        "Memory: 64 GiB (1.5 GiB free)\n"
        "Jobs: 1 running, 2 waiting\n"
        "Socket: /s\n"
        "Config: (none: gflowd init writes one)\n"
        "Data: /d\n"
        "Database: /d/gflow.db\n"
    )


def test_trouble_and_pretence_are_said():
    page = status_page(replace(STATUS, read_only="disk full", gpu_simulated=True))
    assert "Status: Running, read-only: disk full\n" in page
    assert "GPUs: 4 (3 free), simulated\n" in page


def test_a_database_on_another_disk_is_said():
    page = status_page(replace(STATUS, config_files=[], database="/var/tmp/gflow-0/x/gflow.db"))
    assert "Database: /var/tmp/gflow-0/x/gflow.db (the data folder is on a network file system)\n" in page


def test_times_are_local_and_have_no_date_on_the_same_day():
    from gflow.text.table import moment, near_moment

    noon = datetime(2026, 11, 16, 12).timestamp()
    assert moment(noon) == "2026-11-16 12:00:00"
    assert moment(noon, to_minutes=True) == "2026-11-16 12:00"
    assert near_moment(noon + 3600, noon) == "13:00"
    assert near_moment(noon + 86400, noon) == "2026-11-17 12:00"
