"""Run records that are lost: by a power cut, a repaired file system, or `rm -r`. No attempt runs twice."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gflow.targets.local.launch_epoch import launch_epoch
from tests.harness import Box, wait_until

# Counts its starts, and ends when it is told to.
COUNTED = "echo x >> ran; until test -e go; do sleep 0.02; done; exit 6"


def starts(box: Box) -> int:
    ran = box.work / "ran"
    return ran.read_text().count("x") if ran.exists() else 0


def forget_epoch(box: Box, epoch: str | None) -> None:
    """What the database of a daemon that is down says about when it launched its runs."""
    with closing(sqlite3.connect(box.data / "gflow.db")) as db, db:
        db.execute("DELETE FROM meta WHERE name = 'launch_epoch'")
        if epoch is not None:
            db.execute("INSERT INTO meta VALUES ('launch_epoch', ?)", (epoch,))


def end_unseen(box: Box) -> None:
    """The daemon dies, then the job ends: its record alone knows."""
    box.kill9()
    (box.work / "go").touch()
    wait_until(lambda: not box.processes(), what="the job and its shim to end")


EPOCHS = {
    "another boot": lambda epoch: epoch.replace(epoch.split()[0], "0" * 36),
    "another mount": lambda epoch: epoch.replace(epoch.split()[1], "ext4:1"),
    "another directory": lambda epoch: epoch.replace(epoch.split()[2], "1:1:1"),
    "none known": lambda epoch: None,
}


@pytest.mark.parametrize("what", EPOCHS)
def test_missing_record_of_other_epoch_is_lost_not_run_again(daemon: Box, what: str) -> None:
    job = daemon.submit(COUNTED)
    wait_until(lambda: starts(daemon))
    end_unseen(daemon)
    (daemon.data / f"run/{job}.1").unlink()
    forget_epoch(daemon, EPOCHS[what](launch_epoch(str(daemon.data / "run"))))
    daemon.up()
    final = daemon.finished(job)
    assert (final["state"], final["reason"], final["attempt"]) == ("Failed", "Lost", 1)
    assert starts(daemon) == 1
    wait_until(lambda: not list((daemon.data / "run").iterdir()))


def test_missing_record_of_other_boot_is_requeued(daemon: Box) -> None:
    job = daemon.submit("--requeue", COUNTED)
    wait_until(lambda: starts(daemon))
    end_unseen(daemon)
    (daemon.data / f"run/{job}.1").unlink()
    forget_epoch(daemon, "another-boot ext4:1 1:1:1")
    daemon.up()
    final = daemon.finished(job)
    assert (final["exit_code"], final["attempt"], starts(daemon)) == (6, 2, 2)


def test_record_that_lost_its_content_is_lost_not_run_again(daemon: Box) -> None:
    """After a power cut a file may be there with nothing in it."""
    job = daemon.submit(COUNTED)
    wait_until(lambda: starts(daemon))
    end_unseen(daemon)
    os.truncate(daemon.data / f"run/{job}.1", 0)
    forget_epoch(daemon, "another-boot ext4:1 1:1:1")
    daemon.up()
    final = daemon.finished(job)
    assert (final["reason"], starts(daemon)) == ("Lost", 1)


@pytest.mark.both_shims
def test_missing_record_of_living_job_is_lost_and_killed(daemon: Box) -> None:
    """Deleted by hand in the same epoch: what carries the run's tag shows that it began."""
    job = daemon.submit(COUNTED)
    wait_until(lambda: starts(daemon))
    daemon.kill9()
    (daemon.data / f"run/{job}.1").unlink()
    daemon.up()
    assert daemon.finished(job)["reason"] == "Lost"
    assert starts(daemon) == 1
    tag = f"GFLOW_RUN={daemon.data}/run/{job}.1".encode()
    assert not [pid for pid in daemon.processes() if tag in Path(f"/proc/{pid}/environ").read_bytes()]


