"""`gflowd service install|uninstall`: run the daemon as a systemd service, of the user or system-wide."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

from gflow import paths
from gflow.cli.daemon.lifecycle import down
from gflow.cli.daemon.systemd import (
    MARK,
    NAME,
    is_active,
    program,
    scope_of,
    system_unit,
    systemctl,
    unit_path,
    user_unit,
)
from gflow.cli.gflowd import say
from gflow.client import http
from gflow.errors import Forbidden, Refused, Unreachable, UsageError


def service(values: dict[str, Any], verb: str) -> int:
    """Install or remove the systemd service."""
    verbs = {"install": install, "uninstall": uninstall}
    if verb not in verbs:
        raise UsageError(f"gflowd service takes install or uninstall, not {verb!a:.60}")
    if shutil.which("systemctl") is None:
        raise Refused("systemd is not installed", hint="gflowd up starts the daemon without it")
    if "system" in values and os.geteuid():
        raise Forbidden("the system-wide service requires root", hint="sudo gflowd service install --system")
    return verbs[verb](values)


def install(values: dict[str, Any]) -> int:
    """Write the unit, then enable and start it. Running jobs continue."""
    if "system" in values:
        from gflow.daemon.process.directories import check_installation

        check_installation()
    notes = []
    path, text = unit_path(values), _text(values)
    if path.exists() and MARK not in path.read_text() and "force" not in values:
        raise Refused(f"{path} exists and was not written by gflow", hint="--force overwrites it")
    _check_reachable(values)
    if "system" in values:
        from gflow.daemon.process import scheduler_account

        if scheduler_account.make(paths.system_data(os.environ.get)):
            notes.append(f"the account {scheduler_account.NAME} was made: the scheduler runs as it")
    notes += _stop_running_daemon(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    systemctl(values, "daemon-reload")
    systemctl(values, "enable", "--now", NAME)
    if "system" not in values:
        notes += _linger()
    line = f"gflowd is now a systemd service: {path}"
    say(
        values,
        "\n".join([line, *(f"({note})" for note in notes)]),
        unit=str(path),
        installed=True,
        notes=notes,
    )
    return 0


def uninstall(values: dict[str, Any]) -> int:
    """Stop the service and remove its unit. Running jobs continue; the next daemon takes them over."""
    path = unit_path(values)
    if not path.exists():
        raise Refused(f"there is no service: {path} does not exist")
    if MARK not in path.read_text() and "force" not in values:
        raise Refused(f"{path} was not written by gflow", hint="--force removes it anyway")
    systemctl(values, "disable", "--now", NAME)
    path.unlink()
    systemctl(values, "daemon-reload")
    text = "gflowd is no longer a systemd service; running jobs continue. gflowd up starts it again"
    say(values, text, unit=str(path), installed=False)
    return 0


def _text(values: dict[str, Any]) -> str:
    return system_unit(program()) if "system" in values else user_unit(program(), dict(os.environ))


def _check_reachable(values: dict[str, Any]) -> None:
    """Refuse, before anything is changed, if systemd does not run or this user cannot reach it."""
    words = ["systemctl", *scope_of(values), "show", "--property=Version"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise Refused(
            f"systemd cannot be reached: {output[-1] if output else done.returncode}",
            hint="log out, log in and try again, or start the daemon without it: gflowd up",
        )


def _stop_running_daemon(values: dict[str, Any]) -> list[str]:
    """Stop a daemon that runs outside the service; its jobs continue. Returns notes for the user."""
    try:
        flags = http.get("/status")["flags"]
    except (ConnectionError, Unreachable):
        return []
    if is_active(values):
        return []
    down({"again": True, "json": True})  # prints nothing
    kept = [flag for flag in flags if flag not in ("--system", "--private")]
    return [f"the previous daemon ran with {' '.join(kept)}: put that into gflow.toml"] if kept else []


def _linger() -> list[str]:
    """Enable lingering: without it, a user's services end at the last logout. Returns notes for the user."""
    command = shutil.which("loginctl")
    if command and subprocess.run([command, "enable-linger"], capture_output=True).returncode == 0:
        return []
    return [
        "gflowd and your jobs end when you log out, unless you enable lingering: "
        "sudo loginctl enable-linger $USER"
    ]
