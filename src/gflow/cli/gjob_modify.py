"""`gjob hold`, `release`, `update`, `redo`: change existing jobs or submit them again."""

from __future__ import annotations

import json
import os
from typing import Any

from gflow.client import hot_path, http
from gflow.client.capture import read_file, resolve
from gflow.client.request_builder import program_of
from gflow.errors import UsageError
from gflow.options.job_options import Option
from gflow.options.update import CHANGEABLE, REDOABLE


def hold(values: dict[str, Any], jobs: list[str]) -> int:
    return _change("hold", values, {"jobs": jobs})


def release(values: dict[str, Any], jobs: list[str]) -> int:
    return _change("release", values, {"jobs": jobs, "at": values.get("at")})


def update(values: dict[str, Any], jobs: list[str]) -> int:
    body: dict[str, Any] = {"jobs": jobs, "options": _overrides(values, CHANGEABLE)}
    if "auto-cancel-on-dep-failure" in values:
        body["options"]["no-auto-cancel"] = None
    if "clear-deps" in values:
        body["options"] |= {option.name: None for option in CHANGEABLE if option.kind == "depends"}
    if "command" in values and "script" in values:
        raise UsageError("a job is a command or a script, not both")
    if "command" in values:
        body["command"] = program_of([values["command"]], in_sight=False)
    if "script" in values:
        body["script"] = hot_path.base64(_script(values["script"]))
        body["script_path"] = os.path.abspath(values["script"])
    return _change("update", values, body)


def redo(values: dict[str, Any], jobs: list[str]) -> int:
    body = {
        "job": ",".join(jobs),
        "failed": "failed" in values,
        "token": os.urandom(16).hex(),
        "options": _overrides(values, REDOABLE),
        "clear_deps": "clear-deps" in values,
        "cascade": "cascade" in values,
    }
    path = "/jobs/redo" + ("?parsable" if "parsable" in values else "")
    accept = "application/json" if "json" in values else "text/plain"
    # The token makes a retry after a lost answer idempotent.
    status, headers, content = hot_path.deliver(json.dumps(body).encode(), path, accept)
    if status >= 400:
        raise http.refusal(headers, content, accept)
    hot_path.print_note(headers, "gjob")
    hot_path.write(1, http.json_line(content) if "json" in values else content)
    return 0


def _overrides(values: dict[str, Any], table: tuple[Option, ...]) -> dict[str, Any]:
    """Options by name; None resets an option to its default."""
    names = {option.name for option in table}
    given = {name: value for name, value in values.items() if name in names}
    cleared = {name.removeprefix("clear-") for name in values if name.startswith("clear-")} & names
    return resolve(given) | dict.fromkeys(cleared)


def _script(path: str) -> bytes:
    content = read_file(path)
    if not content.strip():
        raise UsageError(f"the script {path} is empty")
    return content


def _change(verb: str, values: dict[str, Any], body: dict[str, Any]) -> int:
    return http.show_changes(f"/jobs/{verb}", json.dumps(body).encode(), as_json="json" in values)
