"""Calls that the launcher carries out as a user: opening files, running ssh and gflow's program for files."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import threading
import time
from collections.abc import Sequence

from gflow.privileged import messages
from gflow.privileged.accounts import Account
from gflow.privileged.checked_target import why_not_a_user
from gflow.privileged.in_process import InProcess
from gflow.privileged.replies import reply, reply_failure
from gflow.targets.file_rights import LocalOpener, Owner
from gflow.targets.slurm.ssh import user_account

# Files of users that are being opened: each has a thread, because it may be on a disk that does not answer.
MOST_OPENING = 256
# Seconds for which an entry of the user database is used.
ACCOUNT_S = 2.0
MOST_ACCOUNTS = 4096
# Programs of users that may run at once.
MOST_PROGRAMS = 512


class UserCalls:
    """Accounts, and what is done as them. All methods but `_open_now` are called in the loop's thread."""

    def __init__(self, privileged: InProcess, min_uid: int, scheduler_uid: int) -> None:
        self._privileged = privileged
        # The lowest uid that may run jobs, and the uid of the scheduler.
        self._min_uid, self._scheduler_uid = min_uid, scheduler_uid
        self._accounts: dict[int, tuple[float, Account | None]] = {}
        self._opening = threading.BoundedSemaphore(MOST_OPENING)
        # How many programs of users run.
        self.programs = 0

    def account_of(self, uid: int) -> Account | None:
        """The account of this uid, at most ACCOUNT_S old."""
        now = time.monotonic()
        looked_at, account = self._accounts.get(uid, (-ACCOUNT_S, None))
        if now - looked_at >= ACCOUNT_S:
            if len(self._accounts) >= MOST_ACCOUNTS:
                self._accounts.clear()
            account = self._privileged.account(uid)
            self._accounts[uid] = now, account
        return account

    def _check_user(self, uid: int) -> Account:
        """The account, if it is one that may run jobs. PermissionError: it may not."""
        account = self.account_of(uid)
        why = why_not_a_user(uid, self._min_uid, self._scheduler_uid)
        if why or account is None:
            raise PermissionError(errno.EPERM, why or f"there is no account with uid {uid}")
        return account

    def open_file(self, message: messages.OpenFile, answers: socket.socket) -> None:
        account = self._check_user(message.uid)
        if not self._opening.acquire(blocking=False):
            raise OSError(errno.EAGAIN, f"{MOST_OPENING} files are being opened")
        opener = LocalOpener(Owner(message.uid, account.gid))
        threading.Thread(target=self._open_now, args=(opener, message, answers), daemon=True).start()

    def _open_now(self, opener: LocalOpener, message: messages.OpenFile, answers: socket.socket) -> None:
        with answers:
            try:
                fd = _open(opener, message)
                reply(answers, True, [fd])
                os.close(fd)
            except Exception as error:
                reply_failure(answers, error, message)
            finally:
                self._opening.release()

    def make_ssh_folder(self, message: messages.SshFolder) -> str:
        account = self._check_user(message.uid)
        return str(self._privileged.make_ssh_folder(Owner(message.uid, account.gid)))

    def run_as(self, message: messages.RunAs, answers: socket.socket, pipes: Sequence[int]) -> None:
        """Run a program as a user until its end, or until the other end of the socket is shut."""
        account = self._check_user(message.uid)
        if account.barred or account.name != message.user:
            raise PermissionError(errno.EPERM, f"uid {message.uid} is not {message.user}, or barred")
        if self.programs >= MOST_PROGRAMS:
            raise OSError(errno.EAGAIN, f"{MOST_PROGRAMS} programs of users run already")
        process = user_account.start(account, message.uid, message.program, message.words, pipes)
        self.programs += 1
        asyncio.get_running_loop().create_task(self._watch_program(process, answers))
        reply(answers, True)

    async def _watch_program(self, process: subprocess.Popen[bytes], answers: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        pidfd = os.pidfd_open(process.pid)
        ended, shut = asyncio.Event(), asyncio.Event()
        loop.add_reader(pidfd, ended.set)
        loop.add_reader(answers, shut.set)
        waits = [asyncio.ensure_future(one.wait()) for one in (ended, shut)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            loop.remove_reader(answers)
            if not ended.is_set():
                process.kill()
                await ended.wait()
            reply(answers, process.wait())
        finally:
            for one in waits:
                one.cancel()
            loop.remove_reader(pidfd)
            loop.remove_reader(answers)
            os.close(pidfd)
            answers.close()
            self.programs -= 1


def _open(opener: LocalOpener, message: messages.OpenFile) -> int:
    match message.what:
        case "log":
            return opener.open_log(message.path)
        case "file":
            return opener.open_file(message.path)
        case "folder":
            return opener.open_folder(message.path)
    return opener.open_copy(message.path, writes=message.what == "copy to write")
