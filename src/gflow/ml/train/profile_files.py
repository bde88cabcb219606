"""The files through which `gjob profile` asks a run for a profile, and the run answers. Needs no PyTorch.

`gjob profile` creates the folder with the request in it. The run, which looks for the folder at the end of a
step, writes its progress, the results, and the answer last. Removing the folder withdraws the request.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gflow import paths

# The request: `steps`, `memory`.
REQUEST = "request.json"
# How far the run is: `phase` (warm-up, recording or writing) and `done`, the steps recorded so far.
STATE = "state.json"
# The answer, written last: what was recorded, or `error`.
ANSWER = "profile.json"
# The results: a Chrome trace, tables of PyTorch, a snapshot of the CUDA allocator.
TRACE = "trace.json.gz"
TABLES = "operators.txt"
SNAPSHOT = "memory.pickle"
MOST_STEPS = 100
# A longer path is not announced: a progress report has a limited size.
LONGEST_PATH = 512


def request_folder(environ: Mapping[str, str] | None = None) -> str:
    """The folder in which this process takes requests; empty outside of a job."""
    environ = os.environ if environ is None else environ
    job, attempt = environ.get("GFLOW_JOB_ID", ""), environ.get("GFLOW_ATTEMPT", "")
    if not job or not environ.get("GFLOW_PROGRESS"):
        return ""
    # With the pid: jobs of several daemons have the same numbers.
    folder = f"{paths.data_dir(environ.get)}/profiles/{job}.{attempt}.{os.getpid()}"
    return folder if len(folder) <= LONGEST_PATH else ""


def read_json(folder: str, name: str) -> dict[str, Any] | None:
    """The content of a file of the folder; None if it does not exist or is not readable."""
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_json(folder: str, name: str, content: Mapping[str, Any]) -> None:
    """Write a file of the folder: complete or absent. Nothing is written if the folder does not exist."""
    path = os.path.join(folder, name)
    with suppress(FileNotFoundError):
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.rename(path + ".new", path)
