"""The Slurm target: passes requests to the worker's thread and reports back to the daemon's loop."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from gflow.core.events import RemoteStatus
from gflow.targets.file_rights import OWN_FILES, FileOpener
from gflow.targets.port import Ended, Launch, Run
from gflow.targets.slurm.background_calls import BackgroundCalls
from gflow.targets.slurm.commands.slurm_cli import Slurm
from gflow.targets.slurm.files.local_snapshots import LocalSnapshots
from gflow.targets.slurm.files.output_fetches import Fetches, Note, OutputFetches, has_orders
from gflow.targets.slurm.files.result_fetch import ResultFetch
from gflow.targets.slurm.files.snapshot_sends import Transfer
from gflow.targets.slurm.files.snapshot_transfer import SnapshotTransfer, in_snapshot
from gflow.targets.slurm.files.user_files import UserTransfer
from gflow.targets.slurm.progress_files import ProgressFiles
from gflow.targets.slurm.settings import Cluster
from gflow.targets.slurm.shared_folder import SharedFolder
from gflow.targets.slurm.ssh.log_copies import LogCopies
from gflow.targets.slurm.ssh.remote_folder import RemoteFolder
from gflow.targets.slurm.ssh.remote_progress import RemoteProgress
from gflow.targets.slurm.ssh.remote_slurm import RemoteSlurm
from gflow.targets.slurm.ssh.ssh_runner import SshRunner
from gflow.targets.slurm.ssh.user_account import UserAccount
from gflow.targets.slurm.tracker import Tracker
from gflow.targets.slurm.worker import Connection, SlurmWorker

log = logging.getLogger("gflow.slurm")
RETRY_S = 5.0
Work = Callable[[SlurmWorker], None]


class SlurmTarget:
    """Runs jobs on a cluster. All methods are called from the daemon's loop and return at once.

    `folder`: its own files here. `user`: the user whose jobs it runs, in system mode: ssh and everything that
    touches files of the user runs as this user. `files` opens the copies of logs.
    """

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        folder: Path,
        on_status: Callable[[list[RemoteStatus]], None],
        on_end: Callable[[Ended], None],
        on_progress: Callable[[list[bytes]], None] = lambda lines: None,
        snapshots: LocalSnapshots | None = None,
        user: UserAccount | None = None,
        files: FileOpener = OWN_FILES,
    ) -> None:
        self.user = user
        # The files of jobs, as they were at the submission.
        self._snapshots = snapshots or LocalSnapshots(folder.parent / "snapshots")
        self._outputs: OutputFetches | None = None
        self._transfers: dict[str, Transfer] = {}
        # Orders to fetch outputs that have failed so far.
        self._orders = folder.parent / "outputs" / name
        self.name, self.cluster = name, cluster
        self.ssh: SshRunner | None = None
        # Copies of the logs here, if the cluster is elsewhere.
        self.logs: LogCopies | None = None
        self.shared_folder: SharedFolder | RemoteFolder
        if cluster.host:
            timeout_s = float(cluster.command_timeout_secs)
            sockets = user.ssh_folder if user is not None else folder.parent / "ssh"
            self.ssh = SshRunner(cluster.host, sockets, name=name, user=user)
            here = SharedFolder(folder)  # keeps the identity of this daemon
            base = (cluster.folder or "~/.gflow").rstrip("/")
            self.shared_folder = RemoteFolder(self.ssh, base, here.daemon_id, timeout_s)
            self.slurm: Slurm = RemoteSlurm(timeout_s, self.ssh, self.shared_folder)
            self._progress_files: ProgressFiles | RemoteProgress = RemoteProgress(self.shared_folder)
            self.logs = LogCopies(self.ssh, self.shared_folder, lambda: self.connection.is_down, files)
        else:
            path = Path(cluster.folder) / "gflow" if cluster.folder else folder
            # A folder of the site must be there: without it a file system is not mounted.
            self.shared_folder = here = SharedFolder(path, makes_parents=not cluster.folder)
            where = {"SLURM_CONF": cluster.slurm_conf} if cluster.slurm_conf else {}
            self.slurm = Slurm(cluster.command_timeout_secs, environ={**os.environ, **where})
            self._progress_files = ProgressFiles(path)
        self._identity = here.daemon_id
        self._on_status, self._on_end = on_status, on_end
        self._on_progress = on_progress
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self.connection = Connection()

    @property
    def folder(self) -> str:
        return str(self.shared_folder.folder)

    def log_there(self, launch: Launch, path: str) -> str:
        """The path of a log on the cluster; relative paths are in the working folder of the job."""
        path = in_snapshot(launch._replace(log=path), f"{self.folder}/snapshots", has_logs=True).log
        return os.path.join(launch.job.spec.cwd, path) if path[:1] not in "/~" else path

    def open_folder(self) -> None:
        """Find out where the shared folder is. Blocks; OSError: the login node does not answer."""
        if isinstance(self.shared_folder, RemoteFolder) and self.shared_folder.place is None:
            self.shared_folder.daemon_id()

    def daemon_id(self) -> str:
        """The identity of this daemon in the tags of its jobs. Blocks, as `open_folder` does."""
        self.open_folder()
        return self._identity()

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
        """OSError: the client runs commands in jobs on a cluster itself (`job_step`)."""
        raise OSError(f"it runs on {self.name}")

    def adopt(self, run: Run) -> bool:
        """False: `start` is called again instead, which looks for an earlier submission first."""
        return False

    def forget(self, run: Run) -> None:
        self._enqueue(lambda worker: worker.forget(run))

    def forget_others(self, keep: set[str]) -> None:
        """No-op: a run without a claim token cannot begin."""

    def resume(self) -> None:
        """Go on fetching outputs that an earlier daemon could not fetch."""
        if has_orders(self._orders):
            self._enqueue(lambda worker: None)

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
                        self.shared_folder,
                        self.slurm,
                        self._forward_status,
                        self._forward_end,
                        BackgroundCalls(self._deliver),
                        name=self.name,
                    )
                )
                worker.send_snapshots_by(self._transfer)
                self._outputs = self._outputs or self._make_outputs()
                worker.fetch_outputs_by(self._outputs)
                if not self._run_queued(worker, wait):
                    return
                waits = [worker.turn(), self._outputs.turn()]
                wait = min((one for one in waits if one is not None), default=None)
                self.connection = worker.connection
                self._forward_progress(self._progress_files.read_due(worker.begun_runs()))
            except Exception:  # a full disk, a bug: log it and retry, the other runs must go on
                log.exception("target %s", self.name)
                wait = RETRY_S

    def _transfer(self, folder: str) -> Transfer:
        """Sends snapshots to the cluster. `folder`: the shared folder, as jobs see it."""
        place, links = f"{folder}/snapshots", self.cluster.sync_links
        if folder not in self._transfers:
            if self.user is not None and self.ssh is not None:
                self._transfers[folder] = UserTransfer(self.ssh, place, links=links)
            else:
                runner = self.slurm.runner
                self._transfers[folder] = SnapshotTransfer(runner, place, self._snapshots, links=links)
        return self._transfers[folder]

    def prune_snapshots(self, used: set[str]) -> set[str] | None:
        """Delete what was sent for jobs that have ended; the snapshots that stay. Blocks.

        None: the cluster has not answered to this daemon, or does not now. It is not asked for this alone.
        """
        if not self.connection.answered_at or self.connection.is_down:
            return None
        try:
            return self._transfer(self.folder).prune(used)
        except OSError as error:
            log.warning("target %s: snapshots could not be pruned: %s", self.name, error)
            return None

    def _make_outputs(self) -> OutputFetches:
        fetch: Fetches = ResultFetch(self.slurm.runner, self._snapshots)
        if self.user is not None and self.ssh is not None:
            fetch = UserTransfer(self.ssh)
        return OutputFetches(self._orders, fetch, BackgroundCalls(self._deliver), self._forward_note)

    def _forward_note(self, note: Note) -> None:
        self._forward_status([RemoteStatus(key=note.key, attempt=note.attempt, outputs=note.text)])

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

    def _deliver(self, result: Callable[[], None]) -> None:
        """Hand a result to the worker's thread."""
        self._work.put(lambda _: result())

    def _forward_status(self, pending_reports: list[RemoteStatus]) -> None:
        self._call_in_loop(self._on_status, pending_reports)

    def _forward_progress(self, lines: list[bytes]) -> None:
        if lines:
            self._call_in_loop(self._on_progress, lines)

    def _forward_end(self, ended: Ended) -> None:
        self._forward_progress(self._progress_files.read(ended.run.name))
        self._call_in_loop(self._on_end, ended)

    def _call_in_loop(self, whom: Callable[..., None], what: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(whom, what)
        except RuntimeError:  # the loop is closed: the next daemon will find out
            self._closed = True
