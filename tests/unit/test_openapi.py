"""The description of the API: complete, and made of what there is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gflow.daemon.api import openapi
from gflow.daemon.api import routes as app
from gflow.daemon.api.api_route import ApiRoute
from gflow.daemon.api.openapi import KINDS, describe_api
from gflow.daemon.api.permissions import Permission
from gflow.daemon.api.routes import ROUTES
from gflow.options.job_options import JOB
from gflow.options.values import READERS

DOCUMENT = json.loads(app.document())
OPERATIONS = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]


def test_every_route_is_described_and_nothing_else():
    routes = {(method, route.path) for route in ROUTES for method in route.methods - {"HEAD"}}
    told = {(method.upper(), path) for path, found in DOCUMENT["paths"].items() for method in found}
    assert told == routes


def test_a_route_that_does_not_say_what_it_does_is_refused():
    async def silent(request): ...

    with pytest.raises(ValueError, match="GET /health does not say"):
        describe_api([*ROUTES, ApiRoute("GET", "/health", silent, Permission.ANYONE, None)])
    with pytest.raises(TypeError, match="answer"):
        ApiRoute("GET", "/secret", silent, Permission.ANYONE)


def test_operations_have_names_of_their_own_and_a_sentence():
    names = [operation["operationId"] for operation in OPERATIONS]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)
    for operation in OPERATIONS:
        assert operation["summary"].endswith(".") and operation["summary"].isprintable(), operation
        assert "\n\nFor " in operation["description"]


def references(part: Any) -> set[str]:
    if isinstance(part, list):
        return {found for one in part for found in references(one)}
    if not isinstance(part, dict):
        return set()
    own = {part["$ref"]} if "$ref" in part else set()
    return own | {found for one in part.values() for found in references(one)}


def test_references_resolve_and_schemas_are_used():
    schemas = DOCUMENT["components"]["schemas"]
    used = {name.removeprefix(openapi.PREFIX) for name in references(DOCUMENT) if openapi.PREFIX in name}
    assert used == set(schemas)
    for name, schema in schemas.items():
        assert schema.get("description"), name


@pytest.mark.parametrize("schema", ["Options", "Changes"])
def test_the_options_are_those_of_the_table(schema):
    options = DOCUMENT["components"]["schemas"][schema]
    assert set(options["properties"]) == {option.name for option in JOB}
    assert options["additionalProperties"] is False
    assert options["properties"]["priority"]["maximum"] == 255


def test_kinds_are_those_of_the_readers():
    assert set(KINDS) <= set(READERS)


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ("JobRequest", "environ"),
        ("JobRequest", "script"),
        ("SubmitRequest", "environ"),
        ("UpdateRequest", "script"),
    ],
)
def test_field_of_any_bytes_says_that_it_is_base64(schema, field):
    found = DOCUMENT["components"]["schemas"][schema]["properties"][field]
    (text,) = [one for one in found.get("anyOf", [found]) if one["type"] == "string"]
    assert text["contentEncoding"] == "base64" and "base64" in text["description"]
