"""Seeing one job through: stop requests, grace, memory, leftovers, how it ended and what it used.

A job that ended by itself leaves nobody behind: what it left is killed at once. A job that is
being stopped may have children still saving their work within the grace time.

The job's first process is reaped last, when nothing of the job lives any more. Until then its pid, which is
also the number of the job's process group and session, cannot become another process's: that is why signals
may go to that group by number. A job is over when nothing of it lives. A zombie does not, also one that we
cannot reap because a process from outside the job traces it. A process that such a tracer keeps from ending
after KILL lives, and ends when its tracer is killed (`tracers`).

CPU time is that of every process of the job: the shim reaps those that nobody waits for, and a
control group knows even those that were never waited for. The peak of memory is the control
group's where one holds the limit; else the largest process, or the largest sum of all of them
that was seen.
"""

from __future__ import annotations

import itertools
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gflow.targets.local.cgroups import Group, Layers
from gflow.targets.local.protocol import Order
from gflow.targets.local.shim.log_rotation import Logs
from gflow.targets.local.shim.memory_watch import Memory
from gflow.targets.local.shim.process_tree import (
    Held,
    children,
    descendants,
    kill_descendants,
    left_below,
    send_group,
    stat_of,
    tell_stuck,
)
from gflow.targets.local.shim.realtime import Realtime
from gflow.targets.local.shim.spawn import Started
from gflow.targets.local.shim.tracers import Tracers
from gflow.targets.outcome import End

# A job that lives this long gets a control group: joining one costs milliseconds of waiting for the
# kernel, which a short job would feel.
GROUP_AFTER_S = 1.0
KILL_AGAIN_S = 0.01
# How long a process that traces the job's own may take to let go of it once that is dead, or was killed.
TRACED_S = 1.0
REAP_AT_ONCE = 500
# Children of ours, dead or alive, from which on a job is taken for a swarm.
CROWD = 200


