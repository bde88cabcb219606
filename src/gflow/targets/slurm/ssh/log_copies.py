"""Copies here of the logs of jobs on a cluster that is reached by SSH.

A copy is always the beginning of the log there: the bytes after its end are fetched, so a broken connection
costs nothing. One thread fetches all logs that were asked for with one session.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from gflow.targets.file_rights import OWN_FILES, FileOpener
from gflow.targets.slurm.ssh.remote_folder import RemoteFolder, Unreachable
from gflow.targets.slurm.ssh.remote_shell import quote
from gflow.targets.slurm.ssh.ssh_runner import Script, ScriptResult

logger = logging.getLogger("gflow.slurm")
# Seconds between two fetches of logs that are followed: the minimum, and the maximum while none grows.
PAUSE_S, LONGEST_PAUSE_S = 0.7, 5.0
# Seconds for which a log is followed after the last request for it.
LEASE_S = 900.0
# Bytes of all logs in one session; of one log at least; and logs in one session.
MOST_BYTES, LEAST_BYTES = 4 << 20, 256 << 10
MOST_LOGS = 50
# Seconds after which a request is answered although its log has grown further.
REQUEST_S = 60.0
TIMEOUT_S = 45.0


class Log(NamedTuple):
    """A log: its path on the cluster, which may begin with `~gflow/`, and the path of its copy."""

    there: str
    here: str


class Shell(Protocol):
    """Runs several scripts in one session."""

    def run_scripts(self, scripts: Sequence[Script], *, timeout_s: float) -> list[ScriptResult]: ...


class Request(NamedTuple):
    """A log that is to be fetched to its end. `done` is called in the thread: whether that was possible."""

    log: Log
    done: Callable[[bool], None]
    until: float


class LogCopies:
    """Fetches logs. The thread starts with the first request, and ends with the daemon.

    `files` opens the copies, with the rights of the user in system mode.
    """

    def __init__(
        self,
        shell: Shell,
        folder: RemoteFolder,
        is_down: Callable[[], bool],
        files: FileOpener = OWN_FILES,
    ) -> None:
        self._shell, self._folder, self._is_down, self._files = shell, folder, is_down, files
        self._condition = threading.Condition()
        self._requests: list[Request] = []
        self._followed: dict[Log, float] = {}
        # Logs of which a fetch failed.
        self._failed: dict[Log, None] = {}
        self._is_running = False

    def follow(self, log: Log) -> None:
        """Fetch a log as it grows, for LEASE_S."""
        with self._condition:
            self._followed[log] = time.monotonic() + LEASE_S
            self._start()

    def fetch(self, log: Log, done: Callable[[bool], None]) -> None:
        """Fetch a log to its present end, and call `done`. If that fails, it is tried again afterwards."""
        with self._condition:
            self._requests.append(Request(log, done, time.monotonic() + REQUEST_S))
            self._start()
            self._condition.notify()

    def end(self, log: Log) -> None:
        """Follow a log no longer: its job has ended."""
        with self._condition:
            self._followed.pop(log, None)

    def _start(self) -> None:
        if not self._is_running:
            self._is_running = True
            threading.Thread(target=self._run, name="slurm-logs", daemon=True).start()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        pause_s = PAUSE_S
        while True:
            requests, logs = self._next(pause_s)
            try:
                grown = self.copy(logs)
                self._failed = dict.fromkeys(log for log in self._failed if log in grown)
                pause_s = PAUSE_S if grown else min(LONGEST_PAUSE_S, pause_s * 1.5)
                self._answer(requests, grown)
            except OSError as error:
                logger.info("logs cannot be fetched: %s", error)
                pause_s = LONGEST_PAUSE_S
                self._failed |= dict.fromkeys(one.log for one in requests)
                for one in requests:
                    one.done(False)

    def _next(self, pause_s: float) -> tuple[list[Request], list[Log]]:
        """Wait for a request, or for the end of the pause if any log is followed."""
        with self._condition:
            has_more = self._followed or self._failed
            self._condition.wait_for(lambda: self._requests, pause_s if has_more else None)
            requests, self._requests = self._requests, []
            now = time.monotonic()
            self._followed = {log: until for log, until in self._followed.items() if until > now}
            followed = [] if self._is_down() else [*self._failed, *self._followed]
        return requests, list(dict.fromkeys([*(one.log for one in requests), *followed]))

    def _answer(self, requests: list[Request], grown: set[Log]) -> None:
        """Answer the requests whose logs are fetched to their ends; the others go on."""
        now = time.monotonic()
        rest = [one for one in requests if one.log in grown and now < one.until]
        with self._condition:
            self._requests += rest
        for one in requests:
            if one not in rest:
                one.done(True)

    def copy(self, logs: Sequence[Log]) -> set[Log]:
        """Append what is new of each log to its copy; the logs that may have more. OSError: not now."""
        if logs and self._folder.place is None:
            self._folder.daemon_id()
        more: set[Log] = set()
        for first in range(0, len(logs), MOST_LOGS):
            some = logs[first : first + MOST_LOGS]
            most = max(LEAST_BYTES, MOST_BYTES // len(some))
            offsets = [self._size(log.here) for log in some]
            paths = [quote(self._folder.expand(log.there)) for log in some]
            scripts = [
                Script(FETCH.format(path=path, offset=offset, most=most))
                for path, offset in zip(paths, offsets, strict=True)
            ]
            results = self._shell.run_scripts(scripts, timeout_s=TIMEOUT_S)
            for log, offset, result in zip(some, offsets, results, strict=True):
                if result.code == 0 and self._append(log.here, offset, result.output):
                    more.add(log)
            if unknown := [result for result in results if result.code is None]:
                raise Unreachable(unknown[0].error)
        return more

    def _size(self, path: str) -> int:
        try:
            fd = self._files.open_copy(path, writes=False)
        except FileNotFoundError:
            return 0
        try:
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _append(self, path: str, offset: int, output: bytes) -> bool:
        """Append the output of FETCH to the copy; whether it has changed."""
        first, _, text = output.partition(b"\n")
        size = int(first) if first.strip().isdigit() else 0
        if not text and size >= offset:
            return False
        if not text and not size:
            return False  # it is not there (yet); a copy of what was is kept
        fd = self._files.open_copy(path, writes=True)
        try:
            if size < offset:  # it was emptied there
                os.ftruncate(fd, 0)
                return True
            while text:
                written = os.pwrite(fd, text, offset)
                text, offset = text[written:], offset + written
        finally:
            os.close(fd)
        return True


# Prints the size of the file, then bytes from the offset on.
FETCH = """file={path}
[ -r "$file" ] || {{ echo 0; exit 0; }}
size=$(wc -c < "$file") || exit 1
echo $size
[ $size -le {offset} ] || tail -c +$(({offset} + 1)) -- "$file" | head -c {most}"""
