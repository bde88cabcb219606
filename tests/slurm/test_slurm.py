"""Jobs on a real Slurm: four nodes on this machine, emulated GPUs. What ran is counted by what it left."""

from __future__ import annotations

import json
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.docs.test_docs import ROOT, play
from tests.harness import Box, wait_until
from tests.slurm.cluster import UNTIL_TRAPPED, Cluster

pytestmark = pytest.mark.slow


def state_of(box: Box, number: int | str) -> str:
    return box.job(number)["state"]


def runs(box: Box, number: int | str, timeout_s: float = 30) -> None:
    wait_until(lambda: state_of(box, number) == "Running", timeout_s, f"the start of job {number}")


def test_a_job_from_its_submission_to_its_log(slurm):
    number = slurm.submit(
        "--on",
        "slurm",
        "--gpus",
        "2",
        "--name",
        'it\'s "x" #1',
        'echo "$CUDA_VISIBLE_DEVICES $GFLOW_JOB_NAME"',
    )
    job = slurm.finished(number, 30)
    assert (job["state"], job["exit_code"], job["target"]) == ("Finished", 0, "slurm")
    assert re.fullmatch(r"\d,\d it's \"x\" #1\n", slurm.text_of(number))
    assert job["target_id"].isdecimal()
    assert "TARGET" in slurm.ok("gqueue", "--all", "--target", "slurm", "-f", "JOBID,TARGET")
    assert slurm.ok("gqueue", "--all", "--target", "local", "-f", "JOBID,TARGET").split() == [
        "JOBID",
        "TARGET",
    ]


def test_job_environment_folder_and_umask(slurm):
    folder = slurm.work / "a folder"
    folder.mkdir()
    script = folder / "go.sh"
    script.write_text(
        "#!/bin/bash\n# GFLOW --on slurm\nsource ./sibling.sh\necho $0 $1 $MINE $GFLOW_SCRIPT; umask\n"
    )
    (folder / "sibling.sh").write_text("MINE=sourced-$HOW\n")
    number = slurm.submit("go.sh", "arg", cwd=folder, env={"HOW": "two  words"})
    assert slurm.finished(number, 30)["state"] == "Finished"
    text = slurm.text_of(number)
    assert f"{script} arg sourced-two words {script}" in text


def test_a_script_that_changed_runs_as_it_was_submitted(slurm):
    script = slurm.work / "go.sh"
    script.write_text("echo before\n")
    number = slurm.submit("--on", "slurm", "--hold", str(script))
    script.write_text("echo after\n")
    slurm.ok("gjob", "release", str(number))
    slurm.finished(number, 30)
    assert slurm.text_of(number).endswith("running it as it was\nbefore\n")


@pytest.mark.parametrize(
    ("command", "code", "reason"), [("exit 7", 7, "ExitCode:7"), ("kill -9 $$", 137, "ExitCode:137")]
)
def test_exit_codes(slurm, command, code, reason):
    done = slurm.run("gbatch", "--wait", "--on", "slurm", command)
    assert done.returncode == code
    assert slurm.job(1)["reason"] == reason


def test_held_and_released_job_is_at_its_first_attempt(slurm):
    for number in range(4):
        slurm.submit("--on", "slurm", "--gpus", "4", "sleep 6")
    line = 'echo "$GFLOW_ATTEMPT $GFLOW_RESTART_COUNT"; test "$GFLOW_ATTEMPT" = 2 || exit 75'
    words = ("--on", "slurm", "--gpus", "4", "--requeue", "--resume-args", "resumed")
    number = slurm.submit(*words, "bash", "-c", line + '; echo "$1"', "x")
    wait_until(lambda: slurm.job(number)["target_id"], 30, "its id in Slurm")
    slurm.ok("gjob", "hold", str(number))
    wait_until(lambda: state_of(slurm, number) == "Hold", 30, "the hold")
    slurm.ok("gjob", "release", str(number))
    job = slurm.finished(number, 90)
    assert (job["exit_code"], job["attempt"]) == (0, 3), job
    lines = [line for line in slurm.text_of(number).splitlines() if "resuming" not in line]
    assert lines == ["1 0", "gflow: attempt 2", "2 1", "resumed"]


def test_an_array_of_200(slurm):
    """Every task runs once, with its own number and log; Slurm has one array, not 200 jobs."""
    number = slurm.submit(
        "--on", "slurm", "--array", "0-199", f"echo $GFLOW_ARRAY_TASK_ID >> {slurm.work}/ran"
    )
    job = slurm.finished(number, 150)
    assert job["state"] == "Finished"
    assert job["tasks"]["finished"] == 200
    ran = (slurm.work / "ran").read_text().split()
    assert sorted(map(int, ran)) == list(range(200))
    assert slurm.job(f"{number}_7")["target_id"].endswith("_7")


