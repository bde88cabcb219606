"""Snapshots and results over a real sshd, and over connections that break at any byte."""

from __future__ import annotations

import filecmp
import itertools
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gflow.targets.slurm.commands.command_runner import CommandRunner
from gflow.targets.slurm.files import local_snapshots, snapshot_transfer
from gflow.targets.slurm.files.local_snapshots import LocalSnapshots, parse_id
from gflow.targets.slurm.files.result_fetch import FetchOrder, ResultFetch
from gflow.targets.slurm.files.snapshot_transfer import SnapshotTransfer, folder_of
from gflow.targets.slurm.ssh.ssh_runner import SshRunner
from tests.cutting_proxy import CuttingProxy
from tests.harness import Box
from tests.sshd import LoginNode, login_node
from tests.unit.test_file_selection import HOSTILE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("rsync"), reason="no rsync here: scripts/ssh-packages installs it"),
]


class Lab:
    """A project here, a login node there, and a connection between them."""

    def __init__(self, node: LoginNode, box: Box, folder: Path) -> None:
        self.node = node
        self.root, self.there = folder / "proj", f"{node.home}/gflow/snapshots"
        self.root.mkdir()
        # Bytes after which each further connection is cut; None: never.
        self.limit: int | None = None
        self.proxy = CuttingProxy(node.port, iter(lambda: self.limit, "never"))
        node.install(box, port=self.proxy.port)
        with open(box.home / ".ssh/config", "a") as config:
            config.write(" KexAlgorithms curve25519-sha256\n")  # a hundred connections: the default is slow
        self.snapshots = LocalSnapshots(folder / "snapshots")
        self.runner = SshRunner("login", box.root / "s")
        self.transfer = SnapshotTransfer(self.runner, self.there, self.snapshots)

    def take(self) -> str:
        return self.snapshots.take(str(self.root), 0).id

    def send(self, id: str) -> snapshot_transfer.Sent:
        return self.transfer.send(parse_id(id))

    def folder(self, id: str) -> Path:
        return Path(folder_of(id, self.there))

    def disconnect(self) -> None:
        subprocess.run(
            [*self.runner.shell_words(), "-O", "exit", "login"], capture_output=True, env=dict(os.environ)
        )


