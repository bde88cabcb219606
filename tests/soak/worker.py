"""One of the people: submits jobs, cancels some, and writes down what each of them has to come to.

Run as that person: python -m tests.soak.worker SOCKET FOLDER JOBS SEED
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from tests.harness import UnixConnection

BATCH = 20
RAN = 'echo "$GFLOW_JOB_ID $(id -u)" >> ran; '
# How long a victim sleeps: by this the killer knows it.
VICTIM_S = "600.25"
PATIENCE_S = 120.0


class Worker:
    def __init__(self, socket: str, folder: str, seed: int) -> None:
        self._socket, self._folder = socket, folder
        self._dice = random.Random(seed)
        self._submissions = Path(folder, "submissions").open("a")

    def ask(self, method: str, path: str, body: Any) -> Any:
        """The answer, also of the next daemon if this one is killed meanwhile."""
        until = time.monotonic() + PATIENCE_S
        while True:
            connection = UnixConnection(self._socket)
            try:
                connection.request(method, path, json.dumps(body))
                response = connection.getresponse()
                status, text = response.status, response.read()
                if status not in (429, 503):
                    return status, json.loads(text)
            except (OSError, http.client.HTTPException):
                if time.monotonic() > until:
                    raise
            finally:
                connection.close()
            time.sleep(0.02)

    def submit(self, count: int) -> None:
        """A batch of jobs, and later the end of those that are to be cancelled."""
        planned = [self._plan() for _ in range(count)]
        jobs = [
            {"command": ["sh", "-c", line], "cwd": self._folder, "options": options}
            for *_, line, options in planned
        ]
        token = f"soak-{self._dice.getrandbits(64):x}"
        environ = "UEFUSD0vdXNyL2JpbjovYmlu"  # PATH=/usr/bin:/bin
        status, answer = self.ask("POST", "/jobs", {"token": token, "jobs": jobs, "environ": environ})
        assert status == 201, answer
        doomed = []
        for (kind, code, *_), job in zip(planned, answer["jobs"], strict=True):
            self._submissions.write(json.dumps([job["id"], kind, code]) + "\n")
            doomed += [str(job["id"])] if kind == "cancel" else []
        self._submissions.flush()
        if doomed:
            time.sleep(self._dice.uniform(0, 0.2))
            status, answer = self.ask(
                "POST", "/jobs/cancel", {"jobs": doomed, "now": self._dice.random() < 0.5}
            )
            # A job that another user's kill has already ended cannot be cancelled.
            assert status in (200, 409), answer

    def _plan(self) -> tuple[str, int, str, dict[str, Any]]:
        """Kind, exit code, command, options."""
        options: dict[str, Any] = {"gpus": self._dice.choice((0, 0, 0, 1))}
        if self._dice.random() < 0.1:
            options["memory"] = "100M"  # the other shim
        kind = self._dice.choices(("exit", "victim", "cancel"), (80, 13, 7))[0]
        if kind == "exit":
            code = self._dice.choice((0, 0, self._dice.randrange(1, 100)))
            return kind, code, f"{RAN}sleep {self._dice.choice((0, 0, 0.05))}; exit {code}", options
        return kind, 0, f"{RAN}exec sleep {VICTIM_S if kind == 'victim' else '600'}", options


def main() -> None:
    socket, folder, jobs, seed = sys.argv[1:]
    worker, left = Worker(socket, folder, int(seed)), int(jobs)
    while left > 0:
        worker.submit(min(BATCH, left))
        left -= BATCH


if __name__ == "__main__":
    main()