def test_array_above_the_largest_index_of_the_cluster(slurm, cluster):
    """MaxArraySize is 2001: three Slurm arrays. Tasks see their own numbers, also when they are retried."""
    line = (
        "echo $GFLOW_ARRAY_TASK_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_MIN-$SLURM_ARRAY_TASK_MAX;"
        " test $GFLOW_ARRAY_TASK_ID != 9001 -o $GFLOW_ATTEMPT = 2"
    )
    tasks = (1999, 2000, 2001, 2002, 9000, 9001)
    number = slurm.submit("--on", "slurm", "--array", "1999-2002,9000-9001", "--max-retries", "1", line)
    job = slurm.finished(number, 90)
    assert (job["state"], job["tasks"]["finished"]) == ("Finished", 6), job
    for task in tasks:
        text = slurm.ok("gjob", "log", f"{number}_{task}").splitlines()
        assert text[-1] == f"{task} {task} " + ("1999-9001" if task != 9001 else "997-997"), text
    assert slurm.job(f"{number}_2002")["target_id"].endswith("_1")
    held = slurm.submit("--on", "slurm", "--array", "0,2500-2501", "--nodes", "4", "--exclusive", "sleep 100")
    wait_until(lambda: state_of(slurm, f"{held}_0") == "Running", 30, "the first task")
    slurm.ok("gcancel", f"{held}_2500")
    assert slurm.finished(f"{held}_2500", 30)["state"] == "Cancelled"
    slurm.ok("gcancel", str(held))
    wait_until(lambda: not cluster.call("squeue", "-h"), 60, "an empty queue")


def test_a_cap_and_a_task_that_is_cancelled(slurm):
    number = slurm.submit("--on", "slurm", "--array", "1-4%1", "sleep 3")
    runs(slurm, f"{number}_1")
    slurm.ok("gcancel", f"{number}_3")
    job = slurm.finished(number, 60)
    assert (job["state"], job["reason"]) == ("Cancelled", "TasksCancelled:1")
    assert job["tasks"]["finished"] == 3


def test_dependencies_from_here_to_there_and_back(slurm):
    note = f"{slurm.work}/order"
    first = slurm.submit(f"sleep 0.3; echo here >> {note}")
    second = slurm.submit("--on", "slurm", "--depends-on", str(first), f"echo there >> {note}")
    third = slurm.submit("--depends-on", str(second), f"echo back >> {note}")
    assert slurm.finished(third, 40)["state"] == "Finished"
    assert (slurm.work / "order").read_text().split() == ["here", "there", "back"]
    broken = slurm.submit("--on", "slurm", "false")
    after = slurm.submit("--depends-on", str(broken), "true")
    assert slurm.finished(after, 30)["reason"] == f"DependencyFailed:{broken}"


def test_cancel_of_waiting_and_running_job(slurm, cluster):
    for _ in range(4):
        slurm.submit("--on", "slurm", "--gpus", "4", "sleep 300")
    waiting = slurm.submit("--on", "slurm", "--gpus", "4", f"touch {slurm.work}/ran")
    wait_until(lambda: slurm.job(waiting)["reason"].startswith(("Resources", "Priority")), 30, "a reason")
    for number in range(1, 5):
        runs(slurm, number)
    slurm.ok("gcancel", str(waiting))
    assert slurm.finished(waiting, 20)["state"] == "Cancelled"
    slurm.ok("gcancel", "--all")
    for number in range(1, 5):
        job = slurm.finished(number, 30)
        assert (job["state"], job["reason"]) == ("Cancelled", "CancelledByUser")
    wait_until(lambda: not cluster.call("squeue", "-h"), 30, "an empty queue")
    assert not (slurm.work / "ran").exists()


def test_the_stop_contract(slurm):
    """TERM and the stop file first; who saves in time leaves with their own code."""
    line = f"trap 'echo saved > {slurm.work}/saved; exit 3' TERM; touch {slurm.work}/ready; {UNTIL_TRAPPED}"
    number = slurm.submit("--on", "slurm", line)
    wait_until((slurm.work / "ready").exists, 30, "its trap")
    slurm.ok("gcancel", str(number))
    assert slurm.finished(number, 30)["state"] == "Cancelled"
    assert (slurm.work / "saved").read_text() == "saved\n"


