"""Expansion of a submission into jobs, in slices.

A request of kilobytes may become hundreds of MiB. A submission of more than a few jobs waits for the user's
turn; two are expanded at once over all users. The expansion stops if the client disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import chain

import msgspec
from starlette.requests import Request

from gflow.daemon.api.request import MOST_COMMANDS, caller, context_of, expand_groups, while_connected
from gflow.daemon.auth.submission_rules import Rights
from gflow.daemon.execution.cluster_launch import check_targets, with_patience, with_words_for_target
from gflow.daemon.execution.cluster_users import owners_home
from gflow.daemon.execution.gpu_memory_auto import resolve_auto_memory
from gflow.daemon.execution.project_files import SnapshotTaker, with_files
from gflow.daemon.loop.cooperative import FEW, consumed
from gflow.errors import UsageError
from gflow.wire.requests import BATCH, ParsedJob, RawSubmitRequest, Reader, References, decode_job

# Size of the jobs that are expanded at once for a streamed answer.
PIECE_BYTES = 1 << 18


class Expansion:
    """Expands the jobs of one request. Keeps none of them."""

    def __init__(
        self,
        request: Request,
        wanted: RawSubmitRequest,
        reader: Reader,
        rights: Rights,
        takes: SnapshotTaker | None = None,
    ) -> None:
        # `takes`: takes snapshots of the files that clusters get; None: the jobs are not submitted.
        self._takes = takes
        self._request, self._wanted, self._reader, self._rights = request, wanted, reader, rights
        self._context, self._uid = context_of(request), caller(request)[0]
        # The references of the latest job as given, and with groups expanded: jobs of a sweep share them.
        self._references = References(), References()

    @property
    def raw_bytes(self) -> int:
        """The size of the request."""
        return sum(len(memoryview(raw)) for raw in self._wanted.jobs) + len(self._wanted.environ)

    async def for_each(self, take: Callable[[list[ParsedJob]], None], size: int = FEW, *, last: bool) -> None:
        """Pass all jobs to `take`, `size` at a time. `last`: release the request while it is read."""
        jobs = consumed(self._wanted.jobs) if last else self._wanted.jobs
        source = read_submission(self._wanted, jobs, self._reader)
        take(await self._read_slice(source, size))
        following = next(source, None)
        if following is not None:
            await while_connected(self._request, self._expand_rest(chain([following], source), take, size))

    async def _expand_rest(
        self, source: Iterator[ParsedJob], take: Callable[[list[ParsedJob]], None], size: int
    ) -> None:
        async with self._context.rate_limits.expansion_turn(self._uid):
            while some := await self._read_slice(source, size):
                take(some)
                await asyncio.sleep(0)

    async def pieces(self) -> AsyncIterator[list[ParsedJob]]:
        """Yield all jobs in slices, each expanded on demand. Other users may expand between two slices."""
        source = read_submission(self._wanted, self._wanted.jobs, self._reader)
        while True:
            async with self._context.rate_limits.expansion_turn(self._uid):
                some = await self._read_slice(source, FEW, PIECE_BYTES)
            if not some:
                return
            yield some
            await asyncio.sleep(0)

    async def _read_slice(
        self, source: Iterator[ParsedJob], most: int, size: int = MOST_COMMANDS
    ) -> list[ParsedJob]:
        """The next jobs: at most `most`, and none after their commands reach `size` bytes."""
        some: list[ParsedJob] = []
        for job in source:
            some.append(job)
            size -= bytes_of(job)
            if len(some) == most or size <= 0:
                break
        specs = await resolve_auto_memory(self._context, self._uid, [job.spec for job in some])
        settings = self._context.settings
        check_targets(settings, specs)
        self._rights.check_specs(specs)  # before quotas: only members may learn those of a project
        for job, spec in zip(some, specs, strict=True):
            spec = with_patience(settings, with_words_for_target(spec))
            spec = with_files(settings, spec, owners_home(settings, self._uid))
            job.spec = spec if self._takes is None else await self._takes.attach(spec)
            job.references = await self._expand_groups(job.references)
        return some

    async def _expand_groups(self, references: References) -> References:
        if references != self._references[0]:
            self._references = references, await expand_groups(self._request, references)
        return self._references[1]


def bytes_of(job: ParsedJob) -> int:
    return sum(map(len, job.spec.command))


def read_submission(
    wanted: RawSubmitRequest, jobs: Iterable[msgspec.Raw], reader: Reader
) -> Iterator[ParsedJob]:
    """Yield the jobs of a submission, with sweeps expanded."""
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
