"""Parsing of requests: the caller, the body, the query, and the jobs that the request names.

All job selectors are resolved by `keys_of`, `all_keys_of` and, for listings, `spans_of`. A job that is hidden
from the caller (`people.privacy`) gets the same error there as a job that does not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from itertools import count
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from gflow.core.ids import JobKey, job_key, label, number_of, task_of
from gflow.core.job_reference import resolve
from gflow.core.model import Job, JobState
from gflow.core.queries.job_filter import merge_spans
from gflow.daemon.api.visibility import Viewer, viewer_of
from gflow.daemon.auth.users import accounting_uid
from gflow.daemon.context import Context
from gflow.daemon.context import context_of as context_of
from gflow.daemon.loop.cooperative import in_slices
from gflow.errors import NotFound, TooLarge, UsageError, WrongType, no_job, unknown
from gflow.options.values import MOST_PARENTS, is_group
from gflow.wire.job_selectors import MOST_IN_RANGES, Group, Numbers, Tasks, check_number, parse_selectors
from gflow.wire.queries import Q, read_query
from gflow.wire.requests import LARGE, MOST_VALUES_TOGETHER, References, decode

T = TypeVar("T")
# Largest body of any request; of a submission, which holds 100,000 jobs; and the total size of the commands
# of one submission after expansion.
MOST_BYTES = 4 << 20
MOST_JOBS_BYTES = 32 << 20
MOST_COMMANDS = 256 << 20
MOST_REMOTE_BYTES = 16 << 20  # over TCP
# Time limit for receiving a body.
BODY_TIMEOUT_S = 60.0

_STATE_NAMES = {
    name.lower(): state
    for state in JobState
    for name in (state.value, state.row.short, state.row.alias)
    if name
}

# Larger than any job number, and small enough that its key fits into the database.
NO_NUMBER = 10**12
# Job numbers that are looked up in one query.
RANGE = 1000
# Most key ranges in a listing. SQLite limits the length of an expression.
MOST_SPANS = 500


def caller(request: Request) -> tuple[int, str]:
    """The caller's uid, and the origin of the request for the audit log."""
    state = request.scope["state"]
    return state["uid"], state["origin"]


async def read(request: Request, into: type[T], most: int = MOST_BYTES) -> T:
    """Read and decode the body. Raises UsageError with one sentence if it is not valid.

    A body above `LARGE` is decoded in a worker thread.
    """
    body = await receive_body(request, "application/json", most)
    if len(body) <= LARGE:
        wanted: T = decode(body, into)
        return wanted
    return await context_of(request).threads.run(caller(request)[0], decode, body, into)


