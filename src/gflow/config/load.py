"""Load the configuration: one value for each setting, and its origin.

Precedence, lowest first: the default, `$XDG_CONFIG_HOME/gflow/gflow.toml`, the file of `--config` (or
`GFLOW_CONFIG_FILE`), the environment, the flags. Unknown settings are errors, so that a typo never leaves
a default in force.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gflow import paths
from gflow.config.table import BY_KEY, IGNORED, NOT_YET, SETTINGS, Setting
from gflow.config.values import read
from gflow.errors import UsageError, nearest

DEFAULT = "default"


class SettingValue(NamedTuple):
    """A setting's value and where it came from: a file, a variable, a flag, or `default`."""

    value: Any
    origin: str


class Config:
    """All settings, the files that were read, and notes for the user."""

    def __init__(
        self, found: dict[str, SettingValue], files: tuple[str, ...], notes: tuple[str, ...]
    ) -> None:
        self.found = found
        self.files = files
        self.notes = notes

    def __getitem__(self, key: str) -> Any:
        return self.found[key].value


def load(
    flags: Mapping[str, str], environ: Mapping[str, str], config_file: str = "", usual: str = ""
) -> Config:
    """Load the configuration for these flags and this environment.

    `usual`: the file to read if it exists, instead of the one of this user.
    """
    found = {setting.key: SettingValue(setting.default, DEFAULT) for setting in SETTINGS}
    notes: list[str] = []
    files = []
    named = config_file or environ.get("GFLOW_CONFIG_FILE") or ""
    for path, must_exist in ((usual or paths.config_file(environ.get), False), (named, True)):
        content = _parse(path, must_exist=must_exist) if path else None
        if content is not None:
            files.append(path)
            for key, value in _leaves(content):
                if key in IGNORED:
                    notes.append(f"{path}: {key} is ignored: {IGNORED[key]}")
                    continue
                setting = _find_setting(key, path)
                found[key] = SettingValue(read(setting, value, path), path)
    found |= _from_environment(environ)
    by_flag = {setting.flag: setting for setting in SETTINGS if setting.flag}
    for flag, value in flags.items():
        if flag in by_flag:
            setting = by_flag[flag]
            found[setting.key] = SettingValue(read(setting, value, f"--{flag}"), f"--{flag}")
    return Config(found, tuple(files), tuple(notes))


def _parse(path: str, *, must_exist: bool) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        if must_exist:
            raise UsageError(f"there is no file {path}", hint="gflowd init writes a gflow.toml") from None
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None


def _leaves(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its dotted key."""
    for name, value in table.items():
        key = prefix + name
        if isinstance(value, dict) and key not in BY_KEY and key not in NOT_YET:
            yield from _leaves(value, key + ".")
        else:
            yield key, value


def _find_setting(key: str, where: str) -> Setting:
    """The setting with this key. Raises UsageError that names the nearest one."""
    if key in BY_KEY:
        return BY_KEY[key]
    for name, why in NOT_YET.items():
        if key == name or key.startswith(name + "."):
            raise UsageError(f"{where}: {key} cannot be set: {why}", hint="remove it")
    meant = _nearest_setting(key)
    hint = f"did you mean {meant}?" if meant else "gflowd config lists all settings"
    raise UsageError(f"{where}: there is no setting {key!a}", hint=hint)


def _nearest_setting(key: str) -> str:
    """The setting or table with the nearest name; empty: none is near."""
    tables = {setting.key.partition(".")[0] for setting in SETTINGS}
    head, dot, rest = key.partition(".")
    if head not in tables and (close := nearest(head, tables)):  # [tagets.gilbreth]
        return close + dot + rest
    names = {setting.name: setting.key for setting in SETTINGS}
    return names.get(nearest(key.rpartition(".")[2], names), "")


def _from_environment(environ: Mapping[str, str]) -> dict[str, SettingValue]:
    """Settings from variables such as `GFLOW_DAEMON__CPUS=4`. An empty variable counts as unset."""
    found = {}
    known = {variable: setting for setting in SETTINGS for variable in setting.variables}
    for name, text in environ.items():
        if not text or not name.startswith("GFLOW_"):
            continue
        setting = known.get(name)
        if setting is not None:
            found[setting.key] = SettingValue(read(setting, text, name), name)
        elif "__" in name:  # only variables of settings have a double underscore
            key = name.removeprefix("GFLOW_").lower().replace("__", ".")
            if key not in IGNORED:
                _find_setting(key, name)
    return found
