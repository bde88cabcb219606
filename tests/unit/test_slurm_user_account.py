"""Commands that the system-wide daemon runs as a user, for that user's clusters."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from gflow.targets.slurm.files import user_files
from gflow.targets.slurm.ssh import user_account
from gflow.targets.slurm.ssh.user_account import UserAccount


def test_command_runs_as_the_user(tmp_path: Path) -> None:
    """In an interpreter that knows of no package but the standard library."""
    for module in (user_account, user_files):
        assert (Path(module.ROOT) / "gflow/targets/slurm/ssh/user_account.py").exists()
    if os.getuid() != 0:
        pytest.skip("only root can become a user")
    me = pwd.getpwuid(0)
    account = UserAccount(0, me.pw_gid, me.pw_name, str(tmp_path), tmp_path)
    words = [*account.prefix, "sh", "-c", 'echo "$HOME $PWD"; exit 5']
    done = subprocess.run(words, env=account.environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (5, f"{tmp_path} /\n"), done.stderr
