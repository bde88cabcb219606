"""Delivers notifications to each destination, at least once, independently of the other destinations.

A mail goes to one address, so that an unreachable address does not affect the others, and no recipient sees
the others.

Each destination has a position in the audit log, stored in the database: later entries have not been
delivered yet. After a daemon died between an event and its delivery, the next one continues from there, so
nothing else needs to be stored. A notification that fails after all retries is dropped; the failure is logged
and audited.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from contextlib import suppress
from typing import NamedTuple

import msgspec

from gflow.core.ids import JobKey, job_key
from gflow.core.model import AuditEntry, Job
from gflow.core.queries.audit_log import spread_all
from gflow.daemon.loop import timers
from gflow.daemon.loop.commands import MetaCommand
from gflow.daemon.loop.loop import Loop
from gflow.daemon.notify.delivery import NotSent, post, send
from gflow.daemon.notify.destinations import Destination, Mailbox, Webhook, is_in_domain
from gflow.daemon.notify.messages import Notice, mail, payload
from gflow.errors import ReadOnly
from gflow.job_states import END_EVENTS, GROUP_EVENTS
from gflow.store.port import Store
from gflow.wire.events import notification_event

log = logging.getLogger("gflow.notify")
LINES = 200
LOOK_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


class MailRules(NamedTuple):
    """Limits on the mail that jobs ask for."""

    # Domains of recipients; empty: any.
    domains: tuple[str, ...] = ()
    # Mails per hour about the jobs of one user; 0: any number.
    hourly: int = 0

    def allows(self, address: str) -> bool:
        return is_in_domain(address, self.domains)


class Notifier:
    """One task per destination."""

    def __init__(
        self,
        loop: Loop,
        store: Store,
        destinations: tuple[Destination, ...],
        at_once: int,
        mail_rules: MailRules = MailRules(),  # noqa: B008 - it is frozen
    ) -> None:
        self.destinations = destinations
        self._mail_rules = mail_rules
        # Token bucket by user: mails left, and the time of that count. Users whose excess was logged.
        self._left: dict[str, tuple[float, float]] = {}
        self._limited: set[str] = set()
        self._loop = loop
        self._store = store
        self._places = asyncio.Semaphore(at_once)
        self._host = socket.gethostname()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Start at the stored position; a new destination starts at the newest audit entry."""
        for destination in self.destinations:
            kept = self._store.meta_value(_key(destination))
            start = self._store.latest_audit_id() if kept is None else int(kept)
            self._tasks.append(asyncio.ensure_future(self._begin(destination, start)))

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def test(self) -> list[tuple[str, str]]:
        """Send a test notification to every destination; for each, the error or an empty text."""
        line = AuditEntry(timers.now().wall, None, None, "daemon", "test", "this is a test")
        notice = Notice(0, "test", line, None, self._host)
        pairs = [(one, to) for one in self.destinations for to in self.addresses(one, notice) or [""]]
        results = await asyncio.gather(
            *(self._send(one, notice, to) for one, to in pairs), return_exceptions=True
        )
        shown = [_describe(one, to) for one, to in pairs]
        return [(name, str(result or "")) for name, result in zip(shown, results, strict=True)]

    async def _begin(self, destination: Destination, position: int) -> None:
        await self._remember(destination, position)  # a new destination gets the events from now on
        await self._serve(destination, position)

    async def _serve(self, destination: Destination, position: int) -> None:
        while True:
            lines = self._store.audit_after(position, LINES)
            if not lines:
                await self._loop.wakeups.wait(LOOK_S)
                continue
            about = spread_all(lines, LINES)
            due = [notice for number, line, _ in about if (notice := self._notice(destination, number, line))]
            pairs = [(notice, to) for notice in due for to in self.addresses(destination, notice)]
            await asyncio.gather(*(self._deliver(destination, notice, to) for notice, to in pairs))
            position = about[-1][0]
            if due or len(about) >= LINES:
                await self._remember(destination, position)

    async def _remember(self, destination: Destination, position: int) -> None:
        with suppress(ReadOnly):  # delivered again after a restart: delivery is at least once
            await self._loop.run_command(MetaCommand({_key(destination): position}))

    def _notice(self, destination: Destination, number: int, line: AuditEntry) -> Notice | None:
        name = notification_event(line)
        if name is None:
            return None
        job = self._job(line.key) if line.key is not None else None
        wanted = destination.wants(name, job.user if job else None)
        in_group = job is not None and self._is_in_group(job)
        to_job = (
            isinstance(destination, Mailbox) and destination.is_for_jobs and wants_mail(job, name, in_group)
        )
        return Notice(number, name, line, job, self._host, in_group) if wanted or to_job else None

    def _is_in_group(self, job: Job) -> bool:
        """Whether the job is one of several. The first job of a sweep has the number of the group."""
        group = job.spec.group
        if group != job.number:
            return bool(group)
        neighbour = self._job(job_key(group + 1))
        return neighbour is not None and neighbour.spec.group == group

    def _job(self, key: JobKey) -> Job | None:
        return self._loop.state.jobs.get(key) or self._store.job(key)

    def addresses(self, destination: Destination, notice: Notice) -> list[str]:
        """The recipients, one delivery each; for a webhook one empty text."""
        if not isinstance(destination, Mailbox):
            return [""]
        configured, asked = recipients(destination, notice)
        user = notice.job.user if notice.job else ""
        allowed = [to for to in asked if self._mail_rules.allows(to)]
        return [*configured, *(to for to in allowed if self._may_send(user))]

    def _may_send(self, user: str) -> bool:
        """Count a mail about a job of this user; whether it is within the limit."""
        hourly, now = self._mail_rules.hourly, time.monotonic()
        if not hourly:
            return True
        left, at = self._left.get(user, (float(hourly), now))
        left = min(float(hourly), left + (now - at) * hourly / 3600)
        self._left[user] = left - (left >= 1), now
        if left >= 1:
            self._limited.discard(user)
            return True
        if user not in self._limited:  # once, so that the warnings are no flood either
            self._limited.add(user)
            why = f"jobs of {user} ask for more than {hourly} mails an hour; further mails are not sent"
            log.warning("%s", why)
            self._loop.add_audit_entry("notification failed", why)
        return False

    async def _deliver(self, destination: Destination, notice: Notice, to: str = "") -> None:
        """Deliver, with retries after growing pauses."""
        pause = FIRST_PAUSE_S
        for left in range(destination.max_retries, -1, -1):
            try:
                async with self._places:
                    await self._send(destination, notice, to)
                return
            except NotSent as error:
                failed = error
            except Exception as error:  # one notification that fails must not stop the others
                log.exception("%s: %s cannot be sent", _describe(destination, to), notice.id)
                failed = NotSent(type(error).__name__, for_good=True)
            if failed.for_good or not left:
                self._give_up(_describe(destination, to), notice, failed)
                return
            log.warning("%s: %s; next try in %.0f s", _describe(destination, to), failed, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _send(self, destination: Destination, notice: Notice, to: str) -> None:
        if isinstance(destination, Webhook):
            await asyncio.to_thread(post, destination, payload(notice))
        elif isinstance(destination, Mailbox) and to:
            message = mail(notice, destination.sender, to, destination.subject_prefix)
            await asyncio.to_thread(send, destination, message)

    def _give_up(self, whom: str, notice: Notice, error: NotSent) -> None:
        log.error("%s: %s was not delivered: %s", whom, notice.id, error)
        self._loop.add_audit_entry("notification failed", f"{notice.name} to {whom}: {error}")


def recipients(mailbox: Mailbox, notice: Notice) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The recipients in the configuration, and further ones that the job names."""
    user = notice.job.user if notice.job else None
    to = mailbox.to if notice.name == "test" or mailbox.wants(notice.name, user) else ()
    asked: tuple[str, ...] = ()
    if (
        mailbox.is_for_jobs
        and notice.job is not None
        and wants_mail(notice.job, notice.name, notice.is_in_group)
    ):
        asked = tuple(one for one in notice.job.spec.notify_emails if one not in to)
    return tuple(dict.fromkeys(to)), asked


def _describe(destination: Destination, to: str) -> str:
    """A description of a destination for users; of a mailbox, with only this address."""
    if isinstance(destination, Mailbox) and to:
        return msgspec.structs.replace(destination, to=(to,)).description
    return destination.description


def wants_mail(job: Job | None, name: str, is_in_group: bool = False) -> bool:
    """Whether the job's owner asked for mail about this (--notify-email, --notify-on).

    By default a group sends its own events, and each other job its end. A job in no group ends its group.
    """
    if job is None or not job.spec.notify_emails:
        return False
    events = job.spec.notify_on or (GROUP_EVENTS if is_in_group else END_EVENTS)
    return name in events or (not is_in_group and name in END_EVENTS and GROUP_EVENTS[1] in events)


def _key(destination: Destination) -> str:
    return f"notified {destination.place}"
