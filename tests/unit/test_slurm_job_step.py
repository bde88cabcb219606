"""The script of `gjob exec` on a cluster: hostile words come through every login shell as they are."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from gflow.targets.slurm.job_step import JobStep, step_script
from gflow.targets.slurm.ssh.remote_shell import command_line

PIECES = (
    *(
        "'",
        '"',
        "\\",
        "$x",
        "$(touch bad)",
        "`touch bad`",
        "!!",
        "!x",
        "\n",
        " ",
        "*",
        "~",
        "-n",
        ";",
        "&",
        "|",
    ),
    *("<", ">", "#", "%s", "\t", "é", "\udcff", "{a,b}", "[a]", "^", "=", "A=1", "", "\x7f", "\\0101"),
)
SRUN = """#!/bin/bash
while [ "$1" != bash ]; do echo "$1" >>"$0.options"; shift; done
exec "$@"
"""


@pytest.mark.parametrize("shell", ["sh", "bash", "tcsh", "fish", "zsh"])
def test_hostile_words_reach_the_command_unchanged(shell: str, tmp_path: Path):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 4711\n")
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    for path in tmp_path.iterdir():
        path.chmod(0o755)
    random.seed(shell)
    words = ["".join(random.choices(PIECES, k=random.randint(0, 6))) for _ in range(200)]
    step = JobStep("12_3", "7_3", "far", "/a b'c", "/none/7_3.1.stop", ["printf", "<%s>", *words])
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        [shell, "-c", command_line(step_script(step))], env=environ, cwd=tmp_path, capture_output=True
    )
    assert done.stdout == "".join(f"<{word}>" for word in words).encode(errors="surrogateescape"), done
    assert done.returncode == 0 and not (tmp_path / "bad").exists()
    options = (tmp_path / "srun.options").read_text().splitlines()
    assert "--jobid=4711" in options and "--chdir=/a b'c" in options and "--pty" not in options


def test_command_gets_the_environment_of_the_job_and_its_own_exit_code(tmp_path: Path):
    for name, text in {"srun": SRUN, "squeue": "#!/bin/sh\necho 1\n", "sbatch": "#!/bin/sh\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    stop_file = str(tmp_path / "7.1.stop")
    inside = {"GFLOW_STOP_FILE": stop_file, "MINE": "two\nlines", "PATH": os.environ["PATH"], "TERM": "dumb"}
    job = subprocess.Popen(["sleep", "60"], env=inside)
    try:
        line = 'printf %s "$MINE|$OURS|$TERM"; exit 9'
        step = JobStep("1", "7", "far", "/", stop_file, ["sh", "-c", line], is_tty=True, term="xterm")
        done = subprocess.run(
            ["sh", "-c", step_script(step)],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "OURS": "of the login node"},
            capture_output=True,
        )
    finally:
        job.kill()
        job.wait()
    assert (done.stdout, done.returncode) == (b"two\nlines||xterm", 9), done
    assert "--pty" in (tmp_path / "srun.options").read_text().splitlines()


def test_job_that_has_ended_is_reported(tmp_path: Path):
    for name in ("squeue", "srun", "sbatch"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    step = JobStep("1", "7", "far", "/", "/x", ["true"])
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", step_script(step)], env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (125, "gjob: job 7 does not run on far any more\n")
