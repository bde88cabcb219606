"""Snapshots on a cluster over SSH that a running daemon prunes, and the progress of `gjob fetch`."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.harness import BIN, Box, wait_until
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import PRUNING_PROGRAM, at_a_distance
from tests.slurm.test_ssh_target import running, submit
from tests.sshd import LoginNode

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("rsync"), reason="no rsync here: scripts/ssh-packages installs it"),
]


def test_daemon_prunes_old_snapshots_here_and_there(login: LoginNode, cluster: Cluster, box: Box) -> None:
    box.program = [*PRUNING_PROGRAM]
    at_a_distance(login, cluster, box, settings='sync = "."\n')
    project = box.work / "pruned"
    project.mkdir()
    (project / "kept").write_text("the same in all snapshots")
    used = submit_version(box, project, 0, "touch result0; while [ -e code ]; do sleep 0.5; done")
    running(box, used)
    for version in range(1, 7):
        number = submit_version(box, project, version, f"echo x > result{version}")
        assert box.finished(number, 60)["exit_code"] == 0, box.job(number)

    def there() -> dict[str, list[str]]:
        found = {}
        for snapshot in sorted((login.home / ".gflow/runs").glob("*/snapshots/pruned-*/2*")):
            found[snapshot.name] = sorted(path.name for path in snapshot.iterdir())
        return found

    whole = ["code", "kept"]
    # The last three stay, and the one of the running job. Of the others only what their jobs wrote stays.
    wait_until(lambda: sum(set(whole) <= set(names) for names in there().values()) == 4, 60, "the pruning")
    names = list(there().values())
    assert names == [
        [*whole, "result0"], ["result1"], ["result2"], ["result3"],
        *([*whole, f"result{version}"] for version in (4, 5, 6)),
    ]  # fmt: skip
    assert box.job(used)["state"] == "Running"
    trees = list((box.data / "snapshots").glob("pruned-*/2*[!x]"))
    wait_until(lambda: len(folders(box)) == 2, 30, f"the last one here and the one in use: {trees}")
    # Results of a job whose snapshot was pruned can still be fetched, without what was sent.
    assert "Fetched 1 file" in box.ok("gjob", "fetch", "2")
    assert (project / "result1").read_text() == "x\n"
    box.ok("gcancel", str(used))
    box.finished(used, 60)
    wait_until(lambda: next(iter(there().values())) == ["result0"], 30, "the pruning of the first one")
    assert "Traceback" not in box.log()


def submit_version(box: Box, project: Path, version: int, command: str) -> int:
    (project / "code").write_text(f"version {version}")
    return submit(box, command, cwd=project)


def folders(box: Box) -> list[Path]:
    return [path for path in (box.data / "snapshots").glob("pruned-*/2*") if path.is_dir()]


def test_fetch_shows_its_progress_on_a_terminal(elsewhere: Box, login: LoginNode) -> None:
    number = submit(elsewhere, "mkdir -p big; for i in 1 2 3; do head -c 3000000 /dev/urandom > big/$i; done")
    assert elsewhere.finished(number, 60)["exit_code"] == 0
    ours, theirs = pty.openpty()
    words = [str(BIN / "gjob"), "fetch", str(number), "big/**"]
    process = subprocess.Popen(
        words, env=elsewhere.env, cwd=elsewhere.work, stdout=subprocess.PIPE, stderr=theirs, text=True
    )
    os.close(theirs)
    shown = b""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    said = process.communicate(timeout=30)[0]
    assert process.returncode == 0 and said.startswith("Fetched 3 files (8.6 MiB) into "), said
    text = shown.decode()
    assert "100%" in text and text.endswith("\n") and text.count("\n") == 1, text
    # Without a terminal there is none.
    quiet = elsewhere.run("gjob", "fetch", str(number), "big/**", "--to", str(elsewhere.work / "other"))
    assert quiet.stderr == "" and quiet.stdout.startswith("Fetched 3 files"), quiet
