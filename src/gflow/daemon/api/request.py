"""What every route asks of a request: who is it, and which jobs are meant.

`keys_of` (and `spans_of` for listings) is the one place where what a caller writes becomes jobs. A job that
the caller is not to know of (people.privacy) is refused there with the words for one that does not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from gflow.core.ids import JobKey, job_key, label, number_of, task_of
from gflow.core.job_reference import resolve
from gflow.core.model import SHORT, Job, JobState
from gflow.daemon.api.visibility import Viewer, viewer
from gflow.daemon.auth.users import counted_as
from gflow.daemon.context import Context
from gflow.daemon.context import context_of as context_of
from gflow.daemon.loop.cooperative import in_slices
from gflow.errors import NotFound, TooLarge, UsageError, WrongType, no_job, unknown
from gflow.wire.job_selectors import MOST_IN_RANGES, Numbers, Tasks, check_number, selected
from gflow.wire.queries import Q, read_query
from gflow.wire.requests import LARGE, MOST_VALUES_TOGETHER, decode

T = TypeVar("T")
# Any request; one that brings jobs, of which a hundred thousand fit in; the commands that those may become.
MOST_BYTES = 4 << 20
MOST_JOBS_BYTES = 32 << 20
MOST_COMMANDS = 256 << 20
MOST_REMOTE_BYTES = 16 << 20  # through a port
# How long a body may take to come.
PATIENCE_S = 60.0

_STATE_NAMES = {state.value.lower(): state for state in JobState} | {
    short.lower(): state for state, short in SHORT.items()
}
_STATE_NAMES |= {"pending": JobState.QUEUED, "held": JobState.HOLD, "completed": JobState.FINISHED}

# A number that no job will have, and which the database can hold as a key.
NO_NUMBER = 10**12
# Numbers of a range that are looked up at once.
RANGE = 1000
# What one question of a listing may consist of: the database takes no longer ones.
PIECES = 500


def caller(request: Request) -> tuple[int, str]:
    """The caller's uid, and where it calls from."""
    state = request.scope["state"]
    return state["uid"], state["origin"]


async def read(request: Request, into: type[T], most: int = MOST_BYTES) -> T:
    """What the caller sent, or one sentence on what is wrong with it."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind != "application/json":
        raise WrongType(f"the request must be application/json, not {kind[:60]!a}")
    body, values = bytearray(), 0
    fairness, (uid, _) = context_of(request).fairness, caller(request)
    counted = counted_as(uid)
    most = most if request.scope["state"]["pid"] else min(most, MOST_REMOTE_BYTES)
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for chunk in request.stream():
                body += chunk
                fairness.read(counted, len(chunk))
                values += chunk.count(b",")
                if len(body) > most or values > MOST_VALUES_TOGETHER:
                    raise TooLarge(
                        f"a request may have at most {most >> 20} MiB and {MOST_VALUES_TOGETHER:,} values",
                        hint="send it in several parts",
                    )
    except TimeoutError:
        raise UsageError("the request did not come to its end in time") from None
    except ClientDisconnect:  # nobody is left to hear it
        raise UsageError("the request broke off") from None
    finally:
        fairness.done(counted, len(body))
    if len(body) <= LARGE:
        wanted: T = decode(bytes(body), into)
        return wanted
    return await context_of(request).threads.run(uid, decode, bytes(body), into)


async def while_connected(request: Request, coming: Coroutine[Any, Any, T]) -> T:
    """The result of `coming`, which is cancelled when the client hangs up; not begun if it has already."""
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.sleep(0)
        if gone.done():
            raise UsageError("the client hung up")
    except BaseException:
        gone.cancel()
        coming.close()
        raise
    wanted = asyncio.ensure_future(coming)
    try:
        await asyncio.wait({wanted, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not wanted.done():
            raise UsageError("the client hung up")
        return wanted.result()
    finally:
        wanted.cancel()
        gone.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def query_of(request: Request, into: type[Q]) -> Q:
    """What stands behind the `?`."""
    return read_query(request.query_params, into)


def keys_of(context: Context, request: Request, texts: list[str]) -> list[JobKey]:
    """The jobs that `texts` mean when this caller says them, each once."""
    uid, looks = caller(request)[0], viewer(request)
    keys: list[JobKey] = []
    named = 0
    for part in selected(texts):
        if isinstance(part, Numbers):
            named += part.last - part.first
            keys += _between(context, looks, part, named)
        elif isinstance(part, Tasks):
            keys += [visible(context, looks, job_key(part.number, task)) for task in part.tasks]
        else:
            keys.append(visible(context, looks, resolve(context.loop.state, uid, part)))
    return list(dict.fromkeys(keys))


def visible(context: Context, looks: Viewer, key: JobKey) -> JobKey:
    """The same key, unless the caller is not to know of its job."""
    if not looks.sees_names and not looks.finds(known(context, key)):
        raise no_job(label(key))
    return key


def hides_for(request: Request) -> Callable[[JobKey], bool] | None:
    """Whether there is a job of this key that the caller is not to know of; None: there can be none."""
    context, looks = context_of(request), viewer(request)
    if looks.sees_names:
        return None

    def hides(key: JobKey) -> bool:
        job = context.job(key)
        return job is not None and not looks.finds(job)

    return hides


async def all_keys_of(context: Context, request: Request, texts: list[str]) -> list[JobKey]:
    """The same for what is done in parts: ranges may be long, and are looked up a piece at a time."""
    uid, looks = caller(request)[0], viewer(request)
    keys: dict[JobKey, None] = {}
    named = 0
    async for parts_ in in_slices(selected(texts)):
        for part in parts_:
            if isinstance(part, Numbers):
                _check_given_out(context, looks, part.last)
                named += part.last - part.first
                check_number(named, MOST_IN_RANGES)
                keys |= await _in_range(context, looks, part)
            elif isinstance(part, Tasks):
                keys |= {visible(context, looks, job_key(part.number, task)): None for task in part.tasks}
            else:
                keys[visible(context, looks, resolve(context.loop.state, uid, part))] = None
    return list(keys)


async def _in_range(context: Context, looks: Viewer, numbers: Numbers) -> dict[JobKey, None]:
    found: dict[JobKey, None] = {}
    owner = None if looks.sees_names else looks.person
    for first in range(numbers.first, numbers.last + 1, RANGE):
        last = min(first + RANGE - 1, numbers.last)
        found |= dict.fromkeys(context.store.between(first, last, owner))
        if last < numbers.last:
            await asyncio.sleep(0)
    if not found:
        raise NotFound(f"there are no jobs {numbers.first}-{numbers.last}")
    return found


def _check_given_out(context: Context, looks: Viewer, last: int) -> None:
    """Which numbers were given out to others is not told where that is private."""
    latest = context.loop.state.next_number - 1
    if last > latest and looks.sees_names:
        raise NotFound(
            f"there is no job {last}", hint=f"the latest is {latest}" if latest else "there are none"
        )


def _between(context: Context, looks: Viewer, numbers: Numbers, named: int) -> list[JobKey]:
    """The jobs of a range: the last one must have been given out, and some of them must be there.

    `named`: by all ranges so far. Which numbers were given out to others is not told where that is private.
    """
    first, last = numbers
    _check_given_out(context, looks, last)
    check_number(named)
    found = context.store.between(first, last, None if looks.sees_names else looks.person)
    if not found:
        raise NotFound(f"there are no jobs {first}-{last}")
    return found


def known(context: Context, key: JobKey) -> Job:
    job = context.job(key)
    if job is None:
        raise no_job(label(key))
    return job


def one(context: Context, request: Request) -> Job:
    """The job in the request's path."""
    return known(context, one_key(context, request))


