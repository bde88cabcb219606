"""Every route of a real daemon, with nonsense: an answer or a refusal, never a fault, never silence."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.daemon.api.routes import ROUTES
from gflow.options.commands.gcancel_options import OPTIONS as GCANCEL
from gflow.options.commands.ginfo_options import OPTIONS as GINFO
from gflow.options.commands.gqueue_options import OPTIONS as GQUEUE
from gflow.options.job_options import GBATCH, JOB
from tests.fuzz.texts import JSON, NUMBER, TEXT
from tests.harness import Box, UnixConnection

# What is sent to a route that takes none is any JSON.
BODIES = {(route.method, route.path): route.body for route in ROUTES}
QUERIES = (
    "all completed states users names projects jobs since sort limit offset format form width color user "
    "csv long dry-run parsable named events job after follow status active timeline from to"
).split()
REFERENCE = st.sampled_from(("1", "2", "3", "4", "@", "@~1", "1_1", "3_2", "1-3")) | TEXT
# Run as the user of the tests: only commands without effect.
SCRIPTS = [
    base64.b64encode(text).decode() for text in (b"true\n", b"\0\0", b"#!/no/such\n", b"# GFLOW --gpus 1\n")
]
COMMANDS = (["true"], ["sleep", "0"], ["/no/such/program"], [""], [], ["true", "\0"], ["true", "é" * 50])
# Paths that a job would write to stay in its folder.
PATHS = ("output", "error", "chdir", "venv", "conda-env")
OF_HTTP = (
    b"GET ", b"POST ", b"/jobs", b" HTTP/1.1", b"\r\n", b"Host: x", b"Content-Length: ", b"5", b"-1",
    b"chunked", b"Transfer-Encoding: ", b"Connection: Upgrade", b"Upgrade: h2c", b"\0", b"%00",
    b"a" * 5000, b"{}",
)  # fmt: skip
KINDS = [route for route in ROUTES for _ in (route.methods or set()) - {"HEAD"}]


def body_of(kind: Any) -> st.SearchStrategy[Any]:
    """What nearly is a request of this kind."""
    info = msgspec.inspect.type_info(kind)
    return st.one_of(made(info), made(info), made(info), JSON)


def made(info: Any, name: str = "") -> st.SearchStrategy[Any]:  # noqa: C901
    inspect = msgspec.inspect
    if name == "options":
        names = st.sampled_from([option.name for option in JOB])
        return st.dictionaries(names, TEXT | JSON, max_size=4)
    if name == "script":
        return st.sampled_from((None, *SCRIPTS))
    if name == "command":
        return st.sampled_from(COMMANDS)
    if isinstance(info, inspect.StructType):
        fields = {field.encode_name: made(field.type, field.encode_name) for field in info.fields}
        needed = {field.encode_name for field in info.fields if field.required}
        return st.fixed_dictionaries(
            {one: fields[one] for one in needed},
            optional={one: fields[one] for one in fields.keys() - needed},
        )
    if isinstance(info, inspect.ListType):
        return st.lists(made(info.item_type, name), max_size=3)
    if isinstance(info, inspect.DictType):
        return st.dictionaries(TEXT, made(info.value_type), max_size=3)
    if isinstance(info, inspect.UnionType):
        return st.one_of(*(made(one, name) for one in info.types))
    if isinstance(info, inspect.BoolType):
        return st.booleans()
    if isinstance(info, inspect.IntType):
        return NUMBER
    if name == "token":
        return st.sampled_from(("fuzzed-token", "another-token")) | st.uuids().map(str) | TEXT
    if isinstance(info, inspect.StrType):
        return REFERENCE if name in ("jobs", "job") else TEXT
    return JSON


def tamed(body: Any, work: str) -> Any:
    """The same, so that jobs stay held and write nowhere but in `work`."""
    if not isinstance(body, dict):
        return body
    if "scope" in body:
        body["name"] = "ann"  # a quota of ours would keep us from submitting
    options = body.get("options")
    if isinstance(options, dict):
        body["options"] = {key: value for key, value in options.items() if key not in PATHS}
    for job in body["jobs"] if isinstance(body.get("jobs"), list) else []:
        if isinstance(job, dict):
            job |= {"cwd": work}
            given = job.get("options") if isinstance(job.get("options"), dict) else {}
            job["options"] = {k: v for k, v in given.items() if k not in PATHS} | {"hold": True}
    return body


@pytest.fixture(scope="module")
def served(tmp_path_factory: Any) -> Iterator[Box]:
    box = Box(tmp_path_factory.mktemp("fuzz"))
    box.up("--simulate-gpus", "2x80G", "--cpus", "2")
    box.finished(box.submit("true"))
    box.submit("--hold", "true")
    box.submit("--hold", "--array", "1-5", "true")
    yield box
    box.clean_up()


def asked(
    box: Box, method: str, path: str, body: bytes | None, patience_s: float
) -> tuple[int, bytes] | None:
    """The answer; None: it takes its time, as it may when one waits for a job."""
    connection = UnixConnection(box.socket)
    connection.connect()
    connection.sock.settimeout(patience_s)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        return response.status, b"" if is_stream else response.read()
    except TimeoutError:
        return None
    finally:
        connection.close()


@pytest.mark.parametrize("route", KINDS, ids=lambda route: f"{min(route.methods - {'HEAD'})} {route.path}")
@given(data=st.data())
def test_route_answers_random_input(served: Box, route: Any, data: st.DataObject) -> None:
    method = min(route.methods - {"HEAD"})
    path = route.path
    for name in route.param_convertors:
        path = path.replace(f"{{{name}}}", quote(data.draw(REFERENCE, name), safe="", errors="replace"))
    query = data.draw(st.dictionaries(st.sampled_from(QUERIES), TEXT, max_size=3), "query")
    if query:
        path += "?" + "&".join(f"{name}={quote(text, errors='replace')}" for name, text in query.items())
    body = None
    if method in ("POST", "PUT"):
        kind = BODIES[method, route.path]
        drawn = data.draw(body_of(kind) if kind else JSON, "body")
        body = json.dumps(tamed(drawn, str(served.work))).encode()
    waits = route.path.endswith("/wait")
    answer = asked(served, method, path, body, 0.2 if waits else 30)
    if answer is None:
        assert waits, "no answer"
        return
    status, text = answer
    assert status < 500, text
    if status >= 400:
        problem = json.loads(text)
        assert problem["code"] and problem["title"].isprintable(), problem
    assert served.daemon is not None and served.daemon.poll() is None


# A value of every JSON type, and of each those that are most often not thought of.
OF_EVERY_TYPE = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 1.5, -0.5, 1e308, "", "x", "1", "é" * 300,
    [], [1], [None], [["x"]], ["x", 1], {}, {"a": 1}, {"a": [1]}, {"a": {"b": None}},
)  # fmt: skip


@pytest.mark.parametrize("route", ["/jobs", "/jobs/update", "/jobs/redo"])
def test_option_of_any_json_type_is_taken_or_refused(served: Box, route: str) -> None:
    """Every option with a value of every type: the option's reader answers, never an exception."""
    wrong = []
    for option, value in product(JOB, OF_EVERY_TYPE):
        options = {option.name: value}
        job = {"command": ["true"], "cwd": str(served.work), "options": {"hold": True} | options}
        body = {
            "/jobs": {"token": str(uuid4()), "jobs": [job]},
            "/jobs/update": {"jobs": ["2"], "options": options},
            "/jobs/redo": {"job": "2", "token": str(uuid4()), "options": {"hold": True} | options},
        }[route]
        status, answer = served.api("POST", route + ("" if route == "/jobs/update" else "?dry-run=1"), body)
        if status >= 500 or (status >= 400 and not answer["title"]):
            wrong.append((option.name, value, answer))
    assert not wrong


