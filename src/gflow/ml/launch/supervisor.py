"""Starts the ranks of a launch on this node, supervises them, and reports how the launch ended.

Every rank has its own process group, so the launcher forwards a stop signal to each exactly once. When one
rank fails, the others get SIGTERM and soon SIGKILL: they may wait for it indefinitely. On a stop request they
get the grace time, because one of them may be writing a checkpoint for all. They are killed if the launcher
dies (PR_SET_PDEATHSIG).

The output of the first rank is passed through. The output of the others goes to files and is shown if they
fail.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import IO, Any, BinaryIO, NamedTuple

from gflow.ml.launch import heartbeat, nccl
from gflow.ml.launch.nccl_log import NcclLogReader
from gflow.ml.launch.plan import Plan, variables

# Seconds between SIGTERM and SIGKILL for the other ranks after one failed.
FAILED_S = 5.0
UNFINISHED = 75
PR_SET_PDEATHSIG = 1
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Rank(NamedTuple):
    """One rank of the launch on this node."""

    number: int
    process: subprocess.Popen[bytes]
    log: BinaryIO


class Supervisor:
    """One launch on one node."""

    def __init__(self, plan: Plan, logs: str, *, grace_s: float = 60.0, stall_s: float = 0.0) -> None:
        """`logs`: directory for the ranks' output. `stall_s`: the launch fails if no rank prints anything or
        reports progress for this long; 0: never.
        """
        self._plan = plan
        self._logs = logs
        self._grace_s = grace_s
        self._stall_s = stall_s
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[int, Rank] = {}
        self._codes: dict[int, int] = {}
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        self._active_at = 0.0
        self._heartbeat = os.path.join(os.path.abspath(logs), "heartbeat") if stall_s else ""
        self._stalled = False
        self._first_failure: int | None = None
        self._open_pipes = 0
        self._nccl_log = NcclLogReader(
            os.path.abspath(logs), is_on=plan.world > 1, is_reporter=plan.node == 0
        )

    def run(self) -> Outcome:
        """Start all ranks and wait until none is running."""
        wake, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(wake, selectors.EVENT_READ, lambda: self._on_signal(wake))
        before = {number: signal.signal(number, lambda *_: None) for number in FORWARDED}
        signal.set_wakeup_fd(wake_in)
        try:
            self._start()
            while self._ranks:
                self._wait()
            self._drain()
            self._nccl_log.end()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._kill()
            if self._heartbeat:
                os.unlink(self._heartbeat)
            for fd in (wake, wake_in):
                os.close(fd)
        return self._outcome()

    # ------------------------------------------------------------ starting

    def _start(self) -> None:
        cores = len(os.sched_getaffinity(0))
        self._active_at = time.monotonic()
        self._nccl_log.begin(self._active_at)
        told = os.environ.copy()
        if self._heartbeat:
            open(self._heartbeat, "wb").close()
            told[heartbeat.FILE] = self._heartbeat
        for local in range(self._plan.processes):
            number = self._plan.rank(local)
            # Stays open while the launch runs.
            log = open(os.path.join(self._logs, f"rank-{number}.log"), "wb", buffering=0)  # noqa: SIM115
            process = subprocess.Popen(
                self._plan.command,
                env=told | variables(self._plan, local, os.environ, cores, self._nccl_log.file),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
                preexec_fn=_die_with_parent,
            )
            rank = Rank(number, process, log)
            self._ranks[number] = rank
            pidfd = os.pidfd_open(process.pid)
            self._listen(pidfd, partial(self._on_exit, rank, pidfd))
            for pipe, to in ((process.stdout, 1), (process.stderr, 2)):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                self._open_pipes += 1
                self._listen(pipe, partial(self._on_output, rank, pipe, to))

    def _listen(self, what: Any, act: Callable[[], None]) -> None:
        self._selector.register(what, selectors.EVENT_READ, act)

    # ------------------------------------------------------------ events

    def _wait(self) -> None:
        now = time.monotonic()
        due = [at for at in (self._kill_at, self._stall_deadline(), self._nccl_log.due) if at is not None]
        for key, _ in self._selector.select(max(0.0, min(due) - now) if due else None):
            key.data()
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill()
            self._kill_at = None
        stalls_at = self._stall_deadline()
        if stalls_at is not None and now >= stalls_at and not self._has_progress(now):
            self._stalled = True
            self._stop_others()
        self._nccl_log.look(now)

    def _stall_deadline(self) -> float | None:
        over = not self._stall_s or self._stalled or self._stop_at is not None
        return None if over else self._active_at + self._stall_s

    def _has_progress(self, now: float) -> bool:
        """Whether a rank reported progress since its last output."""
        self._active_at = max(self._active_at, now - heartbeat.age_s(self._heartbeat))
        return now < self._active_at + self._stall_s

    def _on_output(self, rank: Rank, pipe: IO[bytes], to: int) -> None:
        try:
            data = os.read(pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(pipe)
            pipe.close()
            self._open_pipes -= 1
            return
        self._active_at = time.monotonic()
        rank.log.write(data)
        if rank.number == 0:
            with suppress(OSError):  # the reader has closed: continue training
                _write_all(to, data)

    def _on_exit(self, rank: Rank, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        code = rank.process.wait()
        self._codes[rank.number] = code
        del self._ranks[rank.number]
        # Kill the remaining processes of its group.
        with suppress(OSError):
            os.killpg(rank.process.pid, signal.SIGKILL)
        if code and self._first_failure is None:
            self._first_failure = rank.number
            if self._stop_at is None:
                self._stop_others()

    def _on_signal(self, wake: int) -> None:
        for number in os.read(wake, 64):
            if number in FORWARDED:
                self._send(signal.Signals(number))
            if number in STOPS and self._stop_at is None:
                self._stop_at = time.monotonic()
                self._kill_at = self._stop_at + self._grace_s

    # ------------------------------------------------------------ ending

    def _stop_others(self) -> None:
        """A rank failed, or all hang: send SIGTERM, and SIGKILL after `FAILED_S`."""
        self._send(signal.SIGTERM)
        self._kill_at = time.monotonic() + FAILED_S

    def _send(self, number: signal.Signals) -> None:
        for rank in self._ranks.values():
            with suppress(ProcessLookupError):
                os.killpg(rank.process.pid, number)

    def _kill(self) -> None:
        self._send(signal.SIGKILL)

    def _drain(self) -> None:
        """Read the remaining output. A pipe held open by a process outside the launch is not waited for."""
        until = time.monotonic() + 1.0
        while self._open_pipes and time.monotonic() < until:
            ready = self._selector.select(0.05)
            if not ready:
                break
            for key, _ in ready:
                key.data()

    def _outcome(self) -> Outcome:
        if self._stalled:
            why = f"no rank printed anything or reported progress for {self._stall_s:g} s"
            return Outcome(124, None, why)
        if UNFINISHED in self._codes.values() and self._none_failed():
            return Outcome(UNFINISHED)
        blamed = self._first_failure
        if blamed is None:
            return Outcome(0)
        code = self._codes[blamed]
        if code < 0:
            return Outcome(128 - code, blamed, f"was killed by {signal.Signals(-code).name}")
        return Outcome(code, blamed, f"exited with code {code}")

    def _none_failed(self) -> bool:
        """Whether no rank failed. Ranks that the launcher ended after another one's exit do not count."""
        return all(code in (0, UNFINISHED, -signal.SIGTERM, -signal.SIGKILL) for code in self._codes.values())


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def launch(
    plan: Plan,
    *,
    logs: str | None = None,
    grace_s: float = 60.0,
    stall_s: float = 0.0,
) -> int:
    """Run a plan with a fixed address and port. Return the exit code.

    Without `logs` the output goes to a temporary directory, which is removed unless the launch failed.
    """
    import shutil
    import tempfile

    folder = logs or tempfile.mkdtemp(prefix="gflow-launch-")
    os.makedirs(folder, exist_ok=True)
    outcome = Supervisor(plan, folder, grace_s=grace_s, stall_s=stall_s).run()
    keep = logs is not None or (bool(outcome.why) and plan.processes > 1)
    report(plan, outcome, folder, kept=keep)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome.code


