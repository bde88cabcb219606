"""Run records with false content: adopting them signals no process of another job or user.

The target alone, without a daemon: a record is forged, adopted, and what is reported is looked at.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gflow.core.ids import JobKey
from gflow.targets.local import run_record
from gflow.targets.local.orphans import TAG
from gflow.targets.local.run_record import Identity
from gflow.targets.local.target import LocalTarget
from gflow.targets.outcome import ShimEnd
from gflow.targets.port import End, Ended, Run
from tests.harness import wait_until

RUN = Run(JobKey(7 << 20), 1)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of ours, in a session of its own."""
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """What an ordinary daemon is: a process whose session has lost its leader. Its pid, and the leader's."""
    line = f"echo $$ > {tmp_path}/leader; sleep 60 & echo $! > {tmp_path}/orphan"
    subprocess.run(["setsid", "--wait", "sh", "-c", line], check=True)
    leader, pid = (int((tmp_path / name).read_text()) for name in ("leader", "orphan"))
    yield pid, leader
    os.kill(pid, signal.SIGKILL)


class Forge:
    """A target, and a record for it."""

    def __init__(self, folder: Path) -> None:
        self.ends: list[End] = []
        self.target = LocalTarget(folder, self._ended)
        folder.mkdir()
        self.path = Path(self.target.record_path(RUN))

    def _ended(self, ended: Ended) -> None:
        assert ended.run == RUN
        self.ends.append(ended.end)

    def write(self, shim: Identity, job: Identity | None = None, end: ShimEnd | None = None) -> int:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        run_record.write_identity(fd, "shim", shim)
        if job:
            run_record.write_identity(fd, "job", job)
        if end:
            run_record.write_end(fd, end)
        return fd

    def adopt(self, before_end: Callable[[], None] = lambda: None) -> list[str]:
        """Adopt the record and wait for the report: its problems."""

        async def adopt() -> None:
            assert self.target.adopt(RUN)
            await asyncio.sleep(0.1)
            before_end()
            while not self.ends:
                await asyncio.sleep(0.01)

        asyncio.run(asyncio.wait_for(adopt(), 20))
        return [str(end.problem) for end in self.ends]


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return Forge(tmp_path / "run")


def me() -> Identity:
    identity = run_record.identity_of(os.getpid())
    assert identity is not None
    return identity


def gone() -> Identity:
    """A process of this boot that has ended."""
    process = subprocess.Popen(["sleep", "60"])
    identity = run_record.identity_of(process.pid)
    process.kill()
    process.wait()
    assert identity is not None
    return identity


CHANGES = {
    "another start time": ({"started": 1}, "Lost"),
    "another pid namespace": ({"namespace": 1}, "Lost"),
    "another boot": ({"boot": "another"}, "Reboot"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_stranger_with_the_jobs_pid_is_left_alone(
    forge: Forge, stranger: subprocess.Popen[bytes], change: str
) -> None:
    different, reason = CHANGES[change]
    job = run_record.identity_of(stranger.pid)
    assert job is not None
    shim = gone()._replace(**{name: value for name, value in different.items() if name != "started"})
    os.close(forge.write(shim, job._replace(**different)))
    assert forge.adopt() == [reason]
    assert stranger.poll() is None


@pytest.mark.parametrize("change", [*CHANGES, "nothing else"])
def test_a_stranger_in_a_session_with_the_jobs_pid_is_left_alone(
    forge: Forge, orphan: tuple[int, int], change: str
) -> None:
    """The number of a job that ended long ago may be that of a session by now."""
    pid, leader = orphan
    different, reason = CHANGES.get(change, ({}, "Lost"))
    shim = gone()._replace(**{name: value for name, value in different.items() if name != "started"})
    os.close(forge.write(shim, me()._replace(pid=leader, started=1)._replace(**different)))
    assert forge.adopt() == [reason]
    assert Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S"


def test_job_process_of_lost_shim_is_ended(forge: Forge, stranger: subprocess.Popen[bytes]) -> None:
    os.close(forge.write(gone(), run_record.identity_of(stranger.pid)))
    assert forge.adopt() == ["Lost"]
    assert stranger.wait(10) == -9


def test_process_with_the_tag_is_ended(forge: Forge) -> None:
    process = subprocess.Popen(["sleep", "60"], env={TAG: str(forge.path)}, start_new_session=True)
    os.close(forge.write(gone(), gone()))
    assert forge.adopt() == ["Lost"]
    assert process.wait(10) == -9


def test_recorded_end_counts_on_any_boot(forge: Forge) -> None:
    end = ShimEnd(3, None, "", 10, 20)
    os.close(forge.write(gone()._replace(boot="another"), gone(), end))
    assert forge.adopt() == [""]
    assert [end._replace(ago_s=0.0) for end in forge.ends] == [End(3, cpu_ms=10, peak_kib=20)]


@pytest.mark.parametrize("what", ["another start time", "another pid namespace", "a thread", "no process"])
def test_a_living_shim_that_cannot_be_reached_is_waited_for(
    forge: Forge, stranger: subprocess.Popen[bytes], what: str
) -> None:
    """Its lock says that it lives. Its pid means nothing here: no signal goes there."""
    shim = run_record.identity_of(stranger.pid)
    assert shim is not None
    release = threading.Event()
    if what == "a thread":
        thread = threading.Thread(target=release.wait, daemon=True)
        thread.start()
        assert thread.native_id is not None
        shim = shim._replace(pid=thread.native_id, namespace=1)
    elif what == "no process":
        shim = gone()
    else:
        shim = shim._replace(**CHANGES[what][0])
    fd = forge.write(shim)
    fcntl.flock(fd, fcntl.LOCK_EX)

    def stop_then_end() -> None:
        assert not forge.ends, "it lives: its lock is held"
        forge.target.stop(RUN, now=True)
        forge.target.signal(RUN, signal.SIGUSR1)
        run_record.write_end(fd, ShimEnd(5, None, "", 0, 0))
        os.close(fd)

    assert forge.adopt(stop_then_end) == [""]
    release.set()
    assert [end.code for end in forge.ends] == [5]
    assert stranger.poll() is None


def test_late_stop_signals_no_other_process(forge: Forge) -> None:
    """The shim ends between being found and being told."""
    process = subprocess.Popen(["sleep", "60"])
    shim = run_record.identity_of(process.pid)
    assert shim is not None
    fd = forge.write(shim)
    fcntl.flock(fd, fcntl.LOCK_EX)

    def end() -> None:
        process.kill()
        process.wait()
        forge.target.stop(RUN, now=False)
        run_record.write_end(fd, ShimEnd(0, None, "", 0, 0))
        os.close(fd)

    assert forge.adopt(end) == [""]
    wait_until(lambda: forge.ends)
