"""Programs that run as a user, for that user's clusters."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from gflow.privileged.accounts import Account
from gflow.targets.slurm.ssh import user_account


def test_command_runs_as_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an interpreter that knows of no package but the standard library."""
    assert (Path(user_account.ROOT) / "gflow/targets/slurm/ssh/user_account.py").exists()
    if os.getuid() != 0:
        pytest.skip("only root can become a user")
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\necho "$HOME $PWD $1"; exit 5\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    me = pwd.getpwuid(0)
    account = Account(me.pw_name, str(tmp_path), me.pw_gid, "")
    process = user_account.start(account, 0, "ssh", ["-T"])
    output, errors = process.communicate()
    assert (process.returncode, output.decode()) == (5, f"{tmp_path} / -T\n"), errors
