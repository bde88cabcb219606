"""The daemon's side of a Slurm cluster: hands everything to the clerk's thread, and hears from it."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from gflow.core.events import RemoteStatus
from gflow.targets.port import Ended, Launch, Run
from gflow.targets.slurm.settings import Cluster
from gflow.targets.slurm.shared_folder import SharedFolder
from gflow.targets.slurm.slurm_cli import Slurm
from gflow.targets.slurm.tracker import Tracker
from gflow.targets.slurm.worker import SlurmWorker

log = logging.getLogger("gflow.slurm")
AGAIN_S = 5.0
Work = Callable[[SlurmWorker], None]


class SlurmTarget:
    """Runs jobs on a cluster. All methods are called from the daemon's loop and return at once."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        folder: Path,
        on_seen: Callable[[list[RemoteStatus]], None],
        on_end: Callable[[Ended], None],
    ) -> None:
        self.name, self.cluster = name, cluster
        self.slurm = Slurm()
        self._folder = Path(cluster.folder) / "gflow" if cluster.folder else folder
        self._on_seen, self._on_end = on_seen, on_end
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        # Whether the controller did not answer when it was last asked.
        self.is_down = False
        # Or came back a moment ago: its refusals mean little then.
        self.is_shaky = False

    @property
    def folder(self) -> str:
        return str(self._folder)

    # ------------------------------------------------------------ the port

    def start(self, launch: Launch) -> None:
        # As it is now: the thread comes to it later.
        launch = launch._replace(job=msgspec.structs.replace(launch.job))
        self._do(lambda clerk: clerk.start(launch))

    def stop(self, run: Run, *, now: bool, grace_s: int = 0) -> None:
        self._do(lambda clerk: clerk.stop(run, now=now))

    def recall(self, run: Run) -> None:
        self._do(lambda clerk: clerk.recall(run))

    def signal(self, run: Run, number: int) -> None:
        self._do(lambda clerk: clerk.signal(run, number))

    def terminal(self, run: Run) -> str:
        """None of ours has one: such jobs are refused at submission."""
        return ""

    def beside(self, launch: Launch, command: tuple[str, ...], *, is_tty: bool) -> str:
        raise OSError(f"it runs on {self.name}; there, srun --overlap runs commands beside it")

    def adopt(self, run: Run) -> bool:
        """Starting it again is how it is found: what was submitted is looked for first."""
        return False

    def forget(self, run: Run) -> None:
        self._do(lambda clerk: clerk.forget(run))

    def forget_others(self, keep: set[str]) -> None:
        """What nobody knows any more costs nothing: without tickets it cannot begin."""

    def close(self) -> None:
        """Jobs go on without us."""
        self._closed = True
        self._work.put(None)

    # ------------------------------------------------------------ the thread

    def _do(self, work: Work) -> None:
        if self._thread is None:  # who never runs anything there pays nothing for it
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name=f"slurm-{self.name}", daemon=True)
            self._thread.start()
        self._work.put(work)

    def _run(self) -> None:
        clerk: SlurmWorker | None = None
        wait: float | None = None
        while not self._closed:
            try:
                clerk = clerk or SlurmWorker(
                    Tracker(self.cluster, SharedFolder(self._folder), self.slurm, self._seen, self._ended)
                )
                if not self._take_in(clerk, wait):
                    return
                wait = clerk.turn()
                self.is_down, self.is_shaky = clerk.is_down, clerk.is_shaky
            except Exception:  # a full disk, a bug: the others must not wait for ever
                log.exception("target %s", self.name)
                wait = AGAIN_S

    def _take_in(self, clerk: SlurmWorker, wait: float | None) -> bool:
        """All that was asked for meanwhile. False: that was all."""
        try:
            work = self._work.get(timeout=wait)
            while True:
                if work is None:
                    return False
                work(clerk)
                work = self._work.get_nowait()
        except queue.Empty:
            return True

    def _seen(self, news: list[RemoteStatus]) -> None:
        self._tell(self._on_seen, news)

    def _ended(self, ended: Ended) -> None:
        self._tell(self._on_end, ended)

    def _tell(self, whom: Callable[..., None], what: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(whom, what)
        except RuntimeError:  # the loop is closed: the next daemon hears of it
            self._closed = True
