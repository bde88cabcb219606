"""Disks that are full, read-only, or lose the database: one sentence, and a daemon that can be stopped."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gflow.daemon.main import _stop
from tests.harness import Box, wait_until
from tests.store.test_read_only import FLAGS, fill_up, health, small_disk

__all__ = ["small_disk"]  # a fixture


@pytest.fixture
def freeze(box: Box) -> Iterator[Callable[[], None]]:
    """Makes the data folder read-only under a running daemon, as a file system does after an error."""
    if os.getuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can mount")
    mounted = []

    def frozen() -> None:
        box.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        done = subprocess.run(["mount", "--bind", box.data, box.data], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
        mounted.append(box.data)
        subprocess.run(["mount", "-o", "remount,bind,ro", box.data], check=True, capture_output=True)

    yield frozen
    box.clean_up()
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)


# ---------------------------------------------------------------- stopping


def test_a_daemon_on_a_disk_that_became_read_only_can_be_stopped(
    box: Box, freeze: Callable[[], None]
) -> None:
    box.up(*FLAGS)
    freeze()
    box.ok("gflowd", "down")
    assert box.daemon is not None and box.daemon.wait(20) == 0


def test_a_daemon_whose_address_cannot_be_removed_can_be_stopped(box: Box) -> None:
    box.up(*FLAGS)
    (box.data / "address").unlink()
    (box.data / "address").mkdir()
    box.down()
    assert not os.path.exists(box.socket), "one failed step keeps the others from being done"


def test_the_stop_is_asked_for_before_anything_is_tidied_up(tmp_path: Path) -> None:
    class Stopped:
        def set(self) -> None:
            order.append("stopped")

    class Settings:
        data = tmp_path
        is_system = False

        @property
        def socket(self) -> Path:
            order.append("tidying")
            return tmp_path / "socket"

    order: list[str] = []
    _stop(Settings(), Stopped(), 15, [])  # type: ignore[arg-type]
    assert order == ["stopped", "tidying"]


# ---------------------------------------------------------------- starting


@pytest.mark.parametrize("verb", ["up", "run"])
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "old"])
def test_a_start_on_a_full_disk_says_what_to_do(box: Box, small_disk: Path, verb: str, is_new: bool) -> None:
    if not is_new:
        box.up(*FLAGS)
        box.down()
    fill_up(small_disk)
    says_trouble(box, verb, "disk is full", "free some space")


@pytest.mark.parametrize("verb", ["up", "run"])
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "old"])
def test_a_start_on_a_read_only_disk_says_what_to_do(
    box: Box, freeze: Callable[[], None], verb: str, is_new: bool
) -> None:
    if not is_new:
        box.up(*FLAGS)
        box.down()
    freeze()
    says_trouble(box, verb, "read-only", "writable")


def says_trouble(box: Box, verb: str, why: str, hint: str) -> None:
    done = box.run("gflowd", verb)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2 and str(box.data) in lines[0], done.stderr
    assert why in lines[0] and hint in lines[1], done.stderr
    assert "restore" not in done.stderr and "bug" not in done.stderr, done.stderr


# ---------------------------------------------------------------- a database that goes away


def test_moved_database_refuses_changes_until_back(box: Box) -> None:
    box.up(*FLAGS)
    before = box.submit("--hold", "true")
    (box.data / "gflow.db").rename(box.data / "elsewhere")
    done = box.run("gbatch", "true")
    assert done.returncode == 1 and "removed or replaced" in done.stderr and "restore" in done.stderr
    assert "removed or replaced" in box.ok("gflowd", "status")
    (box.data / "elsewhere").rename(box.data / "gflow.db")
    wait_until(lambda: health(box) == "ok", what="the daemon to take changes again")
    after = box.submit("--hold", "true")
    box.kill9()
    box.up()
    assert set(box.jobs()) == {before, after}


@pytest.mark.parametrize("name", ["gflow.db", "gflow.db-wal"])
def test_a_removed_database_or_log_is_seen_without_a_commit(box: Box, name: str) -> None:
    box.up(*FLAGS)
    box.submit("--hold", "true")
    (box.data / name).unlink()
    assert f"{name} was removed or replaced" in box.ok("gflowd", "status")
    assert box.run("gbatch", "true").returncode == 1
    box.down()


def test_a_replaced_database_is_not_taken_for_the_own_one(box: Box) -> None:
    box.up(*FLAGS)
    shutil.copy(box.data / "gflow.db", box.data / "copy.db")
    (box.data / "copy.db").rename(box.data / "gflow.db")
    done = box.run("gbatch", "true")
    assert done.returncode == 1 and "removed or replaced" in done.stderr


# ---------------------------------------------------------------- rights and damage


def test_every_folder_that_a_start_makes_is_its_owners_alone(box: Box) -> None:
    line = "umask 022; gflowd up --simulate-gpus 1x80G && gflowd backup && gflowd down"
    assert box.run_shell(line).returncode == 0
    made = [path for path in box.home.rglob("*") if path.is_dir()]
    assert box.data in made and box.data.parent in made
    assert {path: path.stat().st_mode & 0o777 for path in made} == dict.fromkeys(made, 0o700)


def test_a_data_folder_of_an_older_version_is_closed_to_others(box: Box) -> None:
    box.data.mkdir(parents=True)
    box.data.chmod(0o755)
    box.up(*FLAGS)
    assert box.data.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("what", ["schema", "row", "state", "number"])
def test_text_that_is_damaged_is_a_damaged_database_and_no_bug(box: Box, what: str) -> None:
    box.up(*FLAGS)
    box.submit("--hold", "--name", "precious", "true")
    box.down()
    path = box.data / "gflow.db"
    with closing(sqlite3.connect(path)) as db, db:
        if what == "row":
            db.execute("UPDATE jobs SET reason = CAST(x'ff80' AS TEXT)")
        elif what == "state":
            db.execute("UPDATE jobs SET gpu_ids = x'07'")
        elif what == "number":
            db.execute("UPDATE meta SET value = 'x' WHERE name = 'next_number'")
    if what == "schema":
        path.write_bytes(path.read_bytes().replace(b"CREATE TABLE blobs", b"CREATE \xffABLE blobs"))
    done = box.run("gflowd", "run")
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) <= 2 and "damaged" in done.stderr, done.stderr
    assert "bug" not in done.stderr
    if what in ("row", "state"):
        assert "job 1 " in done.stderr, done.stderr