def one_key(context: Context, request: Request, text: str | None = None) -> JobKey:
    """The one job that `text`, or the request's path, means."""
    keys = keys_of(context, request, [request.path_params["job"] if text is None else text])
    if len(keys) != 1:
        raise UsageError("one job, please", hint="an id (42), a task (42_3), or @ for your latest job")
    return keys[0]


def states_of(text: str) -> frozenset[JobState]:
    """States by long or short name, or by Slurm's."""
    states = set()
    for name in parts(text):
        state = _STATE_NAMES.get(name.lower())
        if state is None:
            raise unknown("state", name, [s.value for s in JobState])
        states.add(state)
    return frozenset(states)


def spans_of(context: Context, request: Request, text: str) -> tuple[tuple[int, int], ...]:
    """Ranges of keys: `17`, `42_3`, `42_[1-5]`, `@`, `5-9`. An array means its tasks too.

    A single job must be there; of a range, what is there is meant.
    """
    looks = viewer(request)
    spans: list[tuple[int, int]] = []
    for part in selected([text]):
        if isinstance(part, Numbers):
            spans.append((job_key(min(part.first, NO_NUMBER)), job_key(min(part.last, NO_NUMBER) + 1) - 1))
        elif isinstance(part, Tasks):
            keys = [visible(context, looks, job_key(part.number, task)) for task in part.tasks]
            spans += [_span(context, key) for key in keys]
        else:
            spans += [_span(context, key) for key in keys_of(context, request, [part])]
    found = _joined(spans)
    if len(found) > PIECES:
        raise UsageError(f"these are more than {PIECES} separate jobs", hint="name ranges of them, like 5-9")
    return found


def _span(context: Context, key: JobKey) -> tuple[int, int]:
    known(context, key)
    if task_of(key) is None:
        return key, job_key(number_of(key) + 1) - 1
    # A task that has not started is part of its array's line.
    shown = key if context.has_record(key) else job_key(number_of(key))
    return shown, shown


def _joined(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same keys in as few ranges as possible."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return tuple(joined)


def parts(text: str) -> list[str]:
    """The members of a list with commas."""
    return [part for part in (part.strip() for part in text.split(",")) if part]


def number(name: str, text: str, low: int) -> int:
    """A whole number, not too large for anything."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 9 or int(text) < low:
        raise UsageError(f"--{name} takes a whole number{' from 0 on' if not low else ''}, not {text[:60]!a}")
    return int(text)
