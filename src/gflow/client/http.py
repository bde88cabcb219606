"""Requests to the daemon: return the answer, or raise its refusal as an error.

Imports only what a command needs that prints the daemon's answer.
"""

from __future__ import annotations

import sys

from gflow.client import hot_path

TYPE_CHECKING = False  # typing, json and urllib cost 25 ms to import
if TYPE_CHECKING:
    from typing import Any

    from gflow.client.refusal import DaemonError

# Bytes that need no escape in a query.
UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~,")


def get(path: str, **query: str) -> Any:
    """The JSON at `path`."""
    return _exchange("GET", path, b"", query)


def get_within(path: str, seconds: float) -> Any:
    """The JSON at `path`; TimeoutError if it does not come in time."""
    status, headers, content = hot_path.request("GET", path, b"", "application/json", seconds)
    if status >= 400:
        raise refusal(headers, content, "application/json")
    return parse_json(content)


def post(path: str, body: Any, **query: str) -> Any:
    return _exchange("POST", path, hot_path.dumps(body).encode(), query)


def show(path: str, *, as_json: bool, **query: str) -> int:
    """Print the daemon's answer for `path`, as text or JSON."""
    return show_answer("GET", path, b"", as_json=as_json, **query)


def show_answer(method: str, path: str, body: bytes, *, as_json: bool, **query: str) -> int:
    accept = "application/json" if as_json else "text/plain"
    content = ask(method, path, body, accept, query)
    sys.stdout.flush()
    hot_path.write(1, json_line(content) if as_json else content)
    return 0


# A terminal gets one line instead of more lines than this, each about one job.
MOST_LINES = 20


def show_changes(path: str, body: bytes, *, as_json: bool) -> int:
    """Post a change of jobs and print the answer, which on a terminal is one line for many jobs."""
    accept = "application/json" if as_json else "text/plain"
    content = ask("POST", path, body, accept, {})
    sys.stdout.flush()
    is_long = not as_json and content.count(b"\n") > MOST_LINES and sys.stdout.isatty()
    hot_path.write(1, json_line(content) if as_json else _sum_up(content) if is_long else content)
    return 0


def _sum_up(content: bytes) -> bytes:
    """How many of the lines `Job 42 held.` say the same, as one line; unchanged if they are others."""
    counts: dict[str, int] = {}
    lines = content.decode().splitlines()
    for line in lines:
        if not line.startswith("Job "):
            return content
        words = line.split(" ", 2)[2].removesuffix(".").removeprefix("is ")
        counts[words] = counts.get(words, 0) + 1
    return f"{len(lines)} jobs: {', '.join(f'{n} {words}' for words, n in counts.items())}.\n".encode()


def json_line(content: bytes) -> bytes:
    """JSON to print, with control characters escaped: names chosen by other users reach the terminal."""
    from gflow.errors import clean_json

    return clean_json(content) + b"\n"


def ask(method: str, path: str, body: bytes, accept: str, query: dict[str, str]) -> bytes:
    """The daemon's answer; raises its refusal as an error."""
    status, headers, content = hot_path.request(method, with_query(path, query), body, accept)
    if status >= 400:
        raise refusal(headers, content, accept)
    return content


def refusal(headers: bytes, content: bytes, accept: str) -> DaemonError:
    """The error in an answer: a problem in JSON, or the message and then the hint in text."""
    from gflow.client.refusal import daemon_error

    if accept != "text/plain":
        return daemon_error(parse_json(content))
    message, _, hint = content.decode(errors="replace").strip().partition("\n")
    return daemon_error({"title": message, "hint": hint, "exit_code": hot_path.exit_code(headers)})


def _exchange(method: str, path: str, body: bytes, query: dict[str, str]) -> Any:
    return parse_json(ask(method, path, body, "application/json", query))


def parse_json(content: bytes) -> Any:
    """Decode a JSON answer; other content becomes the title of a problem."""
    import json

    try:
        return json.loads(content)
    except ValueError:
        return {"title": content.decode(errors="replace").strip()}


def with_query(path: str, query: dict[str, str]) -> str:
    given = "&".join(f"{name}={quote(value)}" for name, value in query.items() if value)
    return f"{path}?{given}" if given else path


def job_path(reference: str, rest: str = "") -> str:
    return f"/jobs/{quote(reference)}{rest}"


def quote(text: str) -> str:
    """Percent-encode `text` as part of a URL."""
    encoded = text.encode(errors="surrogateescape")
    return "".join(chr(byte) if byte in UNRESERVED else f"%{byte:02X}" for byte in encoded)
