from msgspec.structs import replace

from gflow.core.model import Block
from gflow.text.gpus import gpu_details, gpu_table
from gflow.wire.answers.gpus import Holder, InfoAnswer, gpu_view

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
