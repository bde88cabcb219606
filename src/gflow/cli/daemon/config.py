"""`gflowd init` and `gflowd config`: write the configuration, and show where each value comes from."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from gflow import paths
from gflow.config.load import Config, SettingValue, load
from gflow.config.table import BY_KEY, SETTINGS, Setting
from gflow.config.template import render_file, toml
from gflow.config.values import read
from gflow.errors import GflowError, Refused, Unreachable, UsageError

# ---------------------------------------------------------------- init


def init(values: dict[str, Any]) -> int:
    """Write a gflow.toml: from answers on a terminal, or from the flags with --yes."""
    usual = paths.system_config if "system" in values else paths.config_file
    path = values.get("config") or usual(os.environ.get)
    if os.path.lexists(path) and "force" not in values:
        raise Refused(f"{path} already exists", hint="gflowd init --force overwrites it")
    chosen = _from_flags(values)
    if "yes" not in values:
        if not sys.stdin.isatty():
            raise UsageError(
                "gflowd init asks questions, and standard input is not a terminal",
                hint="gflowd init --yes uses the defaults",
            )
        chosen |= _ask(chosen, everything="advanced" in values)
    _write(path, render_file(chosen))
    if "json" in values:
        print(json.dumps({"path": path}))
    else:
        print(f"wrote {path}\nStart the daemon with: gflowd up{' --system' if 'system' in values else ''}")
    return 0


def _from_flags(values: dict[str, Any]) -> dict[str, Any]:
    chosen = {}
    for setting in SETTINGS:
        flag = setting.flag or setting.key
        if flag in values:
            chosen[setting.key] = read(setting, values[flag], f"--{flag}")
    return chosen


def _ask(chosen: Mapping[str, Any], *, everything: bool) -> dict[str, Any]:
    """Ask for settings on the terminal; an empty answer keeps the default."""
    print("Press Return to accept the value in brackets. Every setting can be changed in the file later.\n")
    answers = {}
    for setting in SETTINGS:
        if setting.key not in chosen and (setting.asked or everything):
            answer = _ask_one(setting)
            if answer != setting.default:
                answers[setting.key] = answer
    return answers


def _ask_one(setting: Setting) -> Any:
    usual = "all" if setting.kind == "gpus" else toml(setting.default).strip('"[]')
    while True:
        try:
            text = input(f"{setting.key}: {setting.help}\n  [{usual}] ").strip()
        except EOFError:
            raise UsageError("no answer: nothing was written") from None
        if not text:
            return setting.default
        try:
            return read(setting, text, "invalid value")
        except GflowError as error:
            print(f"  {error.message}")


def _write(path: str, text: str) -> None:
    """Write the file atomically; if it is a link, replace the target of the link."""
    place = os.path.realpath(path)
    try:
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        with open(place + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(place + ".new", place)
    except OSError as error:
        raise GflowError(f"{path} cannot be written: {error.strerror}") from None


# ---------------------------------------------------------------- config


def show(values: dict[str, Any]) -> int:
    """Print every setting, its value and its source."""
    is_system = "system" in values
    usual = (paths.system_config if is_system else paths.config_file)(os.environ.get)
    config = load(values, os.environ, values.get("config", ""), usual)
    running, notes = _running(is_system=is_system)
    for key, (value, origin) in running.items():
        # A flag of the running daemon is kept across restarts, unless one is given here.
        if key in BY_KEY and origin.startswith("--") and not config.found[key].origin.startswith("--"):
            config.found[key] = SettingValue(value, origin)
    changed = {
        key for key, one in running.items() if key in BY_KEY and one.value != _plain(key, config.found[key])
    }
    if "json" in values:
        print(json.dumps(_as_json(config, changed)))
        return 0
    from gflow.text.table import table

    rows = [
        [key, toml(BY_KEY[key].display_value(found.value)), found.origin]
        for key, found in config.found.items()
    ]
    sys.stdout.write(table(("SETTING", "VALUE", "FROM"), rows))
    which = " --system" if is_system else ""
    if not config.files:
        notes.append(f"{usual} does not exist; gflowd init{which} writes it")
    notes += config.notes
    if changed:
        names = ", ".join(sorted(changed))
        notes.append(f"the running gflowd has other values of {names}; gflowd restart{which} applies these")
    for note in notes:
        print(f"({note})")
    return 0


def _as_json(config: Config, changed: set[str]) -> dict[str, Any]:
    settings = [
        {
            "key": key,
            "value": BY_KEY[key].display_value(found.value),
            "origin": found.origin,
            "default": BY_KEY[key].default,
            "help": BY_KEY[key].help,
            "applied": key not in changed,
        }
        for key, found in config.found.items()
    ]
    return {"settings": settings, "files": list(config.files), "notes": list(config.notes)}


def _running(*, is_system: bool) -> tuple[dict[str, SettingValue], list[str]]:
    """Settings of the running daemon of this kind (none if it is down), and notes about the other kind."""
    from gflow.client import http

    try:
        status = http.get("/status")
    except (ConnectionError, Unreachable):
        return {}, []
    if ("--system" in status["flags"]) != is_system:
        return {}, ["the system-wide daemon is running: gflowd config --system shows its settings"]
    return {key: SettingValue(**found) for key, found in status.get("settings", {}).items()}, []


def _plain(key: str, found: SettingValue) -> Any:
    """A value as the daemon reports it in JSON."""
    value = BY_KEY[key].display_value(found.value)
    return list(value) if isinstance(value, tuple) else value