class Watch:
    """One running job."""

    def __init__(self, order: Order, started: Started, layers: Layers) -> None:
        self._order = order
        self._pid = started.pid
        self._trouble = started.trouble
        self._group = started.group
        self._layers = layers
        now = time.monotonic()
        # The next time at which each thing is due; None: never.
        can_help = layers.kill or (layers.pids and order.max_processes)
        needs_group = can_help and started.group is None and not order.beside
        self._group_at = now + GROUP_AFTER_S if needs_group else None
        self._memory = Memory(order.memory_mib, started.group if started.held else None)
        first_look = self._memory.first_look()
        self._memory_at = None if first_look is None else now + first_look
        self._logs = Logs({order.log, order.error_log}, order.log_cap)
        self._log_at = now + self._logs.next_s if order.log_cap else None
        # Readable when a control group of version 1 has killed one process of the job.
        self.memory_event = started.group.watch_memory() if started.held and started.group else None
        # Readable when the job's process has ended, also if a process that traces it keeps that from us.
        self.ended_event = os.pidfd_open(started.pid)
        self._held_since: float | None = None
        self._kill_at: float | None = None
        self._killed_at: float | None = None
        self._reap_at: float | None = None
        self._code: int | None = None
        self._cpu_s = 0.0
        self._children_left = True
        self._over_memory = False
        self._kill_again_s = KILL_AGAIN_S
        # Zombies of the job that processes from outside hold on to.
        self.held: list[Held] = []
        # Which process does not die; empty: all did so far.
        self.stuck = ""
        self._realtime = Realtime()
        self._tracers = Tracers(order.uid)
        # Lines for the job's log.
        self.notes = self._tracers.notes

    def take_over(self, kill_in_ms: int, cpu_ms: int, peak_kib: int) -> None:
        """Go on where a plain shim could not. Negative: nobody asked the job to end."""
        self._memory.saw(peak_kib)
        self._cpu_s = cpu_ms / 1000
        if kill_in_ms >= 0:
            self._kill_at = time.monotonic() + kill_in_ms / 1000
        self._reap_at = time.monotonic()
        if self._log_at is not None:
            self._log_at = time.monotonic()

    @property
    def is_over(self) -> bool:
        return self._code is not None and not self._children_left

    def next_look(self) -> float | None:
        """Seconds until something is due."""
        times = (self._group_at, self._memory_at, self._log_at, self._kill_at, self._reap_at)
        due = [at for at in times if at is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    # ------------------------------------------------------------ what is asked

    def hear(self, words: list[tuple[str, Any]], signals: set[int]) -> None:
        """Stop requests and warnings, from the daemon's channel or as signals."""
        if signal.SIGTERM in signals:
            self._stop(self._order.grace_s)
        if signal.SIGUSR1 in signals:
            self._stop(0.0)
        for what, argument in words:
            if what == "stop":
                # 0: its own grace time, 1: none, more: so many seconds.
                self._stop(float(argument if argument > 1 else 0) if argument else self._order.grace_s)
            elif what == "signal":
                send_group(self._pid, argument)

    def _stop(self, grace_s: float) -> None:
        """TERM to the job's group, KILL to all of it after the grace time."""
        until = time.monotonic() + grace_s
        if self._kill_at is None:
            if self._order.stop_file:
                with suppress(OSError):
                    os.close(os.open(self._order.stop_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
            send_group(self._pid, signal.SIGTERM)
            send_group(self._pid, signal.SIGCONT)
        self._kill_at = until if self._kill_at is None else min(self._kill_at, until)

    # ------------------------------------------------------------ what is due

    def look(self, *, reap: bool) -> None:
        """Do what is due."""
        now = time.monotonic()
        if reap or (self._reap_at is not None and now >= self._reap_at):
            self._reap()
        ended_by_itself = self._code is not None and self._kill_at is None
        if self._children_left and (ended_by_itself or (self._kill_at is not None and now >= self._kill_at)):
            self._kill(now)
        if self._group_at is not None and now >= self._group_at:
            self._group_at = None
            self._join_group()
        if self._memory_at is not None and now >= self._memory_at:
            self._look_at_memory(now)
        if self.memory_event is not None and _has_happened(self.memory_event):
            self._out_of_memory(now)
        if self._log_at is not None and now >= self._log_at:
            self._log_at = now + self._logs.look()

    def _reap(self) -> None:
        """Collect the dead except the job's own process; note how that ended, and whether anything lives.

        Not more than some at a time: a job that forks all the time makes them as fast as we collect.
        """
        self._reap_at = None
        if self._code is None:
            self._reap_orphans()
            self._realtime.end()
        if self._code is None:
            return
        if not _has_living_children():
            self._children_left = False
        elif self._kill_at is not None:  # others live on for a while: what ends meanwhile is collected
            for pid in children(os.getpid()):
                self._collect(pid)

    def _reap_orphans(self) -> None:
        """Collect what lost its parent and ended, until the job's own process is the next one."""
        for count in itertools.count(1):
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                self._look_at_the_first()
                return
            if found.si_pid == self._pid:
                self._code = _code_of(found)
                return
            self._collect(found.si_pid)
            if count % REAP_AT_ONCE == 0 and not self._realtime.begin():
                break
        self._reap_at = time.monotonic()

    def _look_at_the_first(self) -> None:
        """Find out whether the job's process is dead, and a process that traces it keeps that from us."""
        if not select.select([self.ended_event], [], [], 0)[0]:
            return
        now = time.monotonic()
        found = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            self._code = _code_of(found)
        elif self._held_since is None:  # a debugger that is part of the job lets go in a moment
            self._held_since = now
            self._reap_at = now + TRACED_S
        elif now - self._held_since < TRACED_S:
            self._reap_at = self._held_since + TRACED_S
        elif (stat := stat_of(self._pid)) is not None:
            self._code = os.waitstatus_to_exitcode(stat.status)

    def _collect(self, pid: int) -> bool:
        """Reap a child of ours if it is dead, except the job's own process; whether it was."""
        if pid == self._pid:
            return False
        try:
            dead, _, usage = os.wait4(pid, os.WNOHANG)
        except ChildProcessError:
            return True
        if dead:
            self._note(usage)
        return bool(dead)

    def _collect_ahead(self, pid: int) -> bool:
        """The same, before the job's own processes have their turn."""
        self._realtime.begin()
        return self._collect(pid)

    def _note(self, usage: resource.struct_rusage) -> None:
        """What a process used."""
        self._cpu_s += usage.ru_utime + usage.ru_stime
        self._memory.saw(usage.ru_maxrss)

    def _kill(self, now: float) -> None:
        """KILL all that is left; again until nothing is."""
        if self._group is not None:
            self._group.kill()
        if self._killed_at is None:
            self._killed_at = now
        is_crowd = len(children(os.getpid())) > CROWD
        send_group(self._pid, signal.SIGKILL)
        kill_descendants(self._collect_ahead if is_crowd else self._collect)
        self._realtime.end()
        self._reap()
        if self._children_left and self._kill_again_s > KILL_AGAIN_S:
            self._look_at_the_rest(now)
        if self._children_left:
            self._kill_at = now + self._kill_again_s
            self._kill_again_s = min(1.0, self._kill_again_s * 2)

    def _look_at_the_rest(self, now: float) -> None:
        """Tell those that live on from zombies which only their tracers may reap."""
        living, held = left_below()
        if not living and self._code is None and (stat := stat_of(self._pid)) is not None:
            self._code = os.waitstatus_to_exitcode(stat.status)
        if not living:
            self._children_left = False
            self.held = held
            return
        since_s = 0.0 if self._killed_at is None else now - self._killed_at
        if since_s >= TRACED_S and self._tracers.kill():
            self._kill_again_s = KILL_AGAIN_S * 2
        if since_s >= self._order.unkillable_s > 0:
            self.stuck = self.stuck or tell_stuck(living)

    def _join_group(self) -> None:
        """Put the job, as it is now, into a control group of its own, so that one word kills it."""
        group = Group(self._layers, os.path.basename(self._order.record))
        group.make(0, 0, self._order.max_processes)
        with suppress(OSError):
            for pid in descendants(os.getpid()):
                group.join(pid)
        self._group = group

    def _look_at_memory(self, now: float) -> None:
        self._memory_at = now + self._memory.look()
        if self._memory.is_exceeded and not self._over_memory:
            self._out_of_memory(now)

    def _out_of_memory(self, now: float) -> None:
        """Whichever process was too large, the whole job ends."""
        self._over_memory = True
        self._kill_at = now
        self._kill(now)

    # ------------------------------------------------------------ the end

    def end(self, could_not_start: Callable[[Order, str, bool], End]) -> End:
        """How it ended, once it has."""
        assert self._code is not None
        os.close(self.ended_event)
        self._reap_all()
        self._logs.abandon()
        self._realtime.end()
        if self.memory_event is not None:
            os.close(self.memory_event)
        code, cpu_ms, peak_kib = self._code, int(self._cpu_s * 1000), self._memory.peak_kib()
        over_memory = self._over_memory or self._memory.kernel_killed()
        if self._group is not None:
            # It knows nothing of the time before the job joined it.
            cpu_ms = max(cpu_ms, self._group.cpu_ms())
            self._group.remove()
        if self._trouble is not None:
            with open(self._trouble, "rb") as pipe:
                trouble = pipe.read(4096).decode(errors="replace")
            if trouble:
                return could_not_start(self._order, trouble, code == 127)
        limit_mib = self._order.memory_mib
        problem = f"OutOfMemory: used {peak_kib >> 10} MiB of {limit_mib} MiB" if over_memory else ""
        return End(None if code < 0 else code, -code if code < 0 else None, problem, cpu_ms, peak_kib)

    def _reap_all(self) -> None:
        """Nothing of the job lives: its numbers may be others' from now on."""
        with suppress(ChildProcessError):
            while True:
                dead, _, usage = os.wait4(-1, os.WNOHANG)
                if not dead:  # the rest is held by those who trace it
                    return
                self._note(usage)


def _has_living_children() -> bool:
    """Whether any child of ours lives, or is a zombie that we cannot reap.

    Without WEXITED the kernel passes over zombies that we could reap: if there are only those, it says that
    there is nobody to wait for.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _code_of(found: os.waitid_result) -> int:
    """How a process ended: its exit code, negative for a signal."""
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _has_happened(event: int) -> bool:
    try:
        return os.eventfd_read(event) > 0
    except BlockingIOError:
        return False
