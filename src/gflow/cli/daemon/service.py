"""`gflowd service install|uninstall`: the daemon as a service of systemd, the user's own or the machine's."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

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
    """Make the daemon a service, or no longer one."""
    verbs = {"install": install, "uninstall": uninstall}
    if verb not in verbs:
        raise UsageError(f"gflowd service takes install or uninstall, not {verb!a:.60}")
    if shutil.which("systemctl") is None:
        raise Refused("there is no systemd here", hint="gflowd up starts the daemon without it")
    if "system" in values and os.geteuid():
        raise Forbidden("the machine's service is root's", hint="sudo gflowd service install --system")
    return verbs[verb](values)


def install(values: dict[str, Any]) -> int:
    """Write the unit and let systemd start the daemon, now and from now on. Running jobs go on."""
    if "system" in values:
        from gflow.daemon.process.directories import check_installation

        check_installation()
    path, text = unit_path(values), _text(values)
    if path.exists() and MARK not in path.read_text() and "force" not in values:
        raise Refused(f"{path} is there, and not of gflow's making", hint="--force writes over it")
    _reach(values)
    notes = _leave_the_old_one(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    systemctl(values, "daemon-reload")
    systemctl(values, "enable", "--now", NAME)
    if "system" not in values:
        notes += _linger()
    line = f"gflowd is a service now: {path}"
    say(
        values,
        "\n".join([line, *(f"({note})" for note in notes)]),
        unit=str(path),
        installed=True,
        notes=notes,
    )
    return 0


def uninstall(values: dict[str, Any]) -> int:
    """Stop the service and take its unit away. Running jobs go on, and the next daemon takes them over."""
    path = unit_path(values)
    if not path.exists():
        raise Refused(f"there is no service: {path} is not there")
    if MARK not in path.read_text() and "force" not in values:
        raise Refused(f"{path} is not of gflow's making", hint="--force removes it anyway")
    systemctl(values, "disable", "--now", NAME)
    path.unlink()
    systemctl(values, "daemon-reload")
    text = "gflowd is no service any more; running jobs go on. gflowd up starts it again"
    say(values, text, unit=str(path), installed=False)
    return 0


def _text(values: dict[str, Any]) -> str:
    return system_unit(program()) if "system" in values else user_unit(program(), dict(os.environ))


def _reach(values: dict[str, Any]) -> None:
    """Refuse before anything is changed, where systemd is installed and does not run, or not for us."""
    words = ["systemctl", *scope_of(values), "show", "--property=Version"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Refused(
            f"systemd cannot be reached: {said[-1] if said else done.returncode}",
            hint="log in anew and try again, or start the daemon without it: gflowd up",
        )


def _leave_the_old_one(values: dict[str, Any]) -> list[str]:
    """A daemon that runs already makes room for the service; its jobs go on."""
    try:
        flags = http.get("/status")["flags"]
    except (ConnectionError, Unreachable):
        return []
    if is_active(values):
        return []
    down({"again": True, "json": True})  # says nothing
    kept = [flag for flag in flags if flag not in ("--system", "--private")]
    return [f"it ran with {' '.join(kept)}: put that into gflow.toml"] if kept else []


def _linger() -> list[str]:
    """A user's services end with the last login, unless that user lingers."""
    command = shutil.which("loginctl")
    if command and subprocess.run([command, "enable-linger"], capture_output=True).returncode == 0:
        return []
    return [
        "it ends when you log out, and your jobs with it, until you linger: sudo loginctl enable-linger $USER"
    ]
