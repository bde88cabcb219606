"""Run rsync between this machine and a cluster, over the connection that the commands use."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from typing import IO, NamedTuple

from gflow.targets.slurm.commands.command_runner import Runner
from gflow.targets.slurm.ssh.ssh_runner import SshRunner, ssh_environ

# Seconds without a byte after which rsync gives up.
IO_TIMEOUT_S = 60
# Files that were not transferred to their end are kept here, so that the next call goes on with them.
PART_FOLDER = ".gflow-part"
# -s: paths travel in rsync's protocol and never pass through a shell.
COMMON = ("-s", "-z", f"--timeout={IO_TIMEOUT_S}", f"--partial-dir={PART_FOLDER}")
# Exit code of rsync: some files vanished while they were read.
VANISHED = 24
# What rsync says, and what to do about it.
HINTS = {
    r"rsync: (command )?not found|unknown command: rsync|remote command not found": "rsync is not installed"
    " on {there}: install it there, or submit with --no-sync",
    r"is your shell clean|protocol version mismatch": "the login shell on {there} prints text, which breaks"
    " rsync: ssh {there} true must print nothing",
    r"disk quota exceeded": "your disk quota on {there} is used up",
    r"no space left": "there is no space left on the disk of {there}",
}
# Exit code of rsync if its ssh failed.
SSH_FAILED = 255
ERROR = re.compile(r"^(rsync( error)?: |.*@ERROR|ssh: )", re.IGNORECASE)


# What rsync shows with `--info=progress2`: bytes, and their part of all.
PROGRESS = ("--info=progress2", "--no-inc-recursive")
SHOWN = re.compile(rb"([\d,.]+)\s+(\d+)%\s")


def parse_progress(shown: bytes) -> str:
    """The last progress that rsync has shown, as `48 MB (37 %)`; empty: none yet."""
    found = SHOWN.findall(shown)
    if not found:
        return ""
    count, percent = (re.sub(rb"\D", b"", word) for word in found[-1])
    return f"{int(count or 0) / 1e6:.0f} MB ({int(percent)} %)"


class RsyncResult(NamedTuple):
    """Whether everything was transferred; else one sentence."""

    ok: bool
    error: str = ""


class Rsync:
    """Calls of rsync. The other side is the host of `runner`, or this machine if it has none."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.host = runner.host if isinstance(runner, SshRunner) else ""

    def there(self, path: str) -> str:
        """A path on the other side, as a word for rsync."""
        return f"{self.host}:{path}" if self.host else path

    def run(
        self, words: Sequence[str], *, input: bytes = b"", output: IO[bytes] | None = None
    ) -> RsyncResult:
        """Run rsync to its end. `output` gets what it prints, such as its progress."""
        # Files, not pipes: the master connection of ssh keeps them open.
        with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as source:
            source.write(input)
            source.seek(0)
            try:
                process = subprocess.Popen(
                    ["rsync", *COMMON, *self._shell(), *words],
                    stdin=source,
                    stdout=output or subprocess.DEVNULL,
                    stderr=errors,
                    env=ssh_environ(os.environ) | {"LC_ALL": "C"},
                    start_new_session=True,
                )
            except FileNotFoundError:
                return RsyncResult(False, "rsync is not installed on this machine: apt install rsync")
            except OSError as error:
                return RsyncResult(False, f"rsync cannot be run: {error.strerror}")
            try:
                code = process.wait()
            except BaseException:  # Ctrl-C
                process.terminate()
                process.wait()
                raise
            errors.seek(0)
            text = errors.read().decode(errors="replace")
        return RsyncResult(True) if code in (0, VANISHED) else RsyncResult(False, self._explain(code, text))

    def _shell(self) -> list[str]:
        runner = self._runner
        if not isinstance(runner, SshRunner):
            return []
        runner.control_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return ["-e", shlex.join(runner.shell_words())]

    def _explain(self, code: int, text: str) -> str:
        """The error of rsync in one line, with what to do about it if that is known."""
        there = self.host or "this machine"
        for pattern, hint in HINTS.items():
            if re.search(pattern, text, re.IGNORECASE):
                return hint.format(there=there)
        if code == SSH_FAILED and isinstance(self._runner, SshRunner):
            return self._runner.explain(text.partition("rsync: ")[0])
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        said = next((line for line in lines if ERROR.match(line)), lines[0] if lines else f"code {code}")
        return f"rsync with {there}: {said[:300]}"
