"""`gctl quota` and `gctl reserve`: quotas and GPU reservations."""

from __future__ import annotations

import sys

from gflow.client import hot_path, http
from gflow.errors import UsageError, did_you_mean
from gflow.options.commands.gctl_options import QUOTA, RANGE_SPAN, RESERVE
from gflow.options.lists import parse_indices
from gflow.options.parse import parse
from gflow.options.values import read

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

QUOTA_ABOUT = """Limit what users and projects may use at once. A quota delays the start of jobs and never
stops running ones; a job that waits for a quota shows (Quota) in gqueue.

commands:
  list      every quota: used/limit, - for no limit
  set       set a quota; limits that are not given stay unchanged
  remove    remove a quota"""
QUOTA_EXAMPLES = """gctl quota set --user ann --max-running-gpus 4
gctl quota set --default-user --max-running-jobs 20 --max-queued-jobs 1000
gctl quota remove --user ann"""
RESERVE_ABOUT = """Reserve GPUs for one user for some time. Jobs of other users do not start on them then, nor
before, unless their --time is over before the reservation begins. When it begins, jobs of other users
that still run on its GPUs are stopped; with --requeue or --preemptible they go back into the queue.

commands:
  create    --user NAME --gpus N|--gpu-spec LIST [--start TIME] --duration TIME
  list      all reservations, or by --user, --status, --active; --timeline
  get ID    show one reservation
  update ID move it: [--start TIME] [--duration TIME] [--gpu-spec LIST]
  cancel ID cancel it"""
RESERVE_EXAMPLES = """gctl reserve create --user ann --gpus 2 --start 14:00 --duration 2h30m
gctl reserve create --user ann --gpu-spec 0-1 --duration 1d
gctl reserve list --timeline
gctl reserve update 3 --start 16:00
gctl reserve cancel 3"""


def run(name: str, words: list[str]) -> int:
    table = QUOTA if name == "quota" else RESERVE
    values, rest = parse(words, table)
    if "help" in values or not rest:
        from gflow.options import help

        about, examples = (
            (QUOTA_ABOUT, QUOTA_EXAMPLES) if name == "quota" else (RESERVE_ABOUT, RESERVE_EXAMPLES)
        )
        sys.stdout.write(help.render(f"gctl {name} COMMAND [options]", about, table, examples))
        return 0 if "help" in values else 2
    commands = QUOTA_COMMANDS if name == "quota" else RESERVE_COMMANDS
    verb, *given = rest
    if verb not in commands:
        hint = did_you_mean(verb, commands, otherwise="commands: " + ", ".join(commands))
        raise UsageError(f"gctl {name} has no command {verb!a}", hint=hint)
    takes_id = verb in ("get", "update", "cancel")
    if len(given) != takes_id:
        raise UsageError(f"gctl {name} {verb} takes {'an id' if takes_id else 'no arguments'}")
    code: int = commands[verb](values, *given)
    return code


# ---------------------------------------------------------------- quotas


def _quota_list(values: dict[str, Any]) -> int:
    return http.show("/quotas", as_json="json" in values)


def _quota_set(values: dict[str, Any]) -> int:
    limits = {name.replace("-", "_"): values[name] for name in values if name.startswith("max-")}
    if not limits:
        raise UsageError("a quota needs a limit", hint="gctl quota set --user ann --max-running-gpus 4")
    return _send("PUT", "/quotas", {**_scope(values), **limits, **_flags(values)}, values)


def _quota_remove(values: dict[str, Any]) -> int:
    return _send("PUT", "/quotas", {**_scope(values), "remove": True}, values)


def _scope(values: dict[str, Any]) -> dict[str, str]:
    named = [name for name in ("user", "project", "default-user", "default-project") if name in values]
    if len(named) != 1:
        raise UsageError(
            "whose quota?", hint="one of --user NAME, --project NAME, --default-user, --default-project"
        )
    scope = named[0].removeprefix("default-")
    return {"scope": scope, "name": values.get(scope, "")}


# ---------------------------------------------------------------- reservations


def _create(values: dict[str, Any]) -> int:
    for name in ("user", "duration"):
        if name not in values:
            raise UsageError(f"gctl reserve create needs --{name}", hint="see gctl reserve --help")
    if ("gpus" in values) == ("gpu-spec" in values):
        raise UsageError("how many GPUs, or which ones?", hint="--gpus 2, or --gpu-spec 0,2-3")
    body = {"user": values["user"], **_span(values), **_flags(values)}
    if "gpus" in values:
        body["gpu_count"] = values["gpus"]
    return _send("POST", "/reservations", body, values)


def _update(values: dict[str, Any], number: str) -> int:
    body = _span(values)
    if not body or "user" in values or "gpus" in values:
        raise UsageError(
            "gctl reserve update changes --start, --duration or --gpu-spec",
            hint="gctl reserve update 3 --start 16:00",
        )
    return _send("PATCH", f"/reservations/{http.quote(number)}", body | _flags(values), values)


def _span(values: dict[str, Any]) -> dict[str, Any]:
    """The time and the GPUs of a reservation, as far as they are given."""
    names = {"start": "start_time", "duration": "duration_secs"}
    body = {names[name]: values[name] for name in names if name in values}
    if "gpu-spec" in values:
        found = parse_indices(values["gpu-spec"])
        if not found:
            raise UsageError(f"{values['gpu-spec']!a} is not a list of GPUs", hint="write 0,2 or 0-3")
        body["gpu_indices"] = list(found)
    return body


def _list(values: dict[str, Any]) -> int:
    query: dict[str, str] = {name: values[name] for name in ("user", "status") if name in values}
    if "active" in values:
        query["active"] = "1"
    if "timeline" in values or "range" in values:
        from time import time

        begin, end = _range(values.get("range", "48h"))
        now = time()
        query |= {"timeline": "1", "from": str(now + begin), "to": str(now + end)}
    return http.show("/reservations", as_json="json" in values, **query)


def _range(text: str) -> tuple[float, float]:
    """Parse --range: `48h` is the next 48 hours, `-24h` the last 24, `-24h:+24h` both."""
    left, colon, right = text.partition(":")
    if colon:
        return _signed(left), _signed(right)
    only = _signed(left)
    return (only, 0.0) if only < 0 else (0.0, only)


def _signed(text: str) -> float:
    seconds = read(RANGE_SPAN, text.lstrip("+-"))
    return float(-seconds if text.startswith("-") else seconds)


def _get(values: dict[str, Any], number: str) -> int:
    return http.show(f"/reservations/{http.quote(number)}", as_json="json" in values)


def _cancel(values: dict[str, Any], number: str) -> int:
    return _send("DELETE", f"/reservations/{http.quote(number)}", None, values)


def _flags(values: dict[str, Any]) -> dict[str, Any]:
    """The members `force` and `dry_run`, only if they are given: an older daemon does not know them."""
    return {name.replace("-", "_"): True for name in ("force", "dry-run") if name in values}


def _send(method: str, path: str, body: dict[str, Any] | None, values: dict[str, Any]) -> int:
    data = b"" if body is None else hot_path.dumps(body).encode()
    return http.show_answer(method, path, data, as_json="json" in values)


QUOTA_COMMANDS: dict[str, Callable[..., int]] = {
    "list": _quota_list,
    "set": _quota_set,
    "remove": _quota_remove,
}
RESERVE_COMMANDS: dict[str, Callable[..., int]] = {
    "create": _create,
    "list": _list,
    "get": _get,
    "update": _update,
    "cancel": _cancel,
}
