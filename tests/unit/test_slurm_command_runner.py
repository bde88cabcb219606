"""Commands with a time-out: what hangs is ended with all that it started."""

from __future__ import annotations

import os
from pathlib import Path

from gflow.targets.slurm.commands.command_runner import CommandRunner
from tests.harness import wait_until

HERE = {"PATH": os.environ["PATH"]}


def run(script: str, timeout_s: float = 30.0, **more):
    return CommandRunner().run(["sh", "-c", script], timeout_s=timeout_s, environ=HERE, **more)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_output_error_and_state_of_a_command():
    assert run("cat; echo oops >&2", input="hello") == (True, "hello", "oops\n", False)
    assert run("echo no >&2; exit 3") == (False, "", "no\n", False)
    assert run("echo Socket timed out >&2; exit 1").unsure


def test_whole_group_of_a_hung_command_is_ended(tmp_path):
    """A site's wrapper around sbatch: what it started must not stay."""
    pids = tmp_path / "pids"
    script = f"sleep 100 & echo $! > {pids}; sleep 101 & echo $! >> {pids}; wait"
    result = run(script, 0.5)
    assert (result.ok, result.unsure, result.error) == (False, True, "sh did not answer in 0 s")
    for pid in pids.read_text().split():
        wait_until(lambda pid=int(pid): not lives(pid), 5, "the end of a child")


def test_process_that_left_the_group_does_not_block_the_runner(tmp_path):
    pid = tmp_path / "pid"
    result = run(f"setsid sh -c 'echo $$ > {pid}; exec sleep 100' & wait", 0.5)
    assert result.unsure
    os.kill(int(pid.read_text()), 9)


def test_a_program_or_folder_that_is_not_there(tmp_path):
    gone = CommandRunner().run(["sbatch-that-is-not-there"], timeout_s=1, environ=HERE)
    assert gone.error == "there is no sbatch-that-is-not-there here"
    assert not CommandRunner().has("sbatch-that-is-not-there")
    assert "No such file" in run("true", cwd=str(tmp_path / "none")).error
