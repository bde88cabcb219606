"""schemathesis on our own description of the API, against a real daemon: what it says is what happens.

Nothing crashes, nothing hangs, no bad input is answered with a fault, every answer is as described, and
what the description does not allow is refused.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import settings
from requests.adapters import HTTPAdapter
from schemathesis import checks
from schemathesis.config import SchemathesisConfig
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection

from gflow.daemon.api.routes import document
from tests.fuzz.conftest import EXAMPLES
from tests.fuzz.test_routes import PATHS
from tests.harness import Box, UnixConnection

pytest_plugins = ["schemathesis.pytest.plugin"]
CONFIG = SchemathesisConfig.from_dict(
    {
        # What it finds by itself is enough: the same request need not come again in other words.
        "phases": {"coverage": {"enabled": EXAMPLES > 20, "unexpected-methods": ["delete", "patch"]}},
        "generation": {"max-examples": EXAMPLES, "with-security-parameters": False},
    }
)
SCHEMA = schemathesis.openapi.from_dict(json.loads(document()), config=CONFIG)
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
]
TRUE = base64.b64encode(b"true\n").decode()
# An answer takes no longer than this, except for requests that wait for a job.
PATIENCE_S = 30.0


class SocketPool(HTTPConnectionPool):
    """Connections to a daemon's socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def _new_conn(self) -> Any:
        connection, other = HTTPConnection("localhost"), UnixConnection(self._path)

        def connect() -> None:
            other.connect()
            connection.sock = other.sock

        connection.connect = connect
        return connection


class SocketAdapter(HTTPAdapter):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._pool = SocketPool(path)

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> Any:
        return self._pool


@pytest.fixture(scope="module")
def box(tmp_path_factory: Any) -> Iterator[Box]:
    made = Box(tmp_path_factory.mktemp("schema"))
    made.up("--simulate-gpus", "2x80G", "--cpus", "2")
    made.finished(made.submit("true"))
    made.submit("--hold", "true")
    made.submit("--hold", "--array", "1-5", "true")
    made.ok("gctl", "reserve", "create", "--user", "ann", "--force", "--gpus", "1", "--duration", "1h")
    yield made
    made.clean_up()


@pytest.fixture(scope="module")
def session(box: Box) -> requests.Session:
    made = requests.Session()
    made.mount("http://", SocketAdapter(box.socket))
    return made


def harmless(body: Any, work: str) -> None:
    """Change a request so that whatever it starts does nothing, and writes nowhere but in `work`."""
    if not isinstance(body, dict):
        return
    for part in [body, *(body["jobs"] if isinstance(body.get("jobs"), list) else [])]:
        if not isinstance(part, dict):
            continue
        if isinstance(part.get("command"), list) and part["command"]:
            part["command"][0] = "true"
        if isinstance(part.get("script"), str):
            part["script"] = TRUE
        if isinstance(part.get("cwd"), str):
            part["cwd"] = work
        if isinstance(part.get("options"), dict):
            for name in PATHS:
                part["options"].pop(name, None)


@SCHEMA.parametrize()
@settings(settings.get_profile("fuzz"))
def test_a_route_is_as_described(box: Box, session: requests.Session, case: schemathesis.Case) -> None:
    before = copy.deepcopy(case.body)
    harmless(case.body, str(box.work))
    if case.path == "/quotas" and isinstance(case.body, dict) and isinstance(case.body.get("name", ""), str):
        case.body["name"] = "ann"  # ours would keep us from submitting
    if case.path == "/events":
        case.query = dict(case.query or {}) | {"follow": "0"}
    waits = case.path.endswith("/wait")
    # What was wrong with a request may have been what we have just taken out of it.
    tried = [one for one in CHECKS if one is not checks.negative_data_rejection or case.body == before]
    try:
        case.call_and_validate(
            base_url="http://localhost", session=session, checks=tried, timeout=0.3 if waits else PATIENCE_S
        )
    except requests.exceptions.Timeout:
        assert waits, "no answer"
    assert box.daemon is not None and box.daemon.poll() is None


def test_daemon_works_after_random_requests(box: Box) -> None:
    box.ok("gctl", "set-gpus", "all")
    box.ok("gctl", "resume")
    assert box.finished(box.submit("true"))["state"] == "Finished"
    assert "Traceback" not in (box.root / "daemon.log").read_text()
