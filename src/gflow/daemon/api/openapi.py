"""The OpenAPI 3.1 document, derived from the route table, the wire types and the option table.

The docstrings of handlers and wire types are its descriptions. A route without one raises ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gflow import __version__
from gflow.daemon.api.api_route import JSON, STREAM, TEXT, ApiRoute
from gflow.options.job_options import JOB, Option
from gflow.wire import queries
from gflow.wire.answers.problems import Problem

PROBLEM = "application/problem+json"
PREFIX = "#/components/schemas/"
PARAMETERS: dict[str, dict[str, Any]] = {
    "job": {
        "description": "A job's id (17), a task of an array (42_3), or @ for the caller's latest job.",
        "schema": {"type": "string"},
        "example": "17",
    },
    "group": {
        "description": "The id of a group (g116), or of an array (42).",
        "schema": {"type": "string"},
        "example": "g116",
    },
    "id": {"description": "The number of the reservation.", "schema": {"type": "integer", "minimum": 1}},
    "target": {"description": "The name of a cluster.", "schema": {"type": "string"}},
}
LAST_EVENT = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The last event that the caller has seen.",
    "schema": {"type": "string", "pattern": "^[0-9]{0,18}$"},
}
# JSON types that an option accepts, by kind. All kinds accept text as well.
_LIST = {"type": ["string", "array"], "items": {"type": "string"}}
_JOBS = {"type": ["string", "integer", "array"], "items": {"type": ["string", "integer"]}}
KINDS: dict[str, dict[str, Any]] = {
    "flag": {"type": "boolean"},
    "count": {"type": ["integer", "string"]},
    "duration": {"type": ["integer", "string"], "description": "seconds as a number; text: 2h30m, 4:00:00"},
    "seconds": {"type": ["integer", "string"], "description": "seconds as a number; text: 90, 5m, 1:30"},
    "size": {"type": ["integer", "string"], "description": "MiB as a number"},
    "need": {"type": ["integer", "string"], "description": "MiB as a number"},
    "time": {"type": ["number", "string"], "description": "seconds since 1970 as a number"},
    "array": {"type": ["integer", "string"]},
    "depends": _JOBS,
    "retry": _LIST,
    "patterns": _LIST,
    "rules": _LIST,
    "emails": _LIST,
    "events": _LIST,
    "params": {"type": ["string", "array", "object"], "items": {}},
}
# Requests with options, and the schema of these. In `Changes`, null resets an option.
OPTIONED = {"JobRequest": "Options", "UpdateRequest": "Changes", "RedoRequest": "Changes"}


def describe_api(routes: Sequence[ApiRoute]) -> dict[str, Any]:
    """Build the OpenAPI document of these routes."""
    schemas = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gflow",
            "version": __version__,
            "description": "Runs GPU work. Answers are JSON; with `Accept: text/plain` most are text. "
            "Refusals are problem documents (RFC 9457). A name in a query that is not listed is refused.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [
            {
                "url": "http://localhost",
                "description": "the daemon's Unix socket, which knows your uid; or daemon.port, with a token",
            }
        ],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {
                "Refused": {
                    "description": "Refused; nothing was changed",
                    "content": {PROBLEM: {"schema": {"$ref": f"{PREFIX}Problem"}}, TEXT: _text()},
                }
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "gctl token create"}
            },
        },
    }


def _operation(route: ApiRoute) -> dict[str, Any]:
    about = " ".join((route.endpoint.__doc__ or "").split())
    if not about:
        raise ValueError(f"{route.method} {route.path} does not say what it does")
    summary, dot, _ = about.partition(". ")
    schema = _schema(route.answer)
    content: dict[str, Any] = {route.media: {"schema": _frame(schema) if route.media == STREAM else schema}}
    if route.has_text:
        content[TEXT] = _text()
    operation: dict[str, Any] = {
        "operationId": _operation_id(route.method, route.path),
        "summary": summary + dot.strip(),
        "description": f"{about}\n\nFor {route.permission.value}.",
        "tags": [route.path.split("/")[1]],
        "parameters": [*_path_parameters(route), *_query_parameters(route.query)],
        "responses": {
            str(route.status): {"description": "Done", "content": content},
            "4XX": {"$ref": "#/components/responses/Refused"},
            "503": {"$ref": "#/components/responses/Refused"},
        },
    }
    if route.query is queries.SubmitQuery:
        operation["responses"]["200"] = {
            "description": "A dry run: the jobs that would be submitted",
            "content": content,
        }
    if route.query is queries.EventsQuery:
        operation["parameters"].append(LAST_EVENT)
    if route.body is bytes:
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": {}}}}
        operation["responses"]["204"] = {"description": "Not done: the client has to do it"}
    elif route.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": _schema(route.body)}}}
    return operation


def _operation_id(method: str, path: str) -> str:
    """An operation id that generated clients can use as a function name: get_jobs_job_log."""
    plain = "".join(c if c.isalnum() else " " for c in path)
    return "_".join([method.lower(), *plain.split()])


def _path_parameters(route: ApiRoute) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, **PARAMETERS[name]} for name in route.param_convertors
    ]


def _query_parameters(query: type[queries.Query]) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(query)["$defs"][query.__name__]
    for about in schema["properties"].values():
        if about.get("type") == "boolean":  # a flag without a value is true
            about |= {"type": "string", "enum": ["", "1", "0", "true", "false"]}
            about["default"] = "true" if about["default"] else "false"
    return [{"name": name, "in": "query", "schema": about} for name, about in schema["properties"].items()]


def _schema(kind: Any) -> dict[str, Any]:
    if kind is None:
        return {"type": "string"}
    if isinstance(kind, tuple):
        return {"type": "object", **({"anyOf": [_schema(one) for one in kind]} if kind else {})}
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=PREFIX + "{name}")
    return schema


def _frame(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a server-sent event with JSON data. The first one is `connected`, with the start id."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": schema}
    return {
        "type": "object",
        "properties": {"event": {"type": "string"}, "id": {"type": "string"}, "data": data},
        "required": ["event", "data"],
    }


def _text() -> dict[str, Any]:
    return {"schema": {"type": "string"}}


def _schemas(routes: Sequence[ApiRoute]) -> dict[str, Any]:
    kinds: list[Any] = [Problem]
    for route in routes:
        kinds += route.answer if isinstance(route.answer, tuple) else (route.answer,)
        kinds.append(route.body)
    named = [kind for kind in kinds if kind is not None]
    _, found = msgspec.json.schema_components(named, ref_template=PREFIX + "{name}")
    for name, options in OPTIONED.items():
        found[name]["properties"]["options"] = {"$ref": PREFIX + options}
    found["Options"] = _options("Options of a job, by name.", is_nullable=False)
    found["Changes"] = _options("Options to change; null resets an option to its default.", is_nullable=True)
    return found


def _options(about: str, *, is_nullable: bool) -> dict[str, Any]:
    properties = {option.name: _option(option, is_nullable) for option in JOB}
    return {"type": "object", "description": about, "properties": properties, "additionalProperties": False}


def _option(option: Option, is_nullable: bool) -> dict[str, Any]:
    schema = dict(KINDS.get(option.kind, {"type": "string"}))
    schema["description"] = "; ".join(filter(None, (option.help, schema.get("description"))))
    if option.kind == "count":
        bounds = (("minimum", option.low), ("maximum", option.high))
        schema |= {name: bound for name, bound in bounds if bound is not None}
    if is_nullable:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        schema["type"] = [*kinds, "null"]
    return schema
