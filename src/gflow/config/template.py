"""The gflow.toml that `gflowd init` writes: all settings with comments, unchosen ones commented out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gflow.config.table import SETTINGS, Setting

HEAD = """# Settings of gflowd. Flags of `gflowd up` and variables such as GFLOW_DAEMON__CPUS override them.
# Uncomment a line to set it. `gflowd restart` applies changes; `gflowd config` shows the settings in force.
"""


def render_file(chosen: Mapping[str, Any]) -> str:
    """The text of the file, with these settings (by key) set."""
    lines = [HEAD]
    table = ""
    for setting in SETTINGS:
        if setting.table != table:
            table = setting.table
            lines.append(f"[{table}]\n")
        lines.append(f"# {setting.help}\n{_line(setting, chosen)}\n")
    return "\n".join(lines)


def _line(setting: Setting, chosen: Mapping[str, Any]) -> str:
    if setting.key in chosen:
        return f"{setting.name} = {toml(chosen[setting.key])}"
    usual = setting.default if setting.example is None else setting.example
    return f"# {setting.name} = {toml(usual)}"


def toml(value: Any) -> str:
    """A value in TOML. Text is printable, for which JSON and TOML quoting agree."""
    if value is None:
        return '"all"'
    if isinstance(value, tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(
                f"{json.dumps(name, ensure_ascii=False)} = {toml(item)}" for name, item in value.items()
            )
            + "}"
        )
    return json.dumps(value, ensure_ascii=False)
