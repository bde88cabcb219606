"""A cluster over SSH whose disk is full, in bytes or in inodes, at any time of a job's life."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness import Box, wait_until
from tests.slurm.cluster import Cluster, lacks
from tests.slurm.conftest import at_a_distance
from tests.sshd import LoginNode, login_node

pytestmark = pytest.mark.slow
JOBS = 6


class Disk:
    """A small file system with the home of the login node's user. It can be full."""

    def __init__(self, folder: Path) -> None:
        self._fill = folder / "fill"

    def fill_bytes(self) -> None:
        with suppress(OSError), self._fill.open("wb", buffering=0) as file:
            while file.write(b"x" * 512):
                pass

    def fill_inodes(self) -> None:
        self._fill.mkdir()
        with suppress(OSError):
            for number in range(100_000):
                (self._fill / str(number)).touch()

    def empty(self) -> None:
        shutil.rmtree(self._fill) if self._fill.is_dir() else self._fill.unlink()


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[Cluster, LoginNode, Disk]]:
    """A cluster whose nodes see the small file system: it is mounted before they start."""
    if missing := lacks():
        pytest.skip(f"no Slurm here: {missing} missing; scripts/slurm-packages installs it")
    with tempfile.TemporaryDirectory(prefix="slurm-") as root, tempfile.TemporaryDirectory() as small:
        words = ["mount", "-t", "tmpfs", "-o", "size=2m,nr_inodes=300,mode=755", "none", small]
        if subprocess.run(words, capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")
        cluster = Cluster(Path(root), nodes=2)
        try:
            os.chmod(root, 0o755)
            cluster.start()
            with login_node({"SLURM_CONF": str(cluster.conf)}, homes=Path(small)) as login:
                yield cluster, login, Disk(Path(small))
        finally:
            cluster.stop()
            subprocess.run(["umount", "--lazy", small], check=True)


@pytest.fixture
def far(site: tuple[Cluster, LoginNode, Disk], box: Box, tmp_path: Path) -> Box:
    cluster, login, _ = site
    return at_a_distance(login, cluster, box, settings="poll_secs = 1\npoll_most_secs = 3\n")


def submit(box: Box, ran: Path, line: str) -> int:
    """Submit a script. Each run of it leaves a line outside the small file system."""
    script = box.work / "job.sh"
    script.write_text(f"#!/bin/bash\necho x >> {ran}/$GFLOW_JOB_ID\n{line}\n")
    return box.submit("--on", "far", "--time", "10", str(script))


@pytest.fixture
def ran() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gflow-ran-") as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


def check_each_ran_once(box: Box, ran: Path, codes: dict[int, int]) -> None:
    for number, code in codes.items():
        job = box.finished(number, 120)
        assert job["exit_code"] == code, job["reason"]
    assert {int(path.name): path.read_text() for path in ran.iterdir()} == dict.fromkeys(codes, "x\n")


@pytest.mark.parametrize("fill", [Disk.fill_bytes, Disk.fill_inodes])
def test_jobs_that_find_a_full_disk_wait_for_room(
    site: tuple[Cluster, LoginNode, Disk], far: Box, ran: Path, fill: Callable[[Disk], None]
) -> None:
    disk = site[2]
    assert far.finished(submit(far, ran, "true"))["exit_code"] == 0
    for path in ran.iterdir():
        path.unlink()
    fill(disk)
    try:
        codes = {submit(far, ran, f"exit {code}"): code for code in range(JOBS)}
        last = max(codes)
        wait_until(lambda: "No space left" in (far.job(last)["reason"] or ""), 60, "the reason")
        assert "No space left" in far.ok("gjob", "why", str(last))
        cancelled = submit(far, ran, "true")
        far.ok("gcancel", str(cancelled))
    finally:
        disk.empty()
    check_each_ran_once(far, ran, codes)
    assert far.finished(cancelled, 60)["state"] == "Cancelled"


@pytest.mark.parametrize("fill", [Disk.fill_bytes, Disk.fill_inodes])
def test_disk_that_becomes_full_while_jobs_run_changes_no_exit_code(
    site: tuple[Cluster, LoginNode, Disk], far: Box, ran: Path, fill: Callable[[Disk], None]
) -> None:
    disk = site[2]
    go = ran.parent / f"{ran.name}-go"
    codes = {
        submit(far, ran, f"while [ ! -e {go} ]; do sleep 0.2; done; echo output; exit {code}"): code
        for code in range(JOBS)
    }
    for number in codes:
        wait_until(lambda n=number: far.job(n)["state"] == "Running", 60, f"the start: {far.job(number)}")
    fill(disk)
    try:
        go.touch()
        wait_until(lambda: not site[0].call("squeue", "-h", "-t", "R"), 60, "the ends in Slurm")
        check_each_ran_once(far, ran, codes)
    finally:
        go.unlink()
        disk.empty()
    # Nothing is left over that would need attention.
    assert far.finished(submit(far, ran, "true"))["exit_code"] == 0