def call_of(data: st.DataObject, work: str) -> list[str]:
    """The fields of a command line that ends no jobs but 3 and 4, and submits none that is not `true`."""
    program = data.draw(st.sampled_from(("gbatch", "gqueue", "ginfo", "gjob", "gcancel", "gctl")), "program")
    table = {"gbatch": GBATCH, "gqueue": GQUEUE, "gcancel": GCANCEL}.get(program, GINFO)
    names = st.sampled_from([option.name for option in table if option.name not in (*PATHS, "all")])
    options = data.draw(st.lists(st.tuples(names, st.none() | TEXT), max_size=4), "options")
    words = [f"--{name}" + ("" if value is None else f"={value}") for name, value in options]
    if program == "gbatch":
        words = ["--hold", *words, "--", "true"]
    elif program == "gcancel":
        words += data.draw(st.lists(st.sampled_from(("3", "4", "3_2", "99")), min_size=1, max_size=3), "jobs")
    else:
        command = ["show", "results", "history", "usage", "hold", "release", "why"]
        words = [
            *([data.draw(st.sampled_from(command), "command")] if program == "gjob" else []),
            *words,
            *data.draw(st.lists(REFERENCE, max_size=3)),
        ]
    words = [word.replace("\0", "") for word in words]
    numbers = [data.draw(st.sampled_from(("0", "7", "80", "-1", str(10**30)))) for _ in range(3)]
    return [program, str(uuid4()), work, *numbers, "1", "2" * len(words), str(len(words)), *words]


@given(data=st.data())
def test_a_command_line_is_answered_or_left_to_the_client(served: Box, data: st.DataObject) -> None:
    fields = call_of(data, str(served.work))
    if data.draw(st.booleans(), "damaged"):
        at = data.draw(st.integers(0, len(fields) - 1))
        fields[at] = data.draw(TEXT | st.sampled_from(("", "-1", "9" * 5000, "\udcff")), "field")
        if fields[0] in ("gbatch", "gcancel") and at >= 8:  # the words may be another command then
            fields[0] = "gqueue"
    body = "\0".join([*fields, "A=1", "B"]).encode(errors="surrogateescape")
    connection = UnixConnection(served.socket)
    connection.request("POST", "/command", body, {"Content-Type": "application/octet-stream"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status in (200, 204, 400), text
    if answer.status == 200:
        assert int(answer.headers["x-gflow-stderr"]) <= len(text)
        assert (answer.headers["x-gflow-exit"] == "0") == (int(answer.headers["x-gflow-stderr"]) < len(text))


@given(st.binary(max_size=400) | st.lists(st.sampled_from(OF_HTTP)).map(b"".join))
def test_invalid_http_is_answered(served: Box, sent: bytes) -> None:
    connection = UnixConnection(served.socket)
    connection.connect()
    connection.sock.sendall(sent)
    connection.sock.shutdown(1)
    connection.sock.settimeout(30)
    try:
        first = connection.sock.recv(12)
        assert not first.startswith(b"HTTP/1.1 5"), first
    except ConnectionResetError:
        pass
    finally:
        connection.close()
    assert served.api("GET", "/health")[0] == 200


def test_daemon_works_after_random_requests(served: Box) -> None:
    served.ok("gctl", "set-gpus", "all")
    served.ok("gctl", "resume")
    job = served.submit("true")
    try:
        assert served.finished(job)["state"] == "Finished"
    except AssertionError:
        raise AssertionError(served.ok("gqueue", "-a") + served.ok("gctl", "show-gpus")) from None
    assert "Traceback" not in Path(served.root / "daemon.log").read_text()
