"""Programs that are run to read facts, with a time limit; and small files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress

# Seconds for one program. All parts are read at the same time, so this bounds the whole examination.
PATIENCE_S = 1.5


def output_of(
    command: list[str], environ: Mapping[str, str] | None = None, seconds: float = PATIENCE_S
) -> str | None:
    """What a program prints; None if there is no such program, or if it takes too long."""
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, env=environ,
            cwd="/", input="",
        )  # fmt: skip
        return done.stdout
    return None


def text_of(path: str) -> str:
    """The content of a small file; empty if it cannot be read."""
    with suppress(OSError, ValueError), open(path, errors="replace") as file:
        return file.read(1 << 20)
    return ""


def number_in(path: str) -> int | None:
    with suppress(ValueError):
        return int(text_of(path))
    return None


def user_folder(environ: Mapping[str, str] | None = None) -> str:
    """The home of the user; "/" if the user has none."""
    given = (os.environ if environ is None else environ).get("HOME", "")
    if given.startswith("/"):
        return given
    found = os.path.expanduser("~")
    return found if found.startswith("/") else "/"
