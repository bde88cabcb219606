"""The Slurm target: passes requests to the worker's thread and reports back to the daemon's loop."""

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
from gflow.targets.slurm.commands.slurm_cli import Slurm
from gflow.targets.slurm.tracker import Tracker
from gflow.targets.slurm.worker import SlurmWorker

log = logging.getLogger("gflow.slurm")
RETRY_S = 5.0
Work = Callable[[SlurmWorker], None]


class SlurmTarget:
    """Runs jobs on a cluster. All methods are called from the daemon's loop and return at once."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        folder: Path,
        on_status: Callable[[list[RemoteStatus]], None],
        on_end: Callable[[Ended], None],
    ) -> None:
        self.name, self.cluster = name, cluster
        self.slurm = Slurm()
        self._folder = Path(cluster.folder) / "gflow" if cluster.folder else folder
        self._on_status, self._on_end = on_status, on_end
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        # Whether the controller did not answer when it was last asked.
        self.is_down = False
        # Whether it is down or has just restarted: its refusals are not final then.
        self.is_shaky = False

    @property
    def folder(self) -> str:
        return str(self._folder)

    # ------------------------------------------------------------ the port

    def start(self, launch: Launch) -> None:
        # A copy of the present state: the thread reads it later.
        launch = launch._replace(job=msgspec.structs.replace(launch.job))
        self._enqueue(lambda worker: worker.start(launch))

    def stop(self, run: Run, *, now: bool, grace_s: int = 0, why: str = "") -> None:
        """`why` is not used: Slurm writes its own line to the log."""
        self._enqueue(lambda worker: worker.stop(run, now=now))

    def withdraw(self, run: Run) -> None:
        self._enqueue(lambda worker: worker.withdraw(run))

    def signal(self, run: Run, number: int) -> None:
        self._enqueue(lambda worker: worker.signal(run, number))

    def terminal(self, run: Run) -> str:
        """Empty: jobs with a terminal are refused at submission."""
        return ""

    def exec_command(self, launch: Launch, command: tuple[str, ...], *, is_tty: bool) -> str:
        raise OSError(f"it runs on {self.name}; use srun --overlap there to execute commands in it")

    def adopt(self, run: Run) -> bool:
        """False: `start` is called again instead, which looks for an earlier submission first."""
        return False

    def forget(self, run: Run) -> None:
        self._enqueue(lambda worker: worker.forget(run))

    def forget_others(self, keep: set[str]) -> None:
        """No-op: a run without a claim token cannot begin."""

    def close(self) -> None:
        """Stop the thread. Jobs continue."""
        self._closed = True
        self._work.put(None)

    # ------------------------------------------------------------ the thread

    def _enqueue(self, work: Work) -> None:
        if self._thread is None:  # no thread for a cluster that is never used
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name=f"slurm-{self.name}", daemon=True)
            self._thread.start()
        self._work.put(work)

    def _run(self) -> None:
        worker: SlurmWorker | None = None
        wait: float | None = None
        while not self._closed:
            try:
                worker = worker or SlurmWorker(
                    Tracker(
                        self.cluster,
                        SharedFolder(self._folder),
                        self.slurm,
                        self._forward_status,
                        self._forward_end,
                    )
                )
                if not self._run_queued(worker, wait):
                    return
                wait = worker.turn()
                self.is_down, self.is_shaky = worker.is_down, worker.is_shaky
            except Exception:  # a full disk, a bug: log it and retry, the other runs must go on
                log.exception("target %s", self.name)
                wait = RETRY_S

    def _run_queued(self, worker: SlurmWorker, wait: float | None) -> bool:
        """Run all queued requests; wait up to `wait` seconds for the first. False: the target is closed."""
        try:
            work = self._work.get(timeout=wait)
            while True:
                if work is None:
                    return False
                work(worker)
                work = self._work.get_nowait()
        except queue.Empty:
            return True

    def _forward_status(self, pending_reports: list[RemoteStatus]) -> None:
        self._call_in_loop(self._on_status, pending_reports)

    def _forward_end(self, ended: Ended) -> None:
        self._call_in_loop(self._on_end, ended)

    def _call_in_loop(self, whom: Callable[..., None], what: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(whom, what)
        except RuntimeError:  # the loop is closed: the next daemon will find out
            self._closed = True
