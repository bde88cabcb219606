"""Send a process its input and read its output, within a time and up to a size."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from contextlib import suppress
from typing import IO, NamedTuple

from gflow.targets.slurm.ssh.user_account import Program

# Bytes that are kept of what a process prints: the other side may be any machine.
MOST_BYTES = 64 << 20
BLOCK = 1 << 16


class Exchange(NamedTuple):
    """Output and error output of a process; why it was not waited for, as a predicate: `did not answer`."""

    output: bytes
    errors: bytes
    problem: str = ""


def exchange(process: Program, text: bytes, timeout_s: float) -> Exchange:
    """Run a process with three pipes to the end of its output. After `timeout_s` it is killed.

    Only the process itself: the master connection of ssh may have begun in its group. The master keeps the
    error output of some releases of ssh open, so that only what is there at the end is read of it.
    """
    assert process.stdin and process.stdout and process.stderr
    until = time.monotonic() + timeout_s
    found = {process.stdout: bytearray(), process.stderr: bytearray()}
    problem = ""
    try:
        problem = _transfer(process, text, found, until, timeout_s)
        if not problem:
            process.wait(max(0.1, until - time.monotonic()))
            _read(process.stderr, found[process.stderr])
    except subprocess.TimeoutExpired:
        problem = f"did not answer in {timeout_s:.0f} s"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with suppress(OSError):
                pipe.close()
    return Exchange(bytes(found[process.stdout]), bytes(found[process.stderr]), problem)


def _transfer(
    process: Program,
    text: bytes,
    found: dict[IO[bytes], bytearray],
    until: float,
    timeout_s: float,
) -> str:
    """Write the input and read the output to its end; why that was not possible."""
    assert process.stdin and process.stdout
    rest = memoryview(text)
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdin, *found):
            os.set_blocking(pipe.fileno(), False)
            is_input = pipe is process.stdin
            selector.register(pipe, selectors.EVENT_WRITE if is_input else selectors.EVENT_READ, pipe)
        while process.stdout in selector.get_map():
            ready = [key.data for key, _ in selector.select(max(0.0, until - time.monotonic()))]
            if not ready:
                raise subprocess.TimeoutExpired(process.args, timeout_s)
            if process.stdin in ready:
                rest = _write(process.stdin, rest)
            done = [pipe for pipe in found if pipe in ready and _read(pipe, found[pipe])]
            if process.stdin in ready and not rest:
                done.append(process.stdin)
            for pipe in done:
                selector.unregister(pipe)
            if process.stdin in done:
                _close(process.stdin)
            if sum(map(len, found.values())) > MOST_BYTES:
                return f"printed more than {MOST_BYTES >> 20} MiB"
    return ""


def _write(pipe: IO[bytes], rest: memoryview) -> memoryview:
    """Write what fits; the rest. A process that reads no more gets no more."""
    try:
        return rest[os.write(pipe.fileno(), rest[:BLOCK]) :]
    except BlockingIOError:
        return rest
    except OSError:
        return rest[:0]


def _read(pipe: IO[bytes], into: bytearray) -> bool:
    """Read what is there; whether that was the end."""
    try:
        while len(into) <= MOST_BYTES:
            block = os.read(pipe.fileno(), BLOCK)
            if not block:
                return True
            into += block
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False


def _close(pipe: IO[bytes]) -> None:
    with suppress(OSError):
        pipe.close()
