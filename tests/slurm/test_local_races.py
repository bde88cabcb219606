"""Races between this machine and a cluster, counted by what the winners leave."""

from __future__ import annotations

import pytest

from tests.harness import wait_until

pytestmark = pytest.mark.slow
LINE = "echo $GFLOW_JOB_ID ${SLURM_JOB_ID:+there} $GFLOW_NODES $GFLOW_GPUS $GFLOW_EFFECTIVE_BATCH"


def test_free_local_gpu_wins_at_once(slurm, cluster):
    job = slurm.submit("--race", "local:n1_gpu2,slurm:n2_gpu1", "--effective-batch", "64", LINE)
    done = slurm.finished(job)
    assert (done["state"], done["target"], done["attempt"]) == ("Finished", "local", 1)
    assert slurm.text_of(job) == f"{job} 1 2 64\n"
    assert not cluster.call("squeue", "-h")


def test_the_cluster_wins_while_this_machine_is_busy(slurm):
    blocker = slurm.submit("--gpus", "4", "sleep 600")
    wait_until(lambda: slurm.job(blocker)["state"] == "Running")
    job = slurm.submit("--race", "local:n1_gpu2,n2_gpu1", "--effective-batch", "64", LINE)
    done = slurm.finished(job, 40)
    assert (done["state"], done["target"]) == ("Finished", "slurm")
    assert slurm.text_of(job) == f"{job} there 2 1 64\n"
    slurm.ok("gcancel", "--now", str(blocker))


def test_local_machine_wins_while_the_cluster_is_busy(slurm, cluster):
    """It is first taken back, by its ticket; what Slurm still has of it goes."""
    there = slurm.submit("--on", "slurm", "--nodes", "4", "--exclusive", "sleep 600")
    here = slurm.submit("--gpus", "4", "sleep 600")
    for number in (there, here):
        wait_until(lambda number=number: slurm.job(number)["state"] == "Running", 30)
    job = slurm.submit("--race", "local:n1_gpu2,n2_gpu1,n1_gpu2", LINE)
    wait_until(lambda: slurm.job(job)["target_id"], 30, "its number there")
    assert "local/slurm" in slurm.ok("gqueue", "-j", str(job), "-f", "JOBID,TARGET")
    slurm.ok("gcancel", "--now", str(here))
    done = slurm.finished(job, 30)
    assert (done["state"], done["target"]) == ("Finished", "local")
    assert slurm.text_of(job).splitlines()[-1] == f"{job} 1 2"
    assert "never began" in slurm.ok("gjob", "history", str(job))
    wait_until(lambda: len(cluster.call("squeue", "-h", "-o", "%i").split()) == 1, 30, "the losers' end")
    slurm.ok("gcancel", "--now", str(there))


def test_thirty_races_have_thirty_winners(slurm, cluster):
    """Both sides have room now and then; the daemon is killed again and again meanwhile."""
    ran = slurm.work / "ran"
    line = f"{LINE} >> {ran}; sleep 1.5"
    numbers = [
        slurm.submit("--race", "local:n1_gpu2,n1_gpu4,n2_gpu1", "--time", "5", line) for _ in range(30)
    ]
    for _ in range(3):
        wait_until(lambda: ran.exists() and len(ran.read_text().splitlines()) > 3, 60, "some winners")
        slurm.kill9()
        slurm.up()
    for number in numbers:
        assert slurm.finished(number, 240)["state"] == "Finished"
    wait_until(lambda: not cluster.call("squeue", "-h"), 60, "an empty queue")
    lines = ran.read_text().splitlines()
    assert sorted(int(line.split()[0]) for line in lines) == numbers
    won = {slurm.job(number)["target"] for number in numbers}
    assert won == {"local", "slurm"}, "both took part"


def test_cluster_wins_while_the_daemon_is_down(slurm):
    ran = slurm.work / "ran"
    there = slurm.submit("--on", "slurm", "--nodes", "4", "--exclusive", "sleep 5")
    here = slurm.submit("--gpus", "4", "sleep 3")
    for number in (there, here):
        wait_until(lambda number=number: slurm.job(number)["state"] == "Running", 30)
    job = slurm.submit("--race", "local:n1_gpu1,n1_gpu2", f"{LINE} >> {ran}")
    wait_until(lambda: slurm.job(job)["target_id"], 30, "its number there")
    slurm.kill9()
    wait_until(lambda: ran.exists() and ran.read_text(), 60, "the cluster's start")
    slurm.up()
    done = slurm.finished(job, 30)
    assert (done["state"], done["target"]) == ("Finished", "slurm")
    assert ran.read_text() == f"{job} there 1 2\n"
