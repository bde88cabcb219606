"""Run a command in a job on a cluster: here, or over the SSH connection of the daemon."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from gflow.cli.common.rights import become_owner
from gflow.targets.slurm.commands.slurm_cli import clean_environ
from gflow.targets.slurm.ssh.remote_shell import command_line
from gflow.targets.slurm.ssh.ssh_runner import SshRunner, ssh_environ


def run_step(step: dict[str, Any], *, is_tty: bool) -> int:
    """Run the script of a step with our terminal, input and output; its exit code."""
    become_owner(step["uid"])
    if step["host"] is None:
        where = {"SLURM_CONF": step["slurm_conf"]} if step["slurm_conf"] else {}
        words, environ = ["/bin/sh", "-c", step["script"]], clean_environ(os.environ) | where
    else:
        ssh = SshRunner(step["host"], Path(step["ssh_folder"]), name=step["target"])
        ssh.control_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        options = ssh.shell_words(RequestTTY="force" if is_tty else "no")
        words, environ = [*options, "--", ssh.host, command_line(step["script"])], ssh_environ(os.environ)
        environ |= {"TERM": os.environ["TERM"]} if is_tty and "TERM" in os.environ else {}
    return _wait(subprocess.Popen(words, env=environ))


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the command, which gets Ctrl-C from the terminal as we do."""
    while True:
        try:
            code = process.wait()
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:
            continue
