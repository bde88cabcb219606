"""One request of one person neither keeps the daemon busy nor fills its memory: others want something too.

And what the daemon itself runs out of is no job's failure.
"""

from __future__ import annotations

import fcntl
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Box, UnixConnection, wait_until
from tests.system import System, acting_as, system


@pytest.fixture(scope="module")
def machine() -> Iterator[System]:
    with system() as made:
        made.up()
        assert made.ask(made.bob, "POST", "/jobs", jobs(hold=True, array="0-99999"))[0] == 201
        yield made


def jobs(*more: dict[str, Any], command: tuple[str, ...] = ("true",), **options: Any) -> dict[str, Any]:
    one = {"command": list(command), "cwd": "/", "options": options}
    return {"token": os.urandom(8).hex(), "jobs": [{**one, **each} for each in more or ({},)]}


# What is asked, and a word of the refusal.
ENDLESS: dict[str, tuple[str, str, Any, str]] = {
    "a range again and again": ("GET", "/jobs/" + "1-1," * 14_000, None, "10,000 jobs"),
    "a text that fits in many ways": ("GET", "/jobs/" + "a" * 60_000 + "]", None, "does not name jobs"),
    "tasks again and again": ("GET", "/jobs?jobs=" + "1_[0-9999]," * 5_000, None, "10,000 jobs"),
    "ranges in a body": ("POST", "/jobs/cancel", {"jobs": ["1-1"] * 100_000, "dry_run": True}, "10,000 jobs"),
    "names": ("POST", "/jobs/cancel", {"names": [f"*{n}*a" for n in range(50_000)], "dry_run": True}, "100"),
    "a long name": ("POST", "/jobs/cancel", {"names": ["*a" * 10_000], "dry_run": True}, "length"),
    "people": ("POST", "/jobs/cancel", {"users": [str(n) for n in range(90_000)], "dry_run": True}, "100"),
    "bytes": ("POST", "/jobs/cancel", {"names": ["x" * (5 << 20)], "dry_run": True}, "4 MiB"),
    "parents": ("POST", "/jobs?dry-run", jobs(**{"depends-on": ["1"] * 100_000}), "10,000 jobs"),
    "addresses": (
        "POST",
        "/jobs?dry-run",
        jobs(**{"notify-email": [f"a{n}@b.c" for n in range(9999)]}),
        "20 addresses",
    ),
    "sweeps": ("POST", "/jobs?dry-run", jobs(*[{}] * 20, param={"a": list(range(10_000))}), "100,000 jobs"),
    "parameters that grow": (
        "POST",
        "/jobs?dry-run",
        jobs(*[{"rows": [{"a": "x" * 10_000}]}] * 1000, command=("true", "{a}" * 100)),
        "256 MiB",
    ),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_request_of_unbounded_time_is_refused(machine: System, what: str) -> None:
    *asked, word = ENDLESS[what]
    status, answer = machine.ask(machine.bob, *asked)
    assert status in (400, 413), (status, str(answer)[:200])
    assert word in answer["title"]
    assert machine.ask(machine.ann, "GET", "/health")[0] == 200


def _many(value: str, count: int) -> str:
    return "[" + ",".join([value] * count) + "]"


def _submission(jobs: str) -> str:
    return f'{{"token":"huge-request","jobs":{jobs}}}'


def _job(name: str, value: str) -> str:
    return _submission(f'[{{"cwd":"/","{name}":{value}}}]')


# Small enough as a request, and too much when it is decoded. Made when asked for: together they have 88 MB.
HUGE = {
    "a command": lambda: _job("command", _many('"a"', 2_500_000)),
    "rows": lambda: _job("rows", _many('{"a":"1"}', 2_000_000)),
    "jobs": lambda: _submission(_many("{}", 2_500_000)),
    "values": lambda: _job("command", _many('"a"', 4_000_000)),
    "bytes": lambda: _job("script", '"' + "x" * (33 << 20) + '"'),
}


@pytest.mark.parametrize("what", HUGE)
def test_request_with_huge_lists_costs_little_memory(machine: System, what: str) -> None:
    assert machine.box.daemon is not None
    status_file = f"/proc/{machine.box.daemon.pid}/status"

    def peak_mib() -> int:
        with open(status_file) as file:
            return next(int(line.split()[1]) >> 10 for line in file if line.startswith("VmHWM"))

    before = peak_mib()
    connection = UnixConnection(machine.box.socket)
    with acting_as(machine.bob.person):
        try:
            connection.request("POST", "/jobs?dry-run", HUGE[what]())
            status = connection.getresponse().status
        except (BrokenPipeError, ConnectionResetError):  # refused while we were still sending
            status = 413
    connection.close()
    assert status in (400, 413)
    assert peak_mib() - before < 200
    assert machine.ask(machine.ann, "GET", "/health")[0] == 200


# ---------------------------------------------------------------- what the daemon runs out of


def submitted(box: Box, count: int, command: str) -> list[int]:
    """Jobs that ask for nothing, submitted together."""
    requests = [box.job_request(["bash", "-c", command], cpus=0) for _ in range(count)]
    status, answer = box.api("POST", "/jobs", {"token": os.urandom(8).hex(), "jobs": requests})
    assert status == 201, answer
    return [job["id"] for job in answer["jobs"]]


def test_no_more_jobs_start_than_the_daemon_has_descriptors_for(box: Box) -> None:
    box.program = ["bash", "-c", 'ulimit -n 64; exec "$0" -m gflow gflowd run "$@"', sys.executable]
    box.up("--cpus", "2")
    jobs = submitted(box, 40, "until test -e go; do sleep 0.1; done")
    last = box.job(jobs[-1])
    assert last["state"] == "Queued"
    assert last["reason"].endswith("for more the daemon has no file descriptors"), last
    (box.work / "go").touch()
    assert {box.finished(job, 60)["state"] for job in jobs} == {"Finished"}
    assert {box.job(job)["attempt"] for job in jobs} == {1}


def test_start_without_a_descriptor_is_tried_again(box: Box) -> None:
    """Another program uses the descriptors that are meant for jobs."""
    box.program = ["bash", "-c", 'ulimit -n 64; exec "$0" -m gflow gflowd run "$@"', sys.executable]
    box.up("--cpus", "2")
    assert box.daemon is not None
    box.finished(box.submit("true"))
    soft = len(os.listdir(f"/proc/{box.daemon.pid}/fd")) + 4  # a connection, and reading the database
    resource.prlimit(box.daemon.pid, resource.RLIMIT_NOFILE, (soft, 64))
    jobs = submitted(box, 12, "sleep 0.5")
    resource.prlimit(box.daemon.pid, resource.RLIMIT_NOFILE, (64, 64))
    for job in jobs:
        final = box.finished(job, 60)
        assert (final["state"], final["retries"]) == ("Finished", 0), final
    again = next(job for job in jobs if box.job(job)["attempt"] > 1)
    assert "after attempt 1: Deferred: Too many open files" in box.ok("gjob", "history", str(again))


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Path]:
    """A control group that bounds processes. Needs root and the pids controller."""
    base = Path("/sys/fs/cgroup/pids") if Path("/sys/fs/cgroup/pids").is_dir() else Path("/sys/fs/cgroup")
    group = base / f"gflow-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "pids.max").write_text("30")
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"the number of processes cannot be bounded here: {error}")
    yield group
    wait_until(lambda: _removed(group))


def was_deferred(job: dict[str, Any]) -> bool:
    return job["attempt"] > 1 or "nothing can be started now" in (job["reason"] or "")


def _removed(group: Path) -> bool:
    """Remove the group with those that a killed daemon left in it."""
    for folder in [*sorted(group.glob("**/"), reverse=True), group]:
        with suppress(OSError):
            folder.rmdir()
    return not group.exists()


@pytest.mark.both_shims
def test_start_without_a_process_is_tried_again(box: Box, crowd: Path) -> None:
    """fork fails in the zygote and in shims: the jobs wait, none fails and none is lost."""
    box.preexec = lambda: crowd.joinpath("cgroup.procs").write_text(str(os.getpid())) and None
    try:
        box.up("--cpus", "2")
        with (box.work / "gate").open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)  # each job keeps its process until the gate is closed
            jobs = submitted(box, 30, "exec flock --no-fork --shared gate true")
            wait_until(lambda: any(was_deferred(box.job(job)) for job in jobs))
            crowd.joinpath("pids.max").write_text("max")
        for job in jobs:
            final = box.finished(job, 60)
            assert (final["state"], final["retries"]) == ("Finished", 0), final
    finally:
        box.clean_up()  # before the group that its processes are in
