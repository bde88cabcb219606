"""`--help`, written from the table. Loaded only when somebody asks."""

from __future__ import annotations

TYPE_CHECKING = False  # typing costs 15 ms to import, and this runs inside every gbatch
if TYPE_CHECKING:
    from gflow.options.table import Option

WIDTH = 26


def render(usage: str, about: str, table: tuple[Option, ...], examples: str = "") -> str:
    """The help page of one command: usage, what it is for, options, examples."""
    lines = [f"usage: {usage}", "", about.strip(), ""]
    if table:
        lines.append("options:")
        lines.extend(_line(option) for option in table)
    if examples:
        lines += ["", "examples:"]
        lines += ["  " + line for line in examples.strip().splitlines()]
    return "\n".join(lines) + "\n"


def _line(option: Option) -> str:
    names = [f"-{option.short}"] if option.short else []
    names.append(f"--{option.name}")
    left = ", ".join(names) + (f" {option.metavar}" if option.metavar else "")
    left = f"  {left}" if option.short else f"      {left}"
    gap = left.ljust(WIDTH) if len(left) < WIDTH else left + "\n" + " " * WIDTH
    return f"{gap}{option.help}"
