"""Asynchronous versions of the library functions. They do not block the event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Any, Unpack

from gflow.client import hot_path, http
from gflow.client.retry import PATIENCE_S
from gflow.errors import Unreachable
from gflow.library import jobs as plain
from gflow.library.job import Job, JobFailed, JobList, ListedJob
from gflow.library.job_sweep import Sweep
from gflow.library.jobs import Command
from gflow.library.submit_keywords import SubmitKeywords

PAUSE_S = 0.1


async def submit(command: Command, **options: Unpack[SubmitKeywords]) -> Job:
    """As `gflow.submit`."""
    return await asyncio.to_thread(lambda: plain.submit(command, **options))


async def sweep(command: Command, **options: Unpack[SubmitKeywords]) -> Sweep:
    """As `gflow.sweep`."""
    return await asyncio.to_thread(lambda: plain.sweep(command, **options))


async def jobs(**wanted: Any) -> JobList[ListedJob]:
    """As `gflow.jobs`."""
    return await asyncio.to_thread(lambda: plain.jobs(**wanted))


async def wait(job: Job) -> dict[str, Any]:
    """Wait for the end of the job; returns its final state. Reconnects if the daemon restarts meanwhile."""
    loop = asyncio.get_running_loop()
    unreachable_since: float | None = None
    while True:
        asked = loop.time()
        try:
            final: dict[str, Any] = (await _get(http.job_path(job.id, "/wait")))["jobs"][0]
            return final
        except (ConnectionError, Unreachable):
            if unreachable_since is None or loop.time() - asked > 1.0:
                unreachable_since = loop.time()
            if loop.time() - unreachable_since > PATIENCE_S:
                raise
            await asyncio.sleep(PAUSE_S)


async def wait_all(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Wait for the end of all these jobs; returns their final states."""
    return list(await asyncio.gather(*map(wait, jobs)))


async def result(job: Job) -> dict[str, Any]:
    """Wait for the job to succeed; returns its final state. Raises JobFailed if it did not succeed."""
    final = await wait(job)
    if final["state"] != "Finished":
        raise JobFailed(final)
    return final


async def _get(path: str) -> Any:
    connected = await asyncio.to_thread(hot_path.connect)
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=connected.detach()))
    try:
        head = f"GET {path} HTTP/1.1\r\nHost: gflow\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        headers, found, content = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if not found:
        raise ConnectionResetError("the daemon closed the connection before it answered")
    answer = hot_path.read_body(headers, content)
    if int(headers[9:12]) >= 400:
        raise http.refusal(headers, answer, "application/json")
    return http.parse_json(answer)
