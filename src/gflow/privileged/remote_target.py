"""The target of this machine as the scheduler has it: a proxy of the launcher's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import NoneType

from gflow.core.reasons import LOST, parse
from gflow.fault_points import point
from gflow.privileged.link import Link
from gflow.privileged.messages import (
    Adopt,
    AnyEvent,
    EarlierEpoch,
    Exec,
    FolderRemoved,
    Forget,
    ForgetOthers,
    RunEnded,
    RunStuck,
    RunUnclaimed,
    Signal,
    Start,
    Stop,
    Stray,
    Strays,
    order_of,
)
from gflow.targets.local.run_record import Content, Identity
from gflow.targets.port import End, Ended, Launch, Run

# Seconds after which the launcher is told which ends are durable.
FORGET_S = 0.05


class RemoteTarget:
    """Implements the port of a target. All methods are called from the daemon's loop."""

    def __init__(
        self,
        link: Link,
        on_end: Callable[[Ended], None],
        restart: Callable[[Run], bool],
        on_stuck: Callable[[Run, str], None],
    ) -> None:
        self._link = link
        self._on_end = on_end
        # Orders a run again that certainly never began; False: the run is no longer wanted.
        self._restart = restart
        self._on_stuck = on_stuck
        # As in `LocalTarget`.
        self.epoch = self._earlier_epoch = link.greeting.epoch
        self.uncertain_runs: set[Run] = set()
        # Runs that were started or adopted, and not forgotten.
        self._runs: set[Run] = set()
        self._has_strays = False
        # Runs whose ends are durable, and of which the launcher has not been told.
        self._ended: list[tuple[int, int]] = []
        link.listen(self._on_event)

    @property
    def earlier_epoch(self) -> str:
        return self._earlier_epoch

    @earlier_epoch.setter
    def earlier_epoch(self, epoch: str) -> None:
        self._earlier_epoch = epoch
        self._link.post(EarlierEpoch(epoch=epoch))

    def find_isolation_problem(self) -> str:
        """Why the devices of jobs cannot be restricted on this machine; empty: they can be."""
        return self._link.greeting.isolation_problem

    def start(self, launch: Launch) -> None:
        self._runs.add(launch.run)
        self._link.post(Start(**order_of(launch)))

    def stop(self, run: Run, *, now: bool, grace_s: int = 0, why: str = "") -> None:
        self._link.post(Stop(key=run.key, attempt=run.attempt, now=now, grace_s=grace_s, why=why[:4096]))

    def signal(self, run: Run, number: int) -> None:
        self._link.post(Signal(key=run.key, attempt=run.attempt, number=number))

    def terminal(self, run: Run) -> str:
        return f"{self._link.greeting.job_files}/{run.name}.tty"

    def exec_command(self, launch: Launch, command: tuple[str, ...], *, is_tty: bool) -> str:
        return self._link.call(Exec(**order_of(launch), words=command, is_tty=is_tty), str)

    def adopt(self, run: Run) -> bool:
        self._runs.add(run)
        if self._earlier_epoch != self.epoch:
            self.uncertain_runs.add(run)
        return self._link.call(Adopt(key=run.key, attempt=run.attempt), bool)

    def forget(self, run: Run) -> None:
        """Also later: many ends make one message, and a launcher that did not get it forgets at its start."""
        self._runs.discard(run)
        self.uncertain_runs.discard(run)
        self._ended.append((run.key, run.attempt))
        if len(self._ended) == 1:
            asyncio.get_running_loop().call_later(FORGET_S, self._forget_ended)

    def _forget_ended(self) -> None:
        if self._ended:
            point("forget.before-message")
            self._link.post(Forget(runs=tuple(self._ended)))
            self._ended.clear()

    def forget_others(self, keep: set[str]) -> None:
        self._link.call(ForgetOthers(keep=tuple(sorted(keep))), NoneType)
        self._has_strays = True

    def strays(self) -> dict[str, Content]:
        """Living runs without a job in the database, by name."""
        if not self._has_strays:
            return {}
        found = self._link.call(Strays(), list[Stray])
        self._has_strays = bool(found)  # there are never more than at the start
        return {one.name: Content(_identity(one.shim), _identity(one.job), None) for one in found}

    def warm_up(self) -> None:
        """The launcher has forked an idle shim."""

    def close(self) -> None:
        """Report no end any more."""
        self._forget_ended()
        self._link.close()

    def _on_event(self, event: AnyEvent) -> None:
        match event:
            case RunEnded():
                end = End(
                    event.code,
                    event.signal,
                    parse(event.problem),
                    event.cpu_ms,
                    event.peak_kib,
                    event.ago_s,
                )
                self._on_end(Ended(event.run, end))
            case RunStuck():
                self._on_stuck(event.run, event.detail)
            case RunUnclaimed():
                if not self._restart(event.run):
                    self._on_end(Ended(event.run, End(problem=LOST)))
            case FolderRemoved():
                self.uncertain_runs |= self._runs
                self.epoch = event.epoch


def _identity(found: tuple[str, int, int, int] | None) -> Identity | None:
    return None if found is None else Identity(*found)
