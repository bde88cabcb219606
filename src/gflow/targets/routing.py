"""Route runs to their targets. A local run costs one lookup in a dictionary that is mostly empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gflow.core.model import LOCAL
from gflow.targets.port import Launch, Run, Target


class RemoteTarget(Target, Protocol):
    """A remote target, which has its own queue."""

    def withdraw(self, run: Run) -> None:
        """Withdraw a run that has not begun; its end is then `WITHDRAWN`. No-op if it has begun."""

    def close(self) -> None:
        """Release the target; jobs continue."""


class Targets:
    """All targets behind the interface of one."""

    def __init__(self, local: Target, remote: Mapping[str, RemoteTarget]) -> None:
        self.local = local
        self.remote = remote
        self._remote_runs: dict[Run, RemoteTarget] = {}

    def start(self, launch: Launch) -> None:
        name = launch.job.target
        if name == LOCAL:
            self.local.start(launch)
            return
        target = self.remote.get(name)
        if target is None:
            raise OSError(f"there is no target {name!a} in gflow.toml any more")
        self._remote_runs[launch.run] = target
        target.start(launch)

    def of(self, run: Run, name: str) -> None:
        """Assign a run to a target: a task of an array that was handed over as a whole."""
        if name in self.remote:
            self._remote_runs.setdefault(run, self.remote[name])

    def stop(self, run: Run, *, now: bool, grace_s: int = 0, why: str = "") -> None:
        self._remote_runs.get(run, self.local).stop(run, now=now, grace_s=grace_s, why=why)

    def signal(self, run: Run, number: int) -> None:
        self._remote_runs.get(run, self.local).signal(run, number)

    def withdraw(self, run: Run) -> None:
        if run in self._remote_runs:
            self._remote_runs[run].withdraw(run)

    def terminal(self, run: Run) -> str:
        return self._remote_runs.get(run, self.local).terminal(run)

    def exec_command(self, launch: Launch, command: tuple[str, ...], *, is_tty: bool) -> str:
        return self._remote_runs.get(launch.run, self.local).exec_command(launch, command, is_tty=is_tty)

    def adopt(self, run: Run) -> bool:
        return self.local.adopt(run)

    def forget(self, run: Run) -> None:
        self._remote_runs.pop(run, self.local).forget(run)

    def forget_others(self, keep: set[str]) -> None:
        self.local.forget_others(keep)

    def close(self) -> None:
        for target in self.remote.values():
            target.close()
