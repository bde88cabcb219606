"""Faults around a real Slurm: a folder that is away, limits, forgotten jobs, changed comments, a slow sbatch.

One cluster with accounting serves all tests. What ran is counted by what it left.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.harness import Box, wait_until
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import on

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(accounting: Cluster) -> Cluster:
    for words in (
        "add account lab",
        "modify account lab set GrpTRES=gres/gpu=-1",  # other tests set limits
        "add user root account=lab",
        "modify user root set MaxSubmitJobs=-1",
    ):
        accounting.call("sacctmgr", "-i", *words.split())
    return accounting


def submit(box: Box, *words: str) -> int:
    return box.submit("--on", "slurm", "--account", "lab", *words)


def runs(box: Box, number: int, timeout_s: float = 30) -> None:
    wait_until(lambda: box.job(number)["state"] == "Running", timeout_s, f"the start of job {number}")


def shared_folder(box: Box) -> Path:
    (found,) = box.root.rglob("slurm/slurm/id")
    return found.parent


def test_orders_are_carried_out_when_the_folder_is_back(lab, box):
    daemon = on(lab, box)
    first = submit(daemon, "sleep 100")
    runs(daemon, first)
    folder = shared_folder(daemon)
    away = folder.with_name("away")
    folder.rename(away)
    daemon.ok("gcancel", str(first))
    script = daemon.work / "s.sh"
    script.write_text("#!/bin/sh\necho hi\n")
    second = submit(daemon, str(script))
    wait_until(lambda: (daemon.job(second)["reason"] or "").startswith("SharedFolder"), 10, "the reason")
    assert "SharedFolder: No such file or directory" in daemon.ok("gjob", "why", str(second))
    away.rename(folder)
    assert daemon.finished(first, 40)["state"] == "Cancelled"
    assert daemon.finished(second, 40)["state"] == "Finished"
    assert daemon.text_of(second) == "hi\n"


def test_submit_limit_keeps_jobs_queued(lab, box):
    """Six jobs, of which Slurm takes two at a time: all run, and gbatch says what happens."""
    daemon = on(lab, box)
    ran = daemon.work / "ran"
    lab.call("sacctmgr", "-i", "modify", "user", "root", "set", "MaxSubmitJobs=2")
    try:
        numbers = [submit(daemon, "--hold", f"echo {i} >> {ran}; sleep 2") for i in range(6)]
        daemon.ok("gjob", "release", *map(str, numbers))

        def reasons() -> list[str]:
            return [daemon.job(number)["reason"] or "" for number in numbers]

        wait_until(lambda: sum("SubmitJob" in one for one in reasons()) >= 3, 20, "the reason")
        said = daemon.run("gbatch", "--on", "slurm", "--account", "lab", f"echo 6 >> {ran}")
        assert (said.returncode, "slurm does not take the job now" in said.stderr) == (0, True), said.stderr
        waiting = next(number for number in numbers if "SubmitJob" in (daemon.job(number)["reason"] or ""))
        assert "AssocMaxSubmitJobLimit: you have as many jobs" in daemon.ok("gjob", "why", str(waiting))
        for number in [*numbers, max(numbers) + 1]:
            assert daemon.finished(number, 200)["state"] == "Finished"
    finally:
        lab.call("sacctmgr", "-i", "modify", "user", "root", "set", "MaxSubmitJobs=-1")
    assert sorted(ran.read_text().split()) == [str(i) for i in range(7)]


def test_array_above_the_submit_limit_is_fed_as_tasks_end(lab, box):
    """Twelve tasks, of which Slurm takes five at a time; the daemon is killed amid them."""
    daemon = on(lab, box)
    ran = daemon.work / "ran"
    lab.call("sacctmgr", "-i", "modify", "user", "root", "set", "MaxSubmitJobs=5")
    try:
        line = f"echo $GFLOW_ARRAY_TASK_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT >> {ran}; sleep 1"
        number = submit(daemon, "--array", "1-12", line)
        wait_until(ran.exists, 60, "the first task")
        daemon.kill9()
        daemon.up()
        wait_until(lambda: "SubmitJob" in (daemon.job(number)["reason"] or ""), 60, "the reason")
        job = daemon.finished(number, 300)
        assert (job["state"], job["tasks"]["finished"]) == ("Finished", 12), job
    finally:
        lab.call("sacctmgr", "-i", "modify", "user", "root", "set", "MaxSubmitJobs=-1")
    assert sorted(ran.read_text().splitlines()) == sorted(f"{i} {i} 12" for i in range(1, 13))


def test_cancel_does_not_wait_for_a_slow_sbatch(lab, box):
    """A site's wrapper takes two seconds for each submission, twenty wait: the cancel goes first."""
    wrapper = box.work / "bin"
    wrapper.mkdir()
    (wrapper / "sbatch").write_text(
        '#!/bin/sh\ncase "$*" in *test-only*) ;; *) sleep 2;; esac\nexec /usr/bin/sbatch "$@"\n'
    )
    (wrapper / "sbatch").chmod(0o755)
    box.env["PATH"] = f"{wrapper}:{box.env['PATH']}"
    daemon = on(lab, box)
    first = submit(daemon, "sleep 100")
    runs(daemon, first)
    numbers = [submit(daemon, "--hold", "true") for _ in range(20)]
    daemon.ok("gjob", "release", *map(str, numbers))
    began = time.monotonic()
    daemon.ok("gcancel", "--now", str(first))
    assert daemon.finished(first, 40)["state"] == "Cancelled"
    took = time.monotonic() - began
    assert any(daemon.job(number)["state"] == "Queued" for number in numbers), (
        "the others are not through yet"
    )
    assert took < 9, f"{took:.1f} s"
    for number in numbers:
        assert daemon.finished(number, 90)["state"] == "Finished"


