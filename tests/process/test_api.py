"""Answers of the API match its description, key by key, on every route."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from gflow.daemon.api.api_route import STREAM
from gflow.daemon.api.routes import ROUTES
from tests.harness import Box, UnixConnection


@pytest.fixture(scope="module")
def box(tmp_path_factory: Any) -> Iterator[Box]:
    made = Box(tmp_path_factory.mktemp("api"))
    yield made.up("--simulate-gpus", "2x80G", "--cpus", "2")
    made.clean_up()


def closed(schema: Any) -> Any:
    """The schema, so that a key it does not name is refused."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(one) for name, one in schema.items()}
    if "properties" in found:
        found["additionalProperties"] = False
    return found


@pytest.fixture(scope="module")
def document(box: Box) -> dict[str, Any]:
    return json.loads(box.ok("gflow", "api"))


def test_daemon_serves_the_printed_description(box: Box, document: dict[str, Any]) -> None:
    assert box.api("GET", "/openapi.json") == (200, document)
    assert document["openapi"].startswith("3.1")


def test_api_command_takes_no_arguments(box: Box) -> None:
    done = box.run("gflow", "api", "nonsense")
    assert done.returncode == 2 and "takes no arguments" in done.stderr
    assert "OpenAPI" in box.ok("gflow", "api", "--help")


def held(box: Box, *words: str) -> str:
    return str(box.submit("--hold", *words))


def asked(box: Box) -> dict[tuple[str, str], list[tuple[str, Any]]]:
    """For each route some addresses and what is sent there; those of the first jobs come first."""
    done, running = str(box.submit("true")), str(box.submit("--gpus", "1", "--time", "60", "sleep", "600"))
    box.finished(done)
    waiting = str(box.submit("--gpus", "2", "--notify-email", "ann@example.org", "true"))
    array = held(box, "--array", "1-5%2", "--memory", "1G", "true")
    swept = held(box, "--max-concurrent", "2", "--param", "lr=0.1", "echo", "{lr}")
    mine = [box.job_request(["true"], hold=True)]
    one = {"jobs": [array]}
    return {
        ("POST", "/jobs"): [
            ("/jobs", {"token": "openapi-1", "jobs": mine}),
            ("/jobs?dry-run=1", {"token": "openapi-2", "jobs": mine}),
        ],
        ("POST", "/command"): [("/command", b"gqueue\0\0/\x000\x00-1\x00-1\x000\0\x000\0")],
        ("GET", "/jobs"): [
            ("/jobs?all=1", None),
            ("/jobs?states=Running", None),
            ("/jobs?form=rows&all=1", None),
        ],
        ("POST", "/jobs/redo"): [
            ("/jobs/redo", {"job": done, "token": "openapi-3", "options": {"hold": True}})
        ],
        ("POST", "/jobs/hold"): [("/jobs/hold", one)],
        ("POST", "/jobs/signal"): [("/jobs/signal", {"jobs": [str(running)], "signal": "CONT"})],
        ("POST", "/jobs/release"): [("/jobs/release", one | {"at": "+1h"})],
        ("POST", "/jobs/update"): [("/jobs/update", one | {"options": {"priority": 11, "memory": None}})],
        ("GET", "/jobs/{job}"): [(f"/jobs/{job}", None) for job in (done, running, waiting, array, swept)],
        ("GET", "/jobs/{job}/wait"): [(f"/jobs/{done}/wait", None)],
        ("GET", "/jobs/{job}/log"): [(f"/jobs/{done}/log", None)],
        ("GET", "/jobs/{job}/output"): [(f"/jobs/{done}/output?offset=0&limit=9", None)],
        ("GET", "/jobs/{job}/environment"): [(f"/jobs/{job}/environment", None) for job in (done, running)],
        ("GET", "/jobs/{job}/output/search"): [(f"/jobs/{done}/output/search?find=e", None)],
        ("GET", "/jobs/{job}/diagnosis"): [(f"/jobs/{done}/diagnosis", None)],
        ("GET", "/jobs/{job}/terminal"): [(f"/jobs/{running}/terminal", None)],
        ("POST", "/jobs/{job}/exec"): [(f"/jobs/{running}/exec", {"command": ["true"]})],
        ("GET", "/jobs/{job}/history"): [(f"/jobs/{running}/history", None)],
        ("GET", "/jobs/{job}/why"): [(f"/jobs/{job}/why", None) for job in (done, running, waiting, array)],
        ("GET", "/jobs/{job}/dependencies"): [(f"/jobs/{running}/dependencies", None)],
        ("GET", "/jobs/{job}/progress"): [(f"/jobs/{running}/progress", None)],
        ("GET", "/jobs/{job}/usage"): [(f"/jobs/{running}/usage", None)],
        ("GET", "/groups/{group}"): [(f"/groups/{group}", None) for group in (f"g{swept}", array)],
        ("GET", "/events"): [("/events?after=0&follow=0", None)],
        ("POST", "/gpus"): [("/gpus", {"allowed_indices": [0]}), ("/gpus", {"allowed_indices": None})],
        ("POST", "/limits"): [("/limits", {"job": array, "max_concurrent": 3})],
        ("PUT", "/quotas"): [
            ("/quotas", {"scope": "user", "name": "ann", "max_running_gpus": 1, "force": True})
        ],
        ("POST", "/reservations"): [
            (
                "/reservations",
                {"user": "ann", "gpu_count": 1, "start_time": 4e9, "duration_secs": 60, "force": True},
            ),
        ],
        ("GET", "/reservations/{id}"): [("/reservations/1", None)],
        ("GET", "/reservations"): [("/reservations?active=1", None), ("/reservations?timeline=1", None)],
        ("PATCH", "/reservations/{id}"): [("/reservations/1", {"duration_secs": 120})],
        ("DELETE", "/reservations/{id}"): [("/reservations/1", None)],
        ("POST", "/jobs/cancel"): [
            ("/jobs/cancel", one | {"dry_run": True}),
            ("/jobs/cancel", {"all": True}),
        ],
        ("POST", "/drain"): [("/drain", {"on": True, "gpus": [1], "reason": "x"}), ("/drain", {"on": False})],
        ("POST", "/gpu-processes/unignore"): [("/gpu-processes/unignore", {"gpu_index": 0, "pid": 1})],
        ("POST", "/tokens"): [("/tokens", {"name": "laptop"})],
        ("POST", "/web/links"): [("/web/links", {})],
        ("POST", "/web/logout"): [("/web/logout", {})],
        ("GET", "/stats"): [("/stats?all=1", None)],
        ("GET", "/info"): [("/info", None)],
    }


