"""Fuzz the native client with answers of a hostile daemon.

    python -m tests.fuzz.native_client [SECONDS [SEED]]

The client is built with the address and undefined-behaviour sanitizers. Answers come in pieces, damaged or
cut. `expected` decodes each of them independently: the client prints exactly that, or hands over to Python
(here a program that says so), as a request whose answer was lost or as one that the daemon does not serve.
"""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import gflow

SOURCE = Path(gflow.__file__).parent / "client/native/client.c"
SANITIZED = (
    "-g",
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-Wall",
    "-Wextra",
    "-Werror",
)
# What the client exits with when a sanitizer found something, and when it would run Python.
FOUND, HANDED_OVER = 86, 99
# Exit code, standard output and standard error.
Printed = tuple[int, bytes, bytes]
NOT_SERVED: Printed = HANDED_OVER, b"", b"-"
LOST: Printed = HANDED_OVER, b"", b"TOKEN"
MOST_ANSWER = 1 << 30
OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = (
    OK + b"x-gflow-stderr: 3\r\nx-gflow-exit: 2\r\ncontent-length: 7\r\n\r\nerr\nout",
    OK + b"x-gflow-exit: 0\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno",
)
PIECES = (
    OK, b"\r\n", b"\r\n\r\n", b"\0", b"HTTP/1.1 ", b"content-length: ", b"\r\nx-gflow-stderr: ", b"-1",
    b"\r\nx-gflow-exit: ", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"7fffffffffffffff\r\n", b"-1\r\n",
    b"+3\r\n", b"\xff", b"\r\ncontent-length: 3", b"x\r\n",
    b"99999999999999999999", b"18446744073709551615", b"0x10\r\n", b" 3\r\n", b"a" * 70_000, b"3\r\nab",
)  # fmt: skip


def build(folder: Path) -> Path:
    """The sanitized client as gqueue, beside a python3 that prints what the client says about its request."""
    program = folder / "gqueue"
    subprocess.run([os.environ.get("CC", "cc"), *SANITIZED, "-o", program, SOURCE], check=True)
    (folder / "gbatch").write_bytes(program.read_bytes())
    (folder / "gbatch").chmod(0o755)
    (folder / "python3").write_text(f'#!/bin/sh\nprintf %s "$8" >&2\nexit {HANDED_OVER}\n')
    (folder / "python3").chmod(0o755)
    return program


def hostile(dice: random.Random) -> bytes:
    """An answer that is nearly right."""
    text = bytearray(dice.choice((*WHOLE, *WHOLE[:2], *WHOLE[:2])))
    for _ in range(dice.choice((0, 1, 1, 2, 5))):
        at = dice.randrange(len(text) + 1)
        match dice.randrange(4):
            case 0:
                text[at:at] = dice.choice(PIECES)
            case 1:
                del text[at : at + dice.randrange(1, 30)]
            case 2:
                text[at : at + 1] = bytes([dice.randrange(256)])
            case 3:
                text[at:] = dice.choice(PIECES)
    return bytes(text)


def number(head: bytes, name: bytes, otherwise: int | None) -> int | None:
    """The number in a header; `otherwise`: it is not there. None: it is no number, or too large."""
    _, is_there, value = head.partition(b"\r\n" + name + b": ")
    digits = re.match(rb"([0-9]+)\r", value)
    found = int(digits[1][:30]) if digits else MOST_ANSWER + 1
    return (found if found <= MOST_ANSWER else None) if is_there else otherwise


def joined(content: bytes) -> bytes | None:
    """The body that these chunks make. None: a part is missing or damaged."""
    body = b""
    while line := re.match(rb"([0-9a-fA-F]+)\r\n", content):
        length, content = int(line[1], 16), content[line.end() :]
        if not length:
            return body
        if content[length : length + 2] != b"\r\n":
            return None
        body, content = body + content[:length], content[length + 2 :]
    return None


def expected(answer: bytes, program: str) -> Printed:
    """What the client does with an answer."""
    head, is_whole, content = answer.partition(b"\r\n\r\n")
    if not is_whole:
        return LOST
    if not head.startswith(b"HTTP/1.1 200 "):
        is_undone = program != "gbatch" or head.startswith((b"HTTP/1.1 204 ", b"HTTP/1.1 4"))
        return NOT_SERVED if is_undone else LOST
    head = (head + b"\r\n").partition(b"\0")[0]
    code, errors = number(head, b"x-gflow-exit", 0), number(head, b"x-gflow-stderr", 0)
    length = number(head, b"content-length", -1)
    if code is None or errors is None or length is None:
        return LOST
    body = joined(content) if length == -1 else content[:length]
    if body is None or len(body) < max(length, errors):
        return LOST
    return code & 255, body[errors:], body[:errors]


