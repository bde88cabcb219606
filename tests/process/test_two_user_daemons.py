"""Two users, two daemons, the same GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Box, wait_until
from tests.user_accounts import box_of, people, shared_folder

FLAGS = ("--simulate-gpus", "2x80G", "--cpus", "8")
# A folder can be made once: a job that cannot make it shares the GPU with another job.
VISIT = """
for gpu in ${{CUDA_VISIBLE_DEVICES//,/ }}; do
  mkdir {place}/gpu-$gpu || {{ echo "$GFLOW_RUN on $gpu" >> {place}/overlaps-$(id -u); exit 9; }}
done
sleep {rest}
for gpu in ${{CUDA_VISIBLE_DEVICES//,/ }}; do
  rmdir {place}/gpu-$gpu
  echo $gpu >> {place}/visits-$(id -u)
done
"""


class Pair:
    """Ann's box, Bob's box, and a place where both may write."""

    def __init__(self, root: Path, boxes: list[Box]) -> None:
        self.ann, self.bob = self.boxes = boxes
        self.place = root / "place"
        self.place.mkdir()
        self.place.chmod(0o777)
        self.leases = root / "leases"
        self.leases.mkdir()
        self.leases.chmod(0o1777)

    def up(self, *flags: str) -> None:
        for box in self.boxes:
            box.up(*(flags or FLAGS), env={"GFLOW_LEASE_DIR": str(self.leases)})

    def visit(self, rest: float) -> str:
        return VISIT.format(place=self.place, rest=rest)

    def told(self, what: str) -> list[str]:
        """What the jobs of both wrote down: visits, or overlaps."""
        return [line for path in self.place.glob(f"{what}-*") for line in path.read_text().splitlines()]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with people("ann", "bob") as persons, shared_folder() as root:
        boxes = [box_of(person, root) for person in persons]
        try:
            yield Pair(root, boxes)
        finally:
            for box in boxes:
                box.clean_up()


def test_two_users_never_meet_on_a_gpu(pair: Pair) -> None:
    pair.up()
    jobs = []
    for number in range(20):
        for box in pair.boxes:
            gpus = "2" if number % 4 == 0 else "1"
            jobs.append((box, box.submit("--gpus", gpus, pair.visit(0.02 * (number % 3)))))
    for box, job in jobs:
        final = box.finished(job, 90)
        assert final["state"] == "Finished", (final, box.text_of(job), pair.told("overlaps"))
    assert pair.told("overlaps") == []
    assert len(pair.told("visits")) == 2 * (15 + 5 * 2)


def test_gpu_of_another_user_shows_the_user_name(pair: Pair) -> None:
    pair.up()
    first = pair.ann.submit("--gpus", "2", "sleep", "60")
    run = pair.ann.data / f"run/{first}.1"
    wait_until(lambda: run.exists() and b"\njob " in run.read_bytes())
    waiting = pair.bob.submit("--gpus", "1", "true")
    name = pair.ann.person.pw_name
    wait_until(lambda: f"gflow of {name}" in pair.bob.ok("ginfo"), what=f"{name} in Bob's ginfo")
    assert pair.bob.job(waiting)["state"] == "Queued"
    pair.ann.ok("gcancel", "--now", str(first))
    assert pair.bob.finished(waiting)["state"] == "Finished"


def test_a_killed_shim_gives_no_gpu_on_while_its_job_lives(pair: Pair) -> None:
    """Ann's daemon and shim are both killed: no process is left to clean up, and her job still runs."""
    pair.up("--simulate-gpus", "1x80G", "--cpus", "8")
    first = pair.ann.submit("--gpus", "1", "sleep", "600")
    path = pair.ann.data / f"run/{first}.1"
    wait_until(lambda: path.exists() and len(path.read_text().split()) > 8, what="the run's record")
    record = path.read_text().split()
    shim, job = int(record[3]), int(record[8])
    pair.ann.kill9()
    os.kill(shim, 9)
    wait_until(lambda: not os.path.exists(f"/proc/{shim}"))
    waiting = pair.bob.submit("--gpus", "1", pair.visit(0))
    wait_until(lambda: "Unmanaged" in pair.bob.ok("ginfo"))
    os.kill(job, 0)
    assert pair.bob.job(waiting)["state"] == "Queued"
    pair.ann.up(env={"GFLOW_LEASE_DIR": str(pair.leases)})
    assert pair.ann.finished(first)["reason"] == "Lost"
    assert pair.bob.finished(waiting)["state"] == "Finished"
    assert pair.told("overlaps") == []


def test_a_lease_that_cannot_be_had_says_so(pair: Pair) -> None:
    pair.up()
    pair.ann.finished(pair.ann.submit("--gpus", "1", "true"))
    for lease in pair.leases.iterdir():
        os.chown(lease, pair.bob.person.pw_uid, 0)
        lease.chmod(0o600)
    final = pair.ann.finished(pair.ann.submit("--gpus", "1", "true"))
    assert final["reason"].startswith("StartFailed: its GPU cannot be leased: Permission denied: ")
