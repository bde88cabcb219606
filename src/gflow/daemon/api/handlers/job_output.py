"""Routes for the content of a job's log: a part of it, a search, a stream of what is added, the diagnosis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gflow.core.ids import JobKey
from gflow.core.model import Job
from gflow.core.task_set import parse_tasks
from gflow.daemon.api.end_facts import end_facts
from gflow.daemon.api.permissions import check
from gflow.daemon.api.request import context_of, existing_job, job_in_path, query_of, while_connected
from gflow.daemon.api.response import TimedTurnResponse, answer
from gflow.daemon.api.visibility import Viewer, viewer_of
from gflow.daemon.auth.users import account_of
from gflow.daemon.context import Context
from gflow.daemon.execution.log_diagnosis import clean_lines, diagnose_end
from gflow.daemon.execution.log_paths import log_path
from gflow.daemon.execution.log_reader import Piece, read_piece
from gflow.daemon.execution.log_search import search
from gflow.daemon.execution.remote_logs import follow_log, refresh_log
from gflow.errors import Refused, UsageError
from gflow.job_states import FAILED_NAMES
from gflow.targets.file_rights import OWN_FILES, FileOpener, Owner
from gflow.text.diagnosis import array_page
from gflow.wire.answers.job_details import (
    DiagnosisAnswer,
    FoundLine,
    OutputAnswer,
    SearchAnswer,
    SearchPlace,
)
from gflow.wire.answers.jobs import job_view
from gflow.wire.encoding import encode, key_label
from gflow.wire.queries import OutputQuery, OutputStreamQuery, SearchQuery

# Pauses between two looks at a log that does not grow, shortest and longest; and between keep-alives.
PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
KEEP_ALIVE_S = 15.0
# Bytes that one request searches, or counts the lines of.
MOST_SEARCHED = 64 << 20
# Bytes in one event of the stream.
STREAM_BYTES = 256 << 10


async def show_output(request: Request) -> Response:
    """A part of a job's log as text; by default the last part of it."""
    context, query = context_of(request), query_of(request, OutputQuery)
    job = _job_with_log(request)
    await refresh_log(context, job)
    piece = await _read(context, job, query.offset, query.limit, MOST_SEARCHED if query.lines else 0)
    return answer(request, lambda: _view(job, piece), lambda: piece.text)


async def search_output(request: Request) -> Response:
    """Find lines in a job's log that contain a text, or that look like errors, from `offset` on."""
    context, query = context_of(request), query_of(request, SearchQuery)
    job = _job_with_log(request)
    if "\n" in query.find:
        raise UsageError("a search finds lines, and its text has a line end")
    await refresh_log(context, job)
    place = (query.find, query.offset, query.line, MOST_SEARCHED, query.limit)
    path, files = log_path(context.settings, job), files_of(context, job)
    found = await while_connected(request, context.threads.run(job.uid, search, path, files, *place))
    is_over = found.end >= found.size
    data = SearchAnswer(
        job_id=key_label(job.key),
        size=found.size,
        found=[FoundLine(*one) for one in found.found],
        next=None if is_over else SearchPlace(offset=found.end, line=found.line),
    )
    lines = "".join(f"{one.line}: {one.text}\n" for one in data.found)
    return answer(request, lambda: data, lambda: lines)


async def show_diagnosis(request: Request) -> Response:
    """Why a job ended: the causes that its record and the end of its log show, and what to do.

    Of an array: which of its tasks failed. The log is read for the job's owner and root only.
    """
    context = context_of(request)
    job = job_in_path(context, request)
    if not job.is_final:
        raise Refused(f"job {job.label} has not ended", hint=f"gjob why {job.label}")
    viewer = viewer_of(request)
    view = msgspec.to_builtins(job_view(viewer.redact_job(job), None))
    ended = msgspec.to_builtins(await end_facts(request, job, viewer))
    why_not = _why_no_log(viewer, job)
    path, files = ("", OWN_FILES) if why_not else (log_path(context.settings, job), files_of(context, job))
    if path:
        await refresh_log(context, job)
    work = context.threads.run(viewer.uid, diagnose_end, view, ended or {}, path, files, why_not)
    data, page = await while_connected(request, work)
    if job.is_array:
        tasks = (task for task in context.store.tasks(job.key) if task.state.value in FAILED_NAMES)
        failed = [msgspec.to_builtins(job_view(viewer.redact_job(task), None)) for task in tasks]
        data["failed_tasks"] = [task["id"] for task in failed]
        page = clean_lines(array_page(view, failed))
    return answer(request, lambda: msgspec.convert(data, DiagnosisAnswer), lambda: page)