SLOW_SBATCH = """#!/bin/sh
case "$*" in *test-only*) exec /usr/bin/sbatch "$@";; esac
if [ ! -e {0}/hung ]; then
  touch {0}/hung; /usr/bin/sbatch "$@" > {0}/answer
  sleep 1000 & echo $! > {0}/child; wait
fi
sleep 13; exec /usr/bin/sbatch "$@"
"""


def test_sbatch_that_hangs_or_takes_long(lab, box):
    """The first call submits and hangs: it is ended with its child, and the job found. Others take 13 s."""
    wrapper, config = box.work / "bin", box.home / ".config/gflow/gflow.toml"
    for folder in (wrapper, config.parent):
        folder.mkdir(parents=True)
    (wrapper / "sbatch").write_text(SLOW_SBATCH.format(wrapper))
    (wrapper / "sbatch").chmod(0o755)
    config.write_text('[targets.impatient]\ntype = "slurm"\ncommand_timeout_secs = 3\n')
    box.env["PATH"] = f"{wrapper}:{box.env['PATH']}"
    daemon, ran = on(lab, box), box.work / "ran"
    words = ("--account", "lab", f"echo $GFLOW_JOB_ID >> {ran}; exit 4")
    first = daemon.submit("--on", "impatient", *words)
    assert daemon.finished(first, 60)["exit_code"] == 4
    child = int((wrapper / "child").read_text())
    wait_until(lambda: not lab.lives(child), 10, "the end of what sbatch started")
    assert (
        lab.call("squeue", "-h", "-t", "all", "-o", "%i")
        .split()
        .count((wrapper / "answer").read_text().strip())
        == 1
    )
    second = daemon.submit("--on", "slurm", *words)
    assert daemon.finished(second, 60)["exit_code"] == 4
    assert ran.read_text().split() == [str(first), str(second)]