def test_hold_withdraws_and_release_submits_again(slurm, cluster):
    blockers = [slurm.submit("--on", "slurm", "--gpus", "4", "sleep 300") for _ in range(4)]
    for number in blockers:
        runs(slurm, number)
    held = slurm.submit("--on", "slurm", "--gpus", "4", "true")
    wait_until(lambda: slurm.job(held)["target_id"], 20, "its number in Slurm")
    slurm.ok("gjob", "hold", str(held))
    wait_until(lambda: state_of(slurm, held) == "Hold", 20, "the hold")
    refused = slurm.run("gjob", "hold", str(blockers[0]))
    assert refused.returncode == 1
    slurm.ok("gcancel", *map(str, blockers))
    for number in blockers:
        slurm.finished(number, 30)
    slurm.ok("gjob", "update", str(held), "--gpus", "2")
    slurm.ok("gjob", "release", str(held))
    job = slurm.finished(held, 30)
    assert (job["state"], job["attempt"]) == ("Finished", 2)


def test_a_begin_time_and_options_that_only_sbatch_knows(slurm, cluster):
    """It is not in Slurm's hands before its time; then it is there with all that was said of it."""
    number = slurm.submit(
        "--on", "slurm", "--begin", "now+5s", "--slurm=--nice=7", "--slurm=--nodelist=node2", "hostname"
    )
    assert (slurm.job(number)["reason"], cluster.call("squeue", "-h")) == ("BeginTime", "")
    job = slurm.finished(number, 40)
    assert (job["state"], slurm.text_of(number)) == ("Finished", "node2\n")
    assert " Nice=7 " in cluster.call("scontrol", "-o", "show", "job", job["target_id"])


def test_a_time_limit(slurm):
    """Slurm counts minutes: the job is told, and ends as Timeout; with --requeue it comes again."""
    number = slurm.submit(
        "--on",
        "slurm",
        "--time",
        "0:01",
        "--requeue",
        f"echo $GFLOW_ATTEMPT >> {slurm.work}/ran; [ $GFLOW_ATTEMPT = 2 ] || sleep 200",
    )
    job = slurm.finished(number, 150)
    assert (job["state"], job["attempt"]) == ("Finished", 2)
    assert "TimeLimit" in slurm.ok("gjob", "history", str(number))
    assert (slurm.work / "ran").read_text().split() == ["1", "2"]


def test_preemption_with_resume(slurm):
    """A job of a low partition makes room, and goes on where it was in its next attempt."""
    state = f"{slurm.work}/state"
    script = f"trap 'echo saved >> {state}; exit 75' TERM; echo attempt $GFLOW_ATTEMPT >> {state}"
    script += f"; {UNTIL_TRAPPED}"
    low = slurm.submit("--on", "slurm", "--partition", "low", "--requeue", "--exclusive", script)
    written = slurm.work / "state"
    wait_until(written.exists, 60, "the first attempt's word")  # before that, its trap may not be set
    high = slurm.submit("--on", "slurm", "--partition", "high", "--nodes", "4", "--exclusive", "sleep 8")
    runs(slurm, high, 60)
    wait_until(lambda: slurm.job(low)["attempt"] == 2, 180, "the second attempt")
    assert slurm.finished(high, 60)["state"] == "Finished"
    wait_until(lambda: "attempt 2" in written.read_text(), 180, "the second attempt's word")
    assert written.read_text().splitlines()[:2] == ["attempt 1", "saved"]
    slurm.ok("gcancel", str(low))


def test_a_node_that_dies(slurm, cluster):
    """The job goes to another node; what its old run still does is ended, and its word does not count."""
    ran = slurm.work / "ran"
    line = f"echo $GFLOW_ATTEMPT $$ >> {ran}; [ $GFLOW_ATTEMPT = 2 ] || while :; do sleep 1; done"
    number = slurm.submit("--on", "slurm", "--requeue", "--slurm=--nodelist=node3", line)
    runs(slurm, number)
    wait_until(lambda: ran.exists(), 10, "its first word")
    old = int(ran.read_text().split()[1])
    cluster.kill_node(3)
    try:
        wait_until(lambda: slurm.job(number)["attempt"] == 2, 90, "the second attempt")
        wait_until(lambda: not cluster.lives(old), 30, "the end of the old run")
    finally:
        cluster.start_node(3)
    job = slurm.finished(number, 120)
    assert (job["state"], job["attempt"]) == ("Finished", 2)
    assert [line.split()[0] for line in ran.read_text().splitlines()] == ["1", "2"]


def test_the_controller_is_killed_amid_50_submissions(slurm, cluster):
    """None is lost and none runs twice, though Slurm forgets some and gives their numbers out again."""
    ran = slurm.work / "ran"

    def submit(index: int) -> int:
        return slurm.submit("--on", "slurm", "--name", f"n{index}", f"echo {index} >> {ran}; sleep 0.2")

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(submit, index) for index in range(50)]
        wait_until(lambda: len(slurm.jobs()) >= 20, 60, "some submissions")
        cluster.kill_controller()
        wait_until(lambda: len(slurm.jobs()) >= 30, 60, "more submissions")
        cluster.start_controller()
        numbers = [future.result() for future in futures]
    for number in numbers:
        job = slurm.finished(number, 180)
        assert job["state"] == "Finished", job["reason"]
    assert sorted(map(int, ran.read_text().split())) == list(range(50))


