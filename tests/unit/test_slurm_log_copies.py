"""Copies of logs on another machine, with a shell here as that machine."""

from __future__ import annotations

import os
import threading

import pytest

from gflow.targets.file_rights import LocalOpener, Owner
from gflow.targets.slurm.ssh.log_copies import Log, LogCopies
from gflow.targets.slurm.ssh.remote_folder import RemoteFolder, Unreachable
from gflow.targets.slurm.ssh.remote_progress import RemoteProgress
from gflow.targets.slurm.ssh.ssh_runner import ScriptResult
from tests.user_accounts import shared_folder

from .test_slurm_remote_folder import SHELLS, LocalShell


class Sessions(LocalShell):
    """Runs several scripts one after the other; `is_cut`: the connection is broken."""

    is_cut = False

    def run_scripts(self, scripts, *, timeout_s):
        if self.is_cut:
            return [ScriptResult(None, error="cut") for _ in scripts]
        return [self.run_script(script.body, timeout_s=timeout_s, umask=script.umask) for script in scripts]


@pytest.fixture
def copies(tmp_path) -> tuple[LogCopies, Sessions]:
    shell = Sessions(SHELLS[0], str(tmp_path))
    folder = RemoteFolder(shell, "~/.gflow", lambda: "abc", 10)
    return LogCopies(shell, folder, lambda: False), shell


def test_copy_gets_exactly_what_is_new(copies, tmp_path):
    made, _ = copies
    there, here = tmp_path / "it's $(x).log", tmp_path / "copy/1.log"
    log = Log("~/it's $(x).log", str(here))
    assert made.copy([log]) == set() and not here.exists()
    there.write_bytes(b"a\nb\0\xff")
    assert made.copy([log]) == {log}
    there.open("ab").write(b"more, no end")
    made.copy([log])
    assert here.read_bytes() == there.read_bytes() == b"a\nb\0\xffmore, no end"
    assert made.copy([log]) == set()
    there.write_bytes(b"new")  # it was emptied there
    made.copy([log])
    made.copy([log])
    assert here.read_bytes() == b"new"
    there.unlink()
    assert made.copy([log]) == set() and here.read_bytes() == b"new"


def test_failed_fetch_is_answered_and_made_up_for(copies, tmp_path):
    made, shell = copies
    (tmp_path / "1.log").write_text("text\n")
    log = Log("~/1.log", str(tmp_path / "here.log"))
    shell.is_cut = True
    with pytest.raises(Unreachable):
        made.copy([log])
    answers: list[bool] = []
    done = threading.Event()
    made.fetch(log, lambda is_complete: (answers.append(is_complete), done.set()))
    assert done.wait(20) and answers == [False]
    shell.is_cut = False
    done.clear()
    made.fetch(log, lambda is_complete: (answers.append(is_complete), done.set()))
    assert done.wait(20) and answers == [False, True]
    assert (tmp_path / "here.log").read_text() == "text\n"


def test_copy_that_is_read_only_does_not_keep_others_from_their_logs(copies, tmp_path):
    """A user may have protected the log of a job that has ended; root's daemon has the rights of the user."""
    with shared_folder() as root:
        made, _ = copies
        made._files = LocalOpener(Owner(65_534, 65_534))
        for name in ("1", "2"):
            (tmp_path / name).write_text(f"{name}\n")
        if os.getuid() == 0:
            os.chown(root, 65_534, 65_534)
        protected, other = (Log(f"~/{name}", f"{root}/{name}.log") for name in ("1", "2"))
        made.copy([protected])
        os.chmod(protected.here, 0o400)
        made.copy([protected, other])
        assert (root / "1.log").read_text() == "1\n" and (root / "2.log").read_text() == "2\n"


def test_progress_reports_are_read_once_and_only_whole_lines(tmp_path):
    shell = Sessions(SHELLS[0], str(tmp_path))
    folder = RemoteFolder(shell, "~/.gflow", lambda: "abc", 10)
    folder.daemon_id()
    clock = [0.0]
    progress = RemoteProgress(folder, lambda: clock[0])
    path = tmp_path / ".gflow/runs/abc/1.1.progress"
    path.write_bytes(b'{"a": 1}\n{"a"')
    assert progress.read_due(["1.1"]) == []  # not seen by a look yet: no call
    folder.look()
    clock[0] += 10
    assert progress.read_due(["1.1", "2.1"]) == [b'{"a": 1}']
    with path.open("ab") as file:
        file.write(b": 2}\n")
    assert progress.read_due(["1.1"]) == []  # not due
    clock[0] += 10
    assert progress.read_due(["1.1"]) == [b'{"a": 2}']
    path.write_bytes(b"3\n")  # emptied by its writer
    assert progress.read("1.1") == [b"3"] and progress.read("2.1") == []