def test_jobs_that_slurm_forgot_while_no_daemon_ran(lab, box):
    """One was cancelled while it waited: it stays cancelled. One was preempted: it is requeued."""
    daemon = on(lab, box)
    lab.set_min_job_age(2)
    try:
        ran = daemon.work / "ran"
        low = submit(daemon, "--requeue", "--partition", "low", "--exclusive", "--nodes", "4", "sleep 200")
        runs(daemon, low)
        waiting = submit(daemon, "--nodes", "4", "--exclusive", "--partition", "low", f"echo x >> {ran}")
        wait_until(lambda: daemon.job(waiting)["target_id"], 20, "its number there")
        ids = [daemon.job(number)["target_id"] for number in (low, waiting)]
        daemon.kill9()
        lab.call("scancel", ids[1])
        lab.call("sbatch", "--account=lab", "--partition=high", "--nodes=4", "--exclusive",
                 "--output=/dev/null", "--wrap", "sleep 3", "--chdir=/")  # fmt: skip

        def are_gone() -> bool:
            return not set(ids) & set(lab.call("squeue", "-h", "-t", "all", "-o", "%A").split())

        wait_until(are_gone, 200, "the purge")
        daemon.up()
        job = daemon.finished(waiting, 60)
        assert (job["state"], job["reason"]) == ("Cancelled", "CancelledThere")
        wait_until(lambda: daemon.job(low)["attempt"] == 2, 60, "the second attempt")
        assert "Preempted" in daemon.ok("gjob", "history", str(low))
        assert not ran.exists()
        daemon.ok("gcancel", "--now", str(low))
        daemon.finished(low, 40)
    finally:
        lab.set_min_job_age(600)


def test_job_with_a_changed_comment_is_found_and_cancelled(lab, box):
    daemon = on(lab, box)
    blocker = submit(daemon, "--nodes", "4", "--exclusive", "sleep 300")
    runs(daemon, blocker)
    number = submit(daemon, "true")
    wait_until(lambda: daemon.job(number)["target_id"], 20, "its number there")
    id = daemon.job(number)["target_id"]
    for one in (id, daemon.job(blocker)["target_id"]):
        lab.call("scontrol", "update", f"JobId={one}", "Comment=site-tag")
    time.sleep(25)  # long enough for three listings without it
    assert lab.call("squeue", "-h", "-o", "%i").split().count(id) == 1
    assert len(lab.call("squeue", "-h", "-o", "%i").split()) == 2, "no copies"
    daemon.ok("gcancel", str(number), str(blocker))
    assert daemon.finished(number, 30)["state"] == "Cancelled"
    assert daemon.finished(blocker, 60)["state"] == "Cancelled"
    wait_until(lambda: not lab.call("squeue", "-h"), 30, "an empty queue")


def test_another_job_with_the_number_of_ours_is_not_cancelled(lab, box):
    """As after the loss of the controller's state: the number of our job is that of another one."""
    daemon = on(lab, box)
    number = submit(daemon, "sleep 300")
    runs(daemon, number)
    innocent = lab.call("sbatch", "--parsable", "--account=lab", "--chdir=/", "--output=/dev/null",
                        "--wrap", "sleep 300").strip()  # fmt: skip
    wait_until(lambda: "RUNNING" in lab.call("squeue", "-h", "-j", innocent, "-o", "%T"), 20, "its start")
    daemon.kill9()
    (claim,) = shared_folder(daemon).glob(f"{number}.1.claim.*")
    os.rename(claim, claim.with_name(f"{number}.1.claim.0.{innocent}"))
    daemon.up()
    daemon.ok("gcancel", "--now", str(number))
    time.sleep(10)
    assert "RUNNING" in lab.call("squeue", "-h", "-j", innocent, "-o", "%T")
    lab.call("scancel", innocent)


def test_race_does_not_block_itself(lab, box):
    """One GPU of each node is busy. The reservation of the first shape is in the way of the second."""
    daemon = on(lab, box)
    blockers = [
        submit(daemon, "--gpus", "1", "--time", "30", f"--slurm=--nodelist=node{node}", "sleep 600")
        for node in range(1, 5)
    ]
    for blocker in blockers:
        runs(daemon, blocker)
    number = submit(daemon, "--time", "60", "--race", "n1_gpu4,n4_gpu1", "echo $GFLOW_NODES; sleep 1")
    job = daemon.finished(number, 90)
    assert (job["state"], daemon.text_of(number)) == ("Finished", "4\n")
    daemon.ok("gcancel", "--now", *map(str, blockers))
    for blocker in blockers:
        daemon.finished(blocker, 60)
