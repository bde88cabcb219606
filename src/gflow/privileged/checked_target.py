"""Checks in front of the local target in system mode: what the scheduler may have done with root's rights.

The launcher reads the scheduler's messages (`messages`) and does them through this class (ADR 12).
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from signal import valid_signals
from typing import NamedTuple

from gflow.core.ids import TASK_BITS
from gflow.fault_points import point
from gflow.privileged.accounts import Account, why_below
from gflow.targets.port import Launch, Run, Target

log = logging.getLogger("gflow.launcher")
SIGNALS = frozenset(int(number) for number in valid_signals())
# Bounds of a run's numbers: its files are named after them.
MAX_JOB = 10**12
MAX_ATTEMPT = 10**9


class StartRules(NamedTuple):
    """What the administrator, and the machine, allow."""

    # The lowest uid that may run jobs.
    min_uid: int
    # The uid of the scheduler: it may not run jobs as itself, which could touch the daemon's files.
    scheduler_uid: int
    # The account of a uid, at most some seconds old.
    account_of: Callable[[int], Account | None]
    # Whether a path is the lock file of a GPU of this machine.
    is_lease: Callable[[str], bool]


def check_user(launch: Launch, rules: StartRules) -> str:
    """The user that it runs as is named, and is not root."""
    if launch.uid is None or not launch.job.user:
        return "it names no user"
    return "it would run as root" if launch.uid == 0 else ""


def check_account(launch: Launch, rules: StartRules) -> str:
    """The account exists, has this name, and is not locked or expired."""
    if not launch.uid:
        return ""
    account = rules.account_of(launch.uid)
    if account is None:
        return f"there is no account with uid {launch.uid}"
    if account.name != launch.job.user:
        user = ascii(launch.job.user)[1:-1]
        return f"uid {launch.uid} belongs to {account.name} now, and not to {user:.60}"
    return f"the account {account.name} is {account.barred}" if account.barred else ""


def check_min_uid(launch: Launch, rules: StartRules) -> str:
    """The account is not one of the system, nor the scheduler's."""
    return why_not_a_user(launch.uid, rules.min_uid, rules.scheduler_uid) if launch.uid else ""


def why_not_a_user(uid: int, min_uid: int, scheduler_uid: int) -> str:
    """Why nothing is done as this uid; empty: it may be a user's."""
    if uid == 0:
        return "it is root's"
    return "it is the scheduler's" if uid == scheduler_uid else why_below(uid, min_uid)


def check_run(launch: Launch, rules: StartRules) -> str:
    """Its numbers are those of a run: they become names of files."""
    return "" if is_run(launch.run) else "it is not a run"


def check_files(launch: Launch, rules: StartRules) -> str:
    """Root opens no file that it names: its leases are those of GPUs, and its log is not root's to cut."""
    if launch.log_cap:
        return "its log would be rotated by root"
    foreign = [path for path in launch.leases if not rules.is_lease(path)]
    return f"{foreign[0]!a:.200} is not the lock file of a GPU" if foreign else ""


# Each says why a launch is refused; empty: it passes.
START_CHECKS: tuple[Callable[[Launch, StartRules], str], ...] = (
    check_user,
    check_account,
    check_min_uid,
    check_run,
    check_files,
)


def is_run(run: Run) -> bool:
    """Whether the numbers of a run are in their ranges."""
    return 0 < run.key < MAX_JOB << TASK_BITS and 0 < run.attempt < MAX_ATTEMPT


class CheckedTarget:
    """A target that does only what passes the checks. It knows the runs that it started or adopted."""

    def __init__(self, target: Target, rules: StartRules) -> None:
        self._target = target
        self._rules = rules
        # Its runs, and the uid of those that were started here; None: adopted.
        self._runs: dict[Run, int | None] = {}

    def start(self, launch: Launch) -> None:
        self._check(launch, "start")
        self._runs[launch.run] = launch.uid
        point("launcher.start-checked")
        self._target.start(launch)

    def stop(self, run: Run, *, now: bool, grace_s: int = 0, why: str = "") -> None:
        if self._is_ours(run):
            self._target.stop(run, now=now, grace_s=grace_s, why=why)

    def signal(self, run: Run, number: int) -> None:
        if abs(number) not in SIGNALS:
            log.warning("refused to send signal %d to %s", number, run.name)
        elif self._is_ours(run):
            self._target.signal(run, number)

    def terminal(self, run: Run) -> str:
        return self._target.terminal(run)

    def exec_command(self, launch: Launch, command: tuple[str, ...], *, is_tty: bool) -> str:
        self._check(launch, "execute a command in")
        if launch.run not in self._runs:
            raise PermissionError(errno.EPERM, "it was neither started nor adopted here")
        return self._target.exec_command(launch, command, is_tty=is_tty)

    def adopt(self, run: Run) -> bool:
        if not is_run(run):
            raise PermissionError(errno.EPERM, "it is not a run")
        self._runs.setdefault(run, None)
        return self._target.adopt(run)

    def forget(self, run: Run) -> None:
        """The end of a run that was refused is forgotten, too: it has no files."""
        if run in self._runs:
            del self._runs[run]
            self._target.forget(run)

    def forget_others(self, keep: set[str]) -> None:
        self._target.forget_others(keep)

    def _check(self, launch: Launch, what: str) -> None:
        """PermissionError: a check refuses the launch, or its run was started here for another user."""
        why = next(filter(None, (check(launch, self._rules) for check in START_CHECKS)), "")
        if not why and self._runs.get(launch.run) not in (None, launch.uid):
            why = "it is a run of another user"
        if why:
            log.warning("refused to %s %s as uid %s: %s", what, launch.run.name, launch.uid, why)
            raise PermissionError(errno.EPERM, why)

    def _is_ours(self, run: Run) -> bool:
        """Whether a run was started or adopted here, and is not forgotten yet."""
        if run not in self._runs:
            log.info("%s is not known: no signal is sent", run.name)
        return run in self._runs
