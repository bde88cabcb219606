"""Which target a run belongs to. Jobs of this machine pay one look into a dictionary that is mostly empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gflow.core.model import LOCAL
from gflow.targets.port import Launch, Run, Target


class Distant(Target, Protocol):
    """A target elsewhere, which has a queue of its own."""

    def recall(self, run: Run) -> None:
        """Take it back if it has not begun; its end is then `RECALLED`. If it has, nothing happens."""

    def close(self) -> None:
        """The daemon goes; jobs go on."""


class Targets:
    """All targets behind the port of one."""

    def __init__(self, local: Target, distant: Mapping[str, Distant]) -> None:
        self.local = local
        self.distant = distant
        self._away: dict[Run, Distant] = {}

    def start(self, launch: Launch) -> None:
        name = launch.job.target
        if name == LOCAL:
            self.local.start(launch)
            return
        target = self.distant.get(name)
        if target is None:
            raise OSError(f"there is no target {name!a} in gflow.toml any more")
        self._away[launch.run] = target
        target.start(launch)

    def of(self, run: Run, name: str) -> None:
        """This run is that target's: a task of an array which was handed over as a whole."""
        if name in self.distant:
            self._away.setdefault(run, self.distant[name])

    def stop(self, run: Run, *, now: bool, grace_s: int = 0) -> None:
        self._away.get(run, self.local).stop(run, now=now, grace_s=grace_s)

    def signal(self, run: Run, number: int) -> None:
        self._away.get(run, self.local).signal(run, number)

    def recall(self, run: Run) -> None:
        if run in self._away:
            self._away[run].recall(run)

    def terminal(self, run: Run) -> str:
        return self._away.get(run, self.local).terminal(run)

    def beside(self, launch: Launch, command: tuple[str, ...], *, is_tty: bool) -> str:
        return self._away.get(launch.run, self.local).beside(launch, command, is_tty=is_tty)

    def adopt(self, run: Run) -> bool:
        return self.local.adopt(run)

    def forget(self, run: Run) -> None:
        self._away.pop(run, self.local).forget(run)

    def forget_others(self, keep: set[str]) -> None:
        self.local.forget_others(keep)

    def close(self) -> None:
        for target in self.distant.values():
            target.close()
