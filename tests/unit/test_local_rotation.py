"""A log over its cap goes to `.1`, and the job writes on."""

import os
import tempfile
from pathlib import Path

import pytest

from gflow.targets.local.shim import log_rotation
from gflow.targets.local.shim.log_rotation import Logs

CAP = 1 << 20


@pytest.fixture(params=["in place", "emptied"])
def folder(request, tmp_path, monkeypatch):
    """Two ways to cut; the first where the file system can."""
    if request.param == "emptied":
        monkeypatch.setattr(log_rotation, "remove_beginning", lambda fd, size: False)
    elif not _can_collapse(tmp_path):
        pytest.skip("this file system cannot remove the beginning of a file")
    return tmp_path


def _can_collapse(folder):
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(1 << 16))
        file.flush()
        return log_rotation.remove_beginning(file.fileno(), 1 << 15)


@pytest.fixture
def log(folder):
    """A log as a job has it open."""
    with (folder / "log").open("ab", buffering=0) as file:
        yield file


def look_until_quiet(logs):
    for _ in range(1000):
        if pause := logs.look():
            return pause
    raise AssertionError("never quiet")


def lines(count):
    return b"".join(b"%09d\n" % number for number in range(count))


def whole(log):
    path = Path(log.name)
    return path.with_name("log.1").read_bytes() + path.read_bytes()


def test_under_its_cap_a_log_stays(log):
    log.write(b"x" * CAP)
    assert look_until_quiet(Logs({log.name}, CAP)) > 0
    assert os.listdir(os.path.dirname(log.name)) == ["log"]


def test_rotated_log_is_in_1_and_the_job_writes_on(log, monkeypatch):
    monkeypatch.setattr(log_rotation, "SLICE", 100_000)
    text = lines(200_000)
    log.write(text)
    logs = Logs({log.name}, CAP)
    assert look_until_quiet(logs) > 0
    log.write(b"end\n")
    assert whole(log) == text + b"end\n"
    assert os.stat(log.name).st_size < 10_000
    assert sorted(os.listdir(os.path.dirname(log.name))) == ["log", "log.1"]
    assert os.stat(log.name + ".1").st_mode & 0o077 == 0


def test_nothing_is_lost_of_what_is_written_while_it_is_copied(log, monkeypatch):
    monkeypatch.setattr(log_rotation, "SLICE", 100_000)
    text = lines(200_000)
    log.write(text)
    logs = Logs({log.name}, CAP)
    while not logs.look():
        log.write(b"meanwhile\n")
        text += b"meanwhile\n"
    assert whole(log) == text


def test_a_slice_at_a_time(log, monkeypatch):
    monkeypatch.setattr(log_rotation, "SLICE", 1 << 18)
    log.write(bytes(3 << 20))
    logs = Logs({log.name}, CAP)
    looks = 1
    while not logs.look():
        looks += 1
    assert 12 <= looks <= 16


def test_failed_rotation_keeps_log_and_backs_off(log, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    text = lines(200_000)
    log.write(text)
    logs = Logs({log.name}, CAP)
    monkeypatch.setattr(log_rotation.os, "sendfile", full)
    pauses = [look_until_quiet(logs) for _ in range(7)]
    assert pauses == sorted(pauses) and pauses[-1] == log_rotation.LOOK_MOST_S
    assert Path(log.name).read_bytes() == text
    assert os.listdir(os.path.dirname(log.name)) == ["log"]
    monkeypatch.undo()
    assert look_until_quiet(logs) > 0
    assert whole(log) == text


def test_an_abandoned_rotation_changes_nothing(log, monkeypatch):
    monkeypatch.setattr(log_rotation, "SLICE", 1000)
    text = lines(200_000)
    log.write(text)
    logs = Logs({log.name}, CAP)
    logs.look()
    logs.abandon()
    assert Path(log.name).read_bytes() == text
    assert os.listdir(os.path.dirname(log.name)) == ["log"]


def test_two_jobs_that_share_a_log_cut_it_once(log, monkeypatch):
    monkeypatch.setattr(log_rotation, "SLICE", 1 << 18)
    text = lines(200_000)
    log.write(text)
    one, other = Logs({log.name}, CAP), Logs({log.name}, CAP)
    assert one.look() == 0
    assert other.look() > 0
    look_until_quiet(one)
    look_until_quiet(other)
    assert whole(log) == text


def test_a_log_that_the_job_empties_is_let_be(log, monkeypatch):
    monkeypatch.setattr(log_rotation, "SLICE", 1 << 18)
    log.write(lines(200_000))
    logs = Logs({log.name}, CAP)
    logs.look()
    os.truncate(log.name, 0)
    log.write(b"again\n")
    assert look_until_quiet(logs) > 0
    assert Path(log.name).read_bytes() == b"again\n"


def test_a_log_that_does_not_grow_is_looked_at_more_rarely(log):
    logs = Logs({log.name}, 1 << 40)
    assert [logs.look() for _ in range(3)] == [4, 4, 4]
    log.write(b"more")
    log.flush()
    assert [logs.look() for _ in range(2)] == [2, 4]


@pytest.mark.parametrize("rate", [1 << 10, 1 << 20, 10 << 20, 100 << 20, 600 << 20, 1 << 30])
@pytest.mark.parametrize("cap", [64 << 20, 100 << 20, 1 << 30])
def test_writer_exceeds_log_cap_by_a_quarter_at_most(log, monkeypatch, cap, rate):
    """From the first moment on, and after any time at another rate."""
    now = [0.0]
    monkeypatch.setattr(log_rotation.time, "monotonic", lambda: now[0])
    logs, size, at_rate = Logs({log.name}, cap), 0.0, 1 << 10
    pause = logs.next_s
    for look in range(400):
        now[0] += pause
        size += pause * at_rate
        if size > cap:
            break
        os.truncate(log.name, int(size))
        pause = logs.look()
        at_rate = rate if look > 20 or look == 0 else 1 << 10
    assert size <= 1.25 * cap + 4096
