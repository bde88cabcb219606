"""Unmodified scripts continue from their checkpoints: --requeue with --resume-args."""

from __future__ import annotations

import sys

import pytest

from tests.harness import Box

PLAIN = """
import os, sys
print("argv", *sys.argv[1:], flush=True)
os.makedirs("checkpoints", exist_ok=True)
step = int(open(sys.argv[-1]).read()) if "--ckpt_path" in sys.argv else 0
open(f"checkpoints/step={step + 1}.ckpt", "w").write(str(step + 1))
print("step", step + 1, flush=True)
sys.exit(0 if step == 2 else 75)
"""


@pytest.mark.both_shims
def test_a_script_goes_on_where_it_was(daemon: Box) -> None:
    (daemon.work / "train.py").write_text(PLAIN)
    job = daemon.submit(
        "--requeue", "--resume-args", "--ckpt_path {latest}", sys.executable, "train.py", "--lr", "1"
    )
    assert daemon.finished(job)["state"] == "Finished"
    log = daemon.text_of(job)
    assert log.count("argv --lr 1\n") == 1, "the first attempt runs as it was submitted"
    assert "gflow: resuming with --ckpt_path checkpoints/step=2.ckpt" in log
    assert [line for line in log.splitlines() if line.startswith("step")] == ["step 1", "step 2", "step 3"]


def test_a_line_for_the_shell(daemon: Box) -> None:
    line = "mkdir -p out; touch out/last.ckpt; [ $GFLOW_ATTEMPT = 2 ] || exit 75; echo resumed"
    job = daemon.submit("--requeue", "--resume-args", "from {latest:out}", line)
    daemon.finished(job)
    assert "resumed from out/last.ckpt\n" in daemon.text_of(job)


def test_job_without_checkpoint_starts_from_the_beginning(daemon: Box) -> None:
    line = "[ $GFLOW_ATTEMPT = 2 ] || exit 75; echo again"
    job = daemon.submit("--requeue", "--resume-args", "--from {latest}", line)
    daemon.finished(job)
    assert "there is no checkpoint to resume from; starting from the beginning\nagain\n" in daemon.text_of(
        job
    )


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["--resume-args", "--x {latest}", "true"], "--resume-args needs --requeue or --max-retries"),
        (["--requeue", "--resume-args", "'--x", "true"], "is not closed"),
        (["--requeue", "--resume-args", "--x", "train.sh"], "not of a script"),
    ],
)
def test_bad_resume_args_are_refused(daemon: Box, words: list[str], refusal: str) -> None:
    (daemon.work / "train.sh").write_text("#!/bin/bash\necho hi\n")
    done = daemon.run("gbatch", *words)
    assert done.returncode == 2 and refusal in done.stderr
    assert daemon.jobs() == {}
