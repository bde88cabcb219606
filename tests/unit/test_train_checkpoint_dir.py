"""Checkpoint folders: whole or not there, whatever happens while one is written, and one owner at a time."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from gflow.ml.train.checkpoint import disk
from gflow.ml.train.checkpoint.checkpoint_dir import (
    LATEST,
    CheckpointDirectory,
    CheckpointError,
    Owner,
    Superseded,
    verify,
)
from gflow.ml.train.checkpoint.folder_owner import process_name
from tests.unit.disk_model import after, record


def owner(attempt: int, job: str = "/box:7") -> Owner:
    return Owner(job, attempt, f"token{attempt}")


def add(directory: CheckpointDirectory, step: int, text: bytes = b"weights") -> None:
    path = directory.begin(step)
    files = {}
    for name in ("state.pt", "rank-0.pt"):
        file = disk.File(os.path.join(path, name))
        file.write(text * step)
        file.close()
        files[name] = (file.size, file.checksum)
    directory.commit(path, step, files, {})


def opened(folder: Path, attempt: int = 1, keep: int = 3) -> CheckpointDirectory:
    directory = CheckpointDirectory(folder, keep=keep, owner=owner(attempt))
    directory.claim()
    return directory


def latest(folder: Path) -> int:
    """The step that `latest` points to, which must be whole."""
    return int(verify(str(folder / LATEST))["step"])


def test_the_newest_is_latest_and_older_ones_go(tmp_path):
    directory = opened(tmp_path / "c", keep=2)
    for step in (1, 2, 3):
        add(directory, step)
    assert latest(directory.folder and tmp_path / "c") == 3
    assert [saved.step for saved in directory.saved()] == [3, 2]
    assert sorted(os.listdir(tmp_path / "c")) == [
        ".lock",
        "latest",
        "owner.json",
        "step-00000002",
        "step-00000003",
    ]


def test_a_step_that_is_saved_again(tmp_path):
    directory = opened(tmp_path)
    add(directory, 5)
    add(directory, 5, b"other")
    saved, troubles = directory.newest()
    assert saved and (saved.step, saved.again, troubles) == (5, 1, [])
    assert os.readlink(tmp_path / LATEST) == "step-00000005.1"


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "state.pt").write_bytes(b"x" * (folder / "state.pt").stat().st_size),
        lambda folder: (folder / "state.pt").write_bytes((folder / "state.pt").read_bytes()[:-1]),
        lambda folder: (folder / "rank-0.pt").unlink(),
        lambda folder: (folder / "manifest.json").write_text("{"),
        lambda folder: (folder / "manifest.json").write_text("[]"),
        lambda folder: (folder / "manifest.json").unlink(),
    ],
)
def test_a_damaged_one_is_passed_over(tmp_path, damage):
    directory = opened(tmp_path)
    add(directory, 1)
    add(directory, 2)
    damage(tmp_path / "step-00000002")
    saved, troubles = directory.newest()
    assert saved and saved.step == 1
    assert len(troubles) == 1 and "step-00000002" in troubles[0]


def test_damaged_checkpoint_does_not_count_as_kept(tmp_path):
    directory = opened(tmp_path, keep=2)
    for step in (1, 2):
        add(directory, step)
    (tmp_path / "step-00000002" / "state.pt").write_bytes(b"x")
    assert directory.newest()[0].step == 1
    add(directory, 3)
    assert [saved.step for saved in directory.saved()] == [3, 2, 1], "two of them are intact"
    add(directory, 4)
    assert [saved.step for saved in directory.saved()] == [4, 3]


def test_directory_of_a_live_process_is_not_taken(tmp_path):
    """Only a later attempt of the same job takes over; a process that has ended holds nothing."""
    import subprocess

    with subprocess.Popen(["sleep", "60"]) as other:
        live = owner(2)._replace(process=process_name(other.pid))
        CheckpointDirectory(tmp_path, owner=live).claim()
        for refused in (owner(1, "/box:8"), owner(2)._replace(token="twin"), Owner.of({})):
            with pytest.raises(CheckpointError, match=f"process {other.pid}, is writing"):
                CheckpointDirectory(tmp_path, owner=refused).claim()
        opened(tmp_path, attempt=3)
        CheckpointDirectory(tmp_path, owner=live._replace(attempt=4)).claim()
        other.kill()
    CheckpointDirectory(tmp_path, owner=owner(1, "/box:8")).claim()


def test_nothing_saved_yet(tmp_path):
    assert opened(tmp_path / "new").newest() == (None, [])
    assert CheckpointDirectory(tmp_path / "not there").newest() == (None, [])


def test_a_zombie_cannot_add(tmp_path):
    zombie = opened(tmp_path, attempt=1)
    add(zombie, 10)
    path = zombie.begin(20)  # it is in the middle of saving when the next attempt begins
    successor = opened(tmp_path, attempt=2)
    add(successor, 11)
    with pytest.raises(Superseded, match="attempt 2"):
        zombie.commit(path, 20, {}, {})
    assert latest(tmp_path) == 11
    assert [saved.step for saved in successor.saved()] == [11, 10]


def test_an_earlier_attempt_that_comes_late_is_refused(tmp_path):
    opened(tmp_path, attempt=2)
    with pytest.raises(Superseded):
        opened(tmp_path, attempt=1)


def test_other_job_takes_over_the_directory(tmp_path):
    first = opened(tmp_path, attempt=5)
    other = CheckpointDirectory(tmp_path, owner=owner(1, "/box:8"))
    other.claim()
    with pytest.raises(Superseded, match="attempt 1"):
        add(first, 1)
    add(other, 1)


def test_owner_of_a_run():
    told = {"GFLOW_JOB_ID": "42_3", "GFLOW_ATTEMPT": "4", "GFLOW_RUN": "/home/ann/gflow/run/42_3.4"}
    assert Owner.of(told)[:2] == ("/home/ann/gflow/run:42_3", 4)
    assert Owner.of({"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "2"})[:2] == ("slurm:9", 3)
    alone = Owner.of({})
    assert alone[:2] == ("", 0) and alone.token != Owner.of({}).token


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="no checkpoints in"):
        opened(tmp_path / "file" / "below")
    with pytest.raises(CheckpointError, match="keep=0"):
        CheckpointDirectory(tmp_path, keep=0)


def test_damaged_owner_file_is_ignored(tmp_path):
    opened(tmp_path)
    (tmp_path / "owner.json").write_text('{"job": "x"')
    add(opened(tmp_path, attempt=1), 1)
    assert json.loads((tmp_path / "owner.json").read_text())["attempt"] == 1


def test_a_crash_at_every_write_leaves_a_latest_that_is_whole(tmp_path, monkeypatch):
    """Killed or without power after any operation: old or new, never neither, and life goes on."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # the model has its own
    folder, before = tmp_path / "c", tmp_path / "before"
    add(opened(folder, attempt=1, keep=1), 1)
    shutil.copytree(folder, before, symlinks=True)
    with monkeypatch.context() as patched:
        log = record(patched)
        add(opened(folder, attempt=2, keep=1), 2)
    assert len(log) > 25
    outcomes: dict[str, set[int]] = {}
    cases = [("kill", 0), ("cut", 0), *(("some", seed) for seed in range(8))]
    for count in range(len(log) + 1):
        for how, seed in cases:
            path = tmp_path / f"{how}-{count}-{seed}"
            after(before, folder, log[:count], how, path, seed)
            step = latest(path)
            saved, _ = CheckpointDirectory(path).newest()
            assert saved is not None and saved.step >= step >= 1, (how, count)
            outcomes.setdefault(how, set()).add(step)
            successor = opened(path, attempt=3, keep=1)
            add(successor, 3)
            assert latest(path) == 3 and [one.step for one in successor.saved()] == [3]
            shutil.rmtree(path)
    assert all(steps == {1, 2} for steps in outcomes.values()), (
        "each kind of crash leaves old ones and new ones"
    )


