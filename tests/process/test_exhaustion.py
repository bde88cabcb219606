"""One request of one person neither keeps the daemon busy nor fills its memory: others want something too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import UnixConnection
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
def test_a_request_that_would_take_for_ever_is_refused(machine: System, what: str) -> None:
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


# Small enough as a request, and too much when it is decoded.
HUGE = {
    "a command": _job("command", _many('"a"', 2_500_000)),
    "rows": _job("rows", _many('{"a":"1"}', 2_000_000)),
    "jobs": _submission(_many("{}", 2_500_000)),
    "values": _job("command", _many('"a"', 4_000_000)),
    "bytes": _job("script", '"' + "x" * (33 << 20) + '"'),
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
        connection.connect()
    try:
        connection.request("POST", "/jobs?dry-run", HUGE[what])
        status = connection.getresponse().status
    except (BrokenPipeError, ConnectionResetError):  # refused while we were still sending
        status = 413
    connection.close()
    assert status in (400, 413)
    assert peak_mib() - before < 150
    assert machine.ask(machine.ann, "GET", "/health")[0] == 200