def test_controller_is_killed_amid_arrays(slurm, cluster):
    """Nodes that know an id refuse the task that gets it again: such tasks are submitted again.

    The last task of an array has the id of the array. If a node refuses that task, slurmd cancels its id, and
    Slurm ends all tasks of the array: those that have begun end as cancelled there.
    """
    ran, log_start = slurm.work / "ran", cluster.log_size()
    numbers = [
        slurm.submit("--on", "slurm", "--array", "0-29", f"echo $GFLOW_JOB_ID >> {ran}; sleep 0.3")
        for _ in range(2)
    ]
    wait_until(lambda: ran.exists() and len(ran.read_text().split()) >= 6, 60, "some tasks")
    cluster.kill_controller()
    cluster.start_controller()

    def are_over() -> bool:
        cluster.resume_nodes()  # as an administrator does
        return all(state_of(slurm, number) not in ("Queued", "Running") for number in numbers)

    wait_until(are_over, 150, "the ends of the arrays")
    tasks = {key: slurm.job(key) for key in (f"{n}_{i}" for n in numbers for i in range(30))}
    began = ran.read_text().split()
    assert len(began) == len(set(began)), "a task ran twice"
    ends = {key: (job["state"], job["reason"]) for key, job in tasks.items()}
    cancelled = {key for key, end in ends.items() if end == ("Cancelled", "CancelledThere")}
    assert {end for key, end in ends.items() if key not in cancelled} <= {("Finished", None)}
    assert ends.keys() - cancelled <= set(began)
    assert not cancelled or cluster.has_node_cancelled_array(log_start)


def test_a_controller_that_is_not_there(slurm, cluster):
    """The answer comes within 12 s, the job is kept, the queue is shown at once, and it runs afterwards."""
    cluster.kill_controller()
    try:
        began = time.monotonic()
        done = slurm.run("gbatch", "--on", "slurm", "true")
        took = time.monotonic() - began
        assert (done.returncode, done.stdout) == (0, "Submitted batch job 1\n")
        assert "does not answer" in done.stderr
        assert took < 12 + 3, f"{took:.1f} s"
        wait_until(lambda: "SlurmUnreachable" in slurm.job(1)["reason"], 30, "the reason")
        began = time.monotonic()
        slurm.ok("gqueue")
        assert time.monotonic() - began < 5
        slurm.submit("--on", "slurm", "true")
        slurm.ok("gcancel", "2")
        assert slurm.finished(2, 15)["state"] == "Cancelled"
    finally:
        cluster.start_controller()
    assert slurm.finished(1, 90)["state"] == "Finished"


def test_the_daemon_is_killed_while_jobs_wait_and_run_there(slurm, cluster):
    """Two of them, and an array, end while there is no daemon. Each job ends when it is told to."""
    ran, go = slurm.work / "ran", slurm.work / "go"
    line = f"echo {{i}} >> {ran}; until [ -e {go}{{i}} ]; do sleep 0.1; done; exit {{i}}"
    numbers = [slurm.submit("--on", "slurm", line.format(i=i)) for i in range(4)]
    array = slurm.submit("--on", "slurm", "--array", "10-13", f"echo $GFLOW_ARRAY_TASK_ID >> {ran}; sleep 1")
    runs(slurm, numbers[0])
    slurm.kill9()
    for i in (0, 1):
        Path(f"{go}{i}").touch()
    states = ("squeue", "--noheader", "--states=PENDING,RUNNING,COMPLETING", "--format=%i")
    wait_until(lambda: len(cluster.call(*states).split()) <= 2, 60, "the ends of the others")
    slurm.up()
    for i in (2, 3):
        Path(f"{go}{i}").touch()
    codes = [slurm.finished(number, 60)["exit_code"] for number in numbers]
    assert codes == [0, 1, 2, 3]
    assert slurm.finished(array, 60)["state"] == "Finished"
    assert sorted(map(int, ran.read_text().split())) == [0, 1, 2, 3, 10, 11, 12, 13]


