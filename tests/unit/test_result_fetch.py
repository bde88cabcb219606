"""Results of a job, from its folder on the cluster to its folder here."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gflow.core.ids import job_key
from gflow.targets.port import End, Ended, Run
from gflow.targets.slurm.background_calls import InlineCalls
from gflow.targets.slurm.commands.command_runner import CommandRunner
from gflow.targets.slurm.files.local_snapshots import LocalSnapshots, parse_id
from gflow.targets.slurm.files.output_fetches import Note, OutputFetches, has_orders
from gflow.targets.slurm.files.result_fetch import Fetched, FetchOrder, ResultFetch
from gflow.targets.slurm.files.snapshot_transfer import SnapshotTransfer, folder_of

needs_rsync = pytest.mark.skipif(not shutil.which("rsync"), reason="no rsync here")


class Job:
    """A job that ran in a snapshot, on a cluster that is this machine."""

    def __init__(self, folder: Path) -> None:
        self.here = folder / "proj"
        self.here.mkdir()
        (self.here / "code.py").write_text("code")
        (self.here / "notes").write_text("sent")
        snapshots = LocalSnapshots(folder / "snapshots")
        self.id = snapshots.take(str(self.here), 0).id
        assert SnapshotTransfer(CommandRunner(), f"{folder}/there", snapshots).send(parse_id(self.id)).ok
        self.there = Path(folder_of(self.id, f"{folder}/there"))
        self._fetch = ResultFetch(CommandRunner(), snapshots)

    def write(self, name: str, text: str) -> None:
        (self.there / name).parent.mkdir(parents=True, exist_ok=True)
        (self.there / name).write_text(text)

    def fetch(self, *patterns: str, here: Path | None = None, overwrites: bool = False) -> Fetched:
        order = FetchOrder(
            there=str(self.there), here=str(here or self.here), patterns=patterns, snapshot=self.id,
            overwrites=overwrites,
        )  # fmt: skip
        return self._fetch.fetch(order)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@needs_rsync
def test_only_what_the_job_wrote_is_fetched(job: Job, tmp_path: Path) -> None:
    job.write("runs/1/loss.csv", "0.5")
    job.write("notes", "changed by the job")
    (job.there / "link").symlink_to("runs/1")
    (job.there / "evil").symlink_to("/etc/passwd")
    (job.here / "code.py").unlink()
    fetched = job.fetch()
    assert fetched.ok and fetched.kept == ()
    assert (job.here / "runs/1/loss.csv").read_text() == "0.5"
    assert (job.here / "notes").read_text() == "changed by the job"
    assert not (job.here / "code.py").exists()
    assert os.readlink(job.here / "link") == "runs/1" and not (job.here / "evil").is_symlink()
    assert job.fetch("runs/**") == Fetched(True)
    assert job.fetch("*.csv", "code.py", here=tmp_path / "new/place").files == 2
    assert (tmp_path / "new/place/code.py").read_text() == "code"


@needs_rsync
def test_newer_file_here_is_kept_unless_it_may_be_overwritten(job: Job) -> None:
    job.write("notes", "of the job")
    job.write("out", "of the job")
    (job.here / "notes").write_text("edited here afterwards")
    later = time.time() + 10
    os.utime(job.here / "notes", (later, later))
    assert job.fetch() == Fetched(True, 1, 10, (b"notes",))
    assert (job.here / "notes").read_text() == "edited here afterwards"
    assert job.fetch(overwrites=True).files == 1
    assert (job.here / "notes").read_text() == "of the job"


@needs_rsync
def test_file_here_is_kept_where_the_job_has_a_folder_and_the_other_way_round(job: Job) -> None:
    job.write("runs/1", "of the job")
    job.write("plain", "of the job")
    (job.here / "runs").write_text("a file here")
    (job.here / "plain").mkdir()
    fetched = job.fetch()
    assert fetched.ok and set(fetched.kept) == {b"runs/1", b"plain"}
    assert (job.here / "runs").read_text() == "a file here" and (job.here / "plain").is_dir()


@needs_rsync
def test_hostile_names_arrive(job: Job, tmp_path: Path) -> None:
    from tests.unit.test_file_selection import HOSTILE

    for name in HOSTILE:
        with open(os.fsencode(job.there) + b"/" + name, "wb") as file:
            file.write(name)
    place = tmp_path / "place"
    assert job.fetch(here=place).files == len(HOSTILE)
    assert set(os.listdir(os.fsencode(place))) == set(HOSTILE)


@needs_rsync
def test_folder_behind_a_link_here_stays_a_link(job: Job, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (job.here / "runs").symlink_to(tmp_path / "disk")
    job.write("runs/x", "x")
    assert job.fetch().files == 1
    assert (job.here / "runs").is_symlink() and (tmp_path / "disk/x").read_text() == "x"


@needs_rsync
def test_missing_folder_is_final(job: Job) -> None:
    shutil.rmtree(job.there)
    fetched = job.fetch()
    assert fetched.is_final and fetched.error == f"there is no folder {job.there} on the cluster"


@needs_rsync
def test_without_a_snapshot_files_since_the_start_are_fetched(job: Job, tmp_path: Path) -> None:
    job.write("old", "old")
    os.utime(job.there / "old", (1e9, 1e9))
    job.write("new", "new")
    order = FetchOrder(there=str(job.there), here=f"{tmp_path}/place", started_at=time.time() - 60)
    assert ResultFetch(CommandRunner(), LocalSnapshots(tmp_path / "none")).fetch(order).ok
    assert "new" in os.listdir(tmp_path / "place") and "old" not in os.listdir(tmp_path / "place")


class FakeFetch:
    """Gives the answers that a test wants, one for each call."""

    def __init__(self, *answers: Fetched) -> None:
        self.answers = list(answers)

    def fetch(self, order: FetchOrder) -> Fetched:
        return self.answers.pop(0)


class Outputs:
    """Fetches of outputs, with a clock that tests set."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 0.0
        self.ends: list[Ended] = []
        self.notes: list[str] = []

    def fetches(self, *answers: Fetched) -> OutputFetches:
        fetch: Callable[..., OutputFetches] = OutputFetches
        return fetch(self.folder, FakeFetch(*answers), InlineCalls(), self._note, lambda: self.now)

    def _note(self, note: Note) -> None:
        self.notes.append(note.text)


