"""Commands of Slurm that call gflow: `gflow slurm squeue …`, and `gflow slurm-aliases`."""

from __future__ import annotations

from tests.harness import Box, wait_until

TRAP = "trap 'echo got it; exit 7' USR1; echo ready; while :; do sleep 0.05; done"


def slurm(daemon: Box, *words: str) -> str:
    return daemon.ok("gflow", "slurm", *words)


def test_a_day_with_the_commands_of_slurm(daemon: Box) -> None:
    assert "Submitted batch job 1" in slurm(daemon, "sbatch", "-J", "train", "-n", "1", "--wrap", TRAP)
    slurm(daemon, "sbatch", "-H", "-dafterany:1", "--job-name=report", "--wrap", "echo $SLURM_JOB_ID")
    wait_until(lambda: "ready" in daemon.text_of(1))
    assert (
        slurm(daemon, "squeue", "--me", "-h", "-o", "%i|%.8j|%T")
        == "1|   train|RUNNING\n2|  report|PENDING\n"
    )
    assert slurm(daemon, "squeue", "-t", "PD", "-O", "jobid,statecompact").split() == [
        "JOBID",
        "ST",
        "2",
        "PD",
    ]
    assert slurm(daemon, "squeue", "-lhu", "nobody") == ""
    assert slurm(daemon, "scancel", "-b", "-s", "USR1", "-n", "train") == "Job 1 got SIGUSR1.\n"
    assert daemon.finished(1)["exit_code"] == 7
    assert "got it" in daemon.text_of(1)
    fields = ("--format", "JobID,JobName%30,State,ExitCode", "-P")
    assert slurm(daemon, "sacct", "-j", "1", *fields) == "JobID|JobName|State|ExitCode\n1|train|FAILED|7:0\n"
    assert slurm(daemon, "scancel", "-t", "PENDING", "--me") == "Job 2 cancelled.\n"
    assert slurm(daemon, "sacct", "-n", "-X", "--format=State").split() == ["FAILED", "CANCELLED"]
    assert slurm(daemon, "srun", "--mpi=none", "echo", "a", "-n", "x").strip() == "a -n x"
    assert slurm(daemon, "scontrol", "show", "job", "1").startswith("Job: 1\n")
    assert "idle" in slurm(daemon, "sinfo", "-N")
    assert slurm(daemon, "sacct", "-b", "-n", "-j", "1").split() == ["1", "FAILED", "7:0"]


def test_variables_of_sbatch_are_options(daemon: Box) -> None:
    daemon.env |= {"SBATCH_TIMELIMIT": "30", "SBATCH_ACCOUNT": "lab"}
    slurm(daemon, "sbatch", "-H", "--wrap", "true")
    slurm(daemon, "sbatch", "-H", "--time=10", "--wrap", "true")
    asked = [daemon.job(job)["asked"] for job in (1, 2)]
    assert [(one["time"], one["project"]) for one in asked] == [(1800, "lab"), (600, "lab")]


def test_jobs_are_held_released_and_changed(daemon: Box) -> None:
    slurm(daemon, "sbatch", "-H", "--array=100-101", "--wrap", "true")
    assert slurm(daemon, "squeue").split()[:5] == ["JOBID", "PARTITION", "NAME", "USER", "ST"]
    assert slurm(daemon, "squeue", "-h", "-p", "local").split()[:2] == ["1_[100-101]", "local"]
    slurm(daemon, "scontrol", "update", "JobId=1", "TimeLimit=1:00:00", "Name=other")
    assert (daemon.job(1)["name"], daemon.job(1)["asked"]["time"]) == ("other", 3600)
    slurm(daemon, "scontrol", "update", "job", "1", "timelimit=30")
    assert daemon.job(1)["asked"]["time"] == 1800
    assert "Name: other" in slurm(daemon, "scontrol", "show", "jobid=1")
    slurm(daemon, "scontrol", "release", "jobid=1")
    wait_until(lambda: daemon.job(1)["state"] == "Finished")
    slurm(daemon, "sbatch", "--wrap", "scontrol -d show job $SLURM_JOB_ID")
    assert daemon.finished(2)["exit_code"] == 0 and daemon.text_of(2).startswith("Job: 2\n")


def test_a_task_of_an_array_knows_itself_by_a_number(daemon: Box) -> None:
    """Scripts calculate ports from it, and pass it to commands of Slurm."""
    line = "echo $((20000 + SLURM_JOB_ID % 1000)); gflow slurm squeue -h -o %i -j $SLURM_JOB_ID"
    slurm(daemon, "sbatch", "--array=0-1", "--wrap", line)
    for task in (0, 1):
        daemon.finished(f"1_{task}")
        assert daemon.text_of(f"1_{task}") == f"{20000 + ((1 << 20) + task + 1) % 1000}\n1_{task}\n"


