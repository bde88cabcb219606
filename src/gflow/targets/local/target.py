"""The daemon's side of the local target: hands orders to shims and hears how jobs end."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gflow.core.ids import JobKey
from gflow.targets.local import run_record
from gflow.targets.local.cgroups import Group
from gflow.targets.local.launch_epoch import launch_epoch
from gflow.targets.local.launch_order import Places, order_beside, order_of
from gflow.targets.local.orphans import kill_leftovers, ticks
from gflow.targets.local.protocol import to_fields
from gflow.targets.local.shim.process_tree import send_group_of
from gflow.targets.local.shim_pool import Channel, Shims
from gflow.targets.outcome import SHORTAGES, deferred
from gflow.targets.port import End, Ended, Launch, Run

log = logging.getLogger("gflow.local")
LOOK_AGAIN_S = 0.02
# How often a run is ordered whose shims die before they begin it.
MOST_TRIES = 5
# What a run has beside its record, for its job.
SHOWN = ("script", "stop", "tty")
# Commands beside jobs: of one user, and of all together.
MOST_BESIDE_OF_USER = 64
MOST_BESIDE = 512


class LocalTarget:
    """Runs jobs on this machine. All methods are called from the daemon's loop."""

    def __init__(
        self,
        run_dir: Path,
        on_end: Callable[[Ended], None],
        shown_dir: Path | None = None,
        begin_again: Callable[[Run], bool] = lambda run: False,
        on_stuck: Callable[[Run, str], None] = lambda run, detail: None,
    ) -> None:
        self._run_dir = run_dir
        # Orders a run anew that surely never began; False: it is not wanted any more.
        self._begin_again = begin_again
        self._tries: dict[Run, int] = {}
        # Where jobs find what is meant for them: beside their records, unless those are root's alone.
        self._shown_dir = str(shown_dir or run_dir)
        self._folder = str(run_dir)
        # A path into a folder that exists, of each that jobs need.
        self._entries = [f"{folder}/." for folder in {self._folder, self._shown_dir}]
        # Names our control groups and shared leases: those of another daemon are none of our business.
        self.tag = hashlib.blake2b(self._folder.encode(), digest_size=6).hexdigest()
        self._on_end = on_end
        # Hears of runs that were killed and do not end, and which process it is.
        self._on_stuck = on_stuck
        self._shims = Shims(self._folder, self.tag, self._hear, self._lost, self._unborn, self._tidy)
        self._busy: dict[Run, Channel] = {}
        # Shims of commands beside jobs, with their record and the user they run as (None: ourselves).
        self._beside: dict[Channel, tuple[str, int | None]] = {}
        self._besides = 0
        self._adopted: dict[Run, int] = {}
        self._stops: dict[Run, bool] = {}
        # The epoch of the runs that we launch, and of those that earlier daemons launched. Runs of another
        # epoch than the present one, until their ends are durable: without a record they may have begun.
        self.epoch = self.earlier_epoch = ""
        self.unsettled: set[Run] = set()
        self._strays: set[str] = set()
        self._closed = False

    def open(self) -> None:
        """Start what runs jobs. Call before any file is opened that jobs must not inherit."""
        self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.epoch = launch_epoch(self._folder)
        self._shims.open()

    def _make_folders(self) -> None:
        """Make what somebody has removed while we run. Records that were in it are gone."""
        if all(os.access(entry, os.F_OK) for entry in self._entries):
            return
        if not os.path.isdir(self._folder):
            os.mkdir(self._folder, 0o700)
            log.warning(
                "%s was removed and is made anew; jobs that run have no run record any more", self._folder
            )
            self.unsettled |= {*self._busy, *self._adopted}
            self.epoch = launch_epoch(self._folder)
        if not os.path.isdir(self._shown_dir):  # of a daemon for everybody: to enter, not to list
            os.mkdir(self._shown_dir)
            os.chmod(self._shown_dir, 0o711)

    def warm_up(self) -> None:
        """Have a shim ready before the first job asks for one."""
        self._shims.warm_up()

    def close(self) -> None:
        """Let go of everything; running jobs go on under their shims."""
        self._closed = True
        living = [channel for channel in self._beside if channel.sock.fileno() >= 0]
        self._shims.close([*self._busy.values(), *living])
        for pidfd in self._adopted.values():
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    # ------------------------------------------------------------ the port

    def start(self, launch: Launch) -> None:
        """Hand a job to a shim. Its end is reported through `on_end`."""
        run = launch.run
        try:
            self._make_folders()
        except OSError as error:  # whatever it is, it is not about the job
            self._on_end(Ended(run, deferred(f"{error.strerror}: {error.filename}")))
            return
        order = order_of(launch, self._places(run), self.tag)
        if order.terminal:
            channel = self._shims.take_fresh(run)
        else:
            channel = self._shims.take(run, plain=self._shims.has_plain and order.is_plain)
        self._busy[run] = channel
        self._shims.send(channel, to_fields(order))

    def terminal(self, run: Run) -> str:
        """The socket of the terminal of a run that has one."""
        return self.shown_path(run, "tty")

    def beside(self, launch: Launch, command: tuple[str, ...], *, is_tty: bool) -> str:
        """Run a command beside this run: in its control groups, as its owner, gone when it is."""
        run = launch.run
        content = run_record.read(Path(self.record_path(run)).read_bytes())
        if content.job is None or run_record.identity_of(content.job.pid) != content.job:
            raise ProcessLookupError(errno.ESRCH, "its process is not there")
        for channel in [one for one in self._beside if one.sock.fileno() < 0]:  # its shim was killed
            self._over_beside(channel)
        uid = launch.uid
        if sum(one == uid for _, one in self._beside.values()) >= MOST_BESIDE_OF_USER:
            raise OSError(
                errno.EAGAIN, f"{MOST_BESIDE_OF_USER} commands run beside jobs of this user already"
            )
        if len(self._beside) >= MOST_BESIDE:
            raise OSError(errno.EAGAIN, f"{MOST_BESIDE} commands run beside jobs already")
        self._besides += 1
        name = f"{run.name}.x{self._besides}"
        record_path, path = f"{self._folder}/{name}", f"{self._shown_dir}/{name}.tty"
        beside = (
            "pty" if is_tty else "pipes",
            f"{content.job.pid} {content.job.started}",
            *_groups_of(run, content),
        )
        order = order_of(launch, self._places(run), self.tag)
        fields = to_fields(order_beside(order, record_path, path, beside, command))
        channel = self._shims.take_fresh(None)
        self._beside[channel] = record_path, uid
        self._shims.send(channel, fields)
        return path

    def _over_beside(self, channel: Channel) -> None:
        """A command beside a job has ended, however: nobody but its client wants to know."""
        with suppress(FileNotFoundError):
            os.unlink(self._beside.pop(channel)[0])

    def stop(self, run: Run, *, now: bool, grace_s: int = 0) -> None:
        """Ask for the stop contract; with `now`, KILL at once. A run that an earlier daemon started has the
        grace time that it asked for.
        """
        channel = self._busy.get(run)
        if channel is not None:
            # 0: the job's own grace time, 1: none, more: so many seconds.
            self._say(channel, b"stop", run, 1 if now else grace_s)
        elif run in self._adopted:
            with suppress(ProcessLookupError):  # it ends just now, and so will be heard of
                signal.pidfd_send_signal(self._adopted[run], signal.SIGUSR1 if now else signal.SIGTERM)
        else:  # its shim is not found yet; it hears of it then
            self._stops[run] = now

    def signal(self, run: Run, number: int) -> None:
        """A signal to the job's process group: a warning that its time is nearly up."""
        channel = self._busy.get(run)
        if channel is not None:
            self._say(channel, b"signal", run, number)
        elif run in self._adopted:
            self._signal_adopted(run, number)

    def _signal_adopted(self, run: Run, number: int) -> None:
        """We have no channel to the shim of an earlier daemon, but its record names the job."""
        with suppress(OSError):
            content = run_record.read(Path(self.record_path(run)).read_bytes())
            pidfd = run_record.open_pidfd(content.job)
            if pidfd is not None:
                try:
                    send_group_of(pidfd, number)
                finally:
                    os.close(pidfd)

    def adopt(self, run: Run) -> bool:
        """Find a run that an earlier daemon launched. False: it surely never began, so start it.

        Otherwise its end will be reported, at once if it is over.
        """
        if self.earlier_epoch != self.epoch:
            self.unsettled.add(run)
        return self._find(run)

    def _find(self, run: Run, *, just_now: bool = False, again_s: float = LOOK_AGAIN_S) -> bool:
        """`just_now`: its shim lived a moment ago. `again_s`: when to look again if no descriptor is left, or
        the shim lives and cannot be watched.
        """
        try:
            return self._look(run, just_now, again_s)
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            later = asyncio.get_running_loop().call_later
            later(again_s, self._adopt_again, run, min(1.0, again_s * 2))
            return True

    def _look(self, run: Run, just_now: bool, again_s: float) -> bool:
        try:
            fd = os.open(self.record_path(run), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return not self._never_began(run)
        try:
            locked_by_shim = not run_record.try_lock(fd)
            content = run_record.read(_read_all(fd))
            if locked_by_shim:
                self._watch(run, content, again_s)
                return True
            if content.shim is None:  # claimed, and its shim died before it did anything; or content was lost
                os.unlink(self.record_path(run))
                return not self._never_began(run)
        finally:
            os.close(fd)
        self._settle(run, content, ticks() if just_now else None)
        return True

    def _never_began(self, run: Run) -> bool:
        """Whether a run without a record surely never began. If not, it is reported as lost.

        It is sure while no record can have been lost and nothing carries the run's tag.
        """
        in_epoch = run not in self.unsettled and launch_epoch(self._folder) == self.epoch
        if in_epoch and kill_leftovers(None, self.record_path(run), lived_until=None):
            return True
        with suppress(OSError):  # an order that comes late finds the attempt taken
            os.close(os.open(self.record_path(run), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._settle(run, run_record.Content(None, None, None), None)
        return False

    def forget(self, run: Run) -> None:
        """The run's end is durable elsewhere: drop its record."""
        self._stops.pop(run, None)
        self._tries.pop(run, None)
        self.unsettled.discard(run)
        with suppress(FileNotFoundError):
            os.unlink(self.record_path(run))

    def forget_others(self, keep: set[str]) -> None:
        """Drop records that no running job has: their ends were committed, and then we died.

        Those whose shims live are kept: something runs that the database does not know.
        """
        living = run_record.held_in(self._folder).keys()
        self._strays = living - keep
        folders = {self._run_dir, Path(self._shown_dir)}
        for path in [path for folder in folders for path in folder.iterdir()]:
            run, _, what = path.name.rpartition(".")
            if (run if what in SHOWN else path.name) not in keep | living:
                path.unlink(missing_ok=True)
        self._shims.sweep_soon()  # idle shims of that daemon are leaving just now

    def strays(self) -> dict[str, run_record.Content]:
        """Runs that live and that no job of ours has, by name: the database is older than they are."""
        if not self._strays:
            return {}
        living = run_record.held_in(self._folder)
        for name in self._strays - living.keys():  # nobody waits for how it ended
            with suppress(FileNotFoundError):
                os.unlink(f"{self._folder}/{name}")
        self._strays &= living.keys()
        return {name: living[name] for name in self._strays}

    def _tidy(self) -> None:
        """Drop what was meant for jobs that are over: their shims were killed before they could."""
        for name in os.listdir(self._shown_dir) if os.path.isdir(self._shown_dir) else ():
            run, _, what = name.rpartition(".")
            if what in SHOWN and not os.path.exists(f"{self._folder}/{run}"):
                with suppress(FileNotFoundError):
                    os.unlink(f"{self._shown_dir}/{name}")

    # ------------------------------------------------------------ its files

    def record_path(self, run: Run) -> str:
        """Where the run's record is; also the tag by which its processes are known."""
        return f"{self._folder}/{run.name}"

    def shown_path(self, run: Run, what: str) -> str:
        """Where the job finds something that is meant for it: its stop file, a copy of its script."""
        return f"{self._shown_dir}/{run.name}.{what}"

    def _places(self, run: Run) -> Places:
        return Places(
            self.record_path(run),
            self.shown_path(run, "stop"),
            self.shown_path(run, "script"),
            self.terminal(run),
        )

    # ------------------------------------------------------------ shims

    def _hear(self, channel: Channel, message: list[bytes]) -> None:
        kind, key, attempt = message[:3]
        if channel in self._beside:  # the order of a command names the run that it is beside
            if kind not in (b"stuck", b"retire"):
                self._over_beside(channel)
                self._shims.let_go(channel)
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
        self._shims.give_back(channel)
        if kind == b"end":
            words = [word.decode(errors="replace") for word in message[3:]]
            self._on_end(Ended(run, run_record.end_of(words)))
        elif kind == b"taken":  # an earlier daemon's order reached its shim after all
            self._adopt_again(run)

    def _say(self, channel: Channel, word: bytes, run: Run, argument: int) -> None:
        """A word about a running job."""
        self._shims.send(channel, [word, b"%d" % run.key, b"%d" % run.attempt, b"%d" % argument])

    def _lost(self, run: Run) -> None:
        """A shim died: find out from the record what became of its job."""
        self._busy.pop(run, None)
        self._adopt_again(run)

    # ------------------------------------------------------------ adoption

    def _watch(self, run: Run, content: run_record.Content, again_s: float) -> None:
        """The shim lives: hear of its end through its pidfd."""
        loop = asyncio.get_running_loop()
        pidfd = run_record.open_pidfd(content.shim)
        if pidfd is None:  # it is writing its first line, or ending, or in another pid namespace
            loop.call_later(again_s, self._adopt_again, run, min(1.0, again_s * 2))
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
        self._adopt_again(run)

    def _adopt_again(self, run: Run, again_s: float = LOOK_AGAIN_S) -> None:
        """Look at a run whose shim is gone, or not ours. If nobody has claimed it, nothing of it ever ran."""
        if run in self._busy or self._find(run, just_now=True, again_s=again_s):
            return
        self._tries[run] = self._tries.get(run, 0) + 1
        if self._tries[run] > MOST_TRIES:
            self._on_end(Ended(run, deferred("its shims do not come up")))
        elif self._closed or not self._begin_again(run):
            self._on_end(Ended(run, _problem("Lost")))

    def _unborn(self, run: Run, why: str) -> None:
        """No shim could be made for this run: it never began."""
        self._busy.pop(run, None)
        self._on_end(Ended(run, deferred(why)))

    def _kill_leftovers(self, run: Run, content: run_record.Content, lived_until: int | None) -> bool:
        """End what a killed shim left; True when nothing was found any more."""
        groups = [Group(self._shims.layers, name).find() for name in _groups_of(run, content)]
        for group in groups:
            group.kill()
        zygote = self._shims.zygote_pid
        gone = kill_leftovers(content.job, self.record_path(run), lived_until=lived_until, zygote=zygote)
        if gone:
            for group in groups:
                group.remove()
        return gone

    def _settle(
        self, run: Run, content: run_record.Content, lived_until: int | None, again_s: float = LOOK_AGAIN_S
    ) -> None:
        """The shim is gone: report the end it wrote, or clean up after it and report the loss."""
        if content.end is not None:
            self._on_end(Ended(run, content.end))
        elif content.shim is not None and content.shim.boot != run_record.boot_id():
            self._on_end(Ended(run, _problem("Reboot")))
        elif self._kill_leftovers(run, content, lived_until):
            self._on_end(Ended(run, _problem("Lost")))
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(again_s, self._settle, run, content, lived_until, min(1.0, again_s * 2))


def _groups_of(run: Run, content: run_record.Content) -> list[str]:
    """Names of the control groups that a run may be in: its own, or its shim's."""
    shim = content.shim
    return [run.name] + ([f"shim-{shim.pid}-{shim.started}"] if shim else [])


def _problem(reason: str) -> End:
    return End(None, None, reason, 0, 0)


def _read_all(fd: int) -> bytes:
    return os.pread(fd, 1 << 16, 0)
