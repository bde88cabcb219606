"""Failures around the daemon: no descriptors, no memory, an unkillable process, another version."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness import Box, UnixConnection, wait_until
from tests.process.test_process_identity import frozen

MIB = 1 << 20


def status_of(pid: int, name: str) -> str:
    match = re.search(rf"^{name}:\s+(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return match[1] if match else ""


def test_daemon_recovers_from_descriptor_exhaustion(box: Box) -> None:
    """More connections than it can have: those that have one are served, and so are all others later."""
    box.program = ["bash", "-c", 'ulimit -n 60; exec "$0" -m gflow gflowd run "$@"', sys.executable]
    box.up("--cpus", "2")
    job = box.submit("sleep 0.5; exit 5")
    sockets = []
    for _ in range(100):
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        folder = os.open(box.data, os.O_PATH)
        with suppress(BlockingIOError):
            sock.connect(f"/proc/self/fd/{folder}/gflowd.sock")
        os.close(folder)
        sockets.append(sock)
    wait_until(lambda: len(os.listdir(f"/proc/{box.daemon.pid}/fd")) >= 59, what="no descriptor to be left")
    for sock in sockets:
        sock.close()
    final = box.finished(job)
    assert (final["state"], final["exit_code"]) == ("Failed", 5)
    assert box.finished(box.submit("true"))["state"] == "Finished"


def test_out_of_memory_refuses_only_one_request(box: Box) -> None:
    box.up("--cpus", "2")
    assert box.daemon is not None
    job = box.submit("sleep 1; exit 5")
    pid = box.daemon.pid
    used = int(status_of(pid, "VmSize").split()[0]) << 10
    resource.prlimit(pid, resource.RLIMIT_AS, (used + 64 * MIB, used + 64 * MIB))
    connection = UnixConnection(box.socket)
    connection.connect()
    size = 200 * MIB
    head = f"POST /jobs HTTP/1.1\r\nHost: gflow\r\nContent-Length: {size}\r\n\r\n".encode()
    with suppress(OSError):  # it may hang up before all is said
        connection.sock.sendall(head)
        for _ in range(size // MIB):
            connection.sock.sendall(b" " * MIB)
    with suppress(OSError):
        answer = connection.sock.recv(4096)
        assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")) or not answer, answer
    connection.close()
    assert box.api("GET", "/health")[0] == 200
    final = box.finished(job)
    assert (final["state"], final["exit_code"]) == ("Failed", 5)
    assert box.finished(box.submit("true"))["state"] == "Finished"
    assert box.daemon.poll() is None


@pytest.mark.parametrize("how", ["cancel", "time"])
def test_unkillable_process_keeps_only_its_gpu(box: Box, how: str) -> None:
    """As one that hangs in the driver. Held here by the freezer, which KILL does not end."""
    box.up("--simulate-gpus", "2x80G", "--cpus", "4")
    limit = ("--time", "0:01") if how == "time" else ()
    job = box.submit("--gpus", "1", "--grace", "0", *limit, "echo $$ > pid; exec sleep 600")
    written = box.work / "pid"
    pid = int(wait_until(lambda: written.exists() and written.read_text()))
    with frozen(pid):
        if how == "cancel":
            box.ok("gcancel", "--now", str(job))
        wait_until(lambda: box.job(job)["stopping"])
        wait_until(lambda: int(status_of(pid, "SigPnd"), 16) & 1 << signal.SIGKILL - 1, what="KILL")
        wide = box.submit("--gpus", "2", "true")
        assert box.finished(box.submit("--gpus", "1", "true"))["state"] == "Finished"
        assert box.job(job)["state"] == "Running"
        assert box.job(wide)["state"] == "Queued"
        assert f"{job} " in box.ok("gqueue")
        box.kill9()  # a restart changes nothing about it
        box.up()
        assert box.job(job)["state"] == "Running"
        assert box.job(wide)["state"] == "Queued"
    assert box.finished(job)["state"] == {"cancel": "Cancelled", "time": "Timeout"}[how]
    assert box.finished(wide)["state"] == "Finished"


def test_a_newer_daemon_takes_over_and_an_older_one_refuses(box: Box) -> None:
    """An upgrade while jobs run, and the way back, which there is not."""
    box.up("--simulate-gpus", "1x80G", "--cpus", "4")
    running = box.submit("--gpus", "1", "sleep 2; exit 6")
    quick = box.submit("sleep 0.2; exit 7")
    waiting = box.submit("--gpus", "1", "echo later")
    wait_until(lambda: box.job(running)["state"] == "Running")
    box.down()
    usual, box.program = box.program, [sys.executable, "-m", "tests.crash.newer_daemon"]
    box.env["PYTHONPATH"] = str(Path(__file__).parents[2])
    box.up()
    assert box.finished(quick)["exit_code"] == 7
    assert box.finished(running)["exit_code"] == 6
    assert box.finished(waiting)["state"] == "Finished"
    before = box.jobs()
    box.down()
    done = box.run("gflowd", "run")
    assert done.returncode == 1
    assert "newer gflow" in done.stderr
    box.up()  # the newer one, which lost nothing by it
    assert box.jobs() == before
    box.down()
    box.program = usual


def test_a_machine_that_was_switched_off(box: Box) -> None:
    """Daemon, shims and jobs end at once; no process is left to report it. A job may ask for a requeue."""
    box.up("--cpus", "4")
    lost = box.submit("sleep", "600")
    again = box.submit("--requeue", "test -e second && exit 0; touch second; sleep 600")
    waits = [box.submit("--hold", "true"), box.submit("--depends-on", str(again), "true")]
    wait_until(lambda: (box.work / "second").exists())
    wait_until(lambda: box.job(lost)["state"] == "Running")
    box.kill9()
    for pid in box.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for record in (box.data / "run").iterdir():
        text = record.read_text() if record.is_file() else ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        if boot in text:
            record.write_text(text.replace(boot, "0" * len(boot)))
    box.up()
    assert box.finished(lost)["reason"] == "Reboot"
    assert box.finished(again)["state"] == "Finished"
    assert box.job(waits[0])["state"] == "Hold"
    assert box.finished(waits[1])["state"] == "Finished"
