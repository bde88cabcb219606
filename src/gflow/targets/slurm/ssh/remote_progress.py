"""Progress reports of jobs on a cluster that is reached by SSH: two calls at most for all jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from gflow.targets.slurm.progress_files import EVERY_S, MOST_BYTES
from gflow.targets.slurm.ssh.remote_folder import RemoteFolder
from gflow.targets.slurm.ssh.remote_shell import quote


class RemoteProgress:
    """Reads what was appended since the last time, as `ProgressFiles`. Reading blocks for a round trip."""

    def __init__(self, folder: RemoteFolder, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._read_at = 0.0
        # Bytes read so far, by run.
        self._offsets: dict[str, int] = {}

    def read_due(self, names: Iterable[str]) -> list[bytes]:
        """New lines of all these runs, every `EVERY_S`; runs that are not among them are forgotten."""
        now = self._clock()
        known = {name for name in names if self._folder.has_progress(name)}
        if now < self._read_at or not known:
            return []
        self._read_at = now + EVERY_S
        self._offsets = {name: at for name, at in self._offsets.items() if name in known}
        return self._read(known)

    def read(self, name: str) -> list[bytes]:
        """New lines of one run. A line that is not complete yet is left for the next time."""
        return self._read({name}) if self._folder.has_progress(name) else []

    def _read(self, names: set[str]) -> list[bytes]:
        try:
            grown = self._grown(names)
            return self._fetch(grown) if grown else []
        except OSError:  # the cluster does not answer: the reports are read later
            return []

    def _grown(self, names: set[str]) -> dict[str, int]:
        """The runs with a file of another size than what was read, and the bytes to skip."""
        files = " ".join(f"{quote(name)}.progress" for name in sorted(names))
        found: dict[str, int] = {}
        for line in self._folder.run_here(f"ls -ln -- {files} 2>/dev/null\n:").decode().splitlines():
            words = line.split()
            if len(words) < 6 or not words[4].isdecimal():
                continue
            name, size = words[-1].removesuffix(".progress"), int(words[4])
            offset = self._offsets.get(name, 0)
            if name in names and size != offset:
                found[name] = offset if size > offset else 0  # it was emptied
        return found

    def _fetch(self, grown: dict[str, int]) -> list[bytes]:
        lines = [
            f"echo {name}; tail -c +{offset + 1} {name}.progress | head -c {MOST_BYTES}; echo; echo /"
            for name, offset in grown.items()
        ]
        output = self._folder.run_here("\n".join(lines))
        found: list[bytes] = []
        for name, offset in grown.items():
            _, _, rest = output.partition(name.encode() + b"\n")
            text, _, output = rest.partition(b"\n/\n")
            complete = text[: text.rfind(b"\n") + 1]
            self._offsets[name] = offset + len(complete)
            found += complete.splitlines()
        return found