def test_recorded_runs_of_other_epoch_are_adopted(daemon: Box) -> None:
    job = daemon.submit(COUNTED)
    wait_until(lambda: starts(daemon))
    daemon.kill9()
    forget_epoch(daemon, "another-boot ext4:1 1:1:1")
    daemon.up()
    (daemon.work / "go").touch()
    assert daemon.finished(job)["exit_code"] == 6
    assert starts(daemon) == 1

    def kept() -> str:
        with closing(sqlite3.connect(daemon.data / "gflow.db")) as db:
            return str(db.execute("SELECT value FROM meta WHERE name = 'launch_epoch'").fetchone()[0])

    wait_until(lambda: kept() == launch_epoch(str(daemon.data / "run")))


def test_restored_database_does_not_run_an_ended_attempt_again(daemon: Box) -> None:
    """The backup has the job as running; since then it has ended and its record was dropped."""
    job = daemon.submit(COUNTED)
    wait_until(lambda: starts(daemon))
    backup = daemon.ok("gflowd", "backup").strip()
    (daemon.work / "go").touch()
    assert daemon.finished(job)["exit_code"] == 6
    daemon.down()
    daemon.ok("gflowd", "restore", backup)
    daemon.up()
    assert daemon.finished(job)["reason"] == "Lost"
    assert starts(daemon) == 1


@pytest.mark.both_shims
def test_removed_run_directory_is_recreated_and_no_job_is_lost(daemon: Box) -> None:
    running = daemon.submit(COUNTED)
    wait_until(lambda: starts(daemon))
    shutil.rmtree(daemon.data / "run")
    later = [daemon.submit("true") for _ in range(3)]
    assert {daemon.finished(job)["state"] for job in later} == {"Finished"}
    assert {daemon.job(job)["attempt"] for job in later} == {1}
    assert (daemon.data / "run").stat().st_mode & 0o777 == 0o700
    (daemon.work / "go").touch()
    assert daemon.finished(running)["exit_code"] == 6
    assert starts(daemon) == 1


def test_missing_run_directory_defers_starts(daemon: Box) -> None:
    shutil.rmtree(daemon.data / "run")
    (daemon.data / "run").touch()
    job = daemon.submit("true")
    wait_until(lambda: "nothing can be started now" in (daemon.job(job)["reason"] or ""))
    assert "File exists" in daemon.job(job)["reason"]
    assert "nothing can be started now: File exists" in daemon.ok("gflowd", "status")
    (daemon.data / "run").unlink()
    assert daemon.finished(job)["state"] == "Finished"
    assert "nothing can be started" not in daemon.ok("gflowd", "status")


# ---------------------------------------------------------------- jobs that the database does not know


@pytest.fixture
def stranger(daemon: Box) -> tuple[int, Path]:
    """A job that runs on a GPU, and a backup from before it was submitted. The daemon is down."""
    backup = Path(daemon.ok("gflowd", "backup").strip())
    job = daemon.submit("--gpus", "1", COUNTED)
    wait_until(lambda: starts(daemon))
    daemon.down()
    return job, backup


def test_restore_under_a_living_job_that_the_backup_does_not_know_is_refused(
    daemon: Box, stranger: tuple[int, Path]
) -> None:
    job, backup = stranger
    done = daemon.run("gflowd", "restore", str(backup))
    assert done.returncode == 1
    assert f"job {job} is running" in done.stderr
    daemon.up()
    assert daemon.job(job)["state"] == "Running"
    (daemon.work / "go").touch()
    assert daemon.finished(job)["exit_code"] == 6
    daemon.down()
    daemon.ok("gflowd", "restore", str(backup))


def test_restore_works_if_living_job_is_known(daemon: Box) -> None:
    job = daemon.submit(COUNTED)
    wait_until(lambda: starts(daemon))
    backup = daemon.ok("gflowd", "backup").strip()
    daemon.down()
    daemon.ok("gflowd", "restore", backup)
    daemon.up()
    (daemon.work / "go").touch()
    assert daemon.finished(job)["exit_code"] == 6
    assert starts(daemon) == 1


