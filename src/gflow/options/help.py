"""Render `--help` from the option table, for a terminal of 80 columns. Imported only for --help."""

from __future__ import annotations

TYPE_CHECKING = False  # typing costs 15 ms to import, textwrap 25
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gflow.options.job_options import Option

COLUMNS = 80
WIDTH = 26


def render(
    usage: str, about: str, table: tuple[Option, ...] | Mapping[str, tuple[Option, ...]], examples: str = ""
) -> str:
    """The help page of one command: usage, description, options (optionally in groups), examples."""
    lines = [f"usage: {usage}", "", _fill(about), ""]
    groups = {"options": table} if isinstance(table, tuple) else table
    for heading, options in groups.items():
        if options:
            lines += [f"{heading}:", *map(_line, options), ""]
    if examples:
        lines += ["examples:", *map(_example, examples.strip().splitlines()), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _example(line: str) -> str:
    """A line of the examples; a long one continues before an option, as a shell reads it."""
    at = line.rfind(" --", 0, COLUMNS - 4)
    if len(line) + 2 <= COLUMNS or at < 0:
        return "  " + line
    return f"  {line[:at]} \\\n    {_example(line[at + 1 :])}"


def _fill(text: str) -> str:
    """Wrap paragraphs to the width of the page. Indented ones are lists and stay as they are."""
    parts = []
    for part in text.strip().split("\n\n"):
        is_list = any(line.startswith(" ") for line in part.splitlines())
        parts.append(part if is_list else "\n".join(wrap(part, COLUMNS)))
    return "\n\n".join(parts)


def wrap(text: str, columns: int) -> list[str]:
    """Break `text` into lines of at most `columns` characters."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > columns:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def _line(option: Option) -> str:
    names = [f"-{option.short}"] if option.short else []
    names.append(f"--{option.name}")
    left = ", ".join(names) + (f" {option.metavar}" if option.metavar else "")
    left = f"  {left}" if option.short else f"      {left}"
    text = wrap(option.help, COLUMNS - WIDTH)
    # Two spaces at least, which is where a manual page divides the line.
    first = left.ljust(WIDTH) if len(left) + 2 <= WIDTH else left + "\n" + " " * WIDTH
    return first + ("\n" + " " * WIDTH).join(text)
