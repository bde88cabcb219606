"""Floods of connections and requests do not delay other users."""

from __future__ import annotations

import http.client
import json
import os
import resource
import shutil
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.harness import Box, UnixConnection, free_port, wait_until
from tests.process.test_multi_user import submitted
from tests.process.test_port import Caller, made_token
from tests.system import acting_as, system

DESCRIPTORS = 256


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


def descriptors_of(box: Box) -> int:
    assert box.daemon is not None
    return len(os.listdir(f"/proc/{box.daemon.pid}/fd"))


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


@contextmanager
def flooded(port: int, count: int) -> Iterator[None]:
    """Silent connections to the port, each 20 of them from another address of this machine."""
    socks: list[socket.socket] = []
    try:
        for number in range(count):
            sock = socket.socket()
            sock.settimeout(5)
            socks.append(sock)
            sock.bind((f"127.77.0.{number // 20 + 1}", 0))
            sock.connect(("127.0.0.1", port))
        yield
    finally:
        for sock in socks:
            sock.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_port_flooded_by_strangers_leaves_descriptors_for_jobs(box: Box, tls: bool) -> None:
    port = free_port()
    env = {"GFLOW_DAEMON__PORT": str(port)}
    client = None
    if tls:
        cert, key = certificate(box.root)
        env |= {"GFLOW_DAEMON__TLS_CERT": str(cert), "GFLOW_DAEMON__TLS_KEY": str(key)}
        client = ssl.create_default_context(cafile=str(cert))
    box.preexec = _few_descriptors
    box.up("--simulate-gpus", "1x80G", env=env)
    token = made_token(box)
    with flooded(port, 2 * DESCRIPTORS):
        jobs = [box.submit("--memory", "64M", "true") for _ in range(2)]
        assert [box.finished(job)["state"] for job in jobs] == ["Finished"] * 2
        assert descriptors_of(box) < DESCRIPTORS // 2
        # Who shows a token at once is served in the midst of it.
        assert Caller(port, token, client).ask("GET", "/jobs")[0] == 200
    assert "Traceback" not in (box.root / "daemon.log").read_text()


def memory_of(box: Box) -> int:
    """Resident bytes of the daemon."""
    assert box.daemon is not None
    lines = Path(f"/proc/{box.daemon.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def test_strangers_with_tls_use_little_memory(box: Box) -> None:
    port, (cert, key) = free_port(), certificate(box.root)
    tls = {"GFLOW_DAEMON__TLS_CERT": str(cert), "GFLOW_DAEMON__TLS_KEY": str(key)}
    box.up("--simulate-gpus", "1x80G", env={"GFLOW_DAEMON__PORT": str(port), **tls})
    before = memory_of(box)
    with flooded(port, 400):
        wait_until(lambda: descriptors_of(box) > 100)
        assert memory_of(box) - before < 8 << 20
    client = ssl.create_default_context(cafile=str(cert))
    client.check_hostname = False
    for _ in range(400):
        with client.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=20)):
            pass
    assert memory_of(box) - before < 24 << 20


@pytest.mark.slow
def test_token_holders_are_served_in_a_flood_of_strangers(box: Box) -> None:
    port = free_port()
    box.up("--simulate-gpus", "1x80G", env={"GFLOW_DAEMON__PORT": str(port)})
    caller, is_over = Caller(port, made_token(box)), threading.Event()

    def flood() -> None:
        while not is_over.is_set():
            with flooded(port, 500):
                pass

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        assert [caller.ask("GET", "/health")[0] for _ in range(6)] == [200] * 6
    finally:
        is_over.set()
        flooding.join()


def test_invalid_requests_are_logged_once_a_minute(box: Box) -> None:
    port = free_port()
    box.up("--simulate-gpus", "1x80G", env={"GFLOW_DAEMON__PORT": str(port)})
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
            sock.sendall(b"no request\r\n\r\n")
            assert b" 400 " in sock.recv(1000)
    assert (box.root / "daemon.log").read_text().count("Invalid HTTP request") == 1


@pytest.mark.slow
def test_flooded_socket_leaves_descriptors_for_others() -> None:
    with system(env={"GFLOW_PEOPLE__MAX_CONNECTIONS": "8"}) as machine:
        machine.box.preexec = _few_descriptors
        machine.up()
        held = [UnixConnection(machine.box.socket) for _ in range(2 * DESCRIPTORS)]
        try:
            with acting_as(machine.bob.person):
                for connection in held:
                    connection.connect()
            assert machine.ask(machine.ann, "GET", "/health")[0] == 200
            assert descriptors_of(machine.box) < DESCRIPTORS // 2
            job = submitted(machine, machine.ann, "true", memory="64M")
            assert machine.box.finished(job)["state"] == "Finished"
        finally:
            for connection in held:
                connection.close()


