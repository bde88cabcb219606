"""A disk that is full, broken or read-only: no changes are taken, nothing is lost, and it heals by itself."""

from __future__ import annotations

import array
import errno
import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Box, wait_until

FLAGS = ("--simulate-gpus", "1x80G", "--cpus", "4")
ERRORS = {"full": errno.ENOSPC, "broken": errno.EIO, "read-only": errno.EROFS, "over quota": errno.EDQUOT}


class Switch:
    """A daemon's disk, good or bad as we like."""

    def __init__(self, box: Box, library: Path) -> None:
        self.file = box.root / "switch"
        self.counts = box.root / "counts"
        self.env = {
            "LD_PRELOAD": str(library),
            "FAULTY_DATABASE": str(box.data / "gflow.db"),
            "FAULTY_SWITCH": str(self.file),
            "FAULTY_COUNTS": str(self.counts),
        }

    def bad(self, number: int, *, reads: bool = False) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(f"{number} reads" if reads else str(number))
        new.rename(self.file)

    def good(self) -> None:
        self.file.unlink()

    def operations(self) -> int:
        return sum(array.array("I", self.counts.read_bytes()))


@pytest.fixture
def switch(box: Box, faulty: Path) -> Switch:
    return Switch(box, faulty)


def health(box: Box) -> str:
    status, answer = box.api("GET", "/health")
    assert (status == 200) == (answer["status"] == "ok")
    return str(answer["status"])


def until_released(box: Box, name: str, code: int) -> list[str]:
    """A job that says that it runs, and ends with `code` when we let it."""
    here = f"{box.work}/{name}"
    return ["sh", "-c", f"touch {here}.runs; until test -e {here}.go; do sleep 0.05; done; exit {code}"]


def release(box: Box, name: str) -> None:
    (box.work / f"{name}.go").touch()


def runs(box: Box, name: str) -> bool:
    return (box.work / f"{name}.runs").exists()


def ask_for_job(box: Box, token: str) -> tuple[int, Any]:
    body = {"token": token, "jobs": [box.job_request(["true"])]}
    return box.api("POST", "/jobs", body)


# ---------------------------------------------------------------- the path there and back


def fill(box: Box) -> tuple[int, int]:
    """A job that has the GPU and one that waits for it."""
    first = box.submit("--gpus", "1", *until_released(box, "first", 7))
    second = box.submit("--gpus", "1", *until_released(box, "second", 9))
    wait_until(lambda: runs(box, "first"), what="the first job to run")
    return first, second


def check_refusals(box: Box, first: int) -> None:
    """Changes are refused in a sentence; looking is allowed."""
    status, answer = ask_for_job(box, "while-the-disk-fails")
    assert status == 503 and answer["code"] == "read_only", answer
    assert health(box) == "read_only"
    done = box.run("gbatch", "true")
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.strip().splitlines()
    assert "cannot be written" in lines[0] and len(lines) <= 2, done.stderr
    done = box.run("gcancel", str(first))
    assert done.returncode == 1 and "cannot be written" in done.stderr, done.stderr
    assert box.job(first)["state"] == "Running"
    assert str(first) in box.ok("gqueue")
    status, answer = box.api("GET", "/status")
    assert status == 200 and "cannot be written" in answer["read_only"]


def check_healed(box: Box, pid: int, first: int, second: int) -> None:
    """The end that could not be written is written now, and the next job starts."""
    wait_until(lambda: health(box) == "ok", what="the daemon to take changes again")
    over = box.finished(first)
    assert (over["state"], over["exit_code"]) == ("Failed", 7)
    wait_until(lambda: runs(box, "second"), what="the waiting job to start")
    release(box, "second")
    over = box.finished(second)
    assert (over["state"], over["exit_code"]) == ("Failed", 9)
    assert box.daemon is not None and box.daemon.poll() is None and box.daemon.pid == pid, "it was restarted"
    third = box.submit("true")
    assert third > second
    assert box.finished(third)["state"] == "Finished"


@pytest.mark.parametrize("error", ERRORS)
def test_a_job_that_ends_while_the_disk_fails(box: Box, switch: Switch, error: str) -> None:
    box.up(*FLAGS, env=switch.env)
    assert box.daemon is not None
    pid = box.daemon.pid
    first, second = fill(box)
    assert switch.operations() > 10, "the library does not see what the daemon writes"
    switch.bad(ERRORS[error])
    check_refusals(box, first)
    release(box, "first")
    wait_until(lambda: "cannot be written" in box.log(), what="the daemon to notice")
    ended = box.data / "run" / f"{first}.1"
    wait_until(lambda: "end " in ended.read_text(), what="the job's end")
    assert box.job(first)["state"] == "Running", "what is not durable is not told"
    assert not runs(box, "second")
    switch.good()
    check_healed(box, pid, first, second)


def test_a_disk_that_cannot_even_be_read(box: Box, switch: Switch) -> None:
    """Memory cannot be rebuilt from the disk until the disk can be read; then it is."""
    box.up(*FLAGS, env=switch.env)
    assert box.daemon is not None
    first, second = fill(box)
    box.submit("--hold", "true")
    before = set(box.jobs())
    # A commit of another process: the daemon must read its pages again.
    with closing(sqlite3.connect(box.data / "gflow.db", isolation_level=None)) as db:
        db.execute("INSERT OR REPLACE INTO meta VALUES ('touched', 1)")
    switch.bad(errno.EIO, reads=True)
    status, _ = ask_for_job(box, "while-the-disk-fails")
    assert status >= 500
    done = box.run("gbatch", "true")
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) <= 2, done.stderr
    release(box, "first")
    wait_until(lambda: "cannot be written" in box.log(), what="the daemon to notice")
    assert health(box) == "read_only"
    assert "Traceback" not in box.log(), box.log()
    switch.good()
    check_healed(box, box.daemon.pid, first, second)
    assert set(box.jobs()) - before == {max(before) + 1}, "a refused job is there"


