"""The jobs of a submission, sweeps expanded, a few at a time.

A request of kilobytes may become hundreds of MiB. What is more than a few jobs is expanded when it is the
user's turn, two at a time of all users together, and as long as the client is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import chain

import msgspec
from starlette.requests import Request

from gflow.daemon.api.request import MOST_COMMANDS, caller, context_of, while_connected
from gflow.daemon.auth.submission_rules import Rights
from gflow.daemon.execution.cluster_launch import check_targets, with_patience
from gflow.daemon.execution.gpu_memory_auto import resolve_auto_memory
from gflow.daemon.loop.cooperative import FEW, consumed
from gflow.errors import UsageError
from gflow.wire.requests import BATCH, Described, RawSubmitRequest, Reader, decode_job

# What is expanded in one go for an answer that is sent as it is made.
PIECE_BYTES = 1 << 18


class Expansion:
    """Of one request, of which nothing is kept that was expanded."""

    def __init__(self, request: Request, wanted: RawSubmitRequest, reader: Reader, rights: Rights) -> None:
        self._request, self._wanted, self._reader, self._rights = request, wanted, reader, rights
        self._context, self._uid = context_of(request), caller(request)[0]

    @property
    def raw_bytes(self) -> int:
        """The size of the request."""
        return sum(len(memoryview(raw)) for raw in self._wanted.jobs) + len(self._wanted.environ)

    async def each(self, take: Callable[[list[Described]], None], size: int = FEW, *, last: bool) -> None:
        """Give `take` all jobs, so many at a time. `last`: the request is not needed after that."""
        jobs = consumed(self._wanted.jobs) if last else self._wanted.jobs
        source = read_submission(self._wanted, jobs, self._reader)
        take(await self._next(source, size))
        following = next(source, None)
        if following is not None:
            await while_connected(self._request, self._rest(chain([following], source), take, size))

    async def _rest(
        self, source: Iterator[Described], take: Callable[[list[Described]], None], size: int
    ) -> None:
        async with self._context.fairness.expansion(self._uid):
            while some := await self._next(source, size):
                take(some)
                await asyncio.sleep(0)

    async def pieces(self) -> AsyncIterator[list[Described]]:
        """All jobs again, each few when they are asked for; in between it is others' turn."""
        source = read_submission(self._wanted, self._wanted.jobs, self._reader)
        while True:
            async with self._context.fairness.expansion(self._uid):
                some = await self._next(source, FEW, PIECE_BYTES)
            if not some:
                return
            yield some
            await asyncio.sleep(0)

    async def _next(
        self, source: Iterator[Described], most: int, size: int = MOST_COMMANDS
    ) -> list[Described]:
        """The next jobs, at most so many, and no more when they have so many bytes."""
        some: list[Described] = []
        for job in source:
            some.append(job)
            size -= bytes_of(job)
            if len(some) == most or size <= 0:
                break
        specs = await resolve_auto_memory(self._context, self._uid, [job.spec for job in some])
        check_targets(self._context.settings, specs)
        self._rights.check_specs(specs)  # before its quotas: those of a project are for its members to know
        for job, spec in zip(some, specs, strict=True):
            job.spec = with_patience(self._context.settings, spec)
        return some


def bytes_of(job: Described) -> int:
    return sum(map(len, job.spec.command))


def read_submission(
    wanted: RawSubmitRequest, jobs: Iterable[msgspec.Raw], reader: Reader
) -> Iterator[Described]:
    """The jobs of a submission one by one, sweeps expanded."""
    if not 1 <= len(wanted.jobs) <= BATCH:
        raise UsageError(f"a submission holds 1 to {BATCH} jobs, not {len(wanted.jobs)}")
    count = size = 0
    for number, raw in enumerate(jobs):
        job = decode_job(raw, number)
        job.environ = job.environ or wanted.environ
        for one in reader.read_all(job):
            count += 1
            size += bytes_of(one)
            if count > BATCH or size > MOST_COMMANDS:
                raise UsageError(
                    f"a submission holds at most {BATCH:,} jobs, with {MOST_COMMANDS >> 20} MiB of commands",
                    hint="sweeps count with all that they become; an array counts once",
                )
            yield one
