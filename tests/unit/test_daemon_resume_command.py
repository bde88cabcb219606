"""The command of a further attempt, on this machine and on a cluster."""

from __future__ import annotations

import subprocess
import sys

from gflow.daemon.execution.resume_command import with_resume_args

from .builders import job

ARGS = "--ckpt_path {latest}"


def test_first_attempt_and_jobs_without_resume_args_keep_their_command():
    for made in (job(1, attempt=1, command=("train",), resume_args=ARGS), job(1, attempt=2)):
        assert with_resume_args(made, is_remote=True) is made


def test_further_attempt_on_a_cluster_needs_no_file_of_gflow(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/last.ckpt").touch()
    made = with_resume_args(job(1, attempt=2, command=("echo", "a b"), resume_args=ARGS), is_remote=True)
    for program in (sys.executable, "/no/python"):
        words = [program if word == sys.executable else word for word in made.spec.command]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout == "a b --ckpt_path checkpoints/last.ckpt\n", done.stderr