def test_kill_while_the_disk_fails_loses_nothing(box: Box, switch: Switch) -> None:
    box.up(*FLAGS, env=switch.env)
    first, second = fill(box)
    switch.bad(errno.ENOSPC)
    assert ask_for_job(box, "while-the-disk-fails")[0] == 503
    release(box, "first")
    ended = box.data / "run" / f"{first}.1"
    wait_until(lambda: "end " in ended.read_text(), what="the job's end")
    box.kill9()
    switch.good()
    box.up(env=switch.env)
    over = box.finished(first)
    assert (over["state"], over["exit_code"]) == ("Failed", 7)
    wait_until(lambda: runs(box, "second"))
    release(box, "second")
    assert box.finished(second)["exit_code"] == 9


def test_a_limit_that_is_reached_while_the_disk_fails(box: Box, switch: Switch) -> None:
    box.up(*FLAGS, env=switch.env)
    job = box.submit("--time", "0:01", "sleep", "60")
    wait_until(lambda: box.job(job)["state"] == "Running")
    switch.bad(errno.ENOSPC)
    assert ask_for_job(box, "while-the-disk-fails")[0] == 503
    time.sleep(1.2)  # the limit passes
    assert box.job(job)["state"] == "Running"
    switch.good()
    assert box.finished(job)["state"] == "Timeout"


def test_a_disk_that_fails_now_and_then_loses_nothing(box: Box, switch: Switch) -> None:
    """Clients that are refused come again with their token: every job once, none lost."""
    box.up(*FLAGS, env=switch.env)
    answered: dict[str, int] = {}
    for i in range(30):
        if i % 10 == 5:
            switch.bad(errno.ENOSPC)
        token = f"client-token-{i}"
        refusals = 0
        while token not in answered:
            status, answer = ask_for_job(box, token)
            if status == 201:
                answered[token] = answer["jobs"][0]["id"]
                continue
            assert status == 503
            refusals += 1
            if switch.file.exists():
                switch.good()
            wait_until(lambda: health(box) == "ok")
    assert len(set(answered.values())) == 30
    assert set(box.jobs()) == set(answered.values()), "a job that was not acknowledged"
    for number in answered.values():
        assert box.finished(number)["state"] == "Finished"


def test_a_start_whose_environment_is_damaged_fails_alone(box: Box) -> None:
    """One job's text cannot be read: that job fails in a sentence, the others go on."""
    box.up(*FLAGS)
    _, second = fill(box)
    third = box.submit("--gpus", "1", "--priority", "5", "true")
    with closing(sqlite3.connect(box.data / "gflow.db", isolation_level=None)) as db:
        (spec,) = db.execute("SELECT spec FROM jobs WHERE key = ? << 20", (second,)).fetchone()
        # A text of its own, which then goes bad.
        db.execute("INSERT INTO blobs VALUES ('0000', 'bad')")
        changed = json.loads(spec) | {"environ": "0000"}
        db.execute("UPDATE jobs SET spec = ? WHERE key = ? << 20", (json.dumps(changed), second))
    box.kill9()
    box.up()
    release(box, "first")
    over = box.finished(second)
    assert over["state"] == "Failed" and over["reason"].startswith("StartFailed: the stored text"), over
    assert box.finished(third)["state"] == "Finished"


# ---------------------------------------------------------------- a real full disk


@pytest.fixture
def small_disk(box: Box) -> Iterator[Path]:
    """The data folder on a file system of two megabytes."""
    if os.getuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can mount a small disk")
    box.data.mkdir(parents=True)
    words = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "gflow-test", str(box.data)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    yield box.data
    box.clean_up()
    subprocess.run(["umount", "-l", str(box.data)], check=True)


def fill_up(disk: Path) -> Path:
    """Use what is left of the disk, to the last page."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    return filler


def test_a_full_disk_and_room_again(box: Box, small_disk: Path) -> None:
    box.up(*FLAGS)
    assert box.daemon is not None
    pid = box.daemon.pid
    first, second = fill(box)
    filler = fill_up(small_disk)
    acknowledged = [first, second]
    # The log beside the database may have room for some more.
    for number in range(200):
        status, answer = ask_for_job(box, f"until-it-is-full-{number}")
        if status == 503:
            break
        acknowledged.append(answer["jobs"][0]["id"])
    else:
        raise AssertionError("the disk is never full")
    assert health(box) == "read_only"
    done = box.run("gbatch", "true")
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) <= 2, done.stderr
    release(box, "first")
    wait_until(lambda: (box.work / "first.go").exists())
    filler.unlink()
    wait_until(lambda: health(box) == "ok", what="the daemon to take changes again")
    over = box.finished(first)
    assert (over["state"], over["exit_code"]) == ("Failed", 7)
    wait_until(lambda: runs(box, "second"), what="the waiting job to start")
    release(box, "second")
    assert box.finished(second)["exit_code"] == 9
    assert box.daemon.poll() is None and box.daemon.pid == pid
    assert set(acknowledged) <= set(box.jobs()), "acknowledged and lost"
    box.down()
    with closing(sqlite3.connect(small_disk / "gflow.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_daemon_that_starts_on_a_full_disk_says_so(box: Box, small_disk: Path) -> None:
    box.up(*FLAGS)
    job = box.submit("--hold", "true")
    box.down()
    fill_up(small_disk)
    done = box.run("gflowd", "run")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) <= 2, done.stderr
    (small_disk / "filler").unlink()
    box.up()
    assert box.job(job)["state"] == "Hold"
