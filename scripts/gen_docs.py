"""Generate what is derived from code (`make docs`).

The pages of docs/reference/ (`reference_pages`) and library/submit_keywords.py come from the code's tables,
docs/modules.md from docstrings, the manual pages from `--help` (`man_pages`).
"""

from __future__ import annotations

import ast
import runpy
import textwrap
from pathlib import Path

from gflow.options.job_options import CAPTURE, JOB, Option
from gflow.options.update import REDOABLE

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MODULES = DOCS / "modules.md"
KEYWORDS = ROOT / "src/gflow/library/submit_keywords.py"
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


def modules() -> str:
    """Every module by package, with the first paragraph of its docstring."""
    source = ROOT / "src/gflow"
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


def reference() -> dict[str, str]:
    """The pages of docs/reference/ and their index, by path below docs/."""
    path = Path(__file__).with_name("reference_pages.py")
    pages: dict[str, str] = runpy.run_path(str(path))["make_pages"]()
    return pages


def write_reference() -> None:
    """Write the pages, and remove those that are no longer made."""
    pages = reference()
    (DOCS / "reference").mkdir(exist_ok=True)
    for path in (DOCS / "reference").glob("*.md"):
        if f"reference/{path.name}" not in pages:
            path.unlink()
    for name, text in pages.items():
        (DOCS / name).write_text(text)


if __name__ == "__main__":
    write_reference()
    KEYWORDS.write_text(keywords())
    MODULES.write_text(modules())
    runpy.run_path(str(Path(__file__).with_name("man_pages.py")), run_name="__main__")
