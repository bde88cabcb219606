"""Run a command for the Slurm target, with a time-out: the only place that starts Slurm's commands.

`slurm_cli` builds the words and parses the output. A runner for another machine needs the same two methods.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

# Errors of an unreachable or slow controller: the request may or may not have taken effect.
UNREACHABLE = re.compile(
    r"unable to contact slurm controller|socket timed out|connection (refused|timed out|reset)|"
    r"zero bytes were transmitted|unable to establish controller|transport endpoint|"
    r"communication (connection|shutdown) failure|message (send|receive) failure|missing socket error|"
    r"controller (is )?(in standby|not responding)|network is unreachable|unexpected message received|"
    r"slurm_persist_conn|munge encode failed|failed to connect to .*munge|resource temporarily unavailable",
    re.IGNORECASE,
)
# Seconds to wait for the output of a killed command: a process that left its group may hold the pipe.
DRAIN_S = 1.0


class CommandResult(NamedTuple):
    """The result of a command. `unsure`: the controller did not answer; the request may have taken effect."""

    ok: bool
    text: str
    error: str = ""
    unsure: bool = False


class Runner(Protocol):
    """Runs commands somewhere: `CommandRunner` on this machine, `ssh.SshRunner` on a login node."""

    def has(self, program: str) -> bool: ...

    def run(
        self,
        words: Sequence[str],
        *,
        timeout_s: float,
        environ: Mapping[str, str],
        input: str = "",
        cwd: str = "/",
        umask: int = 0o077,
    ) -> CommandResult: ...


class CommandRunner:
    """Runs commands on this machine. Threads may share it."""

    def has(self, program: str) -> bool:
        """Whether there is such a program."""
        return shutil.which(program) is not None

    def run(
        self,
        words: Sequence[str],
        *,
        timeout_s: float,
        environ: Mapping[str, str],
        input: str = "",
        cwd: str = "/",
        umask: int = 0o077,
    ) -> CommandResult:
        """Run a command to its end. After `timeout_s` its whole process group is killed."""
        program = shutil.which(words[0])
        if program is None:
            return CommandResult(False, "", f"there is no {words[0]} here")
        try:
            process = subprocess.Popen(
                [program, *words[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environ,
                cwd=cwd,
                umask=umask,
                start_new_session=True,
            )
        except OSError as error:  # usually: the working directory no longer exists
            return CommandResult(False, "", f"{words[0]} cannot be run in {cwd}: {error.strerror}")
        try:
            out, errors = process.communicate(input.encode(errors="surrogateescape"), timeout_s)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            return CommandResult(False, "", f"{words[0]} did not answer in {timeout_s:.0f} s", True)
        text, error_text = out.decode(errors="replace"), errors.decode(errors="replace")
        if process.returncode == 0:
            return CommandResult(True, text, error_text)
        return CommandResult(False, text, error_text, is_unreachable(error_text))


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a command that started a session of its own, with all processes of its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=DRAIN_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(DRAIN_S)


def is_unreachable(text: str) -> bool:
    """Whether an error leaves open if the request took effect."""
    return UNREACHABLE.search(text) is not None