async def receive_body(request: Request, media: str, most: int) -> bytes:
    """Receive the body, which has this media type and at most `most` bytes."""
    kind = request.headers.get("content-type", media).partition(";")[0].strip()
    if kind != media:
        raise WrongType(f"the request must be {media}, not {kind[:60]!a}")
    body, values = bytearray(), 0
    rate_limits, counted = context_of(request).rate_limits, accounting_uid(caller(request)[0])
    most = most if request.scope["state"]["pid"] else min(most, MOST_REMOTE_BYTES)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                rate_limits.count_received(counted, len(chunk))
                values += chunk.count(b",")
                if len(body) > most or values > MOST_VALUES_TOGETHER:
                    raise TooLarge(
                        f"a request may have at most {most >> 20} MiB and {MOST_VALUES_TOGETHER:,} values",
                        hint="send it in several parts",
                    )
    except TimeoutError:
        raise UsageError("the request was not complete in time") from None
    except ClientDisconnect:  # the answer is not delivered
        raise UsageError("the connection was closed before the request was complete") from None
    finally:
        rate_limits.release_received(counted, len(body))
    return bytes(body)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` and cancel it when the client disconnects.

    `work` is not started if the client has already disconnected.
    """
    disconnected = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.sleep(0)
        if disconnected.done():
            raise UsageError("the client hung up")
    except BaseException:
        disconnected.cancel()
        work.close()
        raise
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise UsageError("the client hung up")
        return task.result()
    finally:
        task.cancel()
        disconnected.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def query_of(request: Request, into: type[Q]) -> Q:
    """The query of the request, decoded and checked."""
    return read_query(request.query_params, into)


def keys_of(context: Context, request: Request, texts: list[str]) -> list[JobKey]:
    """Resolve the caller's job selectors to keys, without duplicates."""
    uid, viewer = caller(request)[0], viewer_of(request)
    keys: list[JobKey] = []
    named = 0
    for part in parse_selectors(texts):
        if isinstance(part, Numbers):
            named += part.last - part.first
            keys += _keys_between(context, viewer, part, named)
        elif isinstance(part, Group):
            for members in _group_slices(context, viewer, part.number):
                named += len(members)
                check_number(named)
                keys += members
        elif isinstance(part, Tasks):
            keys += [check_visible(context, viewer, job_key(part.number, task)) for task in part.tasks]
        else:
            keys.append(check_visible(context, viewer, resolve(context.loop.state, uid, part)))
    return list(dict.fromkeys(keys))


async def group_keys(context: Context, viewer: Viewer, group: int) -> list[JobKey]:
    """Keys of the jobs of a group. Raises UsageError if they are more than a request may name."""
    found: list[JobKey] = []
    for members in _group_slices(context, viewer, group):
        found += members
        check_number(len(found), MOST_IN_RANGES)
        await asyncio.sleep(0)
    return found


def _group_slices(context: Context, viewer: Viewer, group: int) -> Iterator[list[JobKey]]:
    """Yield the jobs of a group, which has the number of its first job, at most `RANGE` in one query.

    They were submitted together, so the search ends at the first `RANGE` numbers without one of them.
    """
    owner = None if viewer.sees_names else viewer.caller
    for first in count(group, RANGE):
        members = context.store.between(first, first + RANGE - 1, owner, group=group)
        if not members and first == group:
            raise no_group(group)
        if not members:
            return
        yield members


def no_group(group: int) -> NotFound:
    """The error for a group that does not exist, or that is hidden from the caller."""
    return NotFound(f"there is no group g{group}", hint="gqueue -a -f JOBID,GROUP shows the groups")


async def expand_groups(request: Request, references: References) -> References:
    """The references to parents, with each group (`g116`) replaced by its jobs.

    Raises UsageError if these are more than a job may have.
    """
    if not any(is_group(text) for texts in references for text in texts):
        return references
    context, viewer = context_of(request), viewer_of(request)
    return References(*[await _expand_texts(context, viewer, texts) for texts in references])


async def _expand_texts(context: Context, viewer: Viewer, texts: tuple[str, ...]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text in texts:
        members = await group_keys(context, viewer, int(text[1:])) if is_group(text) else None
        found |= dict.fromkeys([text] if members is None else map(label, members))
    if len(found) > MOST_PARENTS:
        raise UsageError(
            f"a job may depend on at most {MOST_PARENTS:,} jobs, not {len(found):,}",
            hint="let it depend on one job that depends on a part of them",
        )
    return tuple(found)


def check_visible(context: Context, viewer: Viewer, key: JobKey) -> JobKey:
    """Return the key. Raises the error for an unknown job if the job is hidden from the caller."""
    if not viewer.sees_names and not viewer.sees_job(existing_job(context, key)):
        raise no_job(label(key))
    return key


def hides_for(request: Request) -> Callable[[JobKey], bool] | None:
    """A predicate for keys of jobs that exist and are hidden from the caller; None if none are hidden."""
    context, viewer = context_of(request), viewer_of(request)
    if viewer.sees_names:
        return None

    def hides(key: JobKey) -> bool:
        job = context.job(key)
        return job is not None and not viewer.sees_job(job)

    return hides


async def all_keys_of(context: Context, request: Request, texts: list[str]) -> list[JobKey]:
    """As `keys_of`, for bulk changes: ranges may be longer, and are looked up in slices of `RANGE`."""
    uid, viewer = caller(request)[0], viewer_of(request)
    keys: dict[JobKey, None] = {}
    named = 0
    async for some in in_slices(parse_selectors(texts)):
        for part in some:
            if isinstance(part, Numbers):
                _check_assigned(context, viewer, part.last)
                named += part.last - part.first
                check_number(named, MOST_IN_RANGES)
                keys |= await _lookup_range(context, viewer, part)
            elif isinstance(part, Group):
                keys |= dict.fromkeys(await group_keys(context, viewer, part.number))
                check_number(len(keys), MOST_IN_RANGES)
            elif isinstance(part, Tasks):
                keys |= {
                    check_visible(context, viewer, job_key(part.number, task)): None for task in part.tasks
                }
            else:
                keys[check_visible(context, viewer, resolve(context.loop.state, uid, part))] = None
    return list(keys)


async def _lookup_range(context: Context, viewer: Viewer, numbers: Numbers) -> dict[JobKey, None]:
    """Keys of the existing jobs of a range, `RANGE` numbers per query."""
    found: dict[JobKey, None] = {}
    owner = None if viewer.sees_names else viewer.caller
    for first in range(numbers.first, numbers.last + 1, RANGE):
        last = min(first + RANGE - 1, numbers.last)
        found |= dict.fromkeys(context.store.between(first, last, owner))
        if last < numbers.last:
            await asyncio.sleep(0)
    if not found:
        raise NotFound(f"there are no jobs {numbers.first}-{numbers.last}")
    return found


def _check_assigned(context: Context, viewer: Viewer, last: int) -> None:
    """Refuse a range that ends beyond the latest job number. Skipped where job numbers are private."""
    latest = context.loop.state.jobs.next_number - 1
    if last > latest and viewer.sees_names:
        raise NotFound(
            f"there is no job {last}", hint=f"the latest is {latest}" if latest else "there are none"
        )


def _keys_between(context: Context, viewer: Viewer, numbers: Numbers, named: int) -> list[JobKey]:
    """Keys of the existing jobs of a range. Its last number must be assigned, and one job must exist.

    `named`: how many jobs all ranges of the request have named so far.
    """
    first, last = numbers
    _check_assigned(context, viewer, last)
    check_number(named)
    found = context.store.between(first, last, None if viewer.sees_names else viewer.caller)
    if not found:
        raise NotFound(f"there are no jobs {first}-{last}")
    return found


def existing_job(context: Context, key: JobKey) -> Job:
    """The job with this key. Raises NotFound if there is none."""
    job = context.job(key)
    if job is None:
        raise no_job(label(key))
    return job


def job_in_path(context: Context, request: Request) -> Job:
    """The job that the path of the request names."""
    return existing_job(context, key_of(context, request))


def key_of(context: Context, request: Request, text: str | None = None) -> JobKey:
    """The key of the single job that `text`, or else the path of the request, names."""
    keys = keys_of(context, request, [request.path_params["job"] if text is None else text])
    if len(keys) != 1:
        raise UsageError(
            "exactly one job must be named", hint="an id (42), a task (42_3), or @ for your latest job"
        )
    return keys[0]


def states_of(text: str) -> frozenset[JobState]:
    """Parse a list of states, given by long name, short name or Slurm's name."""
    states = set()
    for name in split_list(text):
        state = _STATE_NAMES.get(name.lower())
        if state is None:
            raise unknown("state", name, [s.value for s in JobState])
        states.add(state)
    return frozenset(states)


async def spans_of(context: Context, request: Request, text: str) -> tuple[tuple[int, int], ...]:
    """Resolve `17`, `42_3`, `42_[1-5]`, `@`, `5-9`, `g116` to ranges of keys. An array includes its tasks.

    A single job must exist. A range may contain numbers without jobs.
    """
    viewer = viewer_of(request)
    spans: list[tuple[int, int]] = []
    for part in parse_selectors([text]):
        if isinstance(part, Numbers):
            spans.append((job_key(min(part.first, NO_NUMBER)), job_key(min(part.last, NO_NUMBER) + 1) - 1))
        elif isinstance(part, Tasks):
            keys = [check_visible(context, viewer, job_key(part.number, task)) for task in part.tasks]
            spans += [_span(context, key) for key in keys]
        elif isinstance(part, Group):
            spans += spans_of_keys(await group_keys(context, viewer, part.number))
        else:
            spans += [_span(context, key) for key in keys_of(context, request, [part])]
    return _few_spans(spans)


def spans_of_keys(keys: Iterable[JobKey]) -> tuple[tuple[int, int], ...]:
    """The ranges of keys of these jobs, with the tasks of each."""
    return _few_spans([(key, job_key(number_of(key) + 1) - 1) for key in keys])


def _few_spans(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found = merge_spans(spans)
    if len(found) > MOST_SPANS:
        raise UsageError(
            f"these are more than {MOST_SPANS} separate jobs", hint="name ranges of them, like 5-9"
        )
    return found


def _span(context: Context, key: JobKey) -> tuple[int, int]:
    existing_job(context, key)
    if task_of(key) is None:
        return key, job_key(number_of(key) + 1) - 1
    # A task that has not started has no record: the array's row stands for it.
    shown = key if context.has_record(key) else job_key(number_of(key))
    return shown, shown


def split_list(text: str) -> list[str]:
    """Split a comma-separated list; empty members are dropped."""
    return [part for part in (part.strip() for part in text.split(",")) if part]


def parse_number(name: str, text: str, low: int) -> int:
    """Parse an integer of at most 9 digits that is at least `low`."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 9 or int(text) < low:
        raise UsageError(f"--{name} takes a whole number{' from 0 on' if not low else ''}, not {text[:60]!a}")
    return int(text)