# These need processes of a GPU, a destination, a training run, or a body that only another answer has.
ELSEWHERE = {
    ("POST", "/gpu-processes/ignore"),
    ("POST", "/notifications/test"),
    ("POST", "/tokens/revoke"),
    ("GET", "/jobs/{job}/output/stream"),
    ("GET", "/jobs/{job}/files"),  # of a job on a cluster: tests/slurm/test_project_files.py
    ("GET", "/targets/{target}/partitions"),
    ("GET", "/targets/{target}/jobs"),  # of a cluster: test_cluster_jobs.py
    ("GET", "/jobs/{job}/profile"),  # of a run of gflow.train: tests/train/test_profile.py
}


def test_every_answer_is_as_described(box: Box, document: dict[str, Any]) -> None:
    schemas = closed(copy.deepcopy(document["components"]["schemas"]))
    cases = asked(box)
    rows = {(route.method, route.path): route for route in ROUTES}
    left = set(rows) - set(cases) - ELSEWHERE
    cases |= {route: [(route[1], None)] for route in left}
    for (method, path), several in cases.items():
        media = rows[method, path].media
        operation = document["paths"][path][method.lower()]
        for address, body in several:
            status, answer = box.api(method, address, body)
            assert str(status) in operation["responses"], (method, address, answer)
            assert status < 300, (method, address, answer)
            schema = operation["responses"][str(status)]["content"][media]["schema"]
            if media == STREAM:
                schema = schema["properties"]["data"]["contentSchema"]
            text = answer.decode() if isinstance(answer, bytes) else answer
            for one in events(answer) if media == STREAM else [text]:
                jsonschema.validate(one, {**schema, "components": {"schemas": schemas}})


def events(stream: bytes) -> list[dict[str, Any]]:
    lines = [line[6:] for line in stream.decode().splitlines() if line.startswith("data: ")]
    assert len(lines) > 5
    return [json.loads(line) for line in lines]


def test_refusals_are_problems(box: Box, document: dict[str, Any]) -> None:
    schemas = closed(copy.deepcopy(document["components"]["schemas"]))
    for method, path, body in (
        ("GET", "/jobs/999999", None),
        ("GET", "/jobs?no-such=1", None),
        ("GET", "/reservations?no-such=1", None),
        ("GET", "/reservations?timeline=1&from=nan", None),
        ("GET", "/reservations?timeline=1&to=1e30", None),
        ("POST", "/jobs", {}),
        ("DELETE", "/jobs", None),
        ("GET", "/nowhere", None),
    ):
        status, answer = box.api(method, path, body)
        assert 400 <= status < 500, (method, path, answer)
        assert answer["status"] == status
        jsonschema.validate(
            answer, {"$ref": "#/components/schemas/Problem", "components": {"schemas": schemas}}
        )


def test_a_timeline_without_an_end_is_refused_as_text_too(box: Box) -> None:
    status, text = box.api("GET", "/reservations?timeline=1&from=nan", accept="text/plain")
    assert status == 400, text


def test_unsupported_method_lists_the_allowed_ones(box: Box) -> None:
    connection = UnixConnection(box.socket)
    connection.request("PATCH", "/quotas")
    response = connection.getresponse()
    assert (response.status, response.headers["allow"]) == (405, "GET, HEAD, PUT")
    connection.close()
