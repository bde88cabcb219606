"""Generate what is derived from code (`make docs`).

docs/reference.md and library/submit_keywords.py come from the code's tables, docs/modules.md from docstrings,
the manual pages from `--help` (`man_pages`).
"""

from __future__ import annotations

import ast
import runpy
import textwrap
from pathlib import Path

from gflow.config.table import SETTINGS
from gflow.config.template import toml
from gflow.core.transitions import TRANSITIONS
from gflow.daemon.api.routes import ROUTES
from gflow.job_states import JobState
from gflow.options.commands import gqueue_options, gstats_options
from gflow.options.job_options import CAPTURE, GBATCH, JOB, Option
from gflow.options.update import REDOABLE

TARGET = Path(__file__).parents[1] / "docs/reference.md"
MODULES = TARGET.with_name("modules.md")
KEYWORDS = TARGET.parents[1] / "src/gflow/library/submit_keywords.py"
# Types of keyword arguments by the kind of the option; other kinds are text.
ONE = {"flag": "bool", "count": "int | str", "duration": "int | str", "seconds": "int | str",
       "change": "int | str", "size": "int | str", "need": "int | str", "array": "int | str", "path": "Path",
       "prediction": "Path", "depends": "Parents", "params": "Parameters"}  # fmt: skip
SEVERAL = "str | Sequence[str]"
KEYWORDS_HEAD = '''"""The keyword arguments of `gflow.submit` and `Job.redo`, for editors and type checkers.

Written by `make docs` from the table of job options; edit that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, TypedDict


class HasId(Protocol):
    """A job: `gflow.Job`."""

    id: str


Path: TypeAlias = str | os.PathLike[str]
Parent: TypeAlias = int | str | HasId
Parents: TypeAlias = Parent | Sequence[Parent]
Parameters: TypeAlias = str | Mapping[str, object]


class SubmitKeywords(TypedDict, total=False):
    """The options of `gbatch`, with `_` for `-`. None: the default."""
'''
REDO_HEAD = '''

class RedoKeywords(TypedDict, total=False):
    """The options of `gjob redo`, with `_` for `-`. None resets an option to its default."""
'''


def spelled(option: Option) -> str:
    names = ([f"-{option.short}"] if option.short else []) + [f"--{option.name}"]
    names += ["-" * min(2, len(alias)) + alias for alias in option.aliases]
    value = f" {option.metavar}" if option.metavar else ""
    return ", ".join(f"`{name}{value if name == f'--{option.name}' else ''}`" for name in names)


def reference() -> str:
    lines = [
        "# Reference",
        "",
        "Written by `make docs` from the code's own tables; edit those.",
        "",
    ]
    tables = (("gbatch", GBATCH), ("gqueue", gqueue_options.OPTIONS), ("gstats", gstats_options.OPTIONS))
    for program, options in tables:
        lines += [f"## Options of {program}", "", "| option | meaning |", "|---|---|"]
        lines += [f"| {spelled(option)} | {option.help} |" for option in options]
        lines.append("")
    lines.pop()
    lines += settings()
    lines += permissions()
    lines += ["", "## States", "", "```mermaid", "stateDiagram-v2", "    [*] --> Queued"]
    for state, targets in TRANSITIONS.items():
        lines += [f"    {state.value} --> {to.value}" for to in sorted(targets, key=lambda s: s.value)]
        if not targets:
            lines.append(f"    {state.value} --> [*]")
    lines += ["```", "", "| state | short |", "|---|---|"]
    lines += [f"| {state.value} | {state.row.short} |" for state in JobState]
    return "\n".join(lines) + "\n"


def settings() -> list[str]:
    """Every setting of gflow.toml, its variable and its flag."""
    lines = ["", "## Settings", "", "| setting | default | variable, flag | meaning |", "|---|---|---|---|"]
    for setting in SETTINGS:
        ways = [f"`{name}`" for name in setting.variables] + ([f"`--{setting.flag}`"] if setting.flag else [])
        row = (f"`{setting.key}`", f"`{toml(setting.default)}`", ", ".join(ways), setting.help)
        lines.append(f"| {' | '.join(row)} |")
    return lines


def permissions() -> list[str]:
    """Required permission of each route of the system-wide daemon."""
    lines = [
        "",
        "## Who may do what",
        "",
        "With `gflowd up --system`. A daemon of one's own serves its owner and root, who may do all of it.",
        "",
        "| route | who |",
        "|---|---|",
    ]
    return lines + [f"| `{route.method} {route.path}` | {route.permission.value} |" for route in ROUTES]


def modules() -> str:
    """Every module by package, with the first paragraph of its docstring."""
    source = TARGET.parents[1] / "src/gflow"
    lines = ["# Every module in a line", "", "Written by `make docs` from their first lines; edit those.", ""]
    packages: dict[str, list[Path]] = {}
    for path in sorted(source.rglob("*.py")):
        if path.name != "__init__.py":
            packages.setdefault(path.parent.relative_to(source).as_posix(), []).append(path)
    for package, paths in packages.items():
        lines += [f"## {package if package != '.' else 'gflow'}", "", "| module | what it is |", "|---|---|"]
        lines += [f"| `{path.stem}` | {first_sentence(path)} |" for path in paths]
        lines.append("")
    return "\n".join(lines)


def keywords() -> str:
    """The module with the types of the keyword arguments of `gflow.submit` and `Job.redo`."""
    lines = [KEYWORDS_HEAD, *keyword_lines(JOB + CAPTURE), REDO_HEAD, *keyword_lines(REDOABLE)]
    return "\n".join(lines) + "\n"


def keyword_lines(options: tuple[Option, ...]) -> list[str]:
    """The fields of these options, each with its help as docstring."""
    lines = []
    for option in options:
        kind = ONE.get(option.kind) or (SEVERAL if option.many else "str")
        lines += [f"    {option.name.replace('-', '_')}: {kind} | None", docstring(option.help)]
        for alias in option.aliases:
            if len(alias) > 1:
                lines += [
                    f"    {alias.replace('-', '_')}: {kind} | None",
                    f'    """Same as {option.name}."""',
                ]
    return lines


def docstring(text: str) -> str:
    """A docstring of a field, wrapped."""
    lines = textwrap.wrap(text[0].upper() + text[1:] + ".", 96)
    end = "" if len(lines) == 1 else "\n    "
    return '    """' + "\n    ".join(lines) + end + '"""'


def first_sentence(path: Path) -> str:
    docstring = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
    return " ".join(docstring.split()).replace("|", "\\|")


if __name__ == "__main__":
    TARGET.write_text(reference())
    KEYWORDS.write_text(keywords())
    MODULES.write_text(modules())
    runpy.run_path(str(Path(__file__).with_name("man_pages.py")), run_name="__main__")