@pytest.mark.parametrize("forgotten", ["sync", "File.close"])
def test_the_model_catches_a_directory_that_does_not_sync(tmp_path, monkeypatch, forgotten):
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # the model has its own
    folder, before = tmp_path / "c", tmp_path / "before"
    add(opened(folder, attempt=1, keep=1), 1)
    shutil.copytree(folder, before, symlinks=True)
    with monkeypatch.context() as patched:
        log = record(patched)
        add(opened(folder, attempt=2, keep=1), 2)
    folders = {
        "sync": lambda path: os.path.splitext(path)[1] == "",
        "File.close": lambda path: path.endswith(".pt"),
    }
    lazy = [one for one in log if one[0] != "sync" or not folders[forgotten](one[1])]
    found = set()
    for count in range(len(lazy) + 1):
        path = tmp_path / str(count)
        after(before, folder, lazy[:count], "some", path, count)
        try:
            latest(path)
        except CheckpointError:
            found.add("lost")
        except OSError:
            found.add("lost")
    after(before, folder, lazy, "cut", tmp_path / "end")
    try:
        found.add("kept" if latest(tmp_path / "end") == 2 else "lost")
    except CheckpointError:
        found.add("lost")
    assert "lost" in found


def test_a_full_disk_keeps_the_old_one(tmp_path, monkeypatch):
    directory = opened(tmp_path)
    add(directory, 1)

    def full(path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "File", full)
    path = directory.begin(2)
    with pytest.raises(OSError):
        directory.commit(path, 2, {}, {})
    directory.abandon(path)
    assert latest(tmp_path) == 1
    assert sorted(os.listdir(tmp_path)) == [".lock", "latest", "owner.json", "step-00000001"]
