"""Jobs in the foreground."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

from tests.harness import BIN, Box, wait_until


def grun(box: Box, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(BIN / "grun"), *words], env=box.env, cwd=box.work, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def state(box: Box, job: int) -> Any:
    return (box.jobs().get(job) or {"state": None})["state"]


def test_output_and_exit_code_are_the_jobs(box: Box) -> None:
    box.up("--simulate-gpus", "1x80G")
    done = box.run("grun", "--gpus", "1", "bash", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\nerr\n")
    assert done.stderr == "grun: job 1 ended as Failed: ExitCode:7\n"
    assert box.run("grun", "bash", "-c", "kill -9 $$").returncode == 137
    assert box.run("grun", "--time", "0:01", "--grace", "0", "sleep", "60").returncode == 124
    fine = box.run("grun", "true")
    assert (fine.returncode, fine.stdout, fine.stderr) == (0, "", "")


def test_grun_says_why_the_job_waits(box: Box) -> None:
    box.up("--simulate-gpus", "1x80G")
    first = box.submit("--gpus", "1", "sleep", "600")
    process = grun(box, "--gpus", "1", "echo", "my turn")
    assert process.stderr is not None
    assert "grun: job 2 waits: Resources" in process.stderr.readline()
    box.ok("gcancel", "--now", str(first))
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "my turn\n")


def test_ctrl_c_cancels_and_twice_kills(box: Box) -> None:
    box.up("--simulate-gpus", "1x80G")
    polite = grun(box, "sleep", "600")
    wait_until(lambda: state(box, 1) == "Running", what="the first job")
    polite.send_signal(signal.SIGINT)
    _, said = polite.communicate(timeout=30)
    assert polite.returncode == 130
    assert "cancelling job 1" in said
    stubborn = grun(box, "bash", "-c", "trap '' TERM; echo up; while :; do sleep 1; done")
    assert stubborn.stdout is not None
    assert stubborn.stdout.readline() == "up\n"
    stubborn.send_signal(signal.SIGINT)
    wait_until(lambda: box.jobs()[2]["stopping"], what="the cancel")
    stubborn.send_signal(signal.SIGINT)
    stubborn.communicate(timeout=30)
    assert (stubborn.returncode, state(box, 2)) == (130, "Cancelled")


def test_a_job_in_front_outlives_the_daemon(box: Box) -> None:
    box.up("--simulate-gpus", "1x80G")
    process = grun(box, "bash", "-c", "echo one; until [ -e go ]; do sleep 0.05; done; echo two; exit 4")
    assert process.stdout is not None
    assert process.stdout.readline() == "one\n"
    box.kill9()
    box.up()
    (box.work / "go").touch()
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (4, "two\n")


def test_bad_grun_options_are_refused_in_one_sentence(box: Box) -> None:
    box.up("--simulate-gpus", "1x80G")
    for words in (["--gpus", "9", "true"], ["--array", "1-3", "true"], [], ["--nonsense", "true"]):
        done = box.run("grun", *words)
        assert done.returncode in (1, 2)
        assert done.stderr.startswith("grun: ")
        assert len(done.stderr.splitlines()) <= 2
    assert box.jobs() == {}
