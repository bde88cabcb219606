"""Slurm scripts on one machine: the stand-in srun, the variables of Slurm, a corpus of scripts."""

from __future__ import annotations

import sys
import time

import pytest

from tests.harness import BIN, Box, wait_until

HEAD = "#!/bin/bash\n#SBATCH --job-name=train\n"


def run_script(daemon: Box, body: str, *words: str, head: str = HEAD) -> tuple[dict, str]:
    """Run a script to its end: the job, and its output."""
    (daemon.work / "job.sh").write_text(head + body)
    job = daemon.submit(*words, "job.sh")
    final = daemon.finished(job)
    return final, daemon.text_of(job)


def test_srun_runs_one_task_in_the_place_of_itself(daemon: Box) -> None:
    final, text = run_script(
        daemon, "srun --mpi=pmix -N1 --cpu-bind=none sh -c 'echo $SLURM_PROCID; exit 3'\n"
    )
    assert text == "srun: ignored: --mpi, --cpu-bind (this is one machine)\n0\n"
    assert (final["state"], final["exit_code"]) == ("Failed", 3)


def test_srun_starts_tasks_and_returns_the_worst_code(daemon: Box) -> None:
    line = "srun -n 3 sh -c 'echo task $SLURM_PROCID/$SLURM_NTASKS on $SLURM_LOCALID; exit $SLURM_PROCID'\n"
    final, text = run_script(daemon, line)
    lines = sorted(text.splitlines())
    assert [line for line in lines if line.startswith("task")] == [f"task {n}/3 on {n}" for n in range(3)]
    assert "srun: error: task 2 ended with exit code 2" in lines
    assert final["exit_code"] == 2


def test_srun_gives_each_task_its_own_gpus(daemon: Box) -> None:
    line = "srun --ntasks=2 --gpus-per-task=1 sh -c 'echo $SLURM_PROCID: $CUDA_VISIBLE_DEVICES'\n"
    _, text = run_script(daemon, line, "--gpus", "2")
    assert sorted(text.splitlines()) == ["0: 0", "1: 1"]


def test_steps_side_by_side_have_their_own_gpus(daemon: Box) -> None:
    show = "sh -c 'echo gpu $CUDA_VISIBLE_DEVICES; sleep 0.4'"
    step = f"srun --ntasks=1 --exclusive --gpus=1 {show} &\n"
    _, text = run_script(daemon, step * 3 + "wait\nsrun -n1 --gres=gpu:2 " + show + "\n", "--gpus", "2")
    lines = [line for line in text.splitlines() if line.startswith("gpu")]
    assert sorted(lines[:2]) == ["gpu 0", "gpu 1"] and lines[3] == "gpu 0,1"
    assert "waits until 1 of the job's GPUs" in text


def test_a_step_with_more_gpus_than_its_job_is_refused(daemon: Box) -> None:
    final, text = run_script(daemon, "srun -n 8 --gpus-per-task=1 true\n", "--gpus", "2")
    assert (final["exit_code"], text) == (
        1,
        "srun: error: the step needs 8 GPUs (8 tasks), and the job has 2\n",
    )


def test_srun_stops_the_others_when_one_fails_if_asked(daemon: Box) -> None:
    began = time.monotonic()
    line = "srun -K -n 2 sh -c '[ $SLURM_PROCID = 0 ] || exit 7; exec sleep 60'\n"
    final, _ = run_script(daemon, line)
    assert final["exit_code"] == 7
    assert time.monotonic() - began < 30


def test_a_warning_reaches_each_task_once(daemon: Box) -> None:
    task = 'trap "echo $SLURM_PROCID warned; exit 0" USR1; while :; do sleep 0.1; done'
    _, text = run_script(
        daemon, f"trap : USR1\nsrun -n 2 bash -c '{task}'\n", "--time=0:03", "--signal=USR1@2"
    )
    assert sorted(line for line in text.splitlines() if "warned" in line) == ["0 warned", "1 warned"]


def test_cancel_ends_all_tasks(daemon: Box) -> None:
    (daemon.work / "job.sh").write_text(HEAD + "srun -n 3 sleep 600\n")
    job = daemon.submit("job.sh")
    wait_until(lambda: daemon.job(job)["state"] == "Running")
    daemon.ok("gcancel", str(job))
    assert daemon.finished(job)["state"] == "Cancelled"


