"""Outputs of jobs that have ended: fetched before the end is reported, and retried until it has worked.

The first try comes before the daemon learns of the end, so that dependents and `gjob wait` find the files
here. If it fails, the end is reported, and an order in a file makes this daemon or the next one try again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from gflow.core.ids import JobKey
from gflow.targets.port import Ended
from gflow.targets.slurm.background_calls import Calls
from gflow.targets.slurm.candidate import Retry
from gflow.targets.slurm.files.local_snapshots import spell_bytes
from gflow.targets.slurm.files.result_fetch import Fetched, FetchOrder

log = logging.getLogger("gflow.slurm")
# The longest pause before outputs are fetched again.
LONGEST_S = 600.0
NOT_STARTED = Fetched(False, error="the transfer could not be started")


class Note(NamedTuple):
    """A line for the history of a job."""

    key: JobKey
    attempt: int
    text: str


class PendingFetch(msgspec.Struct, kw_only=True):
    """An order that has failed so far, as its file has it."""

    key: JobKey
    attempt: int
    order: FetchOrder


class Fetches(Protocol):
    """Fetches files of jobs: as we are, or as a user."""

    def fetch(self, order: FetchOrder) -> Fetched: ...


class OutputFetches:
    """Fetches outputs, one job at a time. Used by the worker's thread; transfers run outside it.

    `folder` has the orders that failed. `on_note` gets what happened.
    """

    def __init__(
        self,
        folder: Path,
        fetch: Fetches,
        calls: Calls,
        on_note: Callable[[Note], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._fetch, self._calls = folder, fetch, calls
        self._on_note, self._clock = on_note, clock
        self._first: list[tuple[PendingFetch, Callable[[float], None]]] = []
        self._pending: dict[str, PendingFetch] = {}
        self._retries: dict[str, Retry] = {}
        self._is_busy = False
        self._load()

    def hold(self, ended: Ended, order: FetchOrder, report: Callable[[Ended], None]) -> None:
        """Fetch the outputs of a run that has ended, then report its end."""
        run, began = ended.run, self._clock()

        def finish(now: float) -> None:
            report(ended._replace(end=ended.end._replace(ago_s=ended.end.ago_s + now - began)))

        self._first.append((PendingFetch(key=run.key, attempt=run.attempt, order=order), finish))
        self.turn()

    def turn(self) -> float | None:
        """Start what is due. Seconds until the next retry; None: nothing is left to do."""
        now = self._clock()
        if not self._is_busy and self._first:
            pending, finish = self._first.pop(0)
            self._start(pending, lambda fetched: self._finish_first(pending, fetched, finish))
        for name, pending in list(self._pending.items()):
            if not self._is_busy and now >= self._retries[name].at:
                self._start(pending, lambda fetched, name=name: self._finish_retry(name, fetched))  # type: ignore[misc]
        if not self._pending:
            return None
        return max(0.5, min(retry.at for retry in self._retries.values()) - now)

    def _start(self, pending: PendingFetch, then: Callable[[Fetched], None]) -> None:
        self._is_busy = True

        def finish(fetched: Fetched) -> None:
            self._is_busy = False
            then(fetched)
            self.turn()

        self._calls.start(lambda: self._fetch.fetch(pending.order), finish, NOT_STARTED)

    def _finish_first(self, pending: PendingFetch, fetched: Fetched, finish: Callable[[float], None]) -> None:
        if not fetched.ok and not fetched.is_final:
            name = f"{pending.key}.{pending.attempt}"
            self._pending[name], self._retries[name] = pending, Retry()
            self._retries[name].back_off(self._clock(), LONGEST_S)
            self._save(name, pending)
        finish(self._clock())
        self._note(pending, fetched)

    def _finish_retry(self, name: str, fetched: Fetched) -> None:
        if not fetched.ok and not fetched.is_final:
            self._retries[name].back_off(self._clock(), LONGEST_S)
            return
        self._note(self._pending.pop(name), fetched)
        del self._retries[name]
        with suppress(OSError):
            os.unlink(self._folder / name)

    def _note(self, pending: PendingFetch, fetched: Fetched) -> None:
        self._on_note(Note(pending.key, pending.attempt, describe(fetched, pending.order.here)))

    # ------------------------------------------------------------ the files

    def _load(self) -> None:
        with suppress(FileNotFoundError):
            for name in os.listdir(self._folder):
                try:
                    content = (self._folder / name).read_bytes()
                    self._pending[name] = msgspec.json.decode(content, type=PendingFetch)
                    self._retries[name] = Retry()
                except (OSError, msgspec.MsgspecError) as error:
                    log.warning("an order to fetch outputs cannot be read: %s: %s", name, error)

    def _save(self, name: str, pending: PendingFetch) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = self._folder / f".{name}"
            new.write_bytes(msgspec.json.encode(pending))
            new.rename(self._folder / name)
        except OSError as error:
            log.warning("an order to fetch outputs cannot be kept: %s: %s", name, error)


def has_orders(folder: Path) -> bool:
    """Whether an earlier daemon left outputs to fetch."""
    with suppress(OSError):
        return bool(os.listdir(folder))
    return False


def describe(fetched: Fetched, here: str) -> str:
    """What came of a fetch, in words."""
    if not fetched.ok:
        end = "" if fetched.is_final else "; gflow goes on trying"
        return f"not fetched: {fetched.error}{end}"
    kept = f"; {len(fetched.kept)} are newer here and were kept" if fetched.kept else ""
    if not fetched.files:
        return f"no new files{kept}"
    files = "1 file" if fetched.files == 1 else f"{fetched.files:,} files"
    return f"{files} ({spell_bytes(fetched.size)}) fetched into {here}{kept}"
