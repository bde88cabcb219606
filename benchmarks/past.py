"""Measure queries about the past: `gstats` and `gqueue -a` over many finished jobs.

    python -m benchmarks.past /tmp/past.db --jobs 1000000

Makes a database of that many finished jobs of twenty users (an existing file is used unchanged), runs the daemon's
queries for `gstats` and for listings, each on a separate connection, and prints wall-clock and CPU seconds. On a busy
machine only the CPU seconds are meaningful.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from gflow.core.effects import Ran
from gflow.core.queries.job_filter import Filter
from gflow.core.ids import job_key
from gflow.core.model import Job, JobState, Spec
from gflow.core.queries.usage_report import Question
from gflow.store.port import Changes
from gflow.store.reader import Reader
from gflow.store.sqlite import SqliteStore
from gflow.store.statistics import statistics

CHUNK = 20_000
GPUS = 64
YEAR_S = 365 * 86400.0
END = 1_800_000_000.0
STATES = (
    *[JobState.FINISHED] * 16, JobState.FAILED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT,
)  # fmt: skip


def fill(path: Path, jobs: int) -> None:
    """Write one year of jobs; one in twenty has two attempts."""
    random, store = Random(0), SqliteStore(path)
    for first in range(1, jobs + 1, CHUNK):
        made = [_over(random, number, jobs) for number in range(first, min(first + CHUNK, jobs + 1))]
        store.commit(
            Changes(
                jobs={job.key: job for job in made},
                attempts=[
                    Ran(job.key, 1, job.submitted_at + 1, (job.started_at or 0) - 1, job.gpu_ids)
                    for job in made
                    if job.attempt == 2
                ],
                meta={"next_number": made[-1].number + 1},
            )
        )
    store.close()


def _over(random: Random, number: int, jobs: int) -> Job:
    person, submitted = random.randrange(20), END - YEAR_S + number * YEAR_S / jobs
    started = submitted + random.expovariate(1 / 600) + 5
    wide = random.choice((0, 1, 1, 1, 2, 4))
    first = random.randrange(GPUS - wide)
    spec = Spec(
        command=("python", "train.py", "--seed", str(number)),
        cwd=f"/home/user{person}/project",
        environ=f"{number % 200:064x}",
        gpus=wide,
        name=f"train-{number % 1000}",
        project=f"project-{person % 7}",
    )
    return Job(
        key=job_key(number), spec=spec, uid=1000 + person, user=f"user{person}", submitted_at=submitted,
        started_at=started, started_boot=1.0, finished_at=started + random.expovariate(1 / 1800) + 1,
        attempt=2 if random.randrange(20) == 0 else 1, state=random.choice(STATES), exit_code=0,
        gpu_ids=tuple(range(first, first + wide)), ready_at=submitted,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("database", type=Path)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    asked = parser.parse_args()
    if not asked.database.exists():
        fill(asked.database, asked.jobs)
    day, half = END - 86400, END - 180 * 86400 - 1000
    kept = asked.database.with_suffix(".statistics")
    kept.unlink(missing_ok=True)
    questions: dict[str, Callable[[Reader], object]] = {
        "gstats -A, the first": lambda reader: statistics(reader, Question(now=END, boot=0.0), kept),
        "gstats -A": lambda reader: statistics(reader, Question(now=END, boot=0.0), kept),
        "gstats": lambda reader: statistics(reader, Question(now=END, boot=0.0, user="user3"), kept),
        "gstats -A --since 1d": lambda reader: statistics(
            reader, Question(now=END, boot=0.0, since=day), kept
        ),
        "gstats -A --since 180d": lambda reader: statistics(
            reader, Question(now=END, boot=0.0, since=half), kept
        ),
        "gqueue -a: count": lambda reader: reader.count(Filter()),
        "gqueue -a: rows": lambda reader: reader.recent(Filter(), 1000),
        "gqueue -a -n 100000: rows": lambda reader: reader.page(Filter(), 100_000, 0, newest=False),
        "gqueue -a -n 100000: jobs": lambda reader: [
            reader.job(row) for row in reader.page(Filter(), 100_000, 0, newest=False)
        ],
        "gqueue -a -N train-7: count": lambda reader: reader.count(Filter(names=frozenset({"train-7"}))),
        "gqueue -a -N train-7: rows": lambda reader: reader.recent(
            Filter(names=frozenset({"train-7"})), 1000
        ),
    }
    for name, ask in questions.items():
        reader = Reader(asked.database)
        began, cpu = time.perf_counter(), time.process_time()
        ask(reader)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        print(f"{name:30} {took:8.2f} s by the clock {cpu:8.2f} s of CPU", flush=True)
        reader.close()


if __name__ == "__main__":
    main()
