"""A scheduler in the hands of an attacker: it sends anything to the launcher, through messages and directly.

`violations` says what the launcher's target must never have been asked, whatever was sent. It does not use
the checks that it judges.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from gflow.core.ids import JobKey
from gflow.core.model import Job, Spec
from gflow.privileged import messages
from gflow.privileged.accounts import Account
from gflow.privileged.checked_target import CheckedTarget, StartRules
from gflow.privileged.messages import HostLimits
from gflow.targets.port import Launch, Run
from gflow.testing import FakeTarget

MIN_UID = 1000
ANN, BOB, LOCKED, SYSTEM, NOBODY_HERE, SCHEDULER = 60_001, 60_002, 60_003, 33, 60_009, 60_010
ACCOUNTS = {
    0: Account("root", "/root", 0, ""),
    SYSTEM: Account("www-data", "/var/www", 33, ""),
    ANN: Account("ann", "/home/ann", ANN, ""),
    BOB: Account("bob", "/home/bob", BOB, ""),
    LOCKED: Account("carl", "/home/carl", LOCKED, "locked"),
    SCHEDULER: Account("gflow", "/var/lib/gflow", SCHEDULER, ""),
}
GPUS = {"GPU-0": "/run/lock/gflow/GPU-0", "GPU-1": "/run/lock/gflow/GPU-1"}
RUN_NAME = re.compile(r"[0-9]{1,13}(_[0-9]+)?\.[0-9]{1,10}")


class World(NamedTuple):
    """What the attacker aims at: users, files and commands."""

    accounts: dict[int, Account] = ACCOUNTS
    gpus: dict[str, str] = GPUS
    # Root's files, below a folder of root's; and a folder that all may use.
    vault: str = "/root"
    files: tuple[str, ...] = ("/root/.ssh/authorized_keys", "/root/../root/.profile")
    folder: str = "/tmp"
    jobs: int = 3
    commands: tuple[tuple[str, ...], ...] = (("id",), ("sh", "-c", "true"))

    @property
    def ordinary(self) -> dict[int, str]:
        """Uid and name of the accounts that may run jobs."""
        found = self.accounts.items()
        return {uid: one.name for uid, one in found if uid >= MIN_UID and uid != SCHEDULER and not one.barred}

    @property
    def rules(self) -> StartRules:
        return StartRules(MIN_UID, SCHEDULER, self.accounts.get, lambda path: path in self.gpus.values())


class KnownMachine:
    """Implements `Machine` for a world."""

    limits = HostLimits(max_processes=50)

    def __init__(self, world: World) -> None:
        self._gpus = world.gpus

    def leases(self, uuids: Sequence[str]) -> tuple[str, ...]:
        return tuple(self._gpus[uuid] for uuid in uuids)

    def device_rules(self, uuids: Sequence[str]) -> str:
        return ""


class HostileScheduler:
    """Makes messages and launches, of which some are in order."""

    def __init__(self, seed: int, world: World) -> None:
        self._dice = random.Random(seed)
        self._world = world
        self._keys = [number << 20 | number % 3 for number in range(1, world.jobs + 1)]

    def messages(self, count: int) -> Iterator[bytes]:
        for _ in range(count):
            yield self._mutate(msgspec.msgpack.encode(self._message()))

    def launches(self, count: int) -> Iterator[Launch]:
        for _ in range(count):
            yield self._launch()

    def run(self) -> Run:
        return Run(JobKey(self._key()), self._attempt())

    def number(self) -> int:
        return self._pick([1, 2, 9, 15, -9, 19], [0, 65, -65, 1 << 40])

    # ------------------------------------------------------------ parts

    def _pick(self, usual: Sequence[Any], odd: Sequence[Any] = (), chance: float = 0.15) -> Any:
        return self._dice.choice(odd if odd and self._dice.random() < chance else usual)

    def _key(self) -> int:
        return self._pick(self._keys, [0, -1, 1, 1 << 61, 1 << 63])

    def _attempt(self) -> int:
        return self._pick([1, 2], [0, -1, 1 << 31, 1 << 63])

    def _user(self) -> tuple[int | None, str]:
        accounts = [*self._world.accounts] * 2
        uid = self._pick(list(self._world.ordinary), [*accounts, 1, NOBODY_HERE, -1, 1 << 32], chance=0.5)
        account = self._world.accounts.get(uid)
        name = account.name if account else "ann"
        return uid, self._pick([name], ["root", "", "ann\0", "../ann"])

    def _path(self, usual: str = "") -> str:
        return self._pick([usual or self._world.folder], [*self._world.files, "", "/x" * 3000])

    def _gpus(self) -> list[str]:
        known = self._pick([[], list(self._world.gpus)[:1], list(self._world.gpus)])
        return [*known, *self._pick([[]], [[self._path()], ["GPU-9"], [".."], ["GPU-0.gate"]])]

    def _message(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "do": self._pick(["start", "exec", "stop", "signal", "adopt", "forget"], ["run", 7])
        }
        if made["do"] == "forget":
            return made | {"runs": [[self._key(), self._attempt()]]}
        made |= {"key": self._key(), "attempt": self._attempt()}
        if made["do"] in ("start", "exec"):
            uid, user = self._user()
            made |= {
                "uid": uid,
                "user": user,
                "command": self._pick(self._world.commands),
                "cwd": self._path(),
            }
            made |= {"log": self._path("/dev/null"), "script_path": self._path(), "gpus": self._gpus()}
        if made["do"] == "exec":
            made |= {"words": self._pick(self._world.commands)}
        if made["do"] == "signal":
            made |= {"number": self.number()}
        odd = {
            "record": self._path(),
            "leases": [self._path()],
            "log_cap": 1,
            "stop_file": self._path(),
            "x": 1,
        }
        name = self._pick([""], list(odd))
        return made | ({name: odd[name]} if name else {})

    def _mutate(self, data: bytes) -> bytes:
        """The message, or one that is damaged."""
        at, kind = self._dice.randrange(len(data)), self._dice.random()
        if kind < 0.05:
            return data[:at] + bytes([self._dice.randrange(256)]) + data[at + 1 :]
        if kind < 0.08:
            return data[:at]
        if kind < 0.1:
            return data[:at] + self._dice.randbytes(self._dice.randrange(1, 9)) + data[at:]
        return data

    def _launch(self) -> Launch:
        uid, user = self._user()
        spec = Spec(command=self._pick(self._world.commands), cwd=self._path())
        run = self.run()
        job = Job(key=run.key, spec=spec, uid=uid or 0, user=user, submitted_at=0.0, attempt=run.attempt)
        leases = [self._world.gpus.get(one, f"{self._world.vault}/{one}") for one in self._gpus()]
        return Launch(
            job=job,
            script=None,
            environ=b"",
            extra=b"",
            log=self._path("/dev/null"),
            error_log="/dev/null",
            log_cap=self._pick([0], [1, 1 << 20]),
            leases=tuple(leases),
            uid=self._pick([uid], [None]),
        )


@dataclass
class Recorder(FakeTarget):
    """A target that notes all that it is asked, in order."""

    asked: list[tuple[str, Any]] = field(default_factory=list)

    def start(self, launch: Launch) -> None:
        self.asked.append(("start", launch))

    def stop(self, run: Run, *, now: bool, grace_s: int = 0, why: str = "") -> None:
        self.asked.append(("stop", run))

    def signal(self, run: Run, number: int) -> None:
        self.asked.append(("signal", (run, number)))

    def exec_command(self, launch: Launch, command: tuple[str, ...], *, is_tty: bool) -> str:
        self.asked.append(("exec", launch))
        return ""

    def adopt(self, run: Run) -> bool:
        self.asked.append(("adopt", run))
        return True

    def forget(self, run: Run) -> None:
        self.asked.append(("forget", run))


def attack(seed: int, count: int, world: World, target: CheckedTarget) -> None:
    """Send messages, and call the target as a scheduler in the same process can."""
    attacker, machine = HostileScheduler(seed, world), KnownMachine(world)
    for data, launch in zip(attacker.messages(count), attacker.launches(count), strict=True):
        with suppress(ValueError, OSError, KeyError):
            messages.carry_out(messages.decode(data), target, machine)
        with suppress(OSError, ValueError):  # a NUL in a text, where no check looks at it
            target.start(launch)
        with suppress(OSError, ValueError):
            target.exec_command(launch, ("id",), is_tty=False)
        target.signal(attacker.run(), attacker.number())
        target.stop(attacker.run(), now=True)
        with suppress(OSError):
            target.adopt(attacker.run())
        target.forget(attacker.run())


def violations(asked: Sequence[tuple[str, Any]], world: World) -> list[str]:
    """What a target was asked that no scheduler may ask."""
    found: list[str] = []
    known: dict[Run, int | None] = {}
    for what, about in asked:
        if what in ("start", "exec"):
            found += [f"{what} {why}" for why in _faults_of(about, world)]
        run = about.run if isinstance(about, Launch) else about[0] if what == "signal" else about
        if what == "start" and known.get(run) not in (None, about.uid):
            found.append("start of another user's run")
        if what in ("start", "adopt"):
            known[run] = about.uid if what == "start" else known.get(run)
        elif run not in known:
            found.append(f"{what} of a foreign run")
        elif what == "exec" and known[run] not in (None, about.uid):
            found.append("exec in another user's run")
        if what == "signal" and not 0 < abs(about[1]) <= 64:
            found.append(f"signal {about[1]}")
        if what == "adopt" and not RUN_NAME.fullmatch(run.name):
            found.append("adopt of no run")
        if what == "forget":
            known.pop(run, None)
    return found


def _faults_of(launch: Launch, world: World) -> Iterator[str]:
    if launch.uid not in world.ordinary:
        yield f"as uid {launch.uid}"
    elif world.ordinary[launch.uid] != launch.job.user:
        yield "under another name"
    if not RUN_NAME.fullmatch(launch.run.name):
        yield f"with files {launch.run.name}"
    if not {*launch.leases} <= {*world.gpus.values()}:
        yield "with a file of root as lease"
    if launch.log_cap:
        yield "with a log that root cuts"
