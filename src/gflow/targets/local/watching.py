"""Seeing one job through: stop requests, grace, memory, leftovers, how it ended and what it used.

A job that ended by itself leaves nobody behind: what it left is killed at once. A job that is
being stopped may have children still saving their work within the grace time.

CPU time is that of every process of the job: the shim reaps those that nobody waits for, and a
control group knows even those that were never waited for. The peak of memory is the control
group's where one holds the limit; else the largest process, or the largest sum of all of them
that was seen.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gflow.targets.ends import End
from gflow.targets.local.cgroups import Group, Layers
from gflow.targets.local.family import descendants, kill_descendants, send_group
from gflow.targets.local.launching import Started
from gflow.targets.local.memory import Memory
from gflow.targets.local.orders import Order
from gflow.targets.local.rotation import LOOK_S, Logs

# A job that lives this long gets a control group: joining one costs milliseconds of waiting for the
# kernel, which a short job would feel.
GROUP_AFTER_S = 1.0
KILL_AGAIN_S = 0.01
REAP_AT_ONCE = 500


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
        needs_group = layers.kill and started.group is None and not order.beside
        self._group_at = now + GROUP_AFTER_S if needs_group else None
        self._memory = Memory(order.memory_mib, started.group if started.held else None)
        first_look = self._memory.first_look()
        self._memory_at = None if first_look is None else now + first_look
        self._logs = Logs({order.log, order.error_log}, order.log_cap)
        self._log_at = now + LOOK_S if order.log_cap else None
        # Readable when a control group of version 1 has killed one process of the job.
        self.memory_event = started.group.watch_memory() if started.held and started.group else None
        self._kill_at: float | None = None
        self._reap_at: float | None = None
        self._code: int | None = None
        self._cpu_s = 0.0
        self._children_left = True
        self._over_memory = False
        self._kill_again_s = KILL_AGAIN_S
        self._child_handler: Any = None

    def take_over(self, status: int, kill_in_ms: int, cpu_ms: int, peak_kib: int) -> None:
        """Go on where a plain shim could not. Negative: the job has not ended, nobody asked it to."""
        self._memory.saw(peak_kib)
        self._cpu_s = cpu_ms / 1000
        if kill_in_ms >= 0:
            self._kill_at = time.monotonic() + kill_in_ms / 1000
        if status >= 0:
            self._code = os.waitstatus_to_exitcode(status)
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
        if reap or self._reap_at is not None:
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
        """Collect the dead; note what each used, how the job itself ended, and whether any child is left.

        Not more than some at a time: a job that forks all the time makes them as fast as we collect.
        """
        for _ in range(REAP_AT_ONCE):
            try:
                dead, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._children_left = False
                return
            if not dead:
                self._reap_at = None
                return
            self._note(dead, status, usage)
        self._reap_at = time.monotonic()

    def _note(self, dead: int, status: int, usage: resource.struct_rusage) -> None:
        """What a process used; if it was the job's own, how the job ended. Later ones may have its number."""
        self._cpu_s += usage.ru_utime + usage.ru_stime
        self._memory.saw(usage.ru_maxrss)
        if dead == self._pid and self._code is None:
            self._code = os.waitstatus_to_exitcode(status)

    def _kill(self, now: float) -> None:
        """KILL all that is left; again until nothing is."""
        if self._group is not None:
            self._group.kill()
        if self._kill_again_s > KILL_AGAIN_S:
            self._leave_the_dead_to_the_kernel()
        kill_descendants(os.getpid(), self._reap)
        self._reap()
        if self._children_left:
            self._kill_at = now + self._kill_again_s
            self._kill_again_s = min(1.0, self._kill_again_s * 2)

    def _leave_the_dead_to_the_kernel(self) -> None:
        """Killing once was not enough: a swarm may fork faster than we collect its dead."""
        if self._code is None and self._children_left:
            with suppress(ChildProcessError):
                self._note(*os.wait4(self._pid, os.WNOHANG))
        if self._code is not None and self._child_handler is None:
            self._child_handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def _join_group(self) -> None:
        """Put the job, as it is now, into a control group of its own, so that one word kills it."""
        group = Group(self._layers, os.path.basename(self._order.record))
        group.make(0, 0)
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
        self._logs.abandon()
        if self._child_handler is not None:
            signal.signal(signal.SIGCHLD, self._child_handler)
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


def _has_happened(event: int) -> bool:
    try:
        return os.eventfd_read(event) > 0
    except BlockingIOError:
        return False
