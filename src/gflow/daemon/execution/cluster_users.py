"""The users of a system-wide daemon whose jobs go to clusters: accounts, folders and snapshots of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path

from gflow.daemon.auth.users import account_of, home_of
from gflow.daemon.context import Context
from gflow.daemon.execution.project_files import SnapshotTaker, snapshots_in
from gflow.daemon.monitors.snapshot_pruning import StoredSnapshots
from gflow.daemon.settings import Settings
from gflow.privileged.port import Privileged
from gflow.targets.file_rights import Owner
from gflow.targets.routing import Targets
from gflow.targets.slurm.files.user_files import UserSnapshots
from gflow.targets.slurm.ssh.user_account import UserAccount
from gflow.targets.slurm.target import SlurmTarget


def user_account(privileged: Privileged, uid: int) -> UserAccount:
    """The account of a user, with a folder for sockets that belongs to it. OSError: there is none."""
    account = account_of(uid)
    if account is None:
        raise OSError(f"there is no account with uid {uid}")
    folder = privileged.make_ssh_folder(Owner(uid, account.gid))
    return UserAccount(uid, account.gid, account.name, account.home, folder, privileged.run_as)


def target_folder(settings: Settings, name: str, user: UserAccount | None) -> Path:
    """The folder with the daemon's own files for a target; in system mode, for the target of a user."""
    return settings.slurm_dir / name if user is None else _folder(settings, user.uid, user.name) / name


def _folder(settings: Settings, uid: int, name: str) -> Path:
    return settings.slurm_dir / "users" / f"{uid}.{name}"


def user_key_of() -> Callable[[int], Hashable]:
    """What tells users apart, also after a uid was given to another account."""
    names: dict[int, str] = {}

    def key_of(uid: int) -> Hashable:
        account = account_of(uid)
        if account is not None:  # else the user database does not answer, or the account was deleted
            names[uid] = account.name
        return uid, names.get(uid)

    return key_of


def stored_snapshots(settings: Settings, targets: Targets) -> list[StoredSnapshots]:
    """The snapshots here with the clusters that have copies of them; in system mode, of each user."""
    clusters = [one for one in targets.remote if isinstance(one, SlurmTarget)]
    if not settings.is_system:
        has_any = settings.snapshots.exists()
        return [StoredSnapshots(snapshots_in(settings.snapshots), clusters)] if has_any else []
    users = dict.fromkeys(one.user for one in clusters if one.user is not None)
    return [
        StoredSnapshots(UserSnapshots(user), [one for one in clusters if one.user == user], user.uid)
        for user in users
    ]


def known_users(settings: Settings) -> Iterator[int]:
    """The users who have sent jobs to clusters, and whose uid was not given to another account."""
    try:
        names = os.listdir(settings.slurm_dir / "users")
    except FileNotFoundError:
        return
    for entry in names:
        uid, _, name = entry.partition(".")
        account = account_of(int(uid)) if uid.isdecimal() else None
        if account is not None and account.name == name:
            yield int(uid)


def owners_home(settings: Settings, uid: int) -> str:
    """The home of a user in system mode; empty: the daemon's own."""
    return home_of(uid) if settings.is_system else ""


def snapshot_taker(context: Context, uid: int) -> SnapshotTaker:
    """Takes snapshots for a submission of this user, with the rights of this user."""
    settings = context.settings
    if not settings.is_system:
        return SnapshotTaker(settings)
    return SnapshotTaker(
        settings,
        lambda: UserSnapshots(user_account(context.privileged, uid)),
        lambda work, *args: context.threads.run(uid, work, *args),
    )
