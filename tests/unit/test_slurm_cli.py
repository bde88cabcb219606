"""Output of Slurm's commands, from 20.11 to 25.x, and the end of a run from all sources."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.core.reasons import parse
from gflow.targets.port import End
from gflow.targets.slurm.commands import slurm_cli
from gflow.targets.slurm.commands.command_runner import is_unreachable
from gflow.targets.slurm.commands.reasons import in_words
from gflow.targets.slurm.commands.slurm_cli import FINAL, Row, Verdict
from gflow.targets.slurm.poll import FinalRun, end_of
from gflow.targets.slurm.shared_folder import Exit

TAG = "gflow:0123456789:42.1:0"
# Lines of squeue -h -r -o SQUEUE_FORMAT, by release.
LINES = {
    "20.11 pending": (
        f"17|17|17|N/A|PENDING|Resources||{TAG}",
        Row("17", "17", None, "PENDING", "Resources", "", TAG),
    ),
    "20.11 none": (
        f"17|17|17|N/A|RUNNING|None|node1|{TAG}",
        Row("17", "17", None, "RUNNING", "", "node1", TAG),
    ),
    "21.08 a task": (
        f"3_7|10|3|7|RUNNING|None|node[1-2,4]|{TAG}",
        Row("3_7", "3", 7, "RUNNING", "", "node[1-2,4]", TAG),
    ),
    "22.05 without accounting": (
        "18|18|18|N/A|COMPLETED|None|node1|(null)",
        Row("18", "18", None, "COMPLETED", "", "node1", ""),
    ),
    "23.02 a reason in words": (
        f"19|19|19|N/A|PENDING|(ReqNodeNotAvail, UnavailableNodes:node[1-4])||{TAG}",
        Row("19", "19", None, "PENDING", "ReqNodeNotAvail, UnavailableNodes:node[1-4]", "", TAG),
    ),
    "23.11 (null) nodes": (
        f"20|20|20|N/A|PENDING|Priority|(null)|{TAG}",
        Row("20", "20", None, "PENDING", "Priority", "", TAG),
    ),
    "24.05 a plus": (
        f"21|21|21|N/A|CANCELLED+|None|n1|{TAG}",
        Row("21", "21", None, "CANCELLED", "", "n1", TAG),
    ),
    "25.05 cancelled by": (
        f"22|22|22|N/A|CANCELLED by 0|None|n1|{TAG}",
        Row("22", "22", None, "CANCELLED", "", "n1", TAG),
    ),
    "padding": (
        f" 23 | 23 | 23 | N/A | PENDING | Licenses | | {TAG} ",
        Row("23", "23", None, "PENDING", "Licenses", "", TAG),
    ),
    "a comment of another user": (
        "24|24|24|N/A|PENDING|Priority||a | b",
        Row("24", "24", None, "PENDING", "Priority", "", "a | b"),
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_of_the_queue(name):
    line, row = LINES[name]
    assert slurm_cli.parse_queue(f"{line}\n") == [row]


def test_invalid_queue_line_is_skipped():
    assert slurm_cli.parse_queue("slurm_load_jobs error: x\n\nCLUSTER: lab\n") == []


@given(st.text())
def test_any_text_can_be_read(text):
    slurm_cli.parse_queue(text)
    slurm_cli.parse_job(text)
    slurm_cli.parse_accounting(text, "1")
    slurm_cli.parse_submitted(text)
    assert slurm_cli.complaint(text)
    assert in_words(text) is not None


@pytest.mark.parametrize(
    ("text", "id"),
    [("17\n", "17"), ("17;lab\n", "17"), ("Welcome to the cluster\n17\n", "17"), ("", ""), ("sbatch: x", "")],
)
def test_sbatch_answer_is_parsed(text, id):
    assert slurm_cli.parse_submitted(text) == id


@pytest.mark.parametrize(
    ("text", "start"),
    [
        # As 22.05 says it; with a word between; after something that a site says.
        ("sbatch: Job 11 to start at 2026-11-16T03:08:29 using 1 processors on nodes node1 in partition main",
         "2026-11-16T03:08:29"),
        ("sbatch: Job 4294967295 to start at 2026-11-16T03:08:29 a using 64 processors on nodes g[1-4]",
         "2026-11-16T03:08:29"),
        ("Welcome\nsbatch: Job 3 to start at 2027-01-01T00:00:00 using 4 processors on node1\n",
         "2027-01-01T00:00:00"),
        ("allocation failure: Requested node configuration is not available", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_expected_start_is_parsed(text, start):
    assert slurm_cli.parse_start(text) == start


JOB = (
    "JobId=17 JobName={name} UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A Priority=1 JobState={state}"
    " Reason={reason} Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={code}"
    " RunTime=00:00:01 Comment=gflow:x:1.1:0 StdOut=/x Power="
)


@pytest.mark.parametrize(
    ("state", "code", "name", "verdict"),
    [
        ("COMPLETED", "0:0", "x", Verdict("COMPLETED", 0, None)),
        ("FAILED", "7:0", "two words", Verdict("FAILED", 7, None)),
        ("FAILED", "0:53", "x", Verdict("FAILED", 0, 53)),
        ("TIMEOUT", "0:15", "x JobState=COMPLETED ExitCode=0:0", Verdict("TIMEOUT", 0, 15)),
    ],
)
def test_scontrol_output_is_parsed(state, code, name, verdict):
    assert slurm_cli.parse_job(JOB.format(state=state, code=code, name=name, reason="None")) == verdict


@pytest.mark.parametrize(
    "text",
    [
        # Releases have more and more fields, before and behind those that count.
        "JobId=17 JobName=x UserId=a(1) JobState=FAILED Reason=NonZeroExitCode Restarts=0 ExitCode=7:0",
        "JobId=17 ArrayJobId=16 ArrayTaskId=3 JobName=x UserId=a(1) Account=l QOS=n JobState=FAILED"
        " Reason=NonZeroExitCode Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=7:0",
        "JobId=17 JobName=x UserId=a(1) JobState=FAILED Reason=NonZeroExitCode FailedNode=n1 ExitCode=7:0"
        " ReqTRES=cpu=1 AllocTRES=cpu=1,gres/gpu=2 TresPerNode=gres/gpu:2 DerivedExitCode=0:0",
        "JobId=17 JobName=x UserId=a(1) JobState=FAILED Reason=Prolog,_ended ExitCode=7:0 SegmentSize=1",
    ],
)
def test_scontrol_of_all_releases(text):
    assert slurm_cli.parse_job(text) == Verdict("FAILED", 7, None)


@pytest.mark.parametrize(
    ("text", "id", "verdict"),
    [
        ("17|COMPLETED|0:0\n", "17", Verdict("COMPLETED", 0, None)),
        ("17|CANCELLED by 0|0:15\n", "17", Verdict("CANCELLED", 0, 15)),
        ("17_3|FAILED|3:0\n17_4|COMPLETED|0:0\n", "17_4", Verdict("COMPLETED", 0, None)),
        ("17|OUT_OF_MEMORY|0:125\n", "17", Verdict("OUT_OF_MEMORY", 0, 125)),
        # A step that was not asked for; a field that is empty.
        ("17.batch|FAILED|1:0\n17|TIMEOUT|0:0\n", "17", Verdict("TIMEOUT", 0, None)),
        ("17|NODE_FAIL|0:0|\n", "17", Verdict("NODE_FAIL", 0, None)),
        ("17|COMPLETED|0:0|a|b\n", "17", Verdict("COMPLETED", 0, None, "a|b")),
        # An array, of which all tasks or not all have ended.
        ("17_0|CANCELLED by 0|0:0|x\n17_1|COMPLETED|0:0|x\n", "17", Verdict("COMPLETED", 0, None, "x")),
        ("17_0|CANCELLED by 0|0:0|x\n17_[1-3]|PENDING|0:0|x\n", "17", None),
        ("170_0|CANCELLED by 0|0:0|x\n", "17", None),
        ("", "17", None),
        ("Slurm accounting storage is disabled", "17", None),
    ],
)
def test_sacct_output_is_parsed(text, id, verdict):
    assert slurm_cli.parse_accounting(text, id) == verdict


@pytest.mark.parametrize(
    "text",
    [
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: slurm_persist_conn_open_without_init: failed to open persistent connection",
        "error: Batch job submission failed: Zero Bytes were transmitted or received",
        "sbatch: error: Batch job submission failed: Unexpected missing socket error",
        "sbatch: error: Batch job submission failed: Communication connection failure",
        "sbatch: error: Batch job submission failed: Message receive failure",
        "slurm_load_jobs error: Slurm backup controller in standby mode",
        "slurm_load_jobs error: Controller is in standby mode, try a different controller",
    ],
)
def test_a_controller_that_is_not_there(text):
    assert is_unreachable(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sbatch: error: invalid partition specified: nope\n"
         "sbatch: error: Batch job submission failed: Invalid partition name specified\n",
         "Invalid partition name specified"),
        ("allocation failure: Requested node configuration is not available",
         "Requested node configuration is not available"),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination",
         "Invalid account or account/partition combination"),
        ("", "no reason given"),
    ],
)  # fmt: skip
def test_a_refusal_in_one_line(text, said):
    assert not is_unreachable(text)
    assert slurm_cli.complaint(text) == said


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "Resources: the GPUs, CPUs or nodes it needs are busy"),
        (
            "ReqNodeNotAvail, UnavailableNodes:node1",
            "ReqNodeNotAvail: nodes it needs are down, drained or reserved",
        ),
        ("SomethingNew", "SomethingNew"),
        (
            "QOSMaxGRESPerAccount",
            "QOSMaxGRESPerAccount: its quality of service allows you or one job no more; "
            "gjob why names the limits",
        ),
        (
            "AssocGrpBillingRunMinutes",
            "AssocGrpBillingRunMinutes: all jobs of its account together have as much as they may; "
            "gjob why names the limits",
        ),
        ("AssocGrpGRES", "AssocGrpGRES: its account uses as many GPUs as it may"),
        ("", "Pending"),
    ],
)
def test_slurm_reasons_in_words(reason, words):
    assert in_words(reason) == words


# ---------------------------------------------------------------- how it ended


def judge(state, record=None, *, began=True, waited=True, verdict=None):
    return end_of(FinalRun(state, began, record, waited, "/logs/42.log"), lambda: verdict)


@pytest.mark.parametrize(
    ("state", "record", "end"),
    [
        ("COMPLETED", Exit(0, False), End(0)),
        ("FAILED", Exit(7, False), End(7)),
        ("FAILED", Exit(143, True), End(143)),
        # What Slurm decided, whatever the job made of it.
        ("TIMEOUT", Exit(0, True), End(0, None, parse("TimeLimit"))),
        ("TIMEOUT", None, End(None, None, parse("TimeLimit"))),
        ("CANCELLED", Exit(143, True), End(143, None, parse("CancelledThere"))),
        ("NODE_FAIL", None, End(None, None, parse("NodeFail"))),
        ("PREEMPTED", Exit(143, True), End(143, None, parse("Preempted"))),
        ("COMPLETED", Exit(None, False), End(None, None, parse("Preempted"))),
    ],
)
def test_run_record_and_slurm_state_give_the_end(state, record, end):
    assert judge(state, record) == end


def test_slurm_state_is_used_without_a_run_record():
    assert judge("FAILED", waited=False) is None, "its own word may still come"
    assert judge("FAILED") is None, "unknown: that is no failure"
    assert judge("FAILED", verdict=Verdict("FAILED", 3, None)) == End(3)
    assert judge("FAILED", verdict=Verdict("FAILED", 0, 9)) == End(None, 9)
    no_log = judge("FAILED", began=False, verdict=Verdict("FAILED", 0, 53))
    assert no_log == End(None, None, parse("StartFailed: no log at /logs/42.log"))


def test_unknown_states_are_not_final():
    assert not Row("1", "1", None, "EXPEDITING", "", "", "").is_final
    assert "COMPLETING" not in FINAL


def test_a_sentence_of_slurm_is_a_reason():
    sentence = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    assert in_words(sentence) == sentence
    assert in_words("ReqNodeNotAvail, UnavailableNodes:node1").startswith("ReqNodeNotAvail: nodes it needs")
