import time
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from gflow.core.model import Block
from gflow.text.gpus import gpu_details, gpu_lines, gpu_table
from gflow.wire.answers.gpus import Holder, InfoAnswer, Reserved, gpu_view

from .builders import running
from .machine import gpu

FOUR = [gpu(index) for index in range(4)]


def test_gpus_that_get_no_jobs_share_a_row_by_reason():
    blocked = {
        1: Block("Drained", "loud fan"),
        3: Block("Drained", "loud fan"),
        2: Block("Restricted", ""),
        0: Block("Unmanaged", "bob"),
    }
    assert [line.split(None, 4) for line in gpu_table(FOUR, {}, blocked).splitlines()[1:]] == [
        ["gpu", "1", "0", "allocated", "(Unmanaged: bob)"],
        ["gpu", "2", "1,3", "drained", "(Drained: loud fan)"],
        ["gpu", "1", "2", "restricted", "(Restricted)"],
    ]


def test_a_drained_gpu_that_still_has_a_job_has_two_rows():
    rows = gpu_table(FOUR[:1], {0: [running(5, 0)]}, {0: Block("Drained", "")}).splitlines()[1:]
    assert [row.split()[3] for row in rows] == ["allocated", "drained"]


def test_a_drained_machine_says_so_below():
    assert (
        gpu_table(FOUR, {}, None, "new disk").splitlines()[-1].startswith("(drained: new disk; gctl resume")
    )
    assert gpu_table(FOUR, {}, None, "").splitlines()[-1].startswith("(drained; gctl resume")
    assert gpu_table([], {}, None, "new disk").splitlines()[1:] == [
        "(drained: new disk; gctl resume lets jobs start again)"
    ]
    assert gpu_details(info([], trouble="no driver", reason="new disk"), []).splitlines()[1:] == [
        "(no driver)",
        "(drained: new disk; gctl resume lets jobs start again)",
    ]


def test_device_isolation_is_said_where_users_share_gpus():
    def devices(**more):
        lines = gpu_details(replace(info([]), **more), FOUR).splitlines()
        return [line for line in lines if line.startswith("Devices")]

    assert devices() == []
    assert devices(is_isolated=True) == ["Devices: a job can open only its own GPUs"]
    problem = {"is_isolated": False, "isolation_problem": "no cgroup v2"}
    assert devices(**problem) == ["Devices: a job can open every GPU: no cgroup v2"]


def info(gpus, trouble="", reason=None):
    usual = {"driver": "", "limits": ["booked"], "allowed_gpu_indices": None}
    drained = {"drained": reason is not None, "drained_gpus": {}}
    return InfoAnswer(gpus=gpus, trouble=trouble, reason=reason, **usual, **drained)


def page(**more):
    view = replace(gpu_view(FOUR[0], []), **({"idle_s": 90.0} | more))
    lines = gpu_details(info([view]), FOUR[:1]).splitlines()
    (state,) = [line.strip() for line in lines if line.startswith("  State: ")]
    return state


def test_idle_time_and_expected_free_time_of_a_gpu():
    holder = Holder(id=1, name="a", user="ann", used_mib=None, limit_mib=None)
    assert page() == "State: idle for 00:01:30"
    assert page(idle_s_at_least=True) == "State: idle for at least 00:01:30"
    assert page(reason="Drained: fan") == "State: Drained: fan, idle for 00:01:30"
    assert page(holders=[holder]) == "State: in use without a time limit"
    busy = page(holders=[holder], free_at="2026-11-15T12:00:00.000Z")
    assert busy.startswith("State: free at about 2026-11-1")


# ---------------------------------------------------------------- one line for each GPU

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


@pytest.fixture
def in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def row(columns=80, **more):
    view = replace(gpu_view(FOUR[0], []), model="NVIDIA A100-SXM4-80GB", memory_mib=81920, **more)
    return gpu_lines(info([view]), FOUR[:1], columns, NOW).splitlines()


def test_a_used_gpu_says_who_has_it_since_when_and_until_when(in_utc):
    holder = Holder(
        id=42, name="train.py", user="ann", used_mib=1, limit_mib=None, started_at="2026-11-15T11:05:00Z"
    )
    lines = row(holders=[holder], free_at="2026-11-16T01:05:00Z", used_mib=12600, utilisation=97)
    assert lines == [
        "GPU  MODEL           MEMORY     USE  USER  SINCE  UNTIL        JOB",
        "0    A100-SXM4-80GB  12/80 GiB  97%  ann   11:05  11-16 01:05  42 (train.py)",
    ]


def test_an_idle_gpu_says_since_when_and_for_whom_it_is_reserved(in_utc):
    later = Reserved("bob", "2026-11-15T18:00:00Z", "2026-11-15T20:00:00Z")
    now = Reserved("bob", "2026-11-15T10:00:00Z", "2026-11-15T20:00:00Z")
    assert row(idle_s=3600.0)[1].split()[4:] == ["-", "-", "11:00", "-", "idle"]
    assert row(120, reserved=[later])[1].endswith("idle; reserved for bob from 18:00 until 20:00")
    assert row(120, reserved=[now])[1].endswith("-      reserved for bob until 20:00")


def test_a_long_note_wraps_instead_of_being_cut(in_utc):
    why = "Drained: the fan is loud and the technician comes on Monday"
    lines = row(reason=why)
    start = lines[0].index("JOB")
    assert " ".join(line[start:] for line in lines[1:]) == why
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_lines_fit_a_narrow_terminal(columns, in_utc):
    holder = Holder(id=42, name="a-very-long-name-of-a-job" * 3, user="ann", used_mib=1, limit_mib=None)
    lines = row(columns, holders=[holder], reason="Drained: loud fan")
    assert max(map(len, lines[2:])) <= columns
