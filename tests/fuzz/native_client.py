"""Fuzz the native client with answers of a hostile daemon: python -m tests.fuzz.native_client [SECONDS]

The client is built with the address and undefined-behaviour sanitizers. It must print, or hand over to Python
(here a program that says so), and never be ended by a sanitizer or a signal.
"""

from __future__ import annotations

import os
import random
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
    b"+3\r\n", b"\xff",
    b"99999999999999999999", b"18446744073709551615", b"0x10\r\n", b" 3\r\n", b"a" * 70_000, b"3\r\nab",
)  # fmt: skip


def build(folder: Path) -> Path:
    """The sanitized client as gqueue, beside a python3 that only says that it was run."""
    program = folder / "gqueue"
    subprocess.run([os.environ.get("CC", "cc"), *SANITIZED, "-o", program, SOURCE], check=True)
    (folder / "gbatch").write_bytes(program.read_bytes())
    (folder / "gbatch").chmod(0o755)
    (folder / "python3").write_text(f"#!/bin/sh\nexit {HANDED_OVER}\n")
    (folder / "python3").chmod(0o755)
    return program


def hostile(dice: random.Random) -> bytes:
    """An answer that is nearly right."""
    text = bytearray(dice.choice(WHOLE))
    for _ in range(dice.randrange(6)):
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


def serve(listener: socket.socket, answers: list[bytes]) -> None:
    """Answer each connection with the last of `answers`, after its request, or before if that is odd."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        answer = answers[-1]
        try:
            if len(answer) % 8:
                connection.recv(1 << 20)
            connection.sendall(answer)
        except OSError:
            pass
        connection.close()


def fuzz(folder: Path, seed: int, *, seconds: float = 3600, most: int = sys.maxsize) -> str:
    """Run the client in this folder with hostile answers; the first that it did not survive, or nothing."""
    dice, end, address = random.Random(seed), time.monotonic() + seconds, str(folder / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    answers: list[bytes] = [b""]
    threading.Thread(target=serve, args=(listener, answers), daemon=True).start()
    env = {
        "GFLOW_SOCKET": address, "PATH": "/usr/bin:/bin",
        "ASAN_OPTIONS": f"exitcode={FOUND}:detect_leaks=0", "UBSAN_OPTIONS": f"exitcode={FOUND}",
    }  # fmt: skip
    count = 0
    while count < most and time.monotonic() < end:
        count += 1
        answers[:] = [hostile(dice)]
        words = [dice.choice(("x", "-", "", "a/b", "é" * 3000)) for _ in range(dice.randrange(20))]
        variable = dice.choice(("HOME", "PWD", "PATH", "NO_COLOR"))
        more = env | {variable: dice.choice(("", "/", "x" * 9000, "::/"))}
        program = folder / dice.choice(("gqueue", "gbatch"))
        done = subprocess.run([program, *words], env=more, capture_output=True, timeout=60)
        if done.returncode < 0 or done.returncode == FOUND or b"Sanitizer" in done.stderr + done.stdout:
            return f"answer {count}: {done.returncode}\n{answers[-1]!r}\n{done.stderr.decode()}"
    print(f"seed {seed}: {count} answers")
    return ""


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        build(Path(name))
        seconds = float(sys.argv[1] if len(sys.argv) > 1 else 600)
        found = fuzz(Path(name), random.randrange(2**32), seconds=seconds)
    print(found or "nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
