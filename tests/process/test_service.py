"""The daemon as a service: the units, and what is asked of systemd. There is none where tests run, but a
stub that keeps account and starts the daemon as the unit says."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gflow.cli.daemon.systemd import is_active, is_installed, system_unit, user_unit
from tests.harness import Box, wait_until

# What jobs would inherit: see docs/service.md.
NEVER = (
    "PrivateTmp", "ProtectHome", "PrivateDevices", "NoNewPrivileges", "ProtectSystem", "RuntimeDirectory",
    "MemoryMax", "CapabilityBoundingSet", "DynamicUser", "User=", "RestrictNamespaces", "SystemCallFilter",
)  # fmt: skip
STUB = """#!/bin/bash
echo "$@" >> "$HOME/asked"
unit="$HOME/.config/systemd/user/gflowd.service"
case "$*" in
  *"enable --now"*|*" start "*|*" restart "*)
    if [ -f "$HOME/daemon" ]; then
      kill "$(cat "$HOME/daemon")"
      while kill -0 "$(cat "$HOME/daemon")" 2>/dev/null; do sleep 0.05; done
    fi
    $(sed -n 's/^ExecStart=//p' "$unit") >> "$HOME/service.log" 2>&1 < /dev/null & echo $! > "$HOME/daemon";;
  *"is-active"*) [ -f "$HOME/daemon" ] && kill -0 "$(cat "$HOME/daemon")" 2>/dev/null;;
  *"disable --now"*|*" stop "*) kill "$(cat "$HOME/daemon")"; rm "$HOME/daemon";;