ORDER = FetchOrder(there="/there", here="/here", patterns=("runs/**",))
ENDED = Ended(Run(job_key(7), 1), End(0))


def test_end_is_reported_after_its_outputs_have_been_fetched(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "orders")
    fetches = outputs.fetches(Fetched(True, 3, 3_000_000))
    fetches.hold(ENDED, ORDER, outputs.ends.append)
    assert outputs.ends == [ENDED]
    assert outputs.notes == ["3 files (2.9 MiB) fetched into /here"]
    assert not has_orders(outputs.folder) and fetches.turn() is None


def test_failed_fetch_reports_the_end_and_is_tried_again_also_by_the_next_daemon(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "orders")
    broken = Fetched(False, error="the connection to far was lost")
    fetches = outputs.fetches(broken, broken)
    fetches.hold(ENDED, ORDER, outputs.ends.append)
    assert outputs.ends == [ENDED]
    assert outputs.notes == ["not fetched: the connection to far was lost; gflow goes on trying"]
    assert has_orders(outputs.folder)
    assert fetches.turn() == 3.0
    outputs.now = 3.0
    assert fetches.turn() == 6.0
    again = outputs.fetches(Fetched(True, 1, 5, (b"x",)))
    assert again.turn() is None
    assert outputs.notes[1:] == ["1 file (5 B) fetched into /here; 1 are newer here and were kept"]
    assert not has_orders(outputs.folder) and len(outputs.ends) == 1


def test_folder_that_is_gone_is_not_tried_again(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "orders")
    fetches = outputs.fetches(Fetched(False, error="there is no folder /there on the cluster", is_final=True))
    fetches.hold(ENDED, ORDER, outputs.ends.append)
    assert outputs.notes == ["not fetched: there is no folder /there on the cluster"]
    assert outputs.ends == [ENDED] and not has_orders(outputs.folder)


@needs_rsync
@pytest.mark.parametrize("ahead_s", [3600, -3600])
def test_clock_that_is_off_by_an_hour_there_changes_nothing(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "date").write_text(f"#!/bin/sh\necho $(($(/bin/date +%s) + {ahead_s}))\n")
    (programs / "date").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    now = time.time()

    def write(name: str, text: str, ago_s: float) -> None:
        job.write(name, text)
        os.utime(job.there / name, (now + ahead_s - ago_s,) * 2)

    def edit(name: str, text: str, ago_s: float) -> None:
        (job.here / name).write_text(text)
        os.utime(job.here / name, (now - ago_s,) * 2)

    os.utime(job.here / "notes", (now - 600,) * 2)
    write("notes", "by the job", 100)
    write("loss.csv", "1", 90)
    edit("code.py", "edited after it was sent", -1)
    assert job.fetch("*") == Fetched(True, 2, 11, (b"code.py",))
    assert (job.here / "notes").read_text() == "by the job"
    assert abs((job.here / "loss.csv").stat().st_mtime - (now - 90)) < 5
    assert job.fetch("*.csv") == Fetched(True)
    write("loss.csv", "2", 60)
    assert job.fetch("*.csv").files == 1 and (job.here / "loss.csv").read_text() == "2"
    edit("loss.csv", "mine", 30)
    assert job.fetch("*.csv").kept == (b"loss.csv",)
    order = FetchOrder(there=str(job.there), here=str(tmp_path / "new"), started_at=now - 80)
    fetched = ResultFetch(CommandRunner(), LocalSnapshots(tmp_path / "none")).fetch(order)
    assert fetched.ok and (tmp_path / "new/loss.csv").exists() and not (tmp_path / "new/notes").exists()
