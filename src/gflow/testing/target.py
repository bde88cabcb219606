"""A fake target: it records calls and runs nothing. Jobs end when a test calls `end`."""

from __future__ import annotations

from collections.abc import Callable

from gflow.core.reasons import parse
from gflow.targets.port import End, Ended, Launch, Run


class FakeTarget:
    """Test double of a target. `started`, `stopped` and `signalled` record the calls, in order."""

    def __init__(self, on_end: Callable[[Ended], None] = lambda ended: None) -> None:
        self._on_end = on_end
        self.living: dict[Run, Launch] = {}
        self.started: list[Launch] = []
        self.stopped: list[tuple[Run, bool]] = []
        # What the logs of the stopped runs say, in the order of `stopped`.
        self.reasons: list[str] = []
        self.signalled: list[tuple[Run, int]] = []
        self.forgotten: list[Run] = []
        # Ends that a restarted daemon is told when it adopts the runs.
        self.unheard: dict[Run, End] = {}

    def end(self, run: Run, code: int | None = 0, *, signal: int | None = None, problem: str = "") -> None:
        """End a run and call the listener."""
        del self.living[run]
        self._on_end(Ended(run, End(code, signal, parse(problem))))

    def start(self, launch: Launch) -> None:
        if launch.run in self.living:
            raise AssertionError(f"{launch.run.name} is started twice")
        self.started.append(launch)
        self.living[launch.run] = launch

    def stop(self, run: Run, *, now: bool, grace_s: int = 0, why: str = "") -> None:
        self.stopped.append((run, now))
        self.reasons.append(why)

    def signal(self, run: Run, number: int) -> None:
        self.signalled.append((run, number))

    def terminal(self, run: Run) -> str:
        return f"/nowhere/{run.name}.tty"

    def exec_command(self, launch: Launch, command: tuple[str, ...], *, is_tty: bool) -> str:
        return f"/nowhere/{launch.run.name}.x1.tty"

    def adopt(self, run: Run) -> bool:
        if run in self.unheard:
            self._on_end(Ended(run, self.unheard.pop(run)))
            return True
        return run in self.living

    def forget(self, run: Run) -> None:
        self.forgotten.append(run)

    def forget_others(self, keep: set[str]) -> None:
        self.forgotten += [run for run in self.unheard if run.name not in keep]