def test_srun_is_found_by_login_shells(daemon: Box) -> None:
    login = "#!/bin/bash -l\n#SBATCH -J x\n"
    assert run_script(daemon, "PATH=/usr/bin:/bin\nsrun echo found\n", head=login)[1] == "found\n"


def test_tasks_of_a_script_have_the_variables_that_they_asked_for(daemon: Box) -> None:
    head = "#!/bin/bash\n#SBATCH --ntasks=2 --cpus-per-task=2 --gpus-per-task=1 --mem-per-cpu=100M -p gpu\n"
    body = (
        "echo $SLURM_NTASKS $SLURM_CPUS_PER_TASK $SLURM_CPUS_ON_NODE $SLURM_GPUS_ON_NODE $SLURM_JOB_GPUS "
        "$SLURM_GPUS_PER_TASK $SLURM_MEM_PER_NODE $SLURM_JOB_PARTITION\n"
        "srun sh -c 'echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES'\n"
        'test "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)" = "$(uname -n)"\n'
    )
    final, text = run_script(daemon, body, head=head)
    assert sorted(text.splitlines()) == ["0 0", "1 1", "2 2 4 2 0,1 1 400 gpu"]
    assert (final["exit_code"], final["gpus"], final["cpus"]) == (0, 2, 4)


@pytest.mark.parametrize("has_real", [False, True])
def test_a_job_without_directives_prefers_a_real_srun(daemon: Box, has_real: bool) -> None:
    folder = daemon.root / "bin"
    folder.mkdir()
    for program in ("sh", "bash", "python3"):
        (folder / program).symlink_to(f"/bin/{program}" if program != "python3" else sys.executable)
    if has_real:
        (folder / "srun").write_text("#!/bin/sh\necho the real one: $1 $2\n")
        (folder / "srun").chmod(0o755)
    daemon.env["PATH"] = f"{BIN}:{folder}"
    job = daemon.submit("srun", "-n", "2", "sh", "-c", "echo $SLURM_JOB_ID")
    daemon.finished(job)
    assert daemon.text_of(job) == ("the real one: -n 2\n" if has_real else f"{job}\n{job}\n")


def test_jobs_without_slurm_have_no_stand_ins(daemon: Box) -> None:
    job = daemon.submit("sh", "-c", "echo $PATH")
    daemon.finished(job)
    assert daemon.text_of(job) == daemon.env["PATH"] + "\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("srun", "there is no command to run"),
        ("srun -n 0 true", "--ntasks takes a number from 1 to 4096, not '0'"),
        ("srun -n", "-n needs a value"),
        ("srun --multi-prog x", "--multi-prog is not supported"),
        ("srun nosuch", "nosuch: No such file or directory"),
    ],
)
def test_srun_refuses_with_a_sentence(daemon: Box, line: str, sentence: str) -> None:
    final, text = run_script(daemon, line + "\n")
    assert final["state"] == "Failed" and text.startswith(f"srun: {sentence}")


def test_functions_of_the_shell_reach_the_job(daemon: Box) -> None:
    job = daemon.submit("greet Ann", env={"BASH_FUNC_greet%%": "() {  echo hello $1\n}"})
    daemon.finished(job)
    assert daemon.text_of(job) == "hello Ann\n"


def test_wrap_quiet_and_ignored_options_on_the_command_line(daemon: Box) -> None:
    line = "echo $SLURM_JOB_ID; srun echo wrapped"
    done = daemon.run("gbatch", "-Q", "-W", "--exclude=n1", "--licenses", "x", "--wrap", line)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "gbatch: ignored: --exclude, --licenses (this is one machine)\n"
    assert daemon.text_of(1) == "1\nwrapped\n"
    done = daemon.run("gbatch", "--wrap", line, "true")
    assert done.returncode == 2 and "--wrap takes the place" in done.stderr
    assert daemon.ok("gbatch", "--test-only", "true") == "Job would start now.\n"
    assert "Slurm's -c is --cpus-per-task" in daemon.run("gbatch", "-c", "2", "true").stderr


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("gqueue -t R", "-t is --tree here; Slurm's -t is --states, here -s"),
        ("gqueue -o '%i %j'", "-o is --output here; Slurm's -o is --format, here -f"),
        ("gcancel -s TERM @", "-s is --state here; Slurm's -s is --signal"),
    ],
)
def test_letters_of_other_commands_have_a_hint(box: Box, line: str, hint: str) -> None:
    done = box.run_shell(line)
    assert done.returncode == 2 and hint in done.stderr
