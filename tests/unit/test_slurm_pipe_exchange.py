"""Input and output of a process, within a time and up to a size."""

from __future__ import annotations

import subprocess
import time

import pytest

from gflow.targets.slurm.ssh import pipe_exchange
from gflow.targets.slurm.ssh.pipe_exchange import exchange


def start(line: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(["sh", "-c", line], stdin=pipe, stdout=pipe, stderr=pipe)


def test_large_input_and_output_arrive_as_a_whole() -> None:
    text = bytes(range(256)) * 4096
    process = start("cat; echo error >&2; exit 3")
    assert exchange(process, text, 20) == (text, b"error\n", "")
    assert process.returncode == 3


def test_process_that_reads_no_input_is_no_error() -> None:
    assert exchange(start("exec <&-; echo done"), b"x" * 1_000_000, 20) == (b"done\n", b"", "")


def test_process_that_hangs_is_killed_and_what_it_printed_is_kept() -> None:
    begin = time.monotonic()
    process = start("echo begun; exec sleep 100")
    assert exchange(process, b"", 0.5) == (b"begun\n", b"", "did not answer in 0 s")
    assert time.monotonic() - begin < 20 and process.returncode == -9


def test_process_in_the_background_keeps_only_the_error_output() -> None:
    """As the master connection of some releases of ssh."""
    begin = time.monotonic()
    found = exchange(start("sleep 30 >/dev/null & echo $! ; echo said >&2"), b"", 20)
    subprocess.run(["kill", found.output.decode().strip()], check=True)
    assert (found.errors, found.problem) == (b"said\n", "") and time.monotonic() - begin < 20


def test_output_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe_exchange, "MOST_BYTES", 1 << 20)
    process = start("exec cat /dev/zero")
    found = exchange(process, b"", 20)
    assert found.problem == "printed more than 1 MiB" and len(found.output) < 3 << 20
    assert process.returncode == -9
