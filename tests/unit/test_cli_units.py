"""The systemd unit: jobs inherit what it does to the daemon, so it does little."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gflow.cli.daemon.systemd import system_unit

ROOT = Path(__file__).parents[2]
# What systemd lets the daemon have that jobs would have to do without, or would lose.
INHERITED = re.compile(
    r"^(Private|Protect|Restrict|NoNewPriv|Capabilit|AmbientCap|SystemCall|ReadOnly|ReadWrite|Inaccessible|Root|"
    r"Temporary|Bind|Lock|MemoryDeny|Memory|CPU|IO|Dynamic|User|Group|UMask|Limit|RuntimeDir|Device|IPAddress)",
    re.MULTILINE,
)


def test_unit_stop_leaves_jobs_and_inherits_nothing():
    text = system_unit()
    assert "KillMode=process\n" in text
    assert "Delegate=yes\n" in text
    assert not INHERITED.search(text)


def test_systemd_accepts_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    path = tmp_path / "gflowd.service"
    path.write_text(system_unit(sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True)
    assert str(path) not in done.stderr and "gflowd.service" not in done.stderr, done.stderr
    path.write_text(system_unit("/no/such/program").replace("KillMode=process", "KillMode=everything"))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True)
    assert "gflowd.service" in done.stderr


def test_documents_contain_the_unit():
    assert system_unit() in (ROOT / "docs/multi-user.md").read_text()