def test_a_thousand_jobs_cost_one_question_at_a_time(slurm, cluster):
    """What waits there is asked about together, and the queue is shown without a request to Slurm."""
    blockers = slurm.submit("--on", "slurm", "--nodes", "4", "--exclusive", "sleep 600")
    runs(slurm, blockers)
    slurm.ok("gbatch", "--on", "slurm", "--array", "0-999", "true")
    wait_until(lambda: (slurm.job(2)["reason"] or "").startswith(("Resources", "Priority")), 60, "a reason")
    before = asked(cluster)
    began = time.monotonic()
    for _ in range(5):
        slurm.ok("gqueue")
    time.sleep(max(0.0, 10 - (time.monotonic() - began)))
    assert asked(cluster) - before <= 6, "more than one question an interval"
    slurm.ok("gcancel", "--all")
    assert slurm.finished(2, 60)["state"] == "Cancelled"


def asked(cluster: Cluster) -> int:
    """How often the controller was asked for its jobs, by its own count."""
    found = re.search(r"REQUEST_JOB_INFO\s.*?count:(\d+)", cluster.call("sdiag"))
    return int(found[1]) if found else 0


def test_accounting_reports_jobs_gone_from_the_queue(accounting, box):
    from tests.slurm.conftest import on

    daemon = on(accounting, box)
    assert daemon.finished(daemon.submit("--on", "slurm", "--gpus", "1", "true"), 40)["state"] == "Finished"
    array = daemon.submit("--on", "slurm", "--array", "0-5", "exit $GFLOW_ARRAY_TASK_ID")
    job = daemon.finished(array, 60)
    assert (job["state"], job["reason"], job["exit_code"]) == ("Failed", "TasksFailed:5", 5)
    words = ("sacct", "-X", "-P", "-n", "-o", "State")
    wait_until(lambda: "COMPLETED" in accounting.call(*words), 30, "the accounting, which lags")


def test_usage_of_an_ended_job_is_read_from_the_accounting(accounting, box):
    from tests.slurm.conftest import on

    daemon = on(accounting, box)
    line = "python3 -c 'data = bytearray(200 << 20); [pow(3, 9**6, 7**900) for _ in range(40)]'; sleep 6"
    number = daemon.submit("--on", "slurm", "--gpus", "1", "--cpus", "2", line)
    assert daemon.finished(number, 90)["state"] == "Finished"

    def recorded():
        """The accounting lags behind the end of a job."""
        ended = daemon.api("GET", f"/jobs/{number}/usage")[1].get("ended")
        return ended if ended and ended["cpu_time_s"] > 0 and ended["peak_task_mib"] else None

    found = wait_until(recorded, 60, "the usage of the job")
    assert (found["cpus"], found["nodes"], found["gpus"]) == (2, 1, 1)
    assert found["elapsed_s"] >= 6 and found["cpu_time_s"] <= 2 * found["elapsed_s"]
    assert 0 < found["cpu_percent"] <= 100 and found["memory_mib"] is not None
    heads, row, *_ = daemon.ok("gjob", "usage", str(number)).splitlines()
    assert heads.split()[:3] == ["TIME", "NODES", "CPUS"] and row.split()[1:3] == ["1", "2"]


def test_limits_of_an_account(accounting, box):
    """Which they are and that they are in the way, by Slurm's own books; unknown accounts are refused."""
    from tests.slurm.conftest import on

    for words in (
        "add account lab",
        "add user root account=lab",
        "modify account lab set GrpTRES=gres/gpu=2",
    ):
        accounting.call("sacctmgr", "-i", *words.split())
    daemon = on(accounting, box)
    for name, hint in (("lba", "did you mean lab?"), ("zzz", "there are the accounts ")):
        refused = daemon.run("gbatch", "--on", "slurm", "--account", name, "true")
        assert (refused.returncode, "Invalid account" in refused.stderr) == (1, True)
        assert hint in refused.stderr
    refused = daemon.run("gbatch", "--on", "slurm", "--qos", "zzz", "true")
    assert "there are the qualities of service normal" in refused.stderr
    assert daemon.jobs() == {}
    first = daemon.submit("--on", "slurm", "--account", "lab", "--gpus", "2", "sleep 300")
    runs(daemon, first)
    number = daemon.submit("--on", "slurm", "--account", "lab", "--gpus", "1", "true")
    wait_until(lambda: "AssocGrpGRES" in (daemon.job(number)["reason"] or ""), 30, "its reason")
    page = daemon.ok("gjob", "why", str(number))
    assert "  1. AssocGrpGRES: its account uses as many GPUs as it may\n" in page
    assert "     limit of account lab: all its jobs together have at most gres/gpu=2\n" in page
    found = daemon.api("GET", f"/jobs/{number}/why")[1]
    assert found["instead"] == [], "no other partition gets around a limit"
    daemon.ok("gcancel", "--all")
    daemon.finished(first, 60)


