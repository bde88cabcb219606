"""Prints a dump of a database with jobs of every kind, made by this gflow, for `schemas/schema-NN.sql`.

Run it before the next schema is added: python -m tests.store.dump_schema > tests/store/schemas/schema-NN.sql
"""

from __future__ import annotations

import base64
import os
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.harness import Box, wait_until


def submit(box: Box, *command: str, **options: Any) -> int:
    """The id of a job whose environment and folder are the same wherever this runs."""
    request = box.job_request(command, **options)
    request |= {"cwd": "/tmp", "environ": base64.b64encode(b"PATH=/usr/bin:/bin").decode()}
    status, answer = box.api("POST", "/jobs", {"token": os.urandom(8).hex(), "jobs": [request]})
    assert status == 201, answer
    return int(answer["jobs"][0]["id"])


def fill(box: Box) -> None:
    """The same jobs in every dump: ended, failed, retried, an array, one that runs, some that wait."""
    first = submit(box, "true", gpus=1)
    ended = [first, submit(box, "sleep", "0.5", gpus=2), submit(box, "false", gpus=1, name="bad")]
    submit(box, "false", **{"gpus": 1, "max-retries": 1})
    ended.append(submit(box, "sleep", "0.1", array="0-2"))
    ended.append(submit(box, "sleep", "0.2", **{"gpus": 1, "time": 600, "depends-on": [str(first)]}))
    for job in ended:
        box.finished(job)
    running = submit(box, "sleep", "600", gpus=4, name="long")
    wait_until(lambda: box.job(running)["state"] == "Running")
    submit(box, "true", gpus=2, project="paper", name="waits")
    submit(box, "true", gpus=4, array="0-4")
    submit(box, "true", **{"depends-on": [str(running)], "name": "child"})
    submit(box, "true", gpus=1, hold=True, name="held")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        box = Box(Path(folder))
        try:
            box.up("--simulate-gpus", "4x80G", "--cpus", "8")
            fill(box)
            box.kill9()
            with closing(sqlite3.connect(box.data / "gflow.db")) as db:
                for name in ("application_id", "user_version"):
                    print(f"PRAGMA {name} = {db.execute(f'PRAGMA {name}').fetchone()[0]};")
                sys.stdout.writelines(f"{line}\n" for line in db.iterdump())
        finally:
            box.clean_up()


if __name__ == "__main__":
    main()
