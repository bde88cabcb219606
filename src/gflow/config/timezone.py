"""Apply the setting `timezone` to this process: times are read and shown in that zone."""

from __future__ import annotations

import os
import time

from gflow import paths


def use(name: str) -> None:
    """Set the time zone of this process. Not in os.environ, so that jobs do not inherit it."""
    if name:
        os.putenv("TZ", name)
        time.tzset()


def use_configured() -> None:
    """As `use`, for commands: with the zone of the user's configuration, if it names one. Cheap if not.

    Errors in the file are ignored here; the daemon reports them.
    """
    name = os.environ.get("GFLOW_TIMEZONE") or _from_file()
    if name and name != "local":
        use(name)


def _from_file() -> str:
    for path in (os.environ.get("GFLOW_CONFIG_FILE"), paths.config_file(os.environ.get)):
        try:
            with open(path or "", "rb") as file:
                content = file.read()
        except OSError:
            continue
        if b"\ntimezone" in b"\n" + content:
            import tomllib

            try:
                name = tomllib.loads(content.decode()).get("timezone", "")
            except ValueError:
                continue
            if isinstance(name, str) and name:
                return name
    return ""