def test_shapes_by_name(cluster, box):
    from tests.slurm.conftest import on

    folder = box.home / ".config/gflow"
    folder.mkdir(parents=True)
    (folder / "gflow.toml").write_text(
        '[shapes.pair]\nnodes = 2\ngpus = 2\ncpus = 2\npartition = "high"\non = "slurm"\n'
    )
    slurm = on(cluster, box)
    number = slurm.submit(
        "--shape", "pair", "--cpus", "1", 'echo "$GFLOW_NODES $GFLOW_GPUS $SLURM_JOB_PARTITION"'
    )
    job = slurm.finished(number, 30)
    assert slurm.text_of(number) == "2 2 high\n"
    assert (job["asked"]["shape"], job["cpus"], job["target"]) == ("pair", 1, "slurm")
    again = int(slurm.ok("gjob", "redo", str(number), "--gpus", "1", "--parsable"))
    assert "shape" not in slurm.finished(again, 30)["asked"]
    assert slurm.text_of(again) == "2 1 high\n"
    listed = ["--all", "-f", "JOBID", "--target", "slurm", "--partition"]
    assert slurm.ok("gqueue", *listed, "high").split() == ["JOBID", str(number), str(again)]
    assert slurm.ok("gqueue", *listed, "low").split() == ["JOBID"]
    refused = slurm.run("gbatch", "--shape", "piar", "true")
    assert (refused.returncode, "did you mean pair?" in refused.stderr) == (2, True)


def test_gjob_why_names_reason_and_alternatives(slurm):
    """Another partition has priority here: its jobs would make room for themselves."""
    slurm.submit(
        "--on", "slurm", "--nodes", "4", "--exclusive", "--partition", "low", "--time", "60", "sleep 600"
    )
    runs(slurm, 1)
    number = slurm.submit("--on", "slurm", "--gpus", "4", "--partition", "low", "--time", "30", "true")
    wait_until(lambda: "Resources" in (slurm.job(number)["reason"] or ""), 30, "its reason")
    page = slurm.ok("gjob", "why", str(number))
    assert "1. Resources: the GPUs, CPUs or nodes it needs are busy" in page
    found = slurm.api("GET", f"/jobs/{number}/why")[1]
    assert found["start"] is None or found["start"]["expected"] > time.time()
    assert "--partition high" in found["instead"], page
    slurm.ok("gcancel", "--all")


def test_other_shape_would_start_sooner(slurm):
    """No node has four GPUs left, and every node has one."""
    for node in range(1, 5):
        words = ["--on", "slurm", "--gpus", "3", "--time", "60", f"--slurm=--nodelist=node{node}"]
        runs(slurm, slurm.submit(*words, "sleep 600"))
    number = slurm.submit("--on", "slurm", "--gpus", "4", "--time", "10", "true")
    wait_until(lambda: "Resources" in (slurm.job(number)["reason"] or ""), 30, "its reason")
    found = wait_until(lambda: slurm.api("GET", f"/jobs/{number}/why")[1], 30)
    assert found["instead"] == ["--nodes 4 --gpus 1"]
    slurm.ok("gcancel", "--all")


BUSY = """
import time
hoard = bytearray(150 << 20)
while True:
    sum(range(10000))
"""


def test_command_is_executed_in_a_running_job(slurm):
    number = slurm.submit("--on", "slurm", "--gpus", "2", "sleep 100", env={"MINE": "x y"})
    runs(slurm, number)
    line = 'echo "$MINE|$GFLOW_JOB_ID|$CUDA_VISIBLE_DEVICES|$PWD"; exit 6'
    done = slurm.run("gjob", "exec", str(number), "--", "sh", "-c", line)
    assert re.fullmatch(rf"x y\|{number}\|\d,\d\|{slurm.work}\n", done.stdout), done
    assert done.returncode == 6
    slurm.ok("gcancel", str(number))


def test_command_runs_in_a_container(slurm):
    folder = slurm.root / "fakes"
    folder.mkdir()
    (folder / "apptainer").write_text(
        "#!/bin/bash\nprintf '<%s>' \"$@\"; echo\n"
        'until [ "$1" = "my image.sif" ]; do shift; done\nshift; exec "$@"\n'
    )
    (folder / "apptainer").chmod(0o755)
    path = {"PATH": f"{folder}:{slurm.env['PATH']}"}
    number = slurm.submit(
        "--on", "slurm", "--gpus", "1", "--container", "my image.sif", "python3", "-c", "exit(3)", env=path
    )
    assert slurm.finished(number, 30)["exit_code"] == 3
    assert slurm.text_of(number).startswith(f"<exec><--pwd><{slurm.work}><--nv><--bind><")
    assert slurm.text_of(number).endswith("<my image.sif><python3><-c><exit(3)>\n")
    assert "Container: my image.sif" in slurm.ok("gjob", "show", str(number))
    assert slurm.job(number)["asked"]["container"] == "my image.sif"
    # In a script it is Slurm's own option, as are those of pyxis.
    script = slurm.work / "oci.sh"
    script.write_text("#!/bin/bash\n#SBATCH --container=/bundle\ntrue\n")
    assert "#SBATCH --container=/bundle" in slurm.ok("gbatch", "--on", "slurm", "--dry-run", str(script))