UNKNOWN = {
    "squeue -w n1": "squeue: gflow does not translate '-w' of squeue",
    "squeue -o %K": "squeue: gflow has no column for %K",
    "squeue -O nosuch": "squeue: gflow has no column for 'nosuch'",
    "squeue -u": "squeue: -u needs a value",
    "squeue -p nosuch": "squeue: there is no partition 'nosuch'",
    "sacct -l": "sacct: gflow does not translate '-l' of sacct",
    "scontrol update timelimit=5": "scontrol: scontrol update names no job",
    "scontrol update jobid=1 gres=gpu:2": "scontrol: gflow does not translate 'gres' of scontrol update",
    "scancel -p gpu": "scancel: gflow does not translate '-p' of scancel",
    "scancel -s NOSUCH 1": "scancel: there is no signal 'NOSUCH'",
    "sacct 17": "sacct: sacct takes jobs as -j 42",
    "sinfo -o %P": "sinfo: gflow does not translate '-o' of sinfo",
    "srun -n 2 true": "srun: srun starts several tasks only inside of a job",
    "scontrol reboot": "scontrol: gflow does not translate scontrol 'reboot'",
    "sreport": "gflow slurm: gflow has no stand-in for 'sreport'",
}


def test_an_unknown_option_gets_a_sentence(daemon: Box) -> None:
    for line, sentence in UNKNOWN.items():
        done = daemon.run("gflow", "slurm", *line.split())
        assert (done.returncode, done.stderr.splitlines()[0]) == (2, sentence)


def test_functions_of_each_shell(box: Box) -> None:
    for shell in ("bash", "zsh"):
        assert 'squeue() { gflow slurm squeue "$@"; }' in box.ok("gflow", "slurm-aliases", "--shell", shell)
    assert "function squeue; gflow slurm squeue $argv; end" in box.ok(
        "gflow", "slurm-aliases", "--shell=fish"
    )
    (box.root / "slurm").mkdir()
    (box.root / "slurm" / "squeue").write_text("#!/bin/sh\n")
    (box.root / "slurm" / "squeue").chmod(0o755)
    box.env["PATH"] = f"{box.root}/slurm:{box.env['PATH']}"
    done = box.run_shell('eval "$(gflow slurm-aliases --shell bash)"; type -t squeue')
    assert done.stdout == "function\n" and "hide" in done.stderr


def test_a_signal_to_a_job(daemon: Box) -> None:
    job = daemon.submit("bash", "-c", TRAP)
    held = daemon.submit("--hold", "true")
    wait_until(lambda: "ready" in daemon.text_of(job))
    done = daemon.run("gcancel", "--signal", "USR1", str(held))
    assert done.returncode == 1 and f"job {held} is not running: Hold" in done.stderr
    done = daemon.run("gcancel", "--now", "--signal", "USR1", str(job))
    assert done.returncode == 2 and "--signal cancels no job" in done.stderr
    assert daemon.ok("gcancel", "--signal", "10", "-b", str(job), str(held)).splitlines() == [
        f"Job {job} got SIGUSR1.",
        f"Job {held} is not running.",
    ]
    assert daemon.finished(job)["exit_code"] == 7
    assert "signal" in daemon.ok("gjob", "history", str(job))
    assert daemon.ok("gcancel", "--signal", "USR1", "--all") == "No jobs match.\n"


def test_when_a_job_would_start(daemon: Box) -> None:
    assert daemon.ok("gbatch", "--test-only", "true") == "Job would start now.\n"
    daemon.submit("--time", "1h", "--cpus", "2", "sleep", "100")
    daemon.submit("--time", "1h", "--cpus", "2", "sleep", "100")
    text = daemon.ok("gbatch", "--test-only", "--time", "0", "true")
    assert text.startswith("Job would start at about ")
    assert "after its dependencies" in daemon.ok("gbatch", "--test-only", "--depends-on", "@", "true")
    assert "when it is released" in daemon.ok("gbatch", "--test-only", "--hold", "true")
    assert daemon.run("gbatch", "--test-only", "--gpus", "99", "true").returncode == 1
    daemon.ok("gctl", "drain")
    text = daemon.ok("gbatch", "--test-only", "true")
    assert text == "Job would never start while the machine is drained.\n"
    assert len(daemon.jobs()) == 2, "nothing was submitted"