def address_of(socket_path: str, dice: random.Random) -> str:
    """The content of an address file that nearly names this socket."""
    return dice.choice(
        (
            socket_path, f" {socket_path}\n", socket_path + "\0x", socket_path + "x", socket_path[1:],
            "", "\n", "\0", "x" * 5000, "/" * 200 + socket_path, "/" + "x" * 107, "/" + "x" * 108,
            "/" * 5000, "/",
        )
    )  # fmt: skip


class HostileDaemon:
    """Answers each connection with `answer`, in pieces that end at `cuts`."""

    def __init__(self, address: str) -> None:
        self.answer, self.cuts, self.waits = b"", [0], True
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def arrange(self, answer: bytes, dice: random.Random) -> None:
        """Take this answer for the next connection. Sometimes it is sent without waiting for the request."""
        cuts = dice.choice((0, 1, 5, 50))
        self.answer, self.waits = answer, dice.random() < 0.8
        self.cuts = sorted(dice.randrange(len(answer) + 1) for _ in range(cuts))

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            try:
                if self.waits:
                    self._receive(connection)
                for start, end in zip([0, *self.cuts], [*self.cuts, None], strict=True):
                    connection.sendall(self.answer[start:end])
                    time.sleep(0.0005 if self.cuts else 0)
            except OSError:
                pass
            connection.close()

    def _receive(self, connection: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += connection.recv(1 << 16)
        head, _, body = request.partition(b"\r\n\r\n")
        size = int(head.rpartition(b": ")[2])
        while len(body) < size:
            body += connection.recv(1 << 20)


def fuzz(folder: Path, seed: int, *, seconds: float = 3600, most: int = sys.maxsize) -> str:
    """Run the client in this folder with hostile answers; what it did wrong first, or nothing."""
    dice, end, address = random.Random(seed), time.monotonic() + seconds, str(folder / "socket")
    daemon = HostileDaemon(address)
    (folder / "gflow").mkdir()
    env = {
        "PATH": "/usr/bin:/bin", "XDG_DATA_HOME": str(folder), "GFLOW_SYSTEM_ROOT": str(folder),
        "ASAN_OPTIONS": f"exitcode={FOUND}:detect_leaks=0", "UBSAN_OPTIONS": f"exitcode={FOUND}",
    }  # fmt: skip
    count = printed = 0
    while count < most and time.monotonic() < end:
        count += 1
        program, answer = dice.choice(("gqueue", "gbatch")), hostile(dice)
        daemon.arrange(answer, dice)
        wanted = expected(answer, program)
        words = [dice.choice(("x", "-", "", "a/b", "é" * 3000)) for _ in range(dice.randrange(20))]
        more = {dice.choice(("HOME", "PWD", "PATH", "NO_COLOR")): dice.choice(("", "/", "x" * 9000, "::/"))}
        if dice.random() < 0.2:
            text = address_of(address, dice)
            (folder / "gflow/address").write_text(text)
            named = os.path.normpath(text.partition("\0")[0].strip())
            wanted = wanted if named.lstrip("/") == address[1:] and named[0] == "/" else NOT_SERVED
        else:
            more["GFLOW_SOCKET"] = address
        done = subprocess.run(
            [folder / program, *words], cwd="/", env=env | more, capture_output=True, timeout=60
        )
        told = re.sub(rb"[0-9a-f]{32}", b"TOKEN", done.stderr)
        seen = done.returncode, done.stdout, told
        if seen != wanted and (daemon.waits or seen != LOST):
            return f"seed {seed}, answer {count}: {answer!r} for {program}: {seen} instead of {wanted}"
        printed += seen[0] != HANDED_OVER
    print(f"seed {seed}: {count} answers, {printed} of them printed")
    return ""


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        build(Path(name))
        seconds = float(sys.argv[1] if len(sys.argv) > 1 else 600)
        seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
        found = fuzz(Path(name), seed, seconds=seconds)
    print(found or "nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
