"""Supervise one job: stop requests, grace time, memory, orphans, its exit status and its usage.

When a job ends by itself, its remaining processes are killed at once. When a job is being stopped, its
children may use the grace time to save their work.

The job's first process is reaped last, when no process of the job lives any more. Until then its pid, which
is also the id of the job's process group and session, cannot be reused: so signals may be sent to that group
by id. A job is over when none of its processes lives. A zombie does not live, even one that we cannot reap
because a process outside the job traces it. A process that such a tracer keeps from ending after KILL does
live, and ends when its tracer is killed (`tracers`).

CPU time covers every process of the job: the shim reaps orphans, and a control group also counts processes
that were never waited for. The memory peak is the control group's where one enforces the limit; else the
larger of the largest process and the largest measured sum.
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
    TracedZombie,
    children,
    descendants,
    describe_stuck,
    kill_descendants,
    remaining_children,
    send_group,
    send_job,
    stat_of,
)
from gflow.targets.local.shim.realtime import Realtime
from gflow.targets.local.shim.spawn import StartedJob
from gflow.targets.local.shim.tracers import Tracers
from gflow.targets.outcome import OUT_OF_MEMORY, ShimEnd

# A job that lives this long gets a control group. Joining one takes milliseconds in the kernel, which would
# delay short jobs.
GROUP_AFTER_S = 1.0
RETRY_KILL_S = 0.01
# Seconds that a tracer may take to release a process of the job that is dead or was killed.
TRACED_S = 1.0
REAP_AT_ONCE = 500
# With more children than this, dead or alive, the shim kills at real-time priority.
MANY_CHILDREN = 200


class Watch:
    """Supervision of one running job."""

    def __init__(self, order: Order, started: StartedJob, layers: Layers) -> None:
        self._order = order
        self._pid = started.pid
        self._trouble = started.trouble
        self._group = started.group
        self._layers = layers
        now = time.monotonic()
        # Times at which each action is due next; None: never.
        can_help = layers.kill or (layers.pids and order.max_processes)
        needs_group = can_help and started.group is None and not order.exec_job
        self._group_at = now + GROUP_AFTER_S if needs_group else None
        self._memory = Memory(
            order.limit_mib,
            started.group if started.is_limit_held else None,
            0 if order.limit_mib else order.default_memory,
        )
        first_look = self._memory.first_look()
        self._memory_at = None if first_look is None else now + first_look
        self._logs = Logs({order.log, order.error_log}, order.log_cap)
        self._log_at = now + self._logs.next_s if order.log_cap else None
        # Readable when a version 1 control group has killed one process of the job.
        self.memory_event = started.group.watch_memory() if started.is_limit_held and started.group else None
        # Readable when the job's process has ended, even if a tracer keeps us from reaping it.
        self.ended_event = os.pidfd_open(started.pid)
        self._held_since: float | None = None
        self._kill_at: float | None = None
        self._killed_at: float | None = None
        self._reap_at: float | None = None
        self._code: int | None = None
        self._cpu_s = 0.0
        self._children_left = True
        self._is_over_memory = False
        self._retry_kill_s = RETRY_KILL_S
        # Zombies of the job that only tracers outside the job can reap.
        self.held: list[TracedZombie] = []
        # Description of a process that does not die; empty: none.
        self.stuck = ""
        self._realtime = Realtime()
        self._tracers = Tracers(order.uid)
        # Lines for the job's log.
        self.notes = self._tracers.notes

    def take_over(self, kill_in_ms: int, cpu_ms: int, peak_kib: int) -> None:
        """Continue for a native shim. `kill_in_ms`: rest of the grace time; negative: no stop requested."""
        self._memory.note_kib(peak_kib)
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
        """Seconds until the next action is due; None: none is."""
        times = (self._group_at, self._memory_at, self._log_at, self._kill_at, self._reap_at)
        due = [at for at in times if at is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    # ------------------------------------------------------------ requests

    def handle_requests(self, requests: list[tuple[str, Any]], signals: set[int]) -> None:
        """Carry out stop requests and warnings, from the daemon's channel or as signals."""
        if signal.SIGTERM in signals:
            self._stop(self._order.grace_s)
        if signal.SIGUSR1 in signals:
            self._stop(0.0)
        for what, argument in requests:
            if what == "stop":
                # 0: the job's own grace time; 1: none; more: the grace time in seconds.
                self._stop(float(argument if argument > 1 else 0) if argument else self._order.grace_s)
            elif what == "signal":
                send_job(self.ended_event, argument)

    def _stop(self, grace_s: float) -> None:
        """Send TERM to the job's group; all of its processes get KILL after the grace time."""
        until = time.monotonic() + grace_s
        if self._kill_at is None:
            if self._order.stop_file:
                with suppress(OSError):
                    os.close(os.open(self._order.stop_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
            send_group(self._pid, signal.SIGTERM)
            send_group(self._pid, signal.SIGCONT)
        self._kill_at = until if self._kill_at is None else min(self._kill_at, until)

    # ------------------------------------------------------------ due actions

    def do_due(self, *, reap: bool) -> None:
        """Do all actions that are due."""
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
            self._check_memory(now)
        if self.memory_event is not None and _is_signalled(self.memory_event):
            self._out_of_memory(now)
        if self._log_at is not None and now >= self._log_at:
            self._log_at = now + self._logs.look()

    def _reap(self) -> None:
        """Reap zombies except the job's own process; record its exit code, and whether any child lives.

        Reaps a bounded number at a time: a job that forks all the time makes zombies as fast as we reap.
        """
        self._reap_at = None
        if self._code is None:
            self._reap_orphans()
            self._realtime.end()
        if self._code is None:
            return
        if not _has_living_children():
            self._children_left = False
        elif self._kill_at is not None:  # others use the grace time: reap those that end meanwhile
            for pid in children(os.getpid()):
                self._collect(pid)

    def _reap_orphans(self) -> None:
        """Reap dead orphans until the job's own process is the next one."""
        for count in itertools.count(1):
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                self._check_first_process()
                return
            if found.si_pid == self._pid:
                self._code = _code_of(found)
                return
            self._collect(found.si_pid)
            if count % REAP_AT_ONCE == 0 and not self._realtime.begin():
                break
        self._reap_at = time.monotonic()

    def _check_first_process(self) -> None:
        """Detect that the job's process is dead and a tracer keeps us from reaping it."""
        if not select.select([self.ended_event], [], [], 0)[0]:
            return
        now = time.monotonic()
        found = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            self._code = _code_of(found)
        elif self._held_since is None:  # a debugger that is part of the job releases it soon
            self._held_since = now
            self._reap_at = now + TRACED_S
        elif now - self._held_since < TRACED_S:
            self._reap_at = self._held_since + TRACED_S
        elif (stat := stat_of(self._pid)) is not None:
            self._code = os.waitstatus_to_exitcode(stat.status)

    def _collect(self, pid: int) -> bool:
        """Reap a child if it is dead, except the job's own process; whether it was reaped."""
        if pid == self._pid:
            return False
        try:
            dead, _, usage = os.wait4(pid, os.WNOHANG)
        except ChildProcessError:
            return True
        if dead:
            self._add_usage(usage)
        return bool(dead)

    def _collect_realtime(self, pid: int) -> bool:
        """Like `_collect`, at real-time priority."""
        self._realtime.begin()
        return self._collect(pid)

    def _add_usage(self, usage: resource.struct_rusage) -> None:
        """Add the usage of a reaped process."""
        self._cpu_s += usage.ru_utime + usage.ru_stime
        self._memory.note_kib(usage.ru_maxrss)

    def _kill(self, now: float) -> None:
        """KILL all remaining processes; rescheduled until none lives."""
        if self._group is not None:
            self._group.kill()
        if self._killed_at is None:
            self._killed_at = now
        is_crowd = len(children(os.getpid())) > MANY_CHILDREN
        send_group(self._pid, signal.SIGKILL)
        kill_descendants(self._collect_realtime if is_crowd else self._collect)
        self._realtime.end()
        self._reap()
        if self._children_left and self._retry_kill_s > RETRY_KILL_S:
            self._check_survivors(now)
        if self._children_left:
            self._kill_at = now + self._retry_kill_s
            self._retry_kill_s = min(1.0, self._retry_kill_s * 2)

    def _check_survivors(self, now: float) -> None:
        """Tell living processes from zombies that only their tracers can reap."""
        living, held = remaining_children()
        if not living and self._code is None and (stat := stat_of(self._pid)) is not None:
            self._code = os.waitstatus_to_exitcode(stat.status)
        if not living:
            self._children_left = False
            self.held = held
            return
        since_s = 0.0 if self._killed_at is None else now - self._killed_at
        if since_s >= TRACED_S and self._tracers.kill():
            self._retry_kill_s = RETRY_KILL_S * 2
        if since_s >= self._order.unkillable_s > 0:
            self.stuck = self.stuck or describe_stuck(living)

    def _join_group(self) -> None:
        """Move all processes of the job to a control group of its own, so that one write kills them."""
        group = Group(self._layers, os.path.basename(self._order.record))
        with suppress(OSError):
            group.make(0, 0, self._order.max_processes, self._order.devices)
            for pid in descendants(os.getpid()):
                group.join(pid)
        self._group = group

    def _check_memory(self, now: float) -> None:
        self._memory_at = now + self._memory.look()
        if advice := self._memory.take_advice():
            self.notes.append(advice)
        if self._memory.is_exceeded and not self._is_over_memory:
            self._out_of_memory(now)

    def _out_of_memory(self, now: float) -> None:
        """End the whole job because it exceeded its memory limit."""
        self._is_over_memory = True
        self._kill_at = now
        self._kill(now)

    # ------------------------------------------------------------ the end

    def end(self, could_not_start: Callable[[Order, str, bool], ShimEnd]) -> ShimEnd:
        """The end of the job, once it is over."""
        assert self._code is not None
        os.close(self.ended_event)
        self._reap_all()
        self._logs.abandon()
        self._realtime.end()
        if self.memory_event is not None:
            os.close(self.memory_event)
        code, cpu_ms, peak_kib = self._code, int(self._cpu_s * 1000), self._memory.peak_kib()
        over_memory = self._is_over_memory or self._memory.kernel_killed()
        if self._group is not None:
            # The group does not count the time before the job joined it.
            cpu_ms = max(cpu_ms, self._group.cpu_ms())
            self._group.remove()
        if self._trouble is not None:
            with open(self._trouble, "rb") as pipe:
                trouble = pipe.read(4096).decode(errors="replace")
            if trouble:
                return could_not_start(self._order, trouble, code == 127)
        problem = memory_problem(peak_kib >> 10, self._order) if over_memory else ""
        return ShimEnd(None if code < 0 else code, -code if code < 0 else None, problem, cpu_ms, peak_kib)

    def _reap_all(self) -> None:
        """Reap all zombies. No process of the job lives: its pids may be reused from now on."""
        with suppress(ChildProcessError):
            while True:
                dead, _, usage = os.wait4(-1, os.WNOHANG)
                if not dead:  # only tracers can reap the rest
                    return
                self._add_usage(usage)


def memory_problem(used_mib: int, order: Order) -> str:
    """The reason of a job that exceeded its memory limit (the native shim has the same)."""
    by_default = "" if order.memory_mib else ", the most of a job without --memory"
    return f"{OUT_OF_MEMORY}: used {used_mib} MiB of {order.limit_mib} MiB{by_default}"


def _has_living_children() -> bool:
    """Whether any child of ours lives, or is a zombie that we cannot reap.

    Without WEXITED the kernel ignores zombies that we could reap: if there are only those, it reports ECHILD.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _code_of(found: os.waitid_result) -> int:
    """The exit code of a process; negative: killed by this signal."""
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _is_signalled(event: int) -> bool:
    try:
        return os.eventfd_read(event) > 0
    except BlockingIOError:
        return False
