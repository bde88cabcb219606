"""Manual pages of all commands, derived from their `--help` (`make docs`)."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from gflow import __version__
from gflow.cli.gjob import COMMANDS as GJOB
from gflow.cli.main import run
from gflow.cli.registry import PROGRAMS, TOOLS

FOLDER = Path(__file__).parents[1] / "share/man/man1"
HEADING = re.compile(r"([a-z][a-z ,/-]*):")
# `  -g, --gpu LIST          help`: indent, term, then its text after two spaces or on the next line.
ENTRY = re.compile(r"( {2,6})(\S.*?)(?:  +(\S.*))?")


def write_all() -> None:
    """Write the page of every command, and remove pages of commands that are gone."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    pages = make_pages()
    for path in FOLDER.glob("*.1"):
        if path.name not in pages:
            path.unlink()
    for name, page in pages.items():
        (FOLDER / name).write_text(page)


def make_pages() -> dict[str, str]:
    """The pages by file name: `gbatch.1`, `gjob-log.1`, `gflow-fit.1`."""
    commands: dict[tuple[str, ...], str] = {("gflow",): "run GPU jobs on one machine or on Slurm"}
    commands |= {(name,): about for name, about in PROGRAMS.items()}
    commands |= {("gflow", name): about for name, about in TOOLS.items()}
    commands |= {("gjob", name): command.about for name, command in GJOB.items()}
    return {f"{'-'.join(words)}.1": make_page(words, about) for words, about in commands.items()}


def make_page(words: tuple[str, ...], about: str) -> str:
    name = "-".join(words)
    others = [one for one in ("gflow", *PROGRAMS) if one != name]
    lines = [f'.TH {name.upper()} 1 "" "gflow {__version__}" "gflow manual"']
    lines += [".SH NAME", f"{escape(name)} \\- {escape(about)}"]
    lines += convert(help_of(words))
    lines += [".SH SEE ALSO", ",\n".join(f".BR {one} (1)" for one in others)]
    return "\n".join(lines) + "\n"


def help_of(words: tuple[str, ...]) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        run(words[0], [*words[1:], "--help"])
    return text.getvalue()


def convert(text: str) -> list[str]:
    """A page of help as sections of a manual page."""
    usage, _, rest = text.partition("\n\n")
    lines = [".SH SYNOPSIS", ".nf"]
    lines += [escape(line.removeprefix("usage: ").strip()) for line in usage.splitlines()]
    lines += [".fi", ".SH DESCRIPTION"]
    for block in rest.strip("\n").split("\n\n"):
        first, _, body = block.partition("\n")
        heading = HEADING.fullmatch(first)
        if heading and body:
            lines.append(f".SH {heading[1].upper()}")
            lines += example_lines(body) if heading[1] == "examples" else entry_lines(body)
        elif any(line.startswith("  ") for line in block.splitlines()):
            lines += example_lines(block)
        else:
            lines += [".PP", *map(escape, block.splitlines())]
    return lines


def example_lines(body: str) -> list[str]:
    return [".PP", ".nf", *(escape(line.removeprefix("  ")) for line in body.splitlines()), ".fi"]


def entry_lines(body: str) -> list[str]:
    """Options or commands with their meaning, as tagged paragraphs."""
    lines: list[str] = []
    for line in body.splitlines():
        entry = ENTRY.fullmatch(line)
        if entry:
            lines += [".TP", f"\\fB{escape(entry[2])}\\fR"]
            lines += [escape(entry[3])] if entry[3] else []
        else:
            lines.append(escape(line.strip()))
    return lines


def escape(text: str) -> str:
    """Text that roff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return "\\&" + text if text.startswith((".", "\\(aq")) else text


if __name__ == "__main__":
    write_all()
