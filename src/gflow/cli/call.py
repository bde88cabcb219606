"""Calls to the daemon for commands: an answer, or the error it stands for."""

from __future__ import annotations

import json
import sys
from typing import Any
from urllib.parse import quote, urlencode

from gflow.client import fast
from gflow.errors import GflowError


class DaemonError(GflowError):
    """The daemon refused."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem.get("title", "the daemon failed"), hint=problem.get("hint", ""))
        self.code = problem.get("code", "internal")
        self.exit_code = problem.get("exit_code", 1)


def get(path: str, **query: str) -> Any:
    """The JSON at `path`."""
    return _exchange("GET", path, b"", query)


def post(path: str, body: Any, **query: str) -> Any:
    return _exchange("POST", path, json.dumps(body).encode(), query)


def show(path: str, *, as_json: bool, **query: str) -> int:
    """Print what the daemon says about `path`, as text or JSON."""
    return show_answer("GET", path, b"", as_json=as_json, **query)


def show_answer(method: str, path: str, body: bytes, *, as_json: bool, **query: str) -> int:
    accept = "application/json" if as_json else "text/plain"
    status, headers, content = fast.request(method, with_query(path, query), body, accept)
    if status >= 400:
        raise DaemonError(_parse(content)) if as_json else _text_error(headers, content)
    sys.stdout.flush()
    fast.write(1, content + (b"\n" if as_json else b""))
    return 0


def _text_error(headers: bytes, content: bytes) -> DaemonError:
    """The refusal in a text answer: the sentence, then the hint."""
    message, _, hint = content.decode(errors="replace").strip().partition("\n")
    return DaemonError({"title": message, "hint": hint, "exit_code": fast.exit_code(headers)})


def _exchange(method: str, path: str, body: bytes, query: dict[str, str]) -> Any:
    status, _, content = fast.request(method, with_query(path, query), body, "application/json")
    answer = _parse(content)
    if status >= 400:
        raise DaemonError(answer)
    return answer


def _parse(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return {"title": content.decode(errors="replace").strip()}


def with_query(path: str, query: dict[str, str]) -> str:
    given = {name: value for name, value in query.items() if value}
    return path + ("?" + urlencode(given) if given else "")


def job_path(reference: str, rest: str = "") -> str:
    return f"/jobs/{quote(reference, safe='')}{rest}"
