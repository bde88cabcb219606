"""The local target as the daemon uses it: sends orders to shims and reports the ends of runs."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import shutil
import signal
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gflow.core.ids import JobKey
from gflow.core.reasons import LOST, Reason, ReasonKind, parse
from gflow.targets.local import run_record
from gflow.targets.local.cgroups import Group
from gflow.targets.local.launch_epoch import launch_epoch
from gflow.targets.local.launch_order import Places, exec_order, order_of
from gflow.targets.local.native_shim import find_restriction_error
from gflow.targets.local.orphans import kill_orphans, ticks
from gflow.targets.local.protocol import to_fields
from gflow.targets.local.shim.process_tree import send_job
from gflow.targets.local.shim_pool import Channel, Shims
from gflow.targets.outcome import SHORTAGES, ShimEnd
from gflow.targets.port import End, Ended, Launch, Run

log = logging.getLogger("gflow.local")
RETRY_S = 0.02
# Maximum number of orders for a run whose shims die before they begin it.
MAX_TRIES = 5
# Suffixes of the files of a run that its job uses.
JOB_FILES = ("script", "stop", "tty")
# Maximum number of commands executed in jobs: of one user, and in total.
MAX_EXECS_PER_USER = 64
MAX_EXECS = 512
# Folders that jobs see as /tmp: on the same disk, and only root enters it.
PRIVATE_TMP = "/tmp/gflow-private-{tag}"


class LocalTarget:
    """Runs jobs on this machine. All methods are called from the daemon's loop."""

    def __init__(
        self,
        run_dir: Path,
        on_end: Callable[[Ended], None],
        job_files_dir: Path | None = None,
        restart: Callable[[Run], bool] = lambda run: False,
        on_stuck: Callable[[Run, str], None] = lambda run, detail: None,
    ) -> None:
        self._run_dir = run_dir
        # Orders a run again that certainly never began; False: the run is no longer wanted.
        self._restart = restart
        self._tries: dict[Run, int] = {}
        # The folder of the jobs' files: the run directory, unless only root may enter that.
        self._job_files_dir = str(job_files_dir or run_dir)
        self._folder = str(run_dir)
        # A path below each folder that must exist.
        self._entries = [f"{folder}/." for folder in {self._folder, self._job_files_dir}]
        # Identifies our control groups and shared leases among those of other daemons.
        self.tag = hashlib.blake2b(self._folder.encode(), digest_size=6).hexdigest()
        self._private_tmp = PRIVATE_TMP.format(tag=self.tag)
        self._on_end = on_end
        # Called with a killed run that does not end, and a description of the process.
        self._on_stuck = on_stuck
        self._shims = Shims(
            self._folder,
            self.tag,
            self._on_message,
            self._on_shim_lost,
            self._on_fork_failed,
            self._remove_stale_files,
        )
        self._busy: dict[Run, Channel] = {}
        # Shims of commands executed in jobs, with their record and their uid (None: our own).
        self._exec_shims: dict[Channel, tuple[str, int | None]] = {}
        self._exec_count = 0
        self._adopted: dict[Run, int] = {}
        self._stops: dict[Run, bool] = {}
        # The epoch of the runs that we launch, and of those that earlier daemons launched.
        # `uncertain_runs`: runs of another epoch than the present one, until their ends are durable. Without
        # a record such a run may still have begun.
        self.epoch = self.earlier_epoch = ""
        self.uncertain_runs: set[Run] = set()
        self._strays: set[str] = set()
        self._closed = False

    def open(self) -> None:
        """Start the zygote. Call before opening any file that jobs must not inherit."""
        self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.epoch = launch_epoch(self._folder)
        self._shims.open()

    def _make_folders(self) -> None:
        """Create folders again that were removed while the daemon runs. Their records are lost."""
        if all(os.access(entry, os.F_OK) for entry in self._entries):
            return
        if not os.path.isdir(self._folder):
            os.mkdir(self._folder, 0o700)
            log.warning(
                "%s was removed and is created again; running jobs have lost their run records", self._folder
            )
            self.uncertain_runs |= {*self._busy, *self._adopted}
            self.epoch = launch_epoch(self._folder)
        if not os.path.isdir(self._job_files_dir):  # system mode: users may enter it, not list it
            os.mkdir(self._job_files_dir)
            os.chmod(self._job_files_dir, 0o711)

    def find_isolation_problem(self) -> str:
        """Why the devices of jobs cannot be restricted on this machine; empty: they can be."""
        return find_restriction_error(self._shims.layers.kill)

    def warm_up(self) -> None:
        """Fork an idle shim before the first job needs one."""
        self._shims.warm_up()

    def close(self) -> None:
        """Release all shims; running jobs continue under theirs."""
        self._closed = True
        living = [channel for channel in self._exec_shims if channel.sock.fileno() >= 0]
        self._shims.close([*self._busy.values(), *living])
        with suppress(OSError):  # jobs that continue have folders in it, or there is none
            os.rmdir(self._private_tmp)
        for pidfd in self._adopted.values():
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    # ------------------------------------------------------------ the port

    def start(self, launch: Launch) -> None:
        """Order a shim to run a job. Its end is reported through `on_end`."""
        run = launch.run
        try:
            self._make_folders()
            if launch.rules.has_private_tmp:
                _make_private(self._private_tmp)
        except OSError as error:  # a problem of the machine, not of the job
            self._on_end(Ended(run, _deferred(f"{error.strerror}: {error.filename}")))
            return
        order = order_of(launch, self._places(run), self.tag)
        fields = to_fields(order)  # before a shim is taken: a text that has a NUL is refused here
        if order.terminal:
            channel = self._shims.take_fresh(run)
        else:
            channel = self._shims.take(run, native=self._shims.has_native and order.fits_native)
        self._busy[run] = channel
        self._shims.send(channel, fields)

    def terminal(self, run: Run) -> str:
        """The socket of the terminal of a run that has one."""
        return self.job_file_path(run, "tty")

    def exec_command(self, launch: Launch, command: tuple[str, ...], *, is_tty: bool) -> str:
        """Execute a command in a run: in its control groups, as its owner, ended with it."""
        run = launch.run
        content = run_record.read(Path(self.record_path(run)).read_bytes())
        if content.job is None or run_record.identity_of(content.job.pid) != content.job:
            raise ProcessLookupError(errno.ESRCH, "its process does not exist")
        if launch.uid is not None and launch.uid != _uid_of(content):
            raise PermissionError(errno.EPERM, "it is a job of another user")
        for channel in [one for one in self._exec_shims if one.sock.fileno() < 0]:  # its shim was killed
            self._end_exec(channel)
        uid = launch.uid
        if sum(one == uid for _, one in self._exec_shims.values()) >= MAX_EXECS_PER_USER:
            raise OSError(errno.EAGAIN, f"{MAX_EXECS_PER_USER} commands already run in jobs of this user")
        if len(self._exec_shims) >= MAX_EXECS:
            raise OSError(errno.EAGAIN, f"{MAX_EXECS} commands already run in jobs")
        self._exec_count += 1
        name = f"{run.name}.x{self._exec_count}"
        record_path, path = f"{self._folder}/{name}", f"{self._job_files_dir}/{name}.tty"
        exec_job = (
            "pty" if is_tty else "pipes",
            f"{content.job.pid} {content.job.started}",
            *_groups_of(run, content),
        )
        order = order_of(launch, self._places(run), self.tag)
        fields = to_fields(exec_order(order, record_path, path, exec_job, command))
        channel = self._shims.take_fresh(None)
        self._exec_shims[channel] = record_path, uid
        self._shims.send(channel, fields)
        return path

    def _end_exec(self, channel: Channel) -> None:
        """Remove the record of a command executed in a job. Only its client needs the result."""
        with suppress(FileNotFoundError):
            os.unlink(self._exec_shims.pop(channel)[0])

    def stop(self, run: Run, *, now: bool, grace_s: int = 0, why: str = "") -> None:
        """Stop a run by the stop contract; with `now`, KILL at once.

        For a run of an earlier daemon the job's own grace time applies. The shim finds `why` in the record.
        """
        if why:
            with suppress(OSError):  # not claimed yet, or the disk is full: the log does without
                run_record.append_why(self.record_path(run), why)
        channel = self._busy.get(run)
        if channel is not None:
            # 0: the job's own grace time; 1: none; more: the grace time in seconds.
            self._send_request(channel, b"stop", run, 1 if now else grace_s)
        elif run in self._adopted:
            with suppress(ProcessLookupError):  # it has just ended, which will be reported
                signal.pidfd_send_signal(self._adopted[run], signal.SIGUSR1 if now else signal.SIGTERM)
        else:  # its shim is not found yet: stop it then
            self._stops[run] = now

    def signal(self, run: Run, number: int) -> None:
        """Send a signal to the job, without its batch shell; a negative one to its first process."""
        channel = self._busy.get(run)
        if channel is not None:
            self._send_request(channel, b"signal", run, number)
        elif run in self._adopted:
            self._signal_adopted(run, number)

    def _signal_adopted(self, run: Run, number: int) -> None:
        """Signal a run of an earlier daemon: its record names the job (no channel to its shim)."""
        with suppress(OSError):
            content = run_record.read(Path(self.record_path(run)).read_bytes())
            pidfd = run_record.open_pidfd(content.job)
            if pidfd is not None:
                try:
                    send_job(pidfd, number)
                finally:
                    os.close(pidfd)

    def adopt(self, run: Run) -> bool:
        """Find a run that an earlier daemon launched. False: it certainly never began, and may be started.

        Otherwise its end will be reported, at once if it has ended.
        """
        if self.earlier_epoch != self.epoch:
            self.uncertain_runs.add(run)
        return self._find(run)

    def _find(self, run: Run, *, was_just_alive: bool = False, retry_s: float = RETRY_S) -> bool:
        """Like `adopt`, and retry later if descriptors run out.

        `was_just_alive`: its shim lived a moment ago. `retry_s`: delay of the next try, also for a shim that
        lives and cannot be watched.
        """
        try:
            return self._inspect_record(run, was_just_alive, retry_s)
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            later = asyncio.get_running_loop().call_later
            later(retry_s, self._retry_adopt, run, min(1.0, retry_s * 2))
            return True

    def _inspect_record(self, run: Run, was_just_alive: bool, retry_s: float) -> bool:
        try:
            fd = os.open(self.record_path(run), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return not self._never_began(run)
        try:
            locked_by_shim = not run_record.try_lock(fd)
            content = run_record.read(_read_all(fd))
            # The end is the last line of a record. The clock may have been set since.
            age_s = 0.0 if was_just_alive else max(0.0, time.time() - os.fstat(fd).st_mtime)
            if locked_by_shim:
                self._watch(run, content, retry_s)
                return True
            if content.shim is None:  # its shim died right after the claim, or the content was lost
                os.unlink(self.record_path(run))
                return not self._never_began(run)
        finally:
            os.close(fd)
        if content.end is not None:
            self._on_end(Ended(run, _read_end(content.end)._replace(ago_s=age_s)))
        else:
            self._report_loss(run, content, ticks() if was_just_alive else None)
        return True

    def _never_began(self, run: Run) -> bool:
        """Whether a run without a record certainly never began. If not, it is reported as lost.

        It is certain if no record can have been lost and no process has the run's tag.
        """
        in_epoch = run not in self.uncertain_runs and launch_epoch(self._folder) == self.epoch
        if in_epoch and kill_orphans(None, self.record_path(run), lived_until=None):
            return True
        with suppress(OSError):  # a late order then finds the attempt claimed
            os.close(os.open(self.record_path(run), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._report_loss(run, run_record.Content(None, None, None), None)
        return False

    def forget(self, run: Run) -> None:
        """Delete the record of a run whose end is durable in the database."""
        self._stops.pop(run, None)
        self._tries.pop(run, None)
        self.uncertain_runs.discard(run)
        with suppress(FileNotFoundError):
            os.unlink(self.record_path(run))
        self._remove_private_tmp(run.name)

    def _remove_private_tmp(self, name: str) -> None:
        """Delete the folder that an ended job saw as /tmp. In a thread: it may have many files."""
        folder = f"{self._private_tmp}/{name}"
        if os.path.isdir(folder):
            asyncio.get_running_loop().run_in_executor(None, _delete_tree, folder)

    def forget_others(self, keep: set[str]) -> None:
        """Delete records without a running job: their ends were committed before the daemon died.

        Records whose shims live are kept: such a run is unknown to the database (a stray).
        """
        living = run_record.list_locked(self._folder).keys()
        self._strays = living - keep
        folders = {self._run_dir, Path(self._job_files_dir)}
        for path in [path for folder in folders for path in folder.iterdir()]:
            run, _, what = path.name.rpartition(".")
            if (run if what in JOB_FILES else path.name) not in keep | living:
                path.unlink(missing_ok=True)
        for name in os.listdir(self._private_tmp) if _is_private(self._private_tmp) else ():
            if name not in keep | living:
                self._remove_private_tmp(name)
        self._shims.sweep_soon()  # idle shims of the earlier daemon are exiting now

    def strays(self) -> dict[str, run_record.Content]:
        """Living runs without a job in the database, by name: the database is older than they are."""
        if not self._strays:
            return {}
        living = run_record.list_locked(self._folder)
        for name in self._strays - living.keys():  # their ends are of no use
            with suppress(FileNotFoundError):
                os.unlink(f"{self._folder}/{name}")
        self._strays &= living.keys()
        return {name: living[name] for name in self._strays}

    def _remove_stale_files(self) -> None:
        """Delete files of ended jobs whose shims were killed before they could."""
        for name in os.listdir(self._job_files_dir) if os.path.isdir(self._job_files_dir) else ():
            run, _, what = name.rpartition(".")
            if what in JOB_FILES and not os.path.exists(f"{self._folder}/{run}"):
                with suppress(FileNotFoundError):
                    os.unlink(f"{self._job_files_dir}/{name}")

    # ------------------------------------------------------------ files of a run

    def record_path(self, run: Run) -> str:
        """The path of the run's record, which is also the tag of its processes."""
        return f"{self._folder}/{run.name}"

    def job_file_path(self, run: Run, what: str) -> str:
        """The path of a file for the job: its stop file, the copy of its script, its terminal."""
        return f"{self._job_files_dir}/{run.name}.{what}"

    def _places(self, run: Run) -> Places:
        name = run.name
        files = f"{self._job_files_dir}/{name}"
        return Places(
            f"{self._folder}/{name}",
            f"{files}.stop",
            f"{files}.script",
            f"{files}.tty",
            f"{self._private_tmp}/{name}",
        )

    # ------------------------------------------------------------ shims

    def _on_message(self, channel: Channel, message: list[bytes]) -> None:
        kind, key, attempt = message[:3]
        if channel in self._exec_shims:  # the order of a command names the run in which it is executed
            if kind not in (b"stuck", b"retire"):
                self._end_exec(channel)
                self._shims.release(channel)
            return
        run = Run(JobKey(int(key)), int(attempt))
        if kind == b"stuck":
            self._on_stuck(run, message[3].decode(errors="replace"))
            return
        if kind == b"retire":
            channel.retires = True
            return
        if self._busy.get(run) is channel:
            del self._busy[run]
        self._shims.return_idle(channel)
        if kind == b"end":
            words = [word.decode(errors="replace") for word in message[3:]]
            self._on_end(Ended(run, _read_end(run_record.parse_end(words))))
        elif kind == b"taken":  # an order of an earlier daemon reached its shim after all
            self._retry_adopt(run)

    def _send_request(self, channel: Channel, word: bytes, run: Run, argument: int) -> None:
        """Send a request about a running job to its shim."""
        self._shims.send(channel, [word, b"%d" % run.key, b"%d" % run.attempt, b"%d" % argument])

    def _on_shim_lost(self, run: Run) -> None:
        """Handle the death of a shim: the record tells how its run ended."""
        self._busy.pop(run, None)
        self._retry_adopt(run)

    # ------------------------------------------------------------ adoption

    def _watch(self, run: Run, content: run_record.Content, retry_s: float) -> None:
        """Watch the living shim of a run through its pidfd."""
        loop = asyncio.get_running_loop()
        pidfd = run_record.open_pidfd(content.shim)
        if pidfd is None:  # it is writing its first line, or ending, or in another pid namespace
            loop.call_later(retry_s, self._retry_adopt, run, min(1.0, retry_s * 2))
            return
        self._adopted[run] = pidfd
        if content.stuck:
            self._on_stuck(run, content.stuck)
        if run in self._stops:
            self.stop(run, now=self._stops.pop(run))
        loop.add_reader(pidfd, self._shim_ended, run)

    def _shim_ended(self, run: Run) -> None:
        pidfd = self._adopted.pop(run)
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        self._shims.sweep_soon()
        self._retry_adopt(run)

    def _retry_adopt(self, run: Run, retry_s: float = RETRY_S) -> None:
        """Inspect a run whose shim has ended or is not ours. If it was never claimed, order it again."""
        if run in self._busy or self._find(run, was_just_alive=True, retry_s=retry_s):
            return
        self._tries[run] = self._tries.get(run, 0) + 1
        if self._tries[run] > MAX_TRIES:
            self._on_end(Ended(run, _deferred("its shims end before they begin the job")))
        elif self._closed or not self._restart(run):
            self._on_end(Ended(run, End(problem=LOST)))

    def _on_fork_failed(self, run: Run, why: str) -> None:
        """No shim could be forked for this run: it never began."""
        self._busy.pop(run, None)
        self._on_end(Ended(run, _deferred(why)))

    def _kill_orphans(self, run: Run, content: run_record.Content, lived_until: int | None) -> bool:
        """Kill the orphans of a killed shim; True if none was found."""
        groups = [Group(self._shims.layers, name).find() for name in _groups_of(run, content)]
        for group in groups:
            group.kill()
        zygote = self._shims.zygote_pid
        gone = kill_orphans(content.job, self.record_path(run), lived_until=lived_until, zygote=zygote)
        if gone:
            for group in groups:
                group.remove()
        return gone

    def _report_loss(
        self, run: Run, content: run_record.Content, lived_until: int | None, retry_s: float = RETRY_S
    ) -> None:
        """Kill the orphans of a run whose shim recorded no end, and report it as lost."""
        if content.shim is not None and content.shim.boot != run_record.boot_id():
            self._on_end(Ended(run, End(problem=Reason(ReasonKind.REBOOT))))
        elif self._kill_orphans(run, content, lived_until):
            self._on_end(Ended(run, End(problem=LOST)))
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(retry_s, self._report_loss, run, content, lived_until, min(1.0, retry_s * 2))


def _is_private(folder: str) -> bool:
    """Whether this folder is ours alone."""
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _make_private(folder: str) -> None:
    """Make a folder of ours alone where all users may write. What another user put there is renamed."""
    if _is_private(folder):
        return
    with suppress(FileNotFoundError):
        os.rename(folder, f"{folder}.removed-{os.getpid()}-{time.monotonic_ns()}")
    os.mkdir(folder, 0o700)


def _delete_tree(folder: str) -> None:
    """Delete a folder with what is in it. Follows no link."""
    shutil.rmtree(folder, ignore_errors=True)


def _uid_of(content: run_record.Content) -> int | None:
    """The user of a job. A shim of an earlier version has not recorded it: then that of its process."""
    if content.uid is not None or content.job is None:
        return content.uid
    return run_record.real_uid(content.job.pid)


def _groups_of(run: Run, content: run_record.Content) -> list[str]:
    """Names of the control groups that a run may be in: its own and its shim's."""
    shim = content.shim
    return [run.name] + ([f"shim-{shim.pid}-{shim.started}"] if shim else [])


def _deferred(why: str) -> End:
    """The end of a run that never began and should be retried."""
    return End(problem=Reason(ReasonKind.DEFERRED, why))


def _read_end(end: ShimEnd) -> End:
    """The end that a shim, maybe of an earlier version, reports or has recorded."""
    return End(end.code, end.signal, parse(end.problem), end.cpu_ms, end.peak_kib)


def _read_all(fd: int) -> bytes:
    return os.pread(fd, 1 << 16, 0)