def test_unknown_living_job_keeps_its_gpu_is_named_and_ends_with_kill_jobs(
    daemon: Box, stranger: tuple[int, Path]
) -> None:
    """An older database was copied into its place."""
    job, backup = stranger
    for path in daemon.data.glob("gflow.db*"):
        path.unlink()
    shutil.copy(backup, daemon.data / "gflow.db")
    daemon.up()
    record = daemon.data / f"run/{job}.1"
    assert record.exists()
    wait_until(lambda: f"Unmanaged: job {job}" in daemon.ok("ginfo"))
    other = daemon.submit("--gpus", "1", "echo $CUDA_VISIBLE_DEVICES")
    assert other > job, "the number of a job that runs is given out again"
    assert daemon.finished(other)["gpu_ids"] == [1]
    assert f"job {job} runs, and the database does not know it" in daemon.ok("gflowd", "status")
    daemon.ok("gflowd", "down", "--kill-jobs")
    wait_until(lambda: not daemon.processes(), what="the unknown job to end")
    daemon.up()
    wait_until(lambda: not record.exists())
    assert "Unmanaged" not in daemon.ok("ginfo")


def test_unknown_job_that_ends_gives_its_gpu_back(daemon: Box, stranger: tuple[int, Path]) -> None:
    job, backup = stranger
    for path in daemon.data.glob("gflow.db*"):
        path.unlink()
    shutil.copy(backup, daemon.data / "gflow.db")
    daemon.up()
    wide = daemon.submit("--gpus", "4", "true")
    assert daemon.job(wide)["state"] == "Queued"
    (daemon.work / "go").touch()
    assert daemon.finished(wide)["state"] == "Finished"
    assert not (daemon.data / f"run/{job}.1").exists()


# ---------------------------------------------------------------- what an epoch is


def test_epoch_changes_with_the_directory_only(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert launch_epoch(str(run)) == ""
    run.mkdir()
    before = launch_epoch(str(run))
    (run / "1.1").touch()
    (run / "1.1").unlink()
    assert launch_epoch(str(run)) == before
    run.rename(tmp_path / "old")
    run.mkdir()
    assert launch_epoch(str(run)) != before


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on an ext4 of its own, which a test may damage. Needs root and a loop device."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    try:
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, capture_output=True)
        mount(image, folder)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def mount(image: Path, folder: Path) -> None:
    # Nothing reaches the disk by itself while the test runs.
    words = ["mount", "-o", "loop,commit=300", str(image), str(folder)]
    subprocess.run(words, check=True, capture_output=True)


def unmount(image: Path, folder: Path) -> None:
    """Unmount, and wait until no mount namespace of another test keeps the file system alive."""
    subprocess.run(["umount", str(folder)], check=True)
    words = ["losetup", "-j", str(image)]
    wait_until(
        lambda: not subprocess.run(words, capture_output=True, check=True).stdout,
        timeout_s=60,
        what="the loop device to be free",
    )


def test_epoch_changes_with_the_mount(disk: Path, tmp_path: Path) -> None:
    (disk / "run").mkdir()
    before = launch_epoch(str(disk / "run"))
    unmount(tmp_path / "image", disk)
    mount(tmp_path / "image", disk)
    assert launch_epoch(str(disk / "run")) != before


def test_lost_record_does_not_rerun_attempt(disk: Path, tmp_path: Path) -> None:
    """The start is committed, the record is not; then the journal is aborted, repaired and mounted again."""
    box = Box(disk)
    box.work = tmp_path / "work"
    box.work.mkdir()
    try:
        box.up("--cpus", "2")
        job = box.submit(COUNTED)
        wait_until(lambda: starts(box))
        end_unseen(box)
        subprocess.run(["mount", "-o", "remount,abort", str(disk)], check=False, capture_output=True)
        unmount(tmp_path / "image", disk)
        subprocess.run(["fsck.ext4", "-fy", str(tmp_path / "image")], check=False, capture_output=True)
        mount(tmp_path / "image", disk)
        box.up()
        final = box.finished(job)
        assert starts(box) == 1
        assert final["state"] == "Failed" and (final["reason"] == "Lost" or final["exit_code"] == 6)
    finally:
        box.clean_up()
