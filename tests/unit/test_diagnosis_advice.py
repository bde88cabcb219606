"""Commands of gflow in the texts of the diagnosis have the options that the texts name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import gflow.diagnosis
from gflow.cli.registry import PROGRAMS, TOOLS, describe
from gflow.options.job_options import spellings

COMMAND = re.compile(rf"(?<![\w/.-])({'|'.join(PROGRAMS)}|gflow)((?: (?!-- )[^\s,;:()]+)+)")


def _texts(path: Path) -> Iterator[str]:
    """The texts of a module, with `7` for each value that is put in."""
    tree = ast.parse(path.read_text())
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "7" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield re.sub(r"\{\w+\}", "7", node.value)


def _options_in_texts() -> set[tuple[str, str, str]]:
    """Program, its command or empty, and an option, as the texts have them."""
    found = set()
    for path in Path(gflow.diagnosis.__file__).parent.rglob("*.py"):
        for program, rest in (match.groups() for text in _texts(path) for match in COMMAND.finditer(text)):
            words = rest.split()
            has_command = program == "gflow" or words[0] in describe(program).commands
            for option in (word for word in words if re.fullmatch(r"--[a-z-]+", word)):
                found.add((program, words[0] if has_command else "", option))
    return found


def _spellings(program: str, command: str) -> set[str]:
    if program != "gflow":
        return set(describe(program).options_by_spelling(command, []))
    assert command in TOOLS
    return set(spellings(import_module(f"gflow.options.commands.{command}_options").OPTIONS))


@pytest.mark.parametrize(("program", "command", "option"), sorted(_options_in_texts()))
def test_option_in_a_text_exists(program: str, command: str, option: str) -> None:
    assert option in _spellings(program, command)
