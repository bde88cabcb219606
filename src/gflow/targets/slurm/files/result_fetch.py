"""Fetch files of a job from the cluster into its folder here.

A file is complete or absent here: rsync writes it under another name first. A file that is newer here is
kept.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import IO, NamedTuple

import msgspec

from gflow.core.model import Job
from gflow.targets.slurm.commands.command_runner import Runner
from gflow.targets.slurm.files.local_snapshots import Index, LocalSnapshots, parse_id
from gflow.targets.slurm.files.path_patterns import matcher
from gflow.targets.slurm.files.rsync import PART_FOLDER, Rsync, RsyncResult
from gflow.targets.slurm.files.snapshot_transfer import NS, Listing, RemoteFile, is_changed, list_files

# Clocks that differ by more than this many seconds are taken into account.
SKEW_S = 5


class FetchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is fetched: from the folder `there` to the folder `here`."""

    there: str
    here: str
    # Empty: all files that the job wrote or changed.
    patterns: tuple[str, ...] = ()
    # The snapshot in which the job runs, and its folder below the top of that; empty: no files were sent.
    snapshot: str = ""
    below: str = ""
    # When the job began, in seconds since 1970 on the clock of this machine.
    started_at: float = 0.0
    overwrites: bool = False


class Fetched(NamedTuple):
    """What was fetched; `kept`: files that are newer here. Else one sentence, and whether it is final."""

    ok: bool
    files: int = 0
    size: int = 0
    kept: tuple[bytes, ...] = ()
    error: str = ""
    is_final: bool = False


class ResultFetch:
    """Fetches files of jobs from one cluster."""

    def __init__(self, runner: Runner, snapshots: LocalSnapshots) -> None:
        self._runner, self._snapshots = runner, snapshots
        self._rsync = Rsync(runner)

    def fetch(self, order: FetchOrder, progress: IO[bytes] | None = None) -> Fetched:
        """Fetch the files that an order names. `progress` gets rsync's display of its progress."""
        try:
            listing = list_files(self._runner, order.there)
        except FileNotFoundError:
            return Fetched(False, error=f"there is no folder {order.there} on the cluster", is_final=True)
        except OSError as error:
            return Fetched(False, error=str(error))
        skew_ns = int(listing.ahead_s) * NS if abs(listing.ahead_s) > SKEW_S else 0
        wanted, kept = self._select(order, listing, skew_ns)
        for below, paths in _by_link(order.here, wanted).items():
            result = self._transfer(order, below, paths, progress, has_skew=bool(skew_ns))
            if not result.ok:
                return Fetched(False, kept=tuple(kept), error=result.error)
        if skew_ns:
            self._set_times(order, wanted, skew_ns)
        return Fetched(True, len(wanted), sum(one.size for one in wanted), tuple(kept))

    def _transfer(
        self,
        order: FetchOrder,
        below: bytes,
        paths: list[bytes],
        progress: IO[bytes] | None,
        *,
        has_skew: bool,
    ) -> RsyncResult:
        """Run rsync for paths below one folder, which may be behind a link here."""
        words = ["-ltE", "--safe-links", "--from0", "--files-from=-"]
        words += [] if order.overwrites or has_skew else ["-u"]
        words += ["--info=progress2"] if progress is not None else []
        folder = os.fsdecode(below)
        here = os.path.realpath(f"{order.here}/{folder}")
        try:
            os.makedirs(here, exist_ok=True)
        except OSError as error:
            return RsyncResult(False, f"{here}: {error.strerror}")
        return self._rsync.run(
            [*words, "--", self._rsync.there(f"{order.there}/{folder}/"), f"{here}/"],
            input=b"".join(b"./" + path + b"\0" for path in paths),  # a leading # would be a comment
            output=progress,
        )

    def _select(
        self, order: FetchOrder, listing: Listing, skew_ns: int
    ) -> tuple[list[RemoteFile], list[bytes]]:
        """The files to fetch, and those that are newer here or something else.

        `skew_ns`: by how much the clock there is ahead.
        """
        wanted, kept = list[RemoteFile](), list[RemoteFile]()
        for file in self._candidates(order, listing):
            try:
                here = os.lstat(os.path.join(os.fsencode(order.here), file.path))
            except NotADirectoryError:  # a file here where there is a folder there
                (wanted if order.overwrites else kept).append(file)
                continue
            except OSError:
                wanted.append(file)
                continue
            written_ns = self._time_here(order, file, skew_ns)
            if here.st_size == file.size and _is_same_time(here.st_mtime_ns, file.mtime_ns, written_ns):
                continue
            is_kept = here.st_mtime_ns > written_ns or stat.S_ISDIR(here.st_mode)
            (kept if is_kept and not order.overwrites else wanted).append(file)
        return wanted, [file.path for file in kept]

    def _candidates(self, order: FetchOrder, listing: Listing) -> list[RemoteFile]:
        files = [one for one in listing.files if is_plain(one.path)]
        if order.patterns:
            matches = matcher(order.patterns)
            return [one for one in files if matches(one.path)]
        if index := self._index(order):
            return [one for one in files if is_changed(one, index, _prefix(order))]
        since_ns = int((order.started_at + listing.ahead_s) * NS)
        return [one for one in files if one.mtime_ns >= since_ns]

    def _index(self, order: FetchOrder) -> Index:
        """What was sent for the job; empty: nothing, or it is not known any more."""
        if not order.snapshot:
            return {}
        snapshot = parse_id(order.snapshot)
        return self._snapshots.read_index(snapshot.project, snapshot.tree)

    def _time_here(self, order: FetchOrder, file: RemoteFile, skew_ns: int) -> int:
        """The mtime of a file on the clock here. A file that was sent has kept the mtime from here."""
        if not skew_ns:
            return file.mtime_ns
        index = self._index(order)
        was_written = not index or is_changed(file, index, _prefix(order))
        return file.mtime_ns - skew_ns if was_written else file.mtime_ns

    def _set_times(self, order: FetchOrder, files: list[RemoteFile], skew_ns: int) -> None:
        """Give fetched files mtimes on the clock here, so that later ones compare with them."""
        for file in files:
            at_ns = self._time_here(order, file, skew_ns)
            with suppress(OSError):
                path = os.path.join(os.fsencode(order.here), file.path)
                os.utime(path, ns=(at_ns, at_ns), follow_symlinks=False)


