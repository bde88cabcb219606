"""systemd units for the daemon: system-wide (`gflowd unit` prints it) and per user.

Jobs are children of the daemon and inherit its restrictions. Therefore the units deliberately lack
PrivateTmp, ProtectHome, PrivateDevices, NoNewPrivileges (jobs may use sudo and Apptainer), RuntimeDirectory
(systemd would remove it, with the files of running jobs, when the service stops) and limits on memory or
tasks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from gflow.cli.gflowd import say
from gflow.errors import Forbidden, GflowError, UsageError

NAME = "gflowd.service"
USUAL = "/usr/local/bin/gflowd"
# KillMode: stopping the service ends only the daemon; jobs continue. Delegate: gflow manages their cgroups.
MARK = "# Written by gflowd service install"
UNIT = """{mark}
[Unit]
Description=gflow: GPU jobs of all users of this machine
After=network.target remote-fs.target nss-user-lookup.target nvidia-persistenced.service

[Service]
Type=exec
ExecStart={program} run --system
ExecReload=/bin/kill -USR1 $MAINPID
KillMode=process
Delegate=yes
Restart=on-failure
RestartSec=1
TasksMax=infinity
OOMScoreAdjust=-500

[Install]
WantedBy=multi-user.target
"""


USER_UNIT = """{mark}
[Unit]
Description=gflow: GPU jobs of this user

[Service]
Type=exec
ExecStart={program} run
ExecReload=/bin/kill -USR1 $MAINPID
{environment}KillMode=process
Delegate=yes
Restart=on-failure
RestartSec=1
TasksMax=infinity

[Install]
WantedBy=default.target
"""
# Copied into the unit, because a service does not read the login shell's environment.
PLACES = ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "GFLOW_CONFIG_FILE")


def system_unit(program: str = USUAL) -> str:
    return UNIT.format(mark=MARK, program=_escaped(program))


def user_unit(program: str, environ: dict[str, str]) -> str:
    lines = [f'Environment="{name}={_escaped(environ[name])}"\n' for name in PLACES if environ.get(name)]
    return USER_UNIT.format(mark=MARK, program=_escaped(program), environment="".join(lines))


def _escaped(text: str) -> str:
    """Escape a value for a unit file, where % begins a specifier."""
    if "\n" in text or '"' in text:
        raise UsageError(f"a systemd unit cannot contain {text!a:.60}")
    return text.replace("\\", "\\\\").replace("%", "%%")


def program() -> str:
    """Path of this installation's gflowd."""
    ours = os.path.join(os.path.dirname(sys.executable), "gflowd")
    return ours if os.path.exists(ours) else shutil.which("gflowd") or USUAL


def show(values: dict[str, Any]) -> int:
    sys.stdout.write(system_unit(program()))
    return 0


def is_installed(values: dict[str, Any]) -> bool:
    """Whether a unit for this daemon is installed, by `gflowd service install` or by a package."""
    if shutil.which("systemctl") is None:
        return False
    return _is_ours(unit_path(values)) or ("system" in values and _is_packaged())


def _is_packaged() -> bool:
    """Whether a package has brought a unit of the system-wide daemon, and systemd runs."""
    root = os.environ.get("GFLOW_SYSTEM_ROOT", "")
    return os.path.exists(f"{root}/usr/lib/systemd/system/{NAME}") and os.path.isdir(
        f"{root}/run/systemd/system"
    )


def is_active(values: dict[str, Any]) -> bool:
    """Whether this daemon runs as a systemd service."""
    if not is_installed(values):
        return False
    words = ["systemctl", *scope_of(values), "is-active", "--quiet", NAME]
    return subprocess.run(words, capture_output=True).returncode == 0


def hand_over(values: dict[str, Any], verb: str) -> int:
    """Let systemd start, stop or restart the daemon."""
    if "system" in values and os.geteuid():
        raise Forbidden("the system-wide gflow daemon belongs to root")
    systemctl(values, verb, NAME)
    done = {"start": "is running", "stop": "is down; running jobs continue", "restart": "restarted"}[verb]
    say(values, f"gflowd {done} (systemd service)", running=verb != "stop", service=True)
    return 0


def _is_ours(path: Path) -> bool:
    with suppress(OSError):
        return MARK in path.read_text()
    return False


def unit_path(values: dict[str, Any]) -> Path:
    if "system" in values:
        root = os.environ.get("GFLOW_SYSTEM_ROOT", "")
        return Path(f"{root}/etc/systemd/system/{NAME}")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(config) / "systemd/user" / NAME


def scope_of(values: dict[str, Any]) -> list[str]:
    return [] if "system" in values else ["--user"]


def systemctl(values: dict[str, Any], *words: str) -> None:
    scope = scope_of(values)
    done = subprocess.run(["systemctl", *scope, *words], capture_output=True, text=True)
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise GflowError(
            f"systemctl {' '.join([*scope, *words])} failed: {output[-1] if output else done.returncode}",
            hint="see journalctl" + (" --user" if scope else "") + " -u gflowd",
        )
