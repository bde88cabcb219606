"""Power cuts on a real ext4: what the disk had is what the next daemon gets, and no attempt runs twice.

The daemon's folders are on ext4 in an image. A frozen cgroup stops daemon, shims and jobs in one
instant, and a copy of the image is the disk at that instant: what the file system had not written
is not in it. The copy is repaired, mounted in place of the first, and a daemon starts on it, in
another boot (`power`) or in the same one (`abort`, as after a file system error and a repair).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gflow.job_states import FINAL_NAMES
from tests.harness import Box, wait_until

FREEZER = Path("/sys/fs/cgroup/freezer")
# By hand, `GFLOW_POWER_CUTS=200` covers every operation of a start and an end many times.
CUTS = int(os.environ.get("GFLOW_POWER_CUTS", "12"))
IMAGE_MIB = 48
BOOT_ID = "/proc/sys/kernel/random/boot_id"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.getuid() != 0 or not FREEZER.is_dir() or shutil.which("mkfs.ext4") is None,
        reason="needs root, the freezer cgroup and ext4",
    ),
]


class Disk:
    """An ext4 image that is mounted at `place`."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "disk"
        self.place.mkdir()
        self._image = folder / "image"
        subprocess.run(["truncate", "-s", f"{IMAGE_MIB}M", self._image], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", self._image], check=True)
        self._mount()

    def cut(self) -> Path:
        """A copy of what the disk holds at this moment."""
        copy = self._image.with_name("cut")
        shutil.copyfile(self._image, copy)
        return copy

    def replace(self, copy: Path) -> None:
        """Go on with this copy, after the repair that a boot does."""
        self.unmount()
        copy.rename(self._image)
        repaired = subprocess.run(["e2fsck", "-p", self._image], capture_output=True, text=True)
        assert repaired.returncode in (0, 1), repaired.stdout + repaired.stderr
        self._mount()

    def _mount(self) -> None:
        # A long commit interval: what is not synced stays in memory, and a power cut loses it.
        subprocess.run(["mount", "-o", "loop,commit=300", self._image, self.place], check=True)

    def unmount(self) -> None:
        wait_until(
            lambda: subprocess.run(["umount", self.place], capture_output=True).returncode == 0,
            what="the disk to be unmounted",
        )


class Freezer:
    """A cgroup that stops all processes in it at once."""

    def __init__(self) -> None:
        self.folder = FREEZER / f"gflow-power-{os.getpid()}"
        self.folder.mkdir(exist_ok=True)

    def join(self) -> None:
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def freeze(self) -> None:
        (self.folder / "freezer.state").write_text("FROZEN")
        wait_until(lambda: (self.folder / "freezer.state").read_text().strip() == "FROZEN")

    def kill(self) -> None:
        """End all of them without another instruction of theirs."""
        for pid in (self.folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        (self.folder / "freezer.state").write_text("THAWED")
        wait_until(lambda: not (self.folder / "cgroup.procs").read_text().split(), what="their end")

    def remove(self) -> None:
        wait_until(lambda: suppressed(self.folder.rmdir), what="the cgroup to be removed")


def suppressed(act: object) -> bool:
    try:
        act()  # type: ignore[operator]
    except OSError:
        return False
    return True


class Machine:
    """A box on a disk that can lose its power."""

    def __init__(self, folder: Path, how: str) -> None:
        self.disk, self.freezer, self.how = Disk(folder), Freezer(), how
        self.witness = folder / "starts"
        self._boot = folder / "boot_id"
        self.box = Box(self.disk.place)
        self.box.preexec = self.freezer.join
        self.boots = 0

    def up(self) -> None:
        if self.how == "power" and self.boots:
            self._boot.write_text(f"00000000-0000-4000-8000-{self.boots:012d}\n")
            script = f'mount --bind {self._boot} {BOOT_ID} && exec "$@"'
            self.box.prefix = ["unshare", "--mount", "sh", "-c", script, "sh"]
        self.box.up("--simulate-gpus", "2x80G", "--cpus", "4")

    def submit(self, token: str, code: int, *, requeue: bool) -> int | None:
        """The id of an acknowledged job; None if the power went first."""
        line = f"echo {token} $GFLOW_JOB_ID.$GFLOW_ATTEMPT >> {self.witness}; exit {code}"
        job = self.box.job_request(["sh", "-c", line], gpus=1, requeue=requeue)
        job["cwd"] = "/"
        try:
            status, answer = self.box.api("POST", "/jobs", {"token": token, "jobs": [job]})
        except OSError:
            return None
        assert status == 201, answer
        return int(answer["jobs"][0]["id"])

    def lose_power(self) -> None:
        self.freezer.freeze()
        copy = self.disk.cut()
        self.freezer.kill()
        assert self.box.daemon is not None
        self.box.daemon.wait()
        self.disk.replace(copy)
        self.boots += 1

    def close(self) -> None:
        with suppress(OSError):
            self.freezer.freeze()
            self.freezer.kill()
        if self.box.daemon is not None:
            self.box.daemon.wait()
        self.freezer.remove()
        self.disk.unmount()
        self.box.clean_up()


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    made = Machine(tmp_path, request.param)
    yield made
    made.close()


@pytest.mark.parametrize("machine", ["power", "abort"], indirect=True)
def test_power_cut_at_any_moment_runs_no_attempt_twice(machine: Machine) -> None:
    """Cut between submission and end; judged by what the jobs themselves wrote."""
    dice = random.Random(CUTS)
    acknowledged: dict[int, tuple[str, int]] = {}
    machine.up()
    for cut in range(CUTS):
        for number in range(3):
            token, code = f"power-{cut}-{number}", dice.randrange(1, 75)
            if (job := machine.submit(token, code, requeue=number == 2)) is not None:
                acknowledged[job] = (token, code)
        time.sleep(dice.uniform(0, 0.02))  # the moment itself is what is random
        machine.lose_power()
        machine.up()
        wait_until(
            lambda: all(job["state"] in FINAL_NAMES for job in machine.box.jobs().values()),
            60,
            "the queue to empty",
        )
        judge(machine, acknowledged)
    reasons = Counter(job["reason"].partition(":")[0] for job in machine.box.jobs().values())
    print(f"{CUTS} cuts, {len(acknowledged)} acknowledged jobs, ends: {dict(reasons)}")


def judge(machine: Machine, acknowledged: dict[int, tuple[str, int]]) -> None:
    jobs = machine.box.jobs()
    started = Counter(machine.witness.read_text().split("\n")[:-1] if machine.witness.exists() else ())
    assert set(started.values()) <= {1}, [line for line, times in started.items() if times > 1]
    for number, (token, code) in acknowledged.items():
        assert number in jobs, f"job {number} was acknowledged and is gone"
        job = jobs[number]
        assert token in job["command"][2]
        if job["state"] == "Failed" and job["reason"] in ("Lost", "Reboot"):
            continue
        assert job["exit_code"] == code, job
        assert any(line.startswith(f"{token} ") for line in started), f"job {number} never ran"
