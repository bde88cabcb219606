"""One daemon per data folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gflow.daemon.process import instance_lock
from gflow.errors import Refused

# A daemon that is killed while it starts a program, which holds the lock for a moment longer.
KILLED = """
import os, signal, sys, time
from pathlib import Path
from gflow.daemon.process import instance_lock
instance_lock.take(Path(sys.argv[1]))
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
os.close(1)
time.sleep(float(sys.argv[2]))
"""


def kill_a_daemon(data: Path, held_s: float) -> None:
    words = [sys.executable, "-c", KILLED, str(data), str(held_s)]
    assert subprocess.run(words, stdout=subprocess.PIPE).returncode == -9


def test_lock_of_a_killed_daemon_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_lock, "LEFTOVER_S", 60.0)
    kill_a_daemon(tmp_path, 0.3)
    os.close(instance_lock.take(tmp_path))


def test_lock_that_is_held_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = instance_lock.take(tmp_path)
    with pytest.raises(Refused, match=f"already runs on .* .pid {os.getpid()} on "):
        instance_lock.take(tmp_path)
    os.close(held)
    monkeypatch.setattr(instance_lock, "LEFTOVER_S", 0.1)
    kill_a_daemon(tmp_path, 5)
    with pytest.raises(Refused, match="already runs"):
        instance_lock.take(tmp_path)