def _why_no_log(viewer: Viewer, job: Job) -> str:
    """Why the log of an ended job is not read; empty: it is."""
    if job.is_array:
        return "each task of the array has its own log"
    if not job.attempt:
        return "the job has not started"
    return "" if viewer.uid == 0 or viewer.caller.owns(job) else "the log belongs to another user"


async def stream_output(request: Request) -> Response:
    """Stream a job's log from `offset` on as it grows, until the job has ended."""
    context, query = context_of(request), query_of(request, OutputStreamQuery)
    job = _job_with_log(request)
    await refresh_log(context, job)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    async with AsyncExitStack() as turn:
        await turn.enter_async_context(context.rate_limits.count_stream(request.scope["state"]["uid"]))
        frames = _frames(context, job.key, query.offset)
        return TimedTurnResponse(frames, turn.pop_all(), headers=headers, media_type="text/event-stream")
    raise AssertionError  # not reached: the stack swallows no exception


def _job_with_log(request: Request) -> Job:
    job = job_in_path(context_of(request), request)
    check(request, [job])
    if job.is_array:
        first = parse_tasks(job.spec.array).first
        raise Refused(
            f"job {job.label} is an array, and each of its tasks has a log",
            hint=f"name one: {job.label}_{first}",
        )
    return job


async def _read(context: Context, job: Job, offset: int, most: int, counts_to: int = 0) -> Piece:
    path, files = log_path(context.settings, job), files_of(context, job)
    return await context.threads.run(job.uid, read_piece, path, offset, most, files, counts_to)


def files_of(context: Context, job: Job) -> FileOpener:
    """Opens the log of a job, with the rights of its owner."""
    if not context.settings.is_system:
        return OWN_FILES
    account = account_of(job.uid)
    if account is None:
        raise Refused(f"the account of {job.user} is gone, so its log cannot be read")
    return context.privileged.files_of(Owner(job.uid, account.gid))


async def _frames(context: Context, key: JobKey, offset: int) -> AsyncIterator[bytes]:
    pause_s, quiet_s = PAUSE_S, 0.0
    while True:
        job = existing_job(context, key)  # before reading: what is written before its end is read
        follow_log(context, job)
        piece = await _read(context, job, offset, STREAM_BYTES)
        if piece.size < offset:  # the log was cut: its beginning is in another file
            offset, piece = 0, await _read(context, job, 0, STREAM_BYTES)
        if piece.text:
            yield _frame("output", job, piece)
            offset, pause_s, quiet_s = piece.end, PAUSE_S, 0.0
        elif job.is_final:
            yield _frame("end", job, piece)
            return
        else:
            await asyncio.sleep(pause_s)
            quiet_s += pause_s
            pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
            if quiet_s >= KEEP_ALIVE_S:
                yield b": nothing new\n\n"
                quiet_s = 0.0


def _view(job: Job, piece: Piece) -> OutputAnswer:
    return OutputAnswer(
        job_id=key_label(job.key),
        start=piece.start,
        end=piece.end,
        size=piece.size,
        final=job.is_final,
        text=piece.text,
        line=piece.line,
    )


def _frame(name: str, job: Job, piece: Piece) -> bytes:
    return f"event: {name}\n".encode() + b"data: " + encode(_view(job, piece)) + b"\n\n"
