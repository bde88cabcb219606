"""Resource limits of the process that connected: never those of one that has its number by now."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gflow.daemon.api import rlimits
from gflow.daemon.api.rlimits import limits_of, read_peer
from gflow.errors import Refused
from gflow.privileged.in_process import InProcess

# The port where /proc hides nothing.
VISIBLE = InProcess(Path(), Path(), is_system=False)
CONNECT = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (77, 77))
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
print(1, flush=True)
sys.stdin.read()
"""


@contextmanager
def connected(path: str) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """A connection of another process, and that process."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        child = subprocess.Popen(
            [sys.executable, "-c", CONNECT, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout is not None and child.stdin is not None
        try:
            assert child.stdout.readline() == b"1\n"
            sock, _ = listener.accept()
            with sock:
                yield sock, child
        finally:
            child.stdin.close()
            child.wait()
            child.stdout.close()


@pytest.fixture(params=["with SO_PEERPIDFD", "without"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "without":
        monkeypatch.setattr(rlimits, "SO_PEERPIDFD", 9999)
    return request.param


def test_limits_of_the_connected_process_are_read(tmp_path, kernel: str) -> None:
    with connected(str(tmp_path / "s")) as (sock, child):
        state = {"pid": child.pid, "uid": os.getuid(), "socket": sock}
        assert (resource.RLIMIT_NOFILE, 77, 77) in limits_of(state, VISIBLE, is_required=True)


def test_limits_of_a_process_of_another_user_are_not_taken(tmp_path, kernel: str) -> None:
    with connected(str(tmp_path / "s")) as (sock, child):
        assert read_peer(sock, child.pid, os.getuid() + 1, VISIBLE) is None


def test_limits_of_a_process_that_is_gone_are_refused(tmp_path, kernel: str) -> None:
    with connected(str(tmp_path / "s")) as (sock, child):
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
        state = {"pid": child.pid, "uid": os.getuid() or 1001, "socket": sock}
        with pytest.raises(Refused, match="cannot be read"):
            limits_of(state, VISIBLE, is_required=True)
        assert limits_of(state, VISIBLE, is_required=False) == ()


def test_limits_of_a_reused_pid_are_not_taken(tmp_path) -> None:
    """The process that connected is gone, and its number is ours now."""
    with connected(str(tmp_path / "s")) as (sock, child):
        try:
            os.close(sock.getsockopt(socket.SOL_SOCKET, rlimits.SO_PEERPIDFD))
        except OSError:
            pytest.skip("this kernel has no SO_PEERPIDFD")
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
        assert read_peer(sock, os.getpid(), os.getuid(), VISIBLE) is None


def test_token_without_limits_starts_no_jobs_of_others() -> None:
    state = {"pid": 0, "uid": 1001, "limits": None}
    with pytest.raises(Refused, match="token has no resource limits"):
        limits_of(state, VISIBLE, is_required=True)
    assert limits_of(state | {"limits": ((resource.RLIMIT_NOFILE, 5, 6),)}, VISIBLE, is_required=True) == (
        (resource.RLIMIT_NOFILE, 5, 6),
    )


def test_process_in_another_pid_namespace_is_refused() -> None:
    with pytest.raises(Refused, match="cannot be read"):
        limits_of({"pid": 0, "uid": 1001}, VISIBLE, is_required=True)
    assert limits_of({"pid": 0, "uid": 0}, VISIBLE, is_required=True) == ()