def _prefix(order: FetchOrder) -> bytes:
    return os.fsencode(order.below + "/" if order.below else "")


def _is_same_time(here_ns: int, there_ns: int, written_ns: int) -> bool:
    """Whether a file here has the mtime of the one there, as it is or on the clock here."""
    is_near = written_ns != there_ns and abs(here_ns - written_ns) <= SKEW_S * NS
    return is_near or here_ns // NS == there_ns // NS


def _by_link(here: str, files: list[RemoteFile]) -> dict[bytes, list[bytes]]:
    """The paths of files by the deepest folder that is a link here: rsync does not follow links."""
    top, links = os.fsencode(here), dict[bytes, bytes]()

    def find(folder: bytes) -> bytes:
        if folder not in links:
            links[folder] = folder if os.path.islink(top + b"/" + folder) else find(os.path.dirname(folder))
        return links[folder]

    links[b""] = b""
    found: dict[bytes, list[bytes]] = {}
    for file in files:
        below = find(os.path.dirname(file.path))
        found.setdefault(below, []).append(file.path[len(below) + 1 :] if below else file.path)
    return found


def fetch_order(job: Job, there: str, here: str, patterns: tuple[str, ...] = ()) -> FetchOrder:
    """The order for files of a job, from the folder `there` in which it ran to its folder `here`."""
    spec = job.spec
    below = os.path.relpath(here, spec.sync) if spec.sync else "."
    return FetchOrder(
        there=there,
        here=here,
        patterns=patterns,
        snapshot=spec.snapshot,
        below="" if below == "." else below,
        started_at=job.started_at or job.submitted_at,
    )


def is_plain(path: bytes) -> bool:
    """Whether a path stays below its folder, and is no part of an unfinished transfer."""
    parts = path.split(b"/")
    return bool(path) and not {b"", b".", b"..", os.fsencode(PART_FOLDER)} & set(parts)
