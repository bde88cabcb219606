import importlib
import textwrap
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.cli import gctl, gflowd
from gflow.cli.registry import PROGRAMS
from gflow.options.help import COLUMNS, WIDTH, render, wrap
from gflow.options.job_options import GBATCH, HEADINGS, Option

PAGE = """\
usage: tool [options]

What it is for.

options:
  -g, --gpus N            how many
      --json              as JSON
      --a-very-long-option-name FILE
                          which file

examples:
  tool -g 2
  tool --json
"""


def test_the_whole_page():
    table = (
        Option("gpus", "count", "how many", short="g", metavar="N"),
        Option("json", "flag", "as JSON"),
        Option("a-very-long-option-name", "text", "which file", metavar="FILE"),
    )
    assert render("tool [options]", "\nWhat it is for.\n", table, "\ntool -g 2\ntool --json\n") == PAGE


def test_help_without_options_has_no_empty_headings():
    assert render("tool", "About.", ()) == "usage: tool\n\nAbout.\n"


def test_options_may_stand_in_groups():
    page = render(
        "tool", "About.", {"first": (Option("a", "flag", "one"),), "empty": (), "second": ()}, "tool"
    )
    assert page == "usage: tool\n\nAbout.\n\nfirst:\n      --a                 one\n\nexamples:\n  tool\n"


def test_paragraphs_are_filled_and_lists_are_left_alone():
    page = render("tool", "word " * 40 + "\n\ncommands:\n  one   this\n  two   that", ())
    assert all(len(line) <= COLUMNS for line in page.splitlines())
    assert "commands:\n  one   this\n  two   that\n" in page


@pytest.mark.parametrize("option", GBATCH, ids=lambda option: option.name)
def test_every_option_is_explained(option):
    lines = render("gbatch", "about", GBATCH).splitlines()
    (line,) = [line for line in lines if line[6:].split(" ")[0] == f"--{option.name}"]
    assert (f"-{option.short}, " in line) == bool(option.short)
    assert option.metavar in line
    first = wrap(option.help, COLUMNS - WIDTH)[0]
    assert any(text.find(first) == WIDTH for text in lines), "explanations stand below each other"


def test_no_line_ends_in_spaces():
    assert all(line == line.rstrip() for line in render("gbatch", "about", GBATCH).splitlines())


@given(st.lists(st.text("ab", min_size=1, max_size=12), min_size=1), st.integers(12, 40))
def test_lines_are_wrapped_as_textwrap_does_it(words, columns):
    assert wrap(" ".join(words), columns) == textwrap.wrap(" ".join(words), columns)


def test_every_option_of_gbatch_has_one_place_in_its_help():
    shown = [option.name for options in HEADINGS.values() for option in options]
    assert Counter(shown) == Counter(option.name for option in GBATCH)


def page_of(capsys, module, *words):
    assert importlib.import_module(f"gflow.cli.{module}").run([*words, "--help"]) == 0
    return capsys.readouterr().out


PROGRAM_PAGES = [(name,) for name in PROGRAMS] + [("gctl", "quota"), ("gctl", "reserve"), ("gjob", "update")]
TOOL_PAGES = [(f"tools.{name}",) for name in ("fit", "plan", "scale", "simulate", "gpus", "launch", "spot")]


@pytest.mark.parametrize("words", PROGRAM_PAGES + TOOL_PAGES, ids=" ".join)
def test_help_pages_fit_80_columns(capsys, words):
    assert [line for line in page_of(capsys, *words).splitlines() if len(line) > COLUMNS] == []


@pytest.mark.parametrize("name", [name for name in gflowd.COMMANDS if name not in ("start", "stop")])
def test_a_command_of_gflowd_has_help_of_its_own(capsys, name):
    page = page_of(capsys, "gflowd", name)
    assert page.startswith(f"usage: gflowd {name} [options]")
    assert ("--simulate-gpus" in page) == (name in ("up", "restart", "run", "init"))
    assert all(f"gflowd {name}" in line for line in page.partition("examples:\n")[2].splitlines())


@pytest.mark.parametrize("name", gctl.COMMANDS)
def test_a_command_of_gctl_has_help_of_its_own(capsys, name):
    page = page_of(capsys, "gctl", name)
    assert page.startswith(f"usage: gctl {name} ")
    assert ("--reason" in page) == (name == "drain")
    assert f"examples:\n  gctl {name}" in page


def test_a_long_example_continues_before_an_option():
    line = "tool --first " + "a" * 40 + " --second " + "b" * 40
    first, second = render("tool", "x", (), line).splitlines()[-2:]
    assert (first, second) == ("  tool --first " + "a" * 40 + " \\", "      --second " + "b" * 40)


@pytest.mark.parametrize("command", ["init", "up", "down"])
def test_help_of_a_gflowd_command_lists_the_options_that_it_takes(command, capsys):
    assert gflowd.run([command, "--help"]) == 0
    text = capsys.readouterr().out
    expected = ["--system"] + (["--private"] if command == "down" else ["--gpus", "--config"])
    assert [name for name in expected if f" {name}" not in text] == []
    assert ("write this file" in text) == (command == "init")
