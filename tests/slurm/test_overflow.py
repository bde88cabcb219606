"""--overflow: here if it starts soon enough, else on the cluster. Counted by what the jobs leave."""

from __future__ import annotations

import pytest

from tests.harness import wait_until

pytestmark = pytest.mark.slow


def test_overflow_runs_locally_if_there_is_room(slurm):
    ran = slurm.work / "ran"
    line = f"echo $GFLOW_JOB_ID ${{SLURM_JOB_ID:+there}} >> {ran}"
    here = slurm.submit("--gpus", "1", "--overflow", "slurm", line)
    assert slurm.finished(here)["target"] == "local"
    blocker = slurm.submit("--gpus", "4", "--time", "60", "sleep 600")
    wait_until(lambda: slurm.job(blocker)["state"] == "Running")
    there = slurm.submit("--gpus", "2", "--overflow", "slurm", "--overflow-after", "5", line)
    assert slurm.finished(there, 40)["target"] == "slurm"
    waits = slurm.submit("--gpus", "1", "--overflow", "slurm", "--overflow-after", "2:00:00", line)
    assert slurm.job(waits)["target"] == "local"
    assert "it goes to slurm." in slurm.ok("gjob", "why", str(waits))
    assert "local/slurm" in slurm.ok("gqueue", "-j", str(waits), "-f", "JOBID,TARGET")
    assert "to slurm if it has not started after 02:00:00" in slurm.ok("gjob", "show", str(waits))
    slurm.ok("gcancel", "--now", str(blocker))
    assert slurm.finished(waits)["target"] == "local"
    told = ran.read_text().splitlines()
    assert told == [f"{here}", f"{there} there", f"{waits}"]
    assert "overflows" in slurm.ok("gjob", "history", str(there))


def test_overflow_at_deadline_hands_over_once(slurm):
    """Its time comes while the one before it does not end; the daemon is restarted meanwhile."""
    ran = slurm.work / "ran"
    blocker = slurm.submit("--gpus", "4", "--time", "0:02", "--grace", "60", "trap '' TERM; sleep 600")
    wait_until(lambda: slurm.job(blocker)["state"] == "Running")
    job = slurm.submit("--gpus", "1", "--overflow", "slurm", "--overflow-after", "0:06", f"echo x >> {ran}")
    assert slurm.job(job)["target"] == "local"
    slurm.kill9()
    slurm.up()
    assert slurm.finished(job, 60)["target"] == "slurm"
    slurm.ok("gcancel", "--now", str(blocker))
    slurm.finished(blocker)
    assert ran.read_text() == "x\n"


def test_bad_input(slurm):
    for words, said in (
        (["--overflow", "nowhere"], "target 'nowhere'"),
        (["--overflow", "slurm", "--partition", "nope"], "Invalid partition name"),
        (["--overflow", "slurm", "--on", "slurm"], "--overflow cannot be combined with --on"),
        (["--overflow-after", "5"], "--overflow-after needs --overflow"),
    ):
        done = slurm.run("gbatch", *words, "true")
        assert done.returncode in (1, 2) and said in done.stderr
    assert not slurm.jobs()
