"""`gbatch --config FILE`: job options below the key `gflow` of a training run's configuration file.

    lr: 0.001
    gflow:
      gpus: 2
      time: 4:00:00

Only that key is read; the rest belongs to the program. In YAML the rest is not even parsed.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from gflow.client.capture import read_file
from gflow.errors import UsageError
from gflow.options.job_options import JOB, SLURM, Option
from gflow.options.parse import parse
from gflow.options.sweeps import named_parameters

KEY = "gflow"
PARAM = "param"


def options_of(path: str) -> dict[str, Any]:
    """The job options in this file, by option name."""
    text = read_file(path).decode(errors="replace")
    try:
        found = _section(path, text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UsageError(f"{path}: {KEY} must contain options", hint=f"{KEY}: and below it, gpus: 2")
    try:
        return read_named({str(name): value for name, value in found.items()}, JOB + SLURM)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from None


def _section(path: str, text: str) -> Any:
    """The value of the file's top-level key `gflow`."""
    if path.endswith(".toml"):
        return tomllib.loads(text).get(KEY)
    if path.endswith(".json"):
        content = json.loads(text)
        return content.get(KEY) if isinstance(content, dict) else None
    return _yaml_section(path, text)


def read_named(given: Mapping[str, Any], table: tuple[Option, ...]) -> dict[str, Any]:
    """The values of options that a file or a Python call gives by name."""
    words = [word for name, value in given.items() for word in _as_words(name, value)]
    values, rest = parse(words, table)
    if rest:
        raise UsageError(f"{rest[0]!a:.60} is not an option")
    if isinstance(given.get(PARAM), Mapping):
        option = next(option for option in table if option.name == PARAM)
        values[PARAM] = named_parameters(given[PARAM], option)
    return values


def _as_words(name: str, value: Any) -> list[str]:
    """An option as on a command line; `_` may stand for `-`. Parameters by name are no words."""
    option = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [option] if value else []
    if name == PARAM and isinstance(value, Mapping):
        return []
    if isinstance(value, (list, tuple)) and all(isinstance(part, (str, int, float)) for part in value):
        texts = map(str, value)
        return [f"{option}={text}" for text in (texts if name == PARAM else [",".join(texts)])]
    if isinstance(value, (str, int, float, os.PathLike)):
        return [f"{option}={os.fspath(value) if isinstance(value, os.PathLike) else value}"]
    kind = type(value).__name__
    raise UsageError(f"{name} has a value of type {kind}: options take text, numbers, true, false or lists")


# ---------------------------------------------------------------- the YAML subset that options need


def _yaml_section(path: str, text: str) -> Any:
    """The block below the top-level key: `name: value` lines, with lists and maps of plain values."""
    lines = text.splitlines()
    at = next((n for n, line in enumerate(lines) if line.startswith(f"{KEY}:")), None)
    if at is None:
        return None
    inline = _strip_comment(lines[at][len(KEY) + 1 :]).strip()
    if inline:
        return _yaml_value(path, inline)
    block = []
    for line in lines[at + 1 :]:
        if line.strip() and not line[0].isspace() and not line.startswith("#"):
            break
        if _strip_comment(line).strip():
            block.append(_strip_comment(line).rstrip())
    return _yaml_block(path, block) if block else None


def _yaml_block(path: str, lines: list[str]) -> Any:
    """Lines of one indent are a map or a list; deeper ones belong to the line above them."""
    indent = len(lines[0]) - len(lines[0].lstrip())
    is_list = lines[0].strip().startswith("- ")
    # A list may have the same indent as its key.
    heads = [
        n
        for n, line in enumerate(lines)
        if len(line) - len(line.lstrip()) <= indent and line.strip().startswith("- ") == is_list
    ]
    items: list[Any] = []
    for start, end in pairwise([*heads, len(lines)]):
        head, below = lines[start].strip(), lines[start + 1 : end]
        if head.startswith("- "):
            items.append(_yaml_value(path, head[2:].strip()))
            continue
        name, colon, rest = head.partition(":")
        if not colon or (rest and rest[0] != " "):
            raise UsageError(f"{path}: {head!a:.60} below {KEY} is not an option", hint="write gpus: 2")
        value = _yaml_block(path, below) if below else _yaml_value(path, rest.strip())
        items.append((str(_yaml_value(path, name.strip())), value))
    return dict(items) if items and all(isinstance(item, tuple) for item in items) else items


def _yaml_value(path: str, text: str) -> Any:
    """A plain or quoted value, `[a, b]` or `{a: b}`."""
    if text[:1] in "[{" and text[:1]:
        pairs = {"[": "]", "{": "}"}
        if text[-1] != pairs[text[0]]:
            raise UsageError(f"{path}: {text!a:.60} is not closed on the same line")
        parts = [part.strip() for part in text[1:-1].split(",") if part.strip()]
        if text[0] == "[":
            return [_yaml_value(path, part) for part in parts]
        return {
            _plain(name.strip()): _plain(value.strip())
            for name, _, value in (p.partition(":") for p in parts)
        }
    if text[:1] in ("|", ">", "&", "*", "!"):
        raise UsageError(f"{path}: {text!a:.60} below {KEY} is YAML syntax that is not supported here")
    return _plain(text)


def _plain(text: str) -> Any:
    if text[:1] in ("'", '"') and text[-1:] == text[:1] and len(text) > 1:
        return text[1:-1]
    return {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(
        text.lower(), text
    )


def _strip_comment(line: str) -> str:
    """The line up to ` #`, quotes respected."""
    quote = ""
    for at, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at]
    return line