def test_usage_on_the_nodes_is_shown(slurm):
    """Each node is asked; a task of an array has a number of its own there."""
    (slurm.work / "busy.py").write_text(BUSY)
    words = ["srun", "python3", "busy.py"]
    number = slurm.submit("--on", "slurm", "--nodes", "2", "--gpus", "2", "--cpus", "2", *words)
    array = slurm.submit("--on", "slurm", "--array", "3-4", "sleep 300")
    runs(slurm, number)
    runs(slurm, f"{array}_3")

    def busy():
        nodes = slurm.api("GET", f"/jobs/{number}/usage")[1]["nodes"]
        return nodes if all(node["cpus_used"] > 0 and node["memory_mib"] > 150 for node in nodes) else None

    nodes = wait_until(busy, 60, "both nodes at work")
    assert [(node["node"], node["cpus"]) for node in nodes] == [("node1", 2), ("node2", 2)]
    if shutil.which("nvidia-smi") is None:
        assert nodes[0]["note"] == "no nvidia-smi on this node, so the use of its GPUs is unknown (0,1)"
        assert "node2: no nvidia-smi" in slurm.ok("gjob", "usage", str(number))
    assert slurm.api("GET", f"/jobs/{array}_3/usage")[1]["nodes"][0]["processes"] > 0
    whole = slurm.run("gjob", "usage", str(array))
    assert (whole.returncode, "is an array" in whole.stderr) == (1, True)
    slurm.ok("gcancel", "--all")
    slurm.finished(number, 60)
    over = slurm.run("gjob", "usage", str(number))
    assert over.returncode == 1 and f"the usage of job {number} on slurm is unknown: " in over.stderr
    assert "accounting" in over.stderr
    waits = slurm.submit("--hold", "--on", "slurm", "true")
    assert "has not run on slurm" in slurm.run("gjob", "usage", str(waits)).stderr


def test_redo_elsewhere(slurm):
    number = slurm.submit("hostname")
    slurm.finished(number)
    again = int(slurm.ok("gjob", "redo", str(number), "--on", "slurm", "--parsable"))
    assert slurm.finished(again, 30)["target"] == "slurm"
    assert slurm.text_of(again).startswith("node")
    refused = slurm.run("gjob", "redo", str(number), "--on", "nowhere")
    assert (refused.returncode, "unknown target 'nowhere'" in refused.stderr) == (2, True)


# ---------------------------------------------------------------- races


def test_gpu_hours_of_a_race_are_those_of_its_winner(slurm):
    """The job itself asks for no GPU: its shapes do."""
    number = slurm.submit(
        "--on", "slurm", "--race", "n2_gpu4,n4_gpu2", "sleep 3; echo $GFLOW_NODES $GFLOW_GPUS"
    )
    assert slurm.finished(number, 60)["state"] == "Finished"
    nodes, gpus = map(int, slurm.text_of(number).split())
    spent_s = json.loads(slurm.ok("gstats", "--json"))["total_gpu_hours"] * 3600
    assert nodes * gpus == 8 and 8 * 2 <= spent_s <= 8 * 20, spent_s


def test_a_race_has_one_winner(slurm, cluster):
    """Fifty races, all of whose shapes could start at once: each job's command ran once."""
    ran = slurm.work / "ran"
    numbers = [
        slurm.submit("--on", "slurm", "--race", "n1_gpu1,n2_gpu1,n1_gpu0", f"echo {i} $GFLOW_NODES >> {ran}")
        for i in range(50)
    ]
    for number in numbers:
        assert slurm.finished(number, 240)["state"] == "Finished"
    winners = [int(line.split()[0]) for line in ran.read_text().splitlines()]
    assert sorted(winners) == list(range(50))
    wait_until(lambda: not cluster.call("squeue", "-h"), 60, "an empty queue")
    assert len(ran.read_text().splitlines()) == 50


def test_the_shape_that_cannot_start_loses(slurm):
    blocker = slurm.submit(
        "--on", "slurm", "--nodes", "1", "--gpus", "4", "--slurm=--nodelist=node1", "sleep 60"
    )
    runs(slurm, blocker)
    number = slurm.submit(
        "--on", "slurm", "--time", "1", "--race", "n4_gpu4,n2_gpu2", 'echo "$GFLOW_NODES x $GFLOW_GPUS"'
    )
    assert slurm.finished(number, 40)["state"] == "Finished"
    assert slurm.text_of(number) == "2 x 2\n"
    slurm.ok("gcancel", str(blocker))