def test_uids_without_account_have_the_connections_of_one_user() -> None:
    with system(env={"GFLOW_PEOPLE__MAX_CONNECTIONS": "8"}) as machine:
        machine.up()
        held = [UnixConnection(machine.box.socket) for _ in range(64)]
        answered = 0
        try:
            for number, connection in enumerate(held):
                os.seteuid(2_000_000_000 + number)
                try:
                    connection.request("GET", "/health")
                finally:
                    os.seteuid(0)
                with suppress(OSError, http.client.HTTPException):  # hung up on
                    answered += connection.getresponse().status != 429
            assert answered == 8
            assert machine.ask(machine.ann, "GET", "/health")[0] == 200
        finally:
            for connection in held:
                connection.close()


def _abandon(box: Box, path: str, count: int) -> None:
    """Ask this many times, and hang up on all of them."""
    asked = [UnixConnection(box.socket) for _ in range(count)]
    for connection in asked:
        connection.request("GET", path)
    assert box.api("GET", "/health")[0] == 200  # all of them are under way
    for connection in asked:
        connection.close()


def cpu_s(box: Box) -> float:
    assert box.daemon is not None
    fields = Path(f"/proc/{box.daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_question_of_a_client_that_hung_up_is_dropped(box: Box) -> None:
    """Each costs a good part of a second: the machine has a long history."""
    box.up("--simulate-gpus", "1x80G")
    box.finished(box.submit("true"))
    box.down()
    with sqlite3.connect(box.data / "gflow.db") as db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(jobs)") if row[1] != "key"]
        names = ", ".join(columns)
        (first,) = db.execute("SELECT max(key) FROM jobs").fetchone()
        numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)"
        db.execute(
            f"INSERT INTO jobs (key, {names}) {numbers} SELECT {first} * (i + 1), {names} FROM n, jobs"
        )
    box.up()
    before = cpu_s(box)
    assert box.api("GET", "/stats?all=1")[0] == 200
    once = cpu_s(box) - before
    _abandon(box, "/stats?all=1", 200)
    assert box.api("GET", "/stats?all=1")[0] == 200
    assert cpu_s(box) - before < 30 * once
    box.down()


def test_bug_that_users_can_repeat_does_not_fill_the_log(box: Box) -> None:
    box.program = [sys.executable, "-m", "tests.process.failing_daemon", "run"]
    box.env["PYTHONPATH"] = str(Path(__file__).parents[2])
    box.up("--simulate-gpus", "1x80G")
    assert {box.api("GET", "/info")[0] for _ in range(100)} == {500}
    log = box.root / "daemon.log"
    wait_until(lambda: "100 times so far" in log.read_text(), what="the last count, after its answer")
    assert log.read_text().count("Traceback") == 1


def resident_mib(box: Box) -> float:
    """The most memory that the daemon has had."""
    assert box.daemon is not None
    lines = Path(f"/proc/{box.daemon.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("accept", ["application/json", "text/plain"])
def test_unread_dry_runs_of_sweeps_hold_little_memory(box: Box, accept: str) -> None:
    """Each would become 50 MiB of commands (as text, the first 1,000 of them)."""
    box.up()
    count = 5000 if accept == "application/json" else 1000
    job = {"command": ["true", "x" * ((50 << 20) // count) + "{n}"], "cwd": "/tmp"}
    job["options"] = {"param": {"n": [str(n) for n in range(count)]}}
    body = json.dumps({"token": "token-of-a-sweep", "jobs": [job]})
    assert box.daemon is not None
    before = resident_mib(box)
    asked = [UnixConnection(box.socket) for _ in range(4)]
    try:
        for connection in asked:
            connection.request("POST", "/jobs?dry-run=1", body, {"accept": accept})
        for connection in asked:  # the head and the first few bytes of each have come
            connection.sock.settimeout(60)
            assert connection.sock.recv(4096).startswith(b"HTTP/1.1 200")
        assert box.api("GET", "/health")[0] == 200
        assert resident_mib(box) - before < 50
        size = 0
        while piece := asked[0].sock.recv(1 << 20):
            size += len(piece)
            if size > 50 << 20:  # all of it comes when it is read
                break
        assert size > 50 << 20
    finally:
        for connection in asked:
            connection.close()


def test_bulk_submission_of_a_client_that_hung_up_leaves_nothing(box: Box) -> None:
    """It takes seconds until all 20,000 jobs are there; the client leaves when the first are."""
    box.up()
    job = {"command": ["true"], "cwd": "/tmp", "options": {"hold": True}}

    def count(table: str) -> int:
        with sqlite3.connect(box.data / "gflow.db") as db:
            return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    asked = UnixConnection(box.socket)
    asked.request("POST", "/jobs", json.dumps({"token": "token-of-many", "jobs": [job] * 20_000}))
    wait_until(lambda: count("jobs"), what="the first part")
    asked.close()
    box.submit("--hold", "true")
    wait_until(lambda: not count("bulk"), what="the submission to be given up")
    assert count("jobs") == box.api("GET", "/jobs?limit=1")[1]["total"] == 1
    assert "Traceback" not in (box.root / "daemon.log").read_text()
