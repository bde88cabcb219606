"""A real sshd on a loopback port, as the login node of a cluster, with a Unix user of its own.

The user's home is closed to others, and the daemon's home to this user: both share the connection only
(if the tests do not run as root, the account is our own, and only the homes differ).
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.harness import Box, free_port, wait_until
from tests.user_accounts import ONE_AT_A_TIME, become, people

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
SSHD = shutil.which("sshd", path=PATH)


def lacks_sshd() -> str:
    """What is missing, for a reason to skip; empty: all is here."""
    if SSHD is None or shutil.which("ssh") is None:
        return "no sshd here: scripts/ssh-packages installs it"
    return "" if os.getuid() == 0 else "only root can make the user of a login node"


class LoginNode:
    """An sshd in `root` that lets one user in, by key. `variables`: the environment of its sessions."""

    def __init__(
        self,
        root: Path,
        person: pwd.struct_passwd,
        variables: Mapping[str, str] | None = None,
        *,
        shell: str = "/bin/sh",
    ) -> None:
        self.root, self.person = root, person
        self.port = free_port()
        self.home = Path(person.pw_dir)
        self.key, self._variables = root / "key", dict(variables or {})
        self._process: subprocess.Popen[bytes] | None = None
        # An account with a locked password cannot log in, also not by key.
        words = ["usermod", "--password", "*", "--shell", shell, person.pw_name]
        subprocess.run([*ONE_AT_A_TIME, *words], check=True, capture_output=True)
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o700)
        for name in ("key", "host"):
            _make_key(root / name)
        shutil.copy(root / "key.pub", root / "authorized")
        (root / "authorized").chmod(0o644)
        os.chown(self.home, person.pw_uid, person.pw_gid)

    def start(self, **options: str) -> LoginNode:
        """Start it. `options` are further lines of sshd_config."""
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        variables = " ".join(f'{name}="{value}"' for name, value in self._variables.items())
        lines = {
            "ListenAddress": "127.0.0.1",
            "Port": str(self.port),
            "HostKey": str(self.root / "host"),
            "PidFile": "none",
            "AuthorizedKeysFile": str(self.root / "authorized"),
            "AllowUsers": self.person.pw_name,
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "UsePAM": "no",
            "StrictModes": "no",  # all may write to /tmp
            "AcceptEnv": "*",
            "MaxStartups": "100",
        } | options
        if variables:
            lines["SetEnv"] = variables
        conf = self.root / "sshd_config"
        conf.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        assert SSHD is not None
        self._process = subprocess.Popen(
            [SSHD, "-D", "-f", str(conf), "-E", str(self.root / "sshd.log")], stdin=subprocess.DEVNULL
        )
        wait_until(lambda: "listening" in self.log(), 20, f"sshd; {self.log()}")
        return self

    def stop(self) -> None:
        """Kill it and every connection to it, as a crash of the login node would."""
        if self._process is not None:
            for pid in self._sessions(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            self._process = None
        (self.root / "sshd.log").unlink(missing_ok=True)

    def cut(self) -> None:
        """Kill every connection, and leave the server."""
        assert self._process is not None
        for pid in self._sessions(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def change_host_key(self) -> None:
        _make_key(self.root / "host")

    def log(self) -> str:
        path = self.root / "sshd.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def call(self, *words: str) -> str:
        """What a command prints that the user runs on the login node."""
        env = {"PATH": PATH, "HOME": str(self.home)} | self._variables
        done = subprocess.run(
            [*become(self.person), *words], env=env, cwd="/", capture_output=True, text=True, timeout=60
        )
        return done.stdout

    def install(self, box: Box, host: str = "login", port: int = 0) -> None:
        """Let the box's `ssh` reach it as `host`: its own configuration, key and known hosts.

        ssh takes the home from the account, not from HOME, so that `ssh` in the box names its configuration.
        `port`: that of a proxy.
        """
        folder, programs = box.home / ".ssh", box.root / "programs"
        folder.mkdir(mode=0o700, exist_ok=True)
        programs.mkdir(exist_ok=True)
        shutil.copy(self.key, folder / "key")
        (folder / "key").chmod(0o600)
        words = (self.root / "host.pub").read_text().split()[:2]
        (folder / "known_hosts").write_text(f"{host} {' '.join(words)}\n")
        (folder / "config").write_text(
            f"Host {host}\n HostName 127.0.0.1\n Port {port or self.port}\n User {self.person.pw_name}\n"
            f" HostKeyAlias {host}\n IdentityFile {folder}/key\n IdentitiesOnly yes\n"
            f" UserKnownHostsFile {folder}/known_hosts\n GlobalKnownHostsFile none\n"
        )
        (programs / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/config "$@"\n')
        (programs / "ssh").chmod(0o755)
        box.env["PATH"] = f"{programs}:{box.env['PATH']}"
        box.env.pop("SSH_AUTH_SOCK", None)

    @staticmethod
    def _sessions(server: int) -> list[int]:
        """Processes of connections: the children of the server, and theirs that are sshd."""
        found: list[int] = []
        waiting = [server]
        while waiting:
            with suppress(OSError):
                text = Path(f"/proc/{(one := waiting.pop())}/task/{one}/children").read_text()
                for child in map(int, text.split()):
                    with suppress(OSError):
                        if Path(f"/proc/{child}/comm").read_text().strip().startswith("sshd"):
                            found.append(child)
                            waiting.append(child)
        return found


def _make_key(path: Path) -> None:
    for old in (path, path.with_suffix(".pub")):
        old.unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, capture_output=True
    )


@contextmanager
def login_node(
    variables: Mapping[str, str] | None = None, *, shell: str = "/bin/sh", homes: Path | None = None
) -> Iterator[LoginNode]:
    """A running login node with a fresh user. Skips the test where there can be none.

    `homes`: where the home of the user is made; by default beside the files of the server.
    """
    if missing := lacks_sshd():
        pytest.skip(missing)
    with tempfile.TemporaryDirectory(prefix="gflow-login-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        with people("login", homes=homes or root) as (person,):
            node = LoginNode(root, person, variables, shell=shell)
            try:
                yield node.start()
            finally:
                node.stop()
