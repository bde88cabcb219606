"""The location of the database when the data folder is on a network file system."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gflow.errors import StoreError
from gflow.store import location
from gflow.store.location import choose, database_path, kind_of
from gflow.store.sqlite import SqliteStore

ROOT = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw"
MACHINE = f"""{ROOT}
23 22 0:21 / /proc rw,nosuid - proc proc rw
30 22 0:30 / /tmp rw - tmpfs tmpfs rw,size=1g
31 22 0:31 / /home rw,relatime shared:9 - nfs4 server:/export/home rw,vers=4.2,proto=tcp
32 31 254:16 / /home/local rw - xfs /dev/vdb rw
33 22 0:33 / /mnt/lab\\040share rw - cifs //server/lab rw
34 22 0:34 / /scratch rw master:3 propagate_from:2 - lustre mgs@tcp:/scratch rw
35 22 0:35 / /mnt/back\\134slash rw - fuse.sshfs me@host:/ rw
36 22 0:36 / /data rw - ext4 /dev/vdc rw
37 36 0:37 / /data rw - beegfs beegfs_nodev rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/var/lib", "ext4"),
        ("/home", "nfs4"),
        ("/home/ann/.local/share/gflow", "nfs4"),
        ("/home/local", "xfs"),
        ("/home/local/ann", "xfs"),
        ("/home/locale", "nfs4"),
        ("/homework", "ext4"),
        ("/mnt/lab share/x", "cifs"),
        ("/mnt/lab", "ext4"),
        ("/scratch/ann", "lustre"),
        ("/mnt/back\\slash", "fuse.sshfs"),
        ("/data/x", "beegfs"),
        ("/tmp/x", "tmpfs"),
    ],
)
def test_the_innermost_and_latest_mount_counts(path: str, kind: str) -> None:
    assert kind_of(MACHINE, path) == kind


@pytest.mark.parametrize("text", ["", "\n\n", "nonsense", "1 2 3 - ext4", "22 1 254:0 / /"])
def test_a_list_that_cannot_be_read_means_nothing(text: str) -> None:
    assert kind_of(text, "/home") == ""
    assert choose(text, "/home") is None


@pytest.mark.parametrize(
    "kind",
    ["nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "fuse.sshfs", "9p",
     "afs", "fuse.glusterfs"],
)  # fmt: skip
def test_network_file_systems_are_recognised(kind: str) -> None:
    mounts = f"{ROOT}\n31 22 0:31 / /home rw - {kind} somewhere rw\n"
    place = choose(mounts, "/home/ann/gflow")
    assert place is not None
    assert place.parent == Path(f"/var/tmp/gflow-{os.geteuid()}")
    assert place != choose(mounts, "/home/ann/other"), "each data folder has its own"
    assert place == choose(mounts, "/home/ann/gflow")


@pytest.mark.parametrize(
    "kind",
    ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "f2fs", "fuseblk", "fuse.gocryptfs", "bcachefs"],
)
def test_local_file_systems_are_fine(kind: str) -> None:
    assert choose(f"{ROOT}\n31 22 0:31 / /home rw - {kind} /dev/x rw\n", "/home/ann") is None


@pytest.mark.parametrize("kind", ["nfs4", "tmpfs"])
def test_database_stays_without_a_better_place(kind: str) -> None:
    """A machine without disks: everything is on the network or in memory."""
    mounts = f"{ROOT}\n31 22 0:31 / /home rw - nfs4 s:/h rw\n32 22 0:32 / /var/tmp rw - {kind} x rw\n"
    assert choose(mounts, "/home/ann") is None


# ---------------------------------------------------------------- real folders


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`data` is on a network, and `local` stands for /var/tmp."""
    folder = tmp_path / "var-tmp"
    folder.mkdir()
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setattr(location, "LOCAL", folder)
    mounts = f"{ROOT}\n31 22 0:31 / {data.resolve()} rw - nfs4 server:/home rw\n"
    monkeypatch.setattr(location, "_mountinfo", lambda: mounts)
    yield folder


def test_database_is_in_the_data_folder(tmp_path: Path) -> None:
    assert database_path(tmp_path) == tmp_path / "gflow.db"
    assert list(tmp_path.iterdir()) == []
    assert database_path(tmp_path / "not" / "yet") == tmp_path / "not" / "yet" / "gflow.db"


def test_database_of_network_home_is_on_a_private_local_disk(tmp_path: Path, local: Path) -> None:
    path = database_path(tmp_path / "data")
    assert path.is_relative_to(local / f"gflow-{os.geteuid()}")
    assert path.name == "gflow.db"
    for folder in (path.parent, path.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700
    with closing(SqliteStore(path)) as store:
        assert store.load().next_number == 1
    assert database_path(tmp_path / "data") == path
    assert list((tmp_path / "data").iterdir()) == []


def test_a_link_to_a_network_is_a_network(tmp_path: Path, local: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert database_path(tmp_path / "link") == database_path(tmp_path / "data")


def test_a_database_that_is_there_already_stays(tmp_path: Path, local: Path) -> None:
    here = tmp_path / "data" / "gflow.db"
    SqliteStore(here).close()
    assert database_path(tmp_path / "data") == here
    assert list(local.iterdir()) == []


def spring(folder: Path, trap: str, elsewhere: Path) -> None:
    """What another user, or a careless owner, put where `folder` would be."""
    if trap == "link":
        folder.symlink_to(elsewhere)
    elif trap == "file":
        folder.touch(mode=0o600)
    else:
        folder.mkdir()
        folder.chmod(0o777 if trap == "open" else 0o700)
    if trap == "foreign":
        if os.getuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(folder, 65534, 65534)


@pytest.mark.parametrize(
    ("level", "trap"),
    [("person", "open"), *(("folder", trap) for trap in ("link", "file", "open", "foreign"))],
)
def test_prepared_folders_are_refused(tmp_path: Path, local: Path, trap: str, level: str) -> None:
    """What is found is looked at first. These need rights of ours, so a name beside them is no help."""
    path = database_path(tmp_path / "data")
    folder = path.parent if level == "folder" else path.parent.parent
    path.parent.rmdir()
    if level == "person":
        folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    spring(folder, trap, elsewhere)
    with pytest.raises(StoreError, match="the database cannot be in"):
        database_path(tmp_path / "data")
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("trap", ["link", "file", "foreign"])
def test_squatted_name_in_var_tmp_is_passed_over_for_another(tmp_path: Path, local: Path, trap: str) -> None:
    """All users may write to /var/tmp, and must not prevent the start of a daemon."""
    usual, elsewhere = local / f"gflow-{os.geteuid()}", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    spring(usual, trap, elsewhere)
    path = database_path(tmp_path / "data")
    assert path.parent.parent != usual and path.is_relative_to(local)
    assert path.parent.parent.stat().st_mode & 0o777 == 0o700
    SqliteStore(path).close()
    assert database_path(tmp_path / "data") == path, "found again"
    # Also when the name is free later, and when others make more such folders.
    usual.rmdir() if trap == "foreign" else usual.unlink()
    assert database_path(tmp_path / "data") == path
    usual.mkdir(mode=0o700)
    (local / f"gflow-{os.geteuid()}.aaa").symlink_to(elsewhere)
    assert database_path(tmp_path / "data") == path
    assert list(elsewhere.iterdir()) == []