@pytest.fixture
def lab(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(local_snapshots, "RACY_NS", 0)
    with login_node() as node:
        made = Lab(node, box, tmp_path)
        monkeypatch.setenv("PATH", box.env["PATH"])
        try:
            yield made
        finally:
            made.disconnect()
            made.proxy.close()


def content(folder: Path) -> dict[bytes, bytes]:
    """Files, links and empty folders below a folder."""
    found = {}
    for path, names, files in os.walk(os.fsencode(folder)):
        for name in [*names, *files]:
            whole = path + b"/" + name
            below = os.path.relpath(whole, os.fsencode(folder))
            if os.path.islink(whole):
                found[below] = b"-> " + os.readlink(whole)
            elif not os.path.isdir(whole):
                with open(whole, "rb") as file:
                    found[below] = file.read()
            elif not os.listdir(whole):
                found[below] = b"empty folder"
    return found


def test_snapshot_arrives_as_it_was_taken_and_nobody_else_may_read_it(lab: Lab) -> None:
    for name in HOSTILE:
        with open(os.fsencode(lab.root) + b"/" + name, "wb") as file:
            file.write(name * 50)
    (lab.root / "d").mkdir()
    (lab.root / "d/run.sh").write_text("echo")
    (lab.root / "d/run.sh").chmod(0o755)
    (lab.root / "link").symlink_to("/mnt/data")
    (lab.root / "data").write_bytes(os.urandom(3_000_000))
    id = lab.take()
    (lab.root / "d/run.sh").write_text("changed after the submission")
    assert lab.transfer.progress() == ""
    assert lab.send(id) == (True, "", False)
    assert lab.transfer.progress().startswith("3 MB (")
    there = lab.folder(id)
    assert content(there) == content(lab.snapshots.path(parse_id(id)))
    assert (there / "d/run.sh").read_text() == "echo" and os.access(there / "d/run.sh", os.X_OK)
    for path, names, files in os.walk(f"{lab.node.home}/gflow"):
        for name in [".", *names, *files]:
            status = os.lstat(f"{path}/{name}")
            assert stat.S_ISLNK(status.st_mode) or not status.st_mode & 0o077, name
            assert status.st_uid == lab.node.person.pw_uid


@pytest.mark.parametrize("links", [False, True])
def test_only_changes_travel_and_a_job_cannot_change_the_files_of_another(lab: Lab, links: bool) -> None:
    lab.transfer = SnapshotTransfer(lab.runner, lab.there, lab.snapshots, links=links)
    (lab.root / "big").write_bytes(os.urandom(2_000_000))
    (lab.root / "code.py").write_text("1")
    first = lab.take()
    assert lab.send(first).ok
    (lab.root / "code.py").write_text("22")
    second, before = lab.take(), lab.proxy.bytes
    assert lab.send(second).ok
    assert lab.proxy.bytes - before < 50_000
    big = lab.folder(first) / "big", lab.folder(second) / "big"
    assert all(filecmp.cmp(one, lab.root / "big", shallow=False) for one in big)
    assert (big[0].stat().st_ino == big[1].stat().st_ino) is links
    lab.node.call("sh", "-c", f"echo more >>{big[0]}")
    assert filecmp.cmp(big[1], lab.root / "big", shallow=False)


def test_connection_cut_at_any_byte_leaves_no_half_snapshot(lab: Lab) -> None:
    for number in range(12):
        (lab.root / f"f{number}").write_bytes(os.urandom(1000 if number else 200_000))
    id, cuts, whole = lab.take(), 0, lab.proxy.bytes
    assert lab.send(id).ok
    size = lab.proxy.bytes - whole
    wanted = content(lab.root)
    pending = ""
    for position in itertools.count():
        if cuts == 50:
            break
        if not pending:
            subprocess.run(["rm", "-rf", lab.there], check=True)
            pending = lab.take()
        lab.disconnect()
        lab.limit = 1000 + size * (position * 7 % 50) // 100 + position
        sent = lab.send(pending)
        cuts += not sent.ok
        if not sent.ok:
            assert sent.error and "\n" not in sent.error and not sent.is_final
        if lab.folder(pending).exists():
            assert content(lab.folder(pending)) == wanted
            pending = ""
    lab.disconnect()
    lab.limit = None
    last = pending or lab.take()
    assert lab.send(last).ok
    assert content(lab.folder(last)) == wanted


def test_connection_cut_while_results_are_fetched_leaves_no_half_file(lab: Lab, tmp_path: Path) -> None:
    (lab.root / "code.py").write_text("code")
    id = lab.take()
    assert lab.send(id).ok
    script = "mkdir runs; for i in 1 2 3 4 5 6 7 8; do head -c 30000 /dev/urandom >runs/$i; done"
    lab.node.call("sh", "-c", f"cd {lab.folder(id)} && {script}")
    wanted = content(lab.folder(id) / "runs")
    fetch, place = ResultFetch(lab.runner, lab.snapshots), tmp_path / "results"
    order = FetchOrder(there=str(lab.folder(id)), here=str(place), patterns=("runs/**",), snapshot=id)
    before = lab.proxy.bytes
    assert fetch.fetch(order).files == 8
    size, cuts = lab.proxy.bytes - before, 0
    for position in itertools.count():
        if cuts == 50:
            break
        lab.disconnect()
        lab.limit = 3000 + size * (position * 7 % 50) // 100 + position
        fetched = fetch.fetch(order)
        cuts += not fetched.ok
        found = content(place / "runs") if place.exists() else {}
        assert all(wanted[name] == text for name, text in found.items() if b"gflow-part" not in name)
        if fetched.ok:
            assert found == wanted
            shutil.rmtree(place)
    lab.disconnect()
    lab.limit = None
    assert fetch.fetch(order).ok
    assert content(place / "runs") == wanted


def test_thousand_files_with_one_change_are_there_within_a_second(lab: Lab) -> None:
    for number in range(1000):
        path = lab.root / f"d{number % 20}/f{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"print({number})\n" * 40)
    assert lab.send(lab.take()).ok
    times: list[float] = []
    for turn in range(8):  # other tests may have the CPUs
        if turn > 2 and min(times) < 1.0:
            break
        (lab.root / "d3/f3.py").write_text(f"changed {turn}")
        began = time.monotonic()
        assert lab.send(lab.take()).ok
        times.append(time.monotonic() - began)
    print(f"1,000 files, one changed: {min(times):.2f} s")
    assert min(times) < 1.0


def test_prune_keeps_what_jobs_wrote_and_what_unfinished_jobs_use(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = []
    for turn in range(6):
        (lab.root / "code.py").write_text("x" * turn + "y")
        (lab.root / "same").write_text("same")
        ids.append(lab.take())
        assert lab.send(ids[-1]).ok
    lab.node.call("sh", "-c", f"mkdir {lab.folder(ids[1])}/runs; echo 1 >{lab.folder(ids[1])}/runs/result")
    lab.node.call("sh", "-c", f"echo 1 >>{lab.folder(ids[1])}/same")
    lab.node.call("mkdir", f"{lab.folder(ids[0]).parent}/.20200101-000000-0000.abcdef")
    assert lab.transfer.prune(set()) >= set(ids)  # young
    monkeypatch.setattr(snapshot_transfer, "YOUNG_S", -1.0)
    assert lab.transfer.prune({ids[0]}) == {ids[0], *ids[3:]}
    assert content(lab.folder(ids[0])).keys() == {b"code.py", b"same"}
    assert content(lab.folder(ids[1])).keys() == {b"runs/result", b"same"}
    assert not lab.folder(ids[2]).exists()
    assert lab.transfer.prune({ids[0]}) == {ids[0], *ids[3:]}
    assert content(lab.folder(ids[1])).keys() == {b"runs/result", b"same"}
    names = sorted(os.listdir(lab.folder(ids[0]).parent))
    assert names == sorted(
        [f".{lab.folder(ids[1]).name}.pruned", *(lab.folder(ids[n]).name for n in (0, 1, 3, 4, 5))]
    )


def test_missing_rsync_and_lost_files_are_one_sentence(
    lab: Lab, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lab.root / "a").write_text("a")
    id = lab.take()
    real = os.environ["PATH"]
    programs = box.root / "programs"
    monkeypatch.setenv("PATH", f"{programs}:/nowhere")
    assert lab.send(id).error == "rsync is not installed on this machine: apt install rsync"
    monkeypatch.setenv("PATH", real)
    (programs / "rsync").write_text('#!/bin/sh\nexec /usr/bin/rsync --rsync-path=/no/rsync "$@"\n')
    (programs / "rsync").chmod(0o755)
    assert lab.send(id).error == "rsync is not installed on login: install it there, or submit with --no-sync"
    (programs / "rsync").unlink()
    shutil.rmtree(lab.snapshots.path(parse_id(id)))
    lost = lab.send(id)
    assert lost.is_final and "submit the job again" in lost.error


def test_without_a_host_the_snapshot_is_made_on_this_machine(tmp_path: Path) -> None:
    root = tmp_path / "proj"
    root.mkdir()
    (root / "a").write_text("a")
    snapshots = LocalSnapshots(tmp_path / "snapshots")
    transfer = SnapshotTransfer(CommandRunner(), f"{tmp_path}/there it is", snapshots)
    id = snapshots.take(str(root), 0).id
    assert transfer.send(parse_id(id)).ok and transfer.send(parse_id(id)).ok
    assert content(Path(folder_of(id, f"{tmp_path}/there it is"))) == {b"a": b"a"}
