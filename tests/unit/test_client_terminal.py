"""The client's end of a terminal's line: nothing that was sent is lost when the other end is gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gflow.wire import terminal_protocol
from gflow.wire.terminal_protocol import CODE, END, OUTPUT, frame

SIT = """
import socket, sys
from gflow.client import terminal
sock = socket.socket(fileno=int(sys.argv[1]))
print("code", terminal.relay(sock, is_tty=False, is_host=True, may_leave=False))
"""


def begun(typed: str) -> tuple[subprocess.Popen[str], socket.socket]:
    """A client that types this file, and the other end of its line."""
    ours, theirs = socket.socketpair()
    with theirs, Path(typed).open() as file:
        client = subprocess.Popen(
            [sys.executable, "-c", SIT, str(theirs.fileno())],
            stdin=file, stdout=subprocess.PIPE, text=True, pass_fds=[theirs.fileno()],
        )  # fmt: skip
    return client, ours


def stop(client: subprocess.Popen[str]) -> None:
    client.send_signal(signal.SIGSTOP)
    while Path(f"/proc/{client.pid}/stat").read_text().rpartition(") ")[2][0] != "T":
        time.sleep(0.001)


def test_end_sent_to_a_client_that_is_just_typing_is_heard() -> None:
    """A command that reads nothing and ends at once, while its client does not get to run."""
    client, line = begun("/dev/zero")
    line.recv(1)  # it has begun to send
    stop(client)
    line.sendall(frame(OUTPUT, b"hello\n") + frame(END, CODE.pack(3)))
    line.close()
    client.send_signal(signal.SIGCONT)
    said, _ = client.communicate(timeout=20)
    assert said == "hello\ncode 3\n"


@pytest.mark.parametrize("before", [True, False])
def test_line_that_is_cut_without_an_end_has_no_code(before: bool) -> None:
    client, line = begun("/dev/null")
    if not before:
        line.recv(1)
    line.close()
    said, _ = client.communicate(timeout=20)
    assert said == "code None\n"


def test_terminal_socket_is_named_once_owner_can_reach_it(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "chown", lambda *words, **more: seen.append(os.listdir(tmp_path)))
    terminal_protocol.listen(str(tmp_path / "1.1.tty"), 1001).close()
    assert seen == [["1.1.tty.new"]] and os.listdir(tmp_path) == ["1.1.tty"]
