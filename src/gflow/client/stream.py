"""Stream events from the daemon; after a restart of the daemon, resume at the last event seen."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from typing import Any

from gflow.client import hot_path, no_daemon
from gflow.client.http import refusal, with_query
from gflow.client.retry import PATIENCE_S
from gflow.errors import Unreachable

JSON = "application/json"
# Seconds without any data, not even a keep-alive, after which the connection counts as lost.
SILENCE_S = 60.0


def events(
    names: tuple[str, ...] = (), jobs: tuple[str, ...] = (), after: int | None = None, *, follow: bool = True
) -> Iterator[dict[str, Any]]:
    """Yield every event from now on, or after the id `after`; each connection begins with `connected`.

    Without `follow`, stop after the stored events.
    """
    away_since: float | None = None
    while True:
        try:
            for event in _listen(names, jobs, after, follow):
                away_since = None
                after = event.get("id", after)
                yield event
            if not follow:
                return
            raise ConnectionResetError("the daemon closed the connection")
        except (OSError, HTTPException, Unreachable) as error:
            if away_since is None:
                away_since = time.monotonic()
            if time.monotonic() - away_since > PATIENCE_S:
                raise no_daemon.unreachable(hot_path.getenv) from error
            time.sleep(0.1)


def _listen(
    names: tuple[str, ...], jobs: tuple[str, ...], after: int | None, follow: bool
) -> Iterator[dict[str, Any]]:
    """Yield the events of one connection."""
    query = {"events": ",".join(names), "job": ",".join(jobs), "after": "" if after is None else str(after)}
    query["follow"] = "" if follow else "0"
    with socket.socket(fileno=hot_path.connect().detach()) as sock:
        sock.settimeout(SILENCE_S)
        path = with_query("/events", query)
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: gflow\r\nAccept: {JSON}\r\n\r\n".encode())
        response = HTTPResponse(sock, method="GET")
        response.begin()
        if response.status >= 400:
            raise refusal(b"", response.read(), JSON)
        while line := response.readline():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
