"""Command lines of thin clients: what a client sends, and the request of the API that it stands for.

A call is text fields, each with a NUL behind it: program, token, working folder, umask, columns of the
terminals at standard output and at standard error (-1: none), whether to use colour, facts about the first
words, number of words, the words, and for gbatch the environment.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from gflow.errors import UsageError
from gflow.options.commands import help_pages
from gflow.options.commands.gcancel_options import OPTIONS as GCANCEL
from gflow.options.commands.gcancel_request import gcancel_request
from gflow.options.commands.ginfo_options import OPTIONS as GINFO
from gflow.options.commands.gjob_options import ALIASES, options_of
from gflow.options.commands.gjob_results_query import results_query
from gflow.options.commands.gqueue_query import clusters_of, gqueue_query, read_gqueue
from gflow.options.job_options import COMMON, GBATCH, JSON
from gflow.options.parse import parse
from gflow.options.plain_submission import JOB_NAMES, SHELL, SLOW, absolute, letter_note, terminal_notes
from gflow.wire.encoding import encode
from gflow.wire.requests import JobRequest, SubmitRequest

# Longer command lines are read by the client: parsing keeps the daemon's thread.
MOST_WORDS = 256
MOST_WORD_BYTES = 16 << 10
# Variables; a client whose environment has more sends the job itself.
MOST_VARIABLES = 10_000
# Names the variables of the job in which a command runs that are sent to a cluster elsewhere.
EXPORT = b"GFLOW_EXPORT"
help_page = cache(help_pages.help_page)
# A terminal gets one line instead of more lines, each about one job. In what may stand for several jobs.
MOST_LINES, SEVERAL = 20, frozenset(",-[g")
# Facts about a word: it names a file, a program on the PATH, an ELF executable.
IS_FILE, IS_ON_PATH, IS_BINARY = 1, 2, 4


class Call(NamedTuple):
    """One command line, and what its meaning depends on."""

    program: str
    token: str
    cwd: str
    umask: int
    # Columns of the terminals; -1: no terminal.
    out: int
    err: int
    has_color: bool
    facts: str
    words: list[str]
    environ: bytes

    def terminal(self) -> dict[str, str]:
        """Query parameters for text on a terminal."""
        if self.out < 0:
            return {}
        return {"width": str(self.out)} | ({"color": "1"} if self.has_color else {})


class ApiRequest(NamedTuple):
    """The request that a command line stands for."""

    method: str
    path: str
    query: dict[str, str] = {}
    body: bytes = b""
    is_json: bool = False
    # What is printed on standard error before the answer.
    note: str = ""


def read_call(body: bytes) -> Call | None:
    """The call in a request. None: the client has to read it, because it is long or not UTF-8."""
    *head, rest = body.split(b"\0", 9)
    try:
        program, token, cwd, umask, out, err, color, facts, count = [field.decode() for field in head]
        if int(count) > MOST_WORDS:
            return None
        if int(count) < 0 or facts.strip("01234567"):
            raise ValueError
        *words, environ = rest.split(b"\0", int(count))
        if len(words) != int(count):
            raise ValueError
        if len(rest) - len(environ) > MOST_WORD_BYTES or environ.count(b"\0") > MOST_VARIABLES:
            return None
        texts = [word.decode() for word in words]
        numbers = int(umask) & 0o777, int(out), int(err)
    except UnicodeDecodeError:
        return None
    except ValueError:
        raise UsageError("the request is not a command line") from None
    return Call(program, token, cwd, *numbers, color == "1", facts, texts, environ)


def translate(call: Call, user: Callable[[], str]) -> ApiRequest | str | None:
    """The request that a command line stands for, or the page of --help. None: the client has to run it.

    `user`: returns the caller's name. Raises UsageError.
    """
    words = call.words
    if call.program not in PROGRAMS or "--version" in words or words[:1] == ["completion"]:
        return None
    return PROGRAMS[call.program](call, user)


def _gqueue(call: Call, user: Callable[[], str]) -> ApiRequest | str | None:
    values, output = read_gqueue(call.words)
    if "help" in values:
        return help_page(call.program)
    if values.keys() & {"watch", "since"} or clusters_of(values, output):
        return None
    _add_me(values, user)
    query = gqueue_query(values, output) | (call.terminal() if output == "table" else {})
    return ApiRequest("GET", "/jobs", query, is_json=output == "json")


def _ginfo(call: Call, user: Callable[[], str]) -> ApiRequest | str | None:
    values, rest = parse(call.words, GINFO)
    if values.keys() & {"watch", "target"} or rest not in ([], ["info"]):
        return None
    if "help" in values:
        return help_page(call.program)
    query = {"long": "1"} if rest or "long" in values else {}
    return _read("/info", values, query, call)


def _gjob(call: Call, user: Callable[[], str]) -> ApiRequest | str | None:
    name = next((word for word in call.words if not word.startswith("-")), "")
    command = ALIASES.get(name, name)
    if command not in GJOB or any(word.startswith("--at") for word in call.words):
        return None
    rest = list(call.words)
    rest.remove(name)
    values, jobs = parse(rest, (*options_of(command), JSON, *COMMON))
    return None if "help" in values or not jobs else GJOB[command](command, values, jobs, call)


def _show(command: str, values: dict[str, Any], jobs: list[str], call: Call) -> ApiRequest | None:
    query = {"metric": values["metric"]} if "metric" in values else {}
    query |= {"highest": "1"} if "highest" in values else {}
    return _read("/jobs/" + ",".join(jobs), values, query, call)


def _facts(command: str, values: dict[str, Any], jobs: list[str], call: Call) -> ApiRequest | None:
    if len(jobs) != 1 or "/" in jobs[0]:
        return None
    query = {"csv": "1"} if "csv" in values else {}
    return ApiRequest("GET", f"/jobs/{jobs[0]}/{command}", query, is_json="json" in values)


def _results(command: str, values: dict[str, Any], jobs: list[str], call: Call) -> ApiRequest | None:
    output, query = results_query(values, jobs)
    query |= call.terminal() if output == "table" else {}
    return ApiRequest("GET", "/jobs", query, is_json=output == "json")


def _hold(command: str, values: dict[str, Any], jobs: list[str], call: Call) -> ApiRequest | None:
    return _change(f"/jobs/{command}", {"jobs": jobs}, values, call)


# Commands of gjob. The others are left to the client.
GJOB = {
    "show": _show, "history": _facts, "usage": _facts, "results": _results, "hold": _hold, "release": _hold,
}  # fmt: skip


def _read(path: str, values: dict[str, Any], query: dict[str, str], call: Call) -> ApiRequest:
    """A request for text for the terminal, or with --json for JSON."""
    is_json = "json" in values
    return ApiRequest("GET", path, query if is_json else query | call.terminal(), is_json=is_json)


def _gcancel(call: Call, user: Callable[[], str]) -> ApiRequest | str | None:
    values, jobs = parse(call.words, GCANCEL)
    if "help" in values:
        return help_page(call.program)
    _add_me(values, user)
    path, body = gcancel_request(values, jobs)
    return None if "dry-run" in values else _change(path, body, values, call)


def _add_me(values: dict[str, Any], user: Callable[[], str]) -> None:
    if values.pop("me", False):
        values["user"] = ",".join(filter(None, [values.get("user"), user()]))


def _change(path: str, body: dict[str, Any], values: dict[str, Any], call: Call) -> ApiRequest | None:
    """A change of jobs. On a terminal, the client sums up the lines about many jobs."""
    few = body["jobs"] and len(body["jobs"]) <= MOST_LINES and not SEVERAL.intersection("".join(body["jobs"]))
    if "json" in values or (call.out >= 0 and not few):
        return None
    return ApiRequest("POST", path, body=encode(body))


def _gbatch(call: Call, user: Callable[[], str]) -> ApiRequest | str | None:
    if call.words[:1] == ["new"]:
        return None
    values, command = parse(call.words, GBATCH, until_word=True)
    if "help" in values:
        return help_page(call.program)
    variables: dict[bytes, bytes] = {}
    for entry in call.environ.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name != EXPORT:
            variables.setdefault(name, value)
    if values.keys() & SLOW or (values and any(name.startswith(b"SBATCH_") for name in variables)):
        return None
    argv = _program_of(command, _facts_about(call, len(call.words) - len(command)), call.cwd)
    if argv is None:
        return None
    job = JobRequest(
        command=argv,
        cwd=call.cwd,
        umask=call.umask,
        environ=base64.b64encode(b"\0".join(map(b"=".join, variables.items()))).decode(),
        options={name: value for name, value in values.items() if name in JOB_NAMES},
    )
    query = {"parsable": "1"} if "parsable" in values else {"named": "1"} if call.out >= 0 else {}
    note = letter_note(values, call.words)
    if call.err >= 0:
        note += terminal_notes(values, command, values.get("param", ()))
    body = encode(SubmitRequest(token=call.token, jobs=[job]))
    return ApiRequest("POST", "/jobs", query, body, note=note)


def _facts_about(call: Call, at: int) -> int:
    """What the word at this index names."""
    return int(call.facts[at : at + 1] or 0)


def _program_of(command: list[str], facts: int, cwd: str) -> list[str] | None:
    """The argv of a program or of a shell command line. None: a script, or nothing that can run."""
    word = command[0] if command else ""
    if facts & IS_BINARY:
        return [absolute(word, cwd), *command[1:]]
    if len(command) == 1 and facts & IS_FILE:
        return None
    if len(command) == 1 and SHELL.intersection(word):
        return ["bash", "-c", word] if word.strip() else None
    return command if "/" not in word and facts & IS_ON_PATH else None


PROGRAMS: dict[str, Callable[[Call, Callable[[], str]], ApiRequest | str | None]] = {
    "gqueue": _gqueue,
    "ginfo": _ginfo,
    "gjob": _gjob,
    "gbatch": _gbatch,
    "gcancel": _gcancel,
}
