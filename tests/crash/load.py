"""Load for the crash tests: clients that never give up, and a judge of what became of their jobs.

Each client submits jobs with a token of its own until it is told that the job is taken. A job
writes one line when it starts and leaves with a code that only it has. Afterwards the judge
compares: every acknowledged job must be known, have started exactly once, and have ended
with its own code.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import NamedTuple

from gflow.job_states import FINAL_NAMES
from tests.harness import Box, wait_until


class Verdict(NamedTuple):
    acknowledged: int
    lost: list[int]
    doubled: list[int]
    wrong: list[int]

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.wrong)


class Client(threading.Thread):
    """Submits until stopped; remembers what was acknowledged and which code to expect."""

    def __init__(self, box: Box, number: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.box = box
        self.number = number
        self.random = random.Random(seed)
        self.acknowledged: dict[int, tuple[str, int]] = {}
        self.stopped = threading.Event()
        self.most = 10_000

    def run(self) -> None:
        count = 0
        while not self.stopped.is_set() and count < self.most:
            count += 1
            self._submit(f"client-{self.number}-job-{count}")

    def _submit(self, token: str) -> None:
        code = self.random.randrange(1, 120)
        pause = self.random.choice((0, 0, 0.01, 0.05, 0.2))
        line = f"echo {token} >> {self.box.work}/starts; sleep {pause}; exit {code}"
        request = self.box.job_request(["sh", "-c", line], gpus=self.random.choice((0, 0, 1, 2)))
        while True:
            try:
                body = {"token": token, "jobs": [request]}
                status, answer = self.box.api("POST", "/jobs?parsable", body, "text/plain")
            except OSError:
                if self.stopped.is_set():
                    return  # never acknowledged, so nothing is owed
                time.sleep(0.005)
                continue
            assert status == 201, answer
            self.acknowledged[int(answer)] = (token, code)
            return


def judge(box: Box, clients: list[Client]) -> Verdict:
    """Wait for the queue to empty, then compare the jobs with the acknowledged submissions."""
    acknowledged = {job: expected for client in clients for job, expected in client.acknowledged.items()}
    total = sum(len(client.acknowledged) for client in clients)

    def settled() -> bool:
        return all(job["state"] in FINAL_NAMES for job in box.jobs().values())

    wait_until(settled, 120, "the queue to empty")
    jobs = box.jobs()
    record = box.work / "starts"
    starts = Counter(record.read_text().split() if record.exists() else ())
    lost, wrong = [], []
    for number, (token, code) in acknowledged.items():
        job = jobs.get(number)
        if job is None or token not in job["command"][2]:
            lost.append(number)
        elif starts[token] == 0 or job["exit_code"] != code:
            wrong.append(number)
    doubled = [number for number, (token, _) in acknowledged.items() if starts[token] > 1]
    # Two acknowledgements for one id: the first of them is lost.
    lost += [0] * (total - len(acknowledged))
    return Verdict(len(acknowledged), lost, doubled, wrong)