# How many of NCCL's last warnings are printed; otherwise they would only be in its log.
WARNINGS = 5


class Outcome(NamedTuple):
    """Exit code of the launch, the rank that caused it (None if none did), and the reason."""

    code: int
    blamed: int | None = None
    why: str = ""


def tail(path: str, lines: int = 20) -> str:
    """Return the last lines of a file."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 65536))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])


def report(plan: Plan, outcome: Outcome, logs: str, *, kept: bool) -> None:
    """Print NCCL's warnings, the failed rank and its last output."""
    for warning in nccl.parse(nccl.read(logs)).warnings[-WARNINGS:]:
        sys.stderr.write(f"gflow: NCCL warned: {warning}\n")
    if not outcome.why:
        return
    who = "" if outcome.blamed is None else f"rank {outcome.blamed} "
    others = "; the others were stopped" if plan.world > 1 and outcome.blamed is not None else ""
    sys.stderr.write(f"gflow launch: {who}{outcome.why}{others}\n")
    if outcome.blamed:
        last = tail(os.path.join(logs, f"rank-{outcome.blamed}.log"))
        sys.stderr.write("".join(f"  [{outcome.blamed}] {line}\n" for line in last.splitlines()))
    if kept:
        sys.stderr.write(f"gflow launch: the output of each rank is in {logs}\n")
