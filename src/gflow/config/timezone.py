"""The time zone of gflow.toml, for this process: times are read and shown in it."""

from __future__ import annotations

import os
import time

from gflow import paths


def use(name: str) -> None:
    """Let this process reckon in the zone of this name. Not in os.environ: jobs do not inherit it."""
    if name:
        os.putenv("TZ", name)
        time.tzset()


def use_configured() -> None:
    """For commands: as `use`, if the user's configuration names a zone. Cheap if it does not.

    What is wrong in the file is the daemon's to say.
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