esac
"""


@pytest.fixture
def stubbed(box: Box) -> Box:
    folder = box.root / "stubs"
    folder.mkdir()
    for name, text in (("systemctl", STUB), ("loginctl", "#!/bin/bash\nexit 1\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    box.env["PATH"] = f"{folder}:{box.env['PATH']}"
    return box


def asked(box: Box) -> list[str]:
    """What systemctl was asked since the last time, less the questions."""
    path = box.home / "asked"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [line for line in lines if "is-active" not in line and " show " not in f" {line} "]


def ends(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return "Z" in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_systemd_that_does_not_run_changes_nothing(stubbed: Box) -> None:
    box = stubbed
    dead = "#!/bin/bash\necho 'Failed to connect to bus: No such file or directory' >&2\nexit 1\n"
    (box.root / "stubs/systemctl").write_text(dead)
    box.up("--cpus", "2")
    done = box.run("gflowd", "service", "install")
    assert done.returncode == 1
    assert done.stderr.startswith("gflowd: systemd cannot be reached: Failed to connect to bus")
    assert not list(box.home.rglob("gflowd.service"))
    assert box.daemon is not None and box.daemon.poll() is None and box.serves()


def test_service_install_and_uninstall(stubbed: Box) -> None:
    box = stubbed
    done = box.run("gflowd", "service", "install")
    assert done.returncode == 0, done.stderr
    unit = box.home / ".config/systemd/user/gflowd.service"
    assert f"gflowd is now a systemd service: {unit}" in done.stdout
    assert "gflowd and your jobs end when you log out" in done.stdout, "loginctl refused"
    assert asked(box) == ["--user daemon-reload", "--user enable --now gflowd.service"]
    wait_until(lambda: box.run("gflowd", "status").returncode == 0)
    job = box.submit("sleep", "600")
    wait_until(lambda: box.job(job)["state"] == "Running")

    box.ok("gflowd", "restart")
    assert asked(box) == ["--user restart gflowd.service"]
    wait_until(lambda: box.run("gflowd", "status").returncode == 0)
    assert box.job(job)["state"] == "Running", "jobs go on"
    refused = box.run("gflowd", "restart", "--cpus", "3")
    assert refused.returncode == 2 and "a systemd service takes no flags" in refused.stderr
    assert asked(box) == []

    box.ok("gflowd", "down")
    assert asked(box) == ["--user stop gflowd.service"]
    wait_until(lambda: box.run("gflowd", "status").returncode == 3)
    box.ok("gflowd", "up")
    assert asked(box) == ["--user start gflowd.service"]
    wait_until(lambda: box.run("gflowd", "status").returncode == 0)
    assert box.job(job)["state"] == "Running"

    pid = int((box.home / "daemon").read_text())
    assert "running jobs continue" in box.ok("gflowd", "service", "uninstall")
    assert asked(box) == ["--user disable --now gflowd.service", "--user daemon-reload"]
    assert not unit.exists()
    wait_until(lambda: ends(pid))
    assert box.run("gflowd", "service", "uninstall").returncode == 1


def test_a_daemon_that_runs_makes_room_and_its_jobs_go_on(stubbed: Box) -> None:
    box = stubbed
    box.ok("gflowd", "up", "--cpus", "3")
    job = box.submit("sleep", "600")
    wait_until(lambda: box.job(job)["state"] == "Running")
    done = box.run("gflowd", "service", "install")
    assert done.returncode == 0, done.stderr
    assert "the previous daemon ran with --cpus=3: put that into gflow.toml" in done.stdout
    wait_until(lambda: box.run("gflowd", "status").returncode == 0)
    assert box.job(job)["state"] == "Running"
    os.kill(int((box.home / "daemon").read_text()), signal.SIGTERM)


@pytest.mark.parametrize("answer", [0, 3])
def test_unit_of_a_package_is_the_service_of_the_daemon_for_all_users_alone(
    answer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "systemctl").write_text(f"#!/bin/sh\nexit {answer}\n")
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("GFLOW_SYSTEM_ROOT", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    unit = tmp_path / "usr/lib/systemd/system/gflowd.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(system_unit())
    assert not is_installed({"system": True}), "systemd does not run"
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert is_installed({"system": True})
    assert is_active({"system": True}) == (answer == 0)
    assert not is_installed({}), "it is not the user's"


def test_service_install_refusals(stubbed: Box) -> None:
    box = stubbed
    unit = box.home / ".config/systemd/user/gflowd.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/bin/mine\n")
    for verb in ("install", "uninstall"):
        done = box.run("gflowd", "service", verb)
        assert done.returncode == 1 and "not written by gflow" in done.stderr
    assert unit.read_text() == "[Service]\nExecStart=/bin/mine\n"
    assert asked(box) == []
    assert box.run("gflowd", "service", "start").returncode == 2
    assert box.run("gflowd", "service").returncode == 2
    box.env["PATH"] = ":".join(part for part in box.env["PATH"].split(":") if "stubs" not in part)
    if shutil.which("systemctl", path=box.env["PATH"]) is None:
        done = box.run("gflowd", "service", "install")
        assert done.returncode == 1 and "systemd is not installed" in done.stderr


def test_systemd_says_why_it_failed(stubbed: Box) -> None:
    refuses = "#!/bin/sh\ncase $2 in enable) echo 'Access denied' >&2; exit 1;; esac\n"
    (stubbed.root / "stubs/systemctl").write_text(refuses)
    done = stubbed.run("gflowd", "service", "install")
    assert done.returncode == 1
    assert "systemctl --user enable --now gflowd.service failed: Access denied" in done.stderr


UNITS = {
    "system": system_unit("/opt/gflow/bin/gflowd"),
    "user": user_unit("/home/ann/50%/bin/gflowd", {"XDG_DATA_HOME": "/data/ann b", "HOME": "/home/ann"}),
}


@pytest.mark.parametrize("kind", UNITS)
def test_unit_file_has_expected_lines(kind: str) -> None:
    text = UNITS[kind]
    for line in ("KillMode=process", "Delegate=yes", "Restart=on-failure", "TasksMax=infinity"):
        assert f"\n{line}\n" in text
    for word in NEVER:
        assert word not in text
    if kind == "user":
        assert 'Environment="XDG_DATA_HOME=/data/ann b"\n' in text
        assert "ExecStart=/home/ann/50%%/bin/gflowd run\n" in text
        assert "WantedBy=default.target" in text


@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_accepts_the_units(kind: str, tmp_path: Path, box: Box) -> None:
    unit = tmp_path / "gflowd.service"

    def complaints(text: str) -> list[str]:
        unit.write_text(re.sub("ExecStart=.* run", "ExecStart=/bin/true run", text))
        words = ["systemd-analyze", "verify", "--man=no", *(["--user"] if kind == "user" else []), str(unit)]
        env: Any = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
        done = subprocess.run(words, capture_output=True, text=True, env=env)
        return [line for line in (done.stdout + done.stderr).splitlines() if "gflowd.service" in line]

    assert complaints(UNITS[kind]) == []
    assert complaints(UNITS[kind].replace("KillMode=process", "KillMode=gently")), "it can find something"
