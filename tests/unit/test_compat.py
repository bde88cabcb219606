"""docs/compat.toml: every name of the other gflow has a test of ours, or a reason."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from gflow.cli.registry import PROGRAMS, describe
from gflow.config.table import BY_KEY
from gflow.core.model import JobState
from gflow.daemon.api.routes import ROUTES
from gflow.options.job_options import GBATCH
from gflow.options.parse import spellings
from gflow.text.queue import COLUMNS

ROOT = Path(__file__).parents[2]
TABLE = tomllib.loads((ROOT / "docs/compat.toml").read_text())


def entries(table: dict[str, Any], *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every entry with the names that lead to it."""
    for name, value in table.items():
        if isinstance(value, dict) and "why" not in value:
            yield from entries(value, *path, name)
        else:
            yield (*path, name), value


ALL = dict(entries(TABLE))
COVERED = {path for path, value in ALL.items() if isinstance(value, str)}


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def wrong(value: Any) -> str:
    """What is wrong with an entry; empty: nothing."""
    if not isinstance(value, str):
        return "" if set(value) == {"why"} and len(value["why"]) > 5 else "neither a test nor a reason"
    file, _, name = value.partition("::")
    if not name.startswith("test_") or not (ROOT / "tests" / file).is_file():
        return f"no test: {value}"
    return "" if name in names_in(file) else f"no such test: {value}"


def test_every_entry_names_a_test_or_says_why_not():
    assert {path: problem for path, value in ALL.items() if (problem := wrong(value))} == {}
    assert len(ALL) > 400


def spelled(program: str, command: str = "") -> set[str]:
    """Every way to write every option of a program; Slurm's words are not completed, but understood."""
    return set(
        spellings(GBATCH) if program == "gbatch" else describe(program).options_by_spelling(command, [])
    )


def test_covered_flags_are_in_the_option_tables():
    flags = [path for path in COVERED if path[-2] == "flags"]
    missing = [
        (program, *command, flag)
        for program, *command, _, flag in flags
        if flag not in spelled(program, *command)
    ]
    assert missing == []


def test_covered_commands_are_there():
    for program, _, name in (path for path in COVERED if path[1] == "commands"):
        if program != "gflow" and name != "(none)":
            described = describe(program)
            assert name.split()[0] in described.commands | described.aliases, (program, name)


def test_covered_columns_states_and_settings_exist():
    for path in COVERED:
        match path:
            case ("gqueue", "columns", name):
                assert name in COLUMNS
            case ("job", "states", name):
                assert name in {state.value for state in JobState} or " " in name
            case ("settings", key):
                assert key in BY_KEY
            case ("gbatch", "directives", name):
                assert f"--{name}" in spelled("gbatch") or " " in name


def test_covered_routes_are_there_and_the_others_are_not():
    ours = {
        f"{method} {route.path}" for route in ROUTES for method in route.methods or () if method != "HEAD"
    }
    for path in ALL:
        if path[0] == "routes" and "/" in path[1]:
            assert (path[1] in ours) == (path in COVERED), path


def test_settings_that_are_not_covered_are_refused_or_ignored():
    from gflow.config.table import IGNORED, NOT_YET

    for path in ALL:
        if path[0] == "settings" and path not in COVERED:
            assert any(path[1] == name or path[1].startswith(name + ".") for name in (*NOT_YET, *IGNORED))


def test_every_program_is_in_the_table():
    assert set(PROGRAMS) - {"grun"} <= set(TABLE), "grun is ours alone"
