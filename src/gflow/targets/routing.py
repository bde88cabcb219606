"""Route runs to their targets. A local run costs one lookup in a dictionary that is mostly empty."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Protocol

from gflow.core.model import LOCAL
from gflow.targets.port import Launch, Run, Target


class RemoteTarget(Target, Protocol):
    """A remote target, which has its own queue."""

    def withdraw(self, run: Run) -> None:
        """Withdraw a run that has not begun; its end is then `WITHDRAWN`. No-op if it has begun."""

    def close(self) -> None:
        """Release the target; jobs continue."""


class RemoteTargets:
    """The remote targets by name. In system mode each user has targets of their own, made at first use.

    `make(name, uid)` makes one. `key_of(uid)`: what tells users apart; the same for all: they share targets.
    """

    def __init__(
        self,
        names: Collection[str],
        make: Callable[[str, int], RemoteTarget],
        key_of: Callable[[int], Hashable] = lambda uid: None,
    ) -> None:
        self.names = names
        self._make, self._key_of = make, key_of
        self._made: dict[tuple[str, Hashable], RemoteTarget] = {}

    def of(self, name: str, uid: int) -> RemoteTarget:
        """The target of this name for jobs of this user. KeyError: no such name; OSError: no such user."""
        if name not in self.names:
            raise KeyError(name)
        key = name, self._key_of(uid)
        if key not in self._made:
            self._made[key] = self._make(name, uid)
        return self._made[key]

    def __iter__(self) -> Iterator[RemoteTarget]:
        """The targets that were made."""
        return iter(list(self._made.values()))


class Targets:
    """All targets behind the interface of one."""

    def __init__(self, local: Target, remote: RemoteTargets) -> None:
        self.local = local
        self.remote = remote
        self._remote_runs: dict[Run, RemoteTarget] = {}

    def start(self, launch: Launch) -> None:
        name = launch.job.target
        if name == LOCAL:
            self.local.start(launch)
            return
        if name not in self.remote.names:
            raise OSError(f"there is no target {name!a} in gflow.toml any more")
        target = self._remote_runs[launch.run] = self.remote.of(name, launch.job.uid)
        target.start(launch)

    def of(self, run: Run, name: str, uid: int) -> None:
        """Assign a run of a user to a target: a task of an array that was handed over as a whole."""
        if name in self.remote.names and run not in self._remote_runs:
            self._remote_runs[run] = self.remote.of(name, uid)

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
        for target in self.remote:
            target.close()