# ---------------------------------------------------------------- bad input


REFUSALS = [
    (["--partition", "nope"], 1, "slurm would not take this job: Invalid partition name specified"),
    (["--partition", "mian"], 1, "did you mean main?"),
    (["--gpus", "9"], 1, "slurm would not take this job: Requested node configuration is not available"),
    (["--shape", "n9_gpu4"], 1, "main has 4 nodes, each with 4 GPUs (a100), 8 CPUs and 15 GiB of memory"),
    (["--constraint", "nope"], 1, "slurm would not take this job: Invalid feature specification"),
    (["--reservation", "nope"], 1, "slurm would not take this job: Requested reservation is invalid"),
    (["--nodes", "9"], 1, "slurm would not take this job: "),
    (["--gpu-type", "h900", "--gpus", "1"], 1, "slurm would not take this job: "),
    (["--shape", "many"], 2, "there is no shape 'many'"),
    (["--race", "n1_gpu1"], 2, "--race takes two different shapes or more"),
    (["--slurm=licenses"], 2, "--slurm takes an option of sbatch"),
    (["--slurm=--wrap=x"], 2, "gflow sets --wrap itself"),
    (["--shared", "--gpus", "1", "--gpu-memory", "1G"], 1, "--shared is for GPUs of this machine"),
]


def test_slurm_refusals(slurm):
    """One clear sentence each, and no side effect."""
    for words, code, said in REFUSALS:
        done = slurm.run("gbatch", "--on", "slurm", *words, "true")
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert slurm.jobs() == {}


def test_a_log_that_cannot_be_made(slurm):
    (slurm.work / "file").write_text("")
    number = slurm.submit("--on", "slurm", "--output", "file/%j.log", "true")
    assert slurm.finished(number, 30)["reason"].startswith("StartFailed: no log at ")


def test_the_document_does_what_it_says(cluster, login, box):
    cluster.forget_jobs()
    login.install(box, "login.cluster.edu")
    (target,) = re.findall(r"(?s)```toml\n(\[targets.gilbreth\].*?)```", (ROOT / "docs/slurm.md").read_text())
    config = box.home / ".config/gflow/gflow.toml"
    config.parent.mkdir(parents=True)
    config.write_text(target)
    box.env["SLURM_CONF"] = str(cluster.conf)
    box.env["GFLOW_SIMULATE_GPUS"] = "4x80G"
    play(box, ROOT / "docs/slurm.md")
    box.run("gflowd", "down")


# ---------------------------------------------------------------- several nodes

TRAIN = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
torch.manual_seed(rank)
before = model(torch.ones(1, 4)).item()
loss = model(torch.randn(8, 4)).square().mean()
loss.backward()
torch.optim.SGD(model.parameters(), 0.1).step()
after = torch.tensor([model(torch.ones(1, 4)).item()])
all_of_them = [torch.zeros(1) for _ in range(world)]
dist.all_gather(all_of_them, after)
same = len({round(one.item(), 5) for one in all_of_them}) == 1
if rank == 0:
    print("world", world, "moved", after.item() != before, "same", same)
print("rank", rank, "on", os.uname().nodename, flush=True)
dist.destroy_process_group()
"""


def test_a_training_step_on_two_nodes_with_two_ranks_each(slurm):
    pytest.importorskip("torch")
    (slurm.work / "train.py").write_text(TRAIN)
    words = ["gflow", "launch", "--nodes", "2", "--processes", "2", "--logs", "ranks", "train.py"]
    number = slurm.submit("--on", "slurm", "--nodes", "2", "--gpus", "2", *words)
    job = slurm.finished(number, 180)
    text = slurm.text_of(number)
    assert job["state"] == "Finished", text
    assert "world 4 moved True same True" in text
    assert "network: ethernet (no InfiniBand adapter)" in text
    said = {path.name: path.read_text() for path in (slurm.work / "ranks").iterdir()}
    places = {re.search(r"rank (\d) on (node\d)", words).groups() for words in said.values()}
    assert {rank for rank, _ in places} == {"0", "1", "2", "3"}
    assert len({node for _, node in places}) == 2


def test_a_launch_that_fails_on_one_node_ends_on_all(slurm):
    (slurm.work / "train.py").write_text(
        "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(300)\n"
    )
    words = ["gflow", "launch", "--processes", "1", "train.py"]
    number = slurm.submit("--on", "slurm", "--nodes", "2", *words)
    assert slurm.finished(number, 120)["exit_code"] == 7
