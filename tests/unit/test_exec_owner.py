"""A command in a running job is executed as the job's user only, also if an earlier launcher started it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gflow.core.ids import JobKey
from gflow.core.model import Job, Spec
from gflow.targets.local import run_record
from gflow.targets.local.target import LocalTarget
from gflow.targets.port import Launch

OWN = os.getuid()


def launch_of(uid: int) -> Launch:
    job = Job(
        key=JobKey(1 << 20),
        spec=Spec(command=("true",), cwd="/"),
        uid=uid,
        user="ann",
        submitted_at=0.0,
        attempt=1,
    )
    return Launch(
        job=job,
        script=None,
        environ=b"",
        extra=b"",
        log="/dev/null",
        error_log="/dev/null",
        log_cap=0,
        leases=(),
        uid=uid,
    )


def no_shim(run: object) -> None:
    raise NotImplementedError


@pytest.mark.parametrize(("recorded", "owner"), [(60_001, 60_001), (None, OWN)])
def test_command_of_another_user_is_refused(
    recorded: int | None, owner: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of earlier versions do not name the user: then it is that of the process."""
    target = LocalTarget(tmp_path, lambda ended: None)
    record = os.open(tmp_path / "1.1", os.O_WRONLY | os.O_CREAT)
    me = run_record.identity_of(os.getpid())
    assert me is not None
    run_record.write_identity(record, "job", me)
    if recorded is not None:
        run_record.write_uid(record, recorded)
    os.close(record)
    with pytest.raises(PermissionError, match="a job of another user"):
        target.exec_command(launch_of(owner + 1), ("id",), is_tty=False)
    monkeypatch.setattr(target._shims, "take_fresh", no_shim)
    with pytest.raises(NotImplementedError):  # it is taken to the shims
        target.exec_command(launch_of(owner), ("id",), is_tty=False)
