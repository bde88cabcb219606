"""Tells each destination what happened, at least once, in its own time.

A destination has a place in the story (the audit), kept in the database: what comes after it has not
been told yet. A daemon that dies between an event and its delivery goes on from there, so nothing
else needs to be stored. What could not be delivered after all its tries is given up, and said so.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress

from gflow.core.ids import JobKey
from gflow.core.model import Job, Line
from gflow.daemon import clock
from gflow.daemon.loop import Loop
from gflow.daemon.notify.destinations import Destination, Mailbox, Webhook
from gflow.daemon.notify.messages import Notice, mail, payload
from gflow.daemon.notify.sending import NotSent, post, send
from gflow.daemon.wishes import Keeping
from gflow.errors import ReadOnly
from gflow.store.port import Store
from gflow.wire.happenings import told_as

log = logging.getLogger("gflow.notify")
LINES = 200
LOOK_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
DEFAULT_EVENTS = ("job_completed", "job_failed", "job_timeout", "job_cancelled")


class Notifier:
    """One task per destination."""

    def __init__(self, loop: Loop, store: Store, destinations: tuple[Destination, ...], at_once: int) -> None:
        self.destinations = destinations
        self._loop = loop
        self._store = store
        self._places = asyncio.Semaphore(at_once)
        self._host = socket.gethostname()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Go on where the last daemon was; for a new destination, from now on."""
        for destination in self.destinations:
            kept = self._store.kept(_key(destination))
            start = self._store.newest_line() if kept is None else int(kept)
            self._tasks.append(asyncio.ensure_future(self._begin(destination, start)))

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def test(self) -> list[tuple[str, str]]:
        """Send everyone something now; for each, what went wrong, or nothing."""
        line = Line(clock.now().wall, None, None, "daemon", "test", "this is a test")
        notice = Notice(0, "test", line, None, self._host)
        results = await asyncio.gather(
            *(self._tried(one, notice) for one in self.destinations), return_exceptions=True
        )
        shown = [one.shown for one in self.destinations]
        return [(name, str(result or "")) for name, result in zip(shown, results, strict=True)]

    async def _begin(self, destination: Destination, place: int) -> None:
        await self._remember(destination, place)  # a new one: what happens from now on is for it
        await self._serve(destination, place)

    async def _serve(self, destination: Destination, place: int) -> None:
        while True:
            lines = self._store.lines(place, LINES)
            if not lines:
                await self._loop.news.wait(LOOK_S)
                continue
            due = [notice for number, line in lines if (notice := self._notice(destination, number, line))]
            await asyncio.gather(*(self._deliver(destination, notice) for notice in due))
            place = lines[-1][0]
            if due or len(lines) == LINES:
                await self._remember(destination, place)

    async def _remember(self, destination: Destination, place: int) -> None:
        with suppress(ReadOnly):  # told again after a restart: at least once is what we promise
            await self._loop.wish(Keeping({_key(destination): place}))

    def _notice(self, destination: Destination, number: int, line: Line) -> Notice | None:
        name = told_as(line)
        if name is None:
            return None
        job = self._job(line.key) if line.key is not None else None
        wanted = destination.wants(name, job.user if job else None)
        to_job = isinstance(destination, Mailbox) and destination.is_for_jobs and wants_mail(job, name)
        return Notice(number, name, line, job, self._host) if wanted or to_job else None

    def _job(self, key: JobKey) -> Job | None:
        return self._loop.state.jobs.get(key) or self._store.job(key)

    async def _deliver(self, destination: Destination, notice: Notice) -> None:
        """Try, and try again after longer and longer pauses."""
        pause = FIRST_PAUSE_S
        for left in range(destination.max_retries, -1, -1):
            try:
                async with self._places:
                    await self._tried(destination, notice)
                return
            except NotSent as error:
                failed = error
            except Exception as error:  # one that cannot be told must not keep the others from it
                log.exception("%s: %s cannot be told", destination.shown, notice.id)
                failed = NotSent(type(error).__name__, for_good=True)
            if failed.for_good or not left:
                self._give_up(destination, notice, failed)
                return
            log.warning("%s: %s; next try in %.0f s", destination.shown, failed, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _tried(self, destination: Destination, notice: Notice) -> None:
        if isinstance(destination, Webhook):
            await asyncio.to_thread(post, destination, payload(notice))
        elif isinstance(destination, Mailbox):
            to = recipients(destination, notice)
            if to:
                message = mail(notice, destination.sender, to, destination.subject_prefix)
                await asyncio.to_thread(send, destination, message)

    def _give_up(self, destination: Destination, notice: Notice, error: NotSent) -> None:
        log.error("%s: %s was not delivered: %s", destination.shown, notice.id, error)
        self._loop.note("notification failed", f"{notice.name} to {destination.shown}: {error}")


def recipients(mailbox: Mailbox, notice: Notice) -> tuple[str, ...]:
    """Those that the configuration names, and those that the job does."""
    user = notice.job.user if notice.job else None
    to = mailbox.to if notice.name == "test" or mailbox.wants(notice.name, user) else ()
    if mailbox.is_for_jobs and notice.job is not None and wants_mail(notice.job, notice.name):
        to += notice.job.spec.notify_emails
    return tuple(dict.fromkeys(to))


def wants_mail(job: Job | None, name: str) -> bool:
    """Whether the job's owner asked for mail about this (--notify-email, --notify-on)."""
    if job is None or not job.spec.notify_emails:
        return False
    return name in (job.spec.notify_on or DEFAULT_EVENTS)


def _key(destination: Destination) -> str:
    return f"notified {destination.place}"
