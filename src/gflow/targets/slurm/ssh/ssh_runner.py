"""Run commands on the login node of a cluster through the system's OpenSSH, over one connection.

The user's `~/.ssh/config`, keys and agent apply. ssh never asks a question: no user would see it.
The first call opens a master connection (ControlMaster), which the others share.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gflow.errors import Refused
from gflow.targets.slurm.commands.command_runner import CommandResult, is_unreachable
from gflow.targets.slurm.ssh.pipe_exchange import exchange
from gflow.targets.slurm.ssh.remote_shell import SHELL, command_script, make_frame, program
from gflow.targets.slurm.ssh.user_account import Program, UserAccount

# sun_path holds 108 bytes, and ssh adds 17 to the name of a socket while it creates it.
SOCKET_PATH_MAX = 85
# Calls at the same time. A server allows 10 on one connection unless its MaxSessions says otherwise.
MAX_CALLS = 7
CONNECT_TIMEOUT_S = 15
# Seconds for which an idle connection stays open.
PERSIST_S = 1800
# The variables that ssh gets: it could send others to the server (SendEnv in ssh_config).
KEPT = frozenset(
    {"HOME", "PATH", "USER", "LOGNAME", "SSH_AUTH_SOCK", "KRB5CCNAME", "TMPDIR", "XDG_RUNTIME_DIR", "DISPLAY"}
)
OPTIONS = {
    "BatchMode": "yes",
    # A changed or unknown key is refused. `gflow target connect` asks about an unknown one.
    "StrictHostKeyChecking": "yes",
    "ConnectTimeout": str(CONNECT_TIMEOUT_S),
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "3",
    "ControlMaster": "auto",
    "ControlPersist": str(PERSIST_S),
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "LogLevel": "ERROR",
}
# What ssh says, and what to do about it.
HINTS = {
    "REMOTE HOST IDENTIFICATION HAS CHANGED": "the key of {host} has changed, so gflow does not connect: ask"
    " the site whether that is right, then ssh-keygen -R {host}",
    "Host key verification failed": "the key of {host} is not in known_hosts: gflow target connect {name}",
    "Permission denied": "{host} does not accept your key: gflow target connect {name} logs in by hand",
    "Could not resolve hostname": "there is no host {host}",
}


class ScriptResult(NamedTuple):
    """The result of a script there. `code` is None if it is not known whether it came to its end."""

    code: int | None
    output: bytes = b""
    error: str = ""


class Script(NamedTuple):
    """Lines of a POSIX shell, and the umask with which they run."""

    body: str
    umask: int = 0o077


class SshRunner:
    """Runs commands on one host, with the interface of `CommandRunner`. Threads may share it.

    `folder` has the socket of the connection. `user`: the user as whom root's daemon runs ssh, and to whom
    `folder` belongs; None: as we are.
    """

    def __init__(self, host: str, folder: Path, *, name: str = "", user: UserAccount | None = None) -> None:
        self.host, self.name, self.user = host, name or host, user
        self.control_path = control_path(host, folder)
        self._slots = threading.BoundedSemaphore(MAX_CALLS)
        self._found: set[str] = set()

    def shell_words(self, **options: str) -> list[str]:
        """The words of ssh without the host, as `rsync -e` takes them. `options` replace ours."""
        ours = OPTIONS | {"ControlPath": str(self.control_path)} | options
        return ["ssh", *(word for name, value in ours.items() for word in ("-o", f"{name}={value}"))]

    def has(self, program: str) -> bool:
        """Whether there is such a program there."""
        if program not in self._found:
            result = self.run(
                ["command", "-v", program], timeout_s=CONNECT_TIMEOUT_S + 5, environ={}, umask=0o077
            )
            if not result.ok:
                return False
            self._found.add(program)
        return True

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
        """Run a command there. It gets the variables of `environ` besides those of its login shell."""
        try:
            script = command_script(words, environ, input.encode(errors="surrogateescape"), cwd)
        except ValueError as error:
            return CommandResult(False, "", str(error))
        return result_of(self.run_script(script, timeout_s=timeout_s, umask=umask))

    def run_script(self, body: str, *, timeout_s: float, umask: int = 0o077) -> ScriptResult:
        """Run lines of a POSIX shell there. All of them or none reach the shell."""
        return self.run_scripts([Script(body, umask)], timeout_s=timeout_s)[0]

    def run_scripts(self, scripts: Sequence[Script], *, timeout_s: float) -> list[ScriptResult]:
        """Run scripts one after the other in one session, each in a subshell."""
        frames = [make_frame() for _ in scripts]
        sections = [frame.section(*script) for frame, script in zip(frames, scripts, strict=True)]
        with self._slots:
            output, errors, problem = self._call(program(sections), timeout_s)
        results = []
        for frame in frames:
            code, text = frame.parse(output)
            error = frame.parse_error(errors)
            if code is None:
                error = problem or self.explain(error)
            results.append(ScriptResult(code, text, error))
        return results

    def _call(self, text: bytes, timeout_s: float) -> tuple[bytes, bytes, str]:
        """Output and error output of a session with this input; and why it did not come to its end."""
        try:
            if self.user is None:
                self.control_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            process = self._start([*self.shell_words(), "-T", "--", self.host, SHELL])
        except (OSError, Refused) as error:
            return b"", b"", f"ssh cannot be run: {getattr(error, 'strerror', None) or error}"
        output, errors, problem = exchange(process, text, timeout_s)
        return output, errors, f"{self.host} {problem}" if problem else ""

    def _start(self, words: list[str]) -> Program:
        if self.user is not None:
            return self.user.start(words[0], words[1:])
        return subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ssh_environ(os.environ),
            start_new_session=True,
        )

    def explain(self, error: str) -> str:
        """The error of ssh in one line, with what to do about it if that is known."""
        for words, hint in HINTS.items():
            if words in error:
                return hint.format(host=self.host, name=self.name)
        lines = [line.strip() for line in error.splitlines() if line.strip()]
        return f"ssh {self.host}: {lines[-1][:300]}" if lines else f"the connection to {self.host} was lost"


def result_of(result: ScriptResult) -> CommandResult:
    """The result of a script that runs one command."""
    if result.code is None:
        return CommandResult(False, "", result.error, True)
    is_unsure = result.code != 0 and is_unreachable(result.error)
    return CommandResult(result.code == 0, result.output.decode(errors="replace"), result.error, is_unsure)


def control_path(host: str, folder: Path) -> Path:
    """The socket of the master connection: in `folder`, or in a folder with a short path."""
    name = hashlib.sha1(host.encode(errors="surrogateescape")).hexdigest()[:10]
    path = folder / name
    # ssh expands % and splits at spaces.
    if len(os.fsencode(path)) <= SOCKET_PATH_MAX and re.fullmatch(r"[\w./@+-]+", str(path), re.ASCII):
        return path
    digest = hashlib.sha1(os.fsencode(folder)).hexdigest()[:10]
    return own_folder(Path(f"/tmp/gflow-{os.getuid()}-{digest}")) / name


def own_folder(folder: Path) -> Path:
    """Create a folder in /tmp, and check that it is ours alone. OSError: it is not."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def ssh_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of ssh itself."""
    return {name: value for name, value in environ.items() if name in KEPT}
