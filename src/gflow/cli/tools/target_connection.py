"""The connection to a cluster for gflow target: opened by hand, tested, and reported step by step."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

SBATCH_VERSION = ["sbatch", "--version"]


def open_by_hand(ssh: Any) -> int:
    """Open the connection in this terminal; the exit code of ssh."""
    ssh.control_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    asking = {"BatchMode": "no", "StrictHostKeyChecking": "ask", "ControlPersist": "yes", "LogLevel": "INFO"}
    words = [*ssh.shell_words(**asking), "-f", "-N", "--", ssh.host]
    return subprocess.run(words, env=_environ()).returncode


def ssh_of(target: dict[str, Any]) -> Any:
    from gflow.targets.slurm.ssh.ssh_runner import SshRunner

    return SshRunner(target["host"], Path(target["control_path"]).parent, name=target["name"])


def is_open(ssh: Any) -> bool:
    words = [*ssh.shell_words(), "-O", "check", "--", ssh.host]
    return subprocess.run(words, env=_environ(), capture_output=True).returncode == 0


def _environ() -> dict[str, str]:
    """The environment of ssh: it needs the terminal to ask."""
    from gflow.targets.slurm.ssh.ssh_runner import ssh_environ

    asks = {
        name: os.environ[name] for name in ("TERM", "SSH_ASKPASS", "WAYLAND_DISPLAY") if name in os.environ
    }
    return ssh_environ(os.environ) | asks


def test_connection(ssh: Any) -> bool:
    """Run sbatch there once, over the connection of the daemon."""
    result = ssh.run(["id", "-un"], timeout_s=60, environ={})
    if not result.ok:
        return say(False, f"connection to {ssh.host}", result.error)
    say(True, f"connection to {ssh.host}", f"as {result.text.strip()}")
    found = ssh.run(SBATCH_VERSION, timeout_s=60, environ={})
    if not found.ok:
        hint = (
            "there is no sbatch on its PATH, also not after /etc/profile: is it a login node of the cluster?"
        )
        return say(False, "Slurm's commands", f"{found.error}; {hint}")
    return say(True, "Slurm's commands", found.text.strip())


def say(is_fine: bool, step: str, text: str) -> bool:
    """Print the result of a step; returns whether it succeeded."""
    from gflow.errors import clean_page

    print(clean_page(f"{'ok  ' if is_fine else 'FAIL'}  {step}: {text}"))
    return is_fine
