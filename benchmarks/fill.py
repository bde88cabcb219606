"""Fill a database with waiting jobs of many shapes and users, and with finished jobs.

Run it with the Python of the measured build, because it writes through that build's store.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from gflow.core.ids import job_key
from gflow.core.model import Job, JobState, Spec
from gflow.store.port import Changes, address_of
from gflow.store.sqlite import SqliteStore

CHUNK = 20_000
GPUS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path)
    parser.add_argument("--waiting", type=int, default=0)
    parser.add_argument("--shapes", type=int, default=1)
    parser.add_argument("--users", type=int, default=1)
    parser.add_argument("--finished", type=int, default=0)
    asked = parser.parse_args()
    store = SqliteStore(asked.database)
    now = time.time()
    environs = [b"\0".join(b"V%d_%d=%s" % (k, i, b"x" * 100) for i in range(95)) for k in range(200)]
    addresses = [address_of(text) for text in environs]
    store.commit(Changes(blobs=dict(zip(addresses, environs, strict=True))))

    def write(first: int, count: int, make: object) -> None:
        for start in range(first, first + count, CHUNK):
            numbers = range(start, min(start + CHUNK, first + count))
            jobs = {job_key(n): make(n) for n in numbers}  # type: ignore[operator]
            store.commit(Changes(jobs=jobs, new=set(jobs), meta={"next_number": numbers[-1] + 1}))

    def finished(n: int) -> Job:
        spec = Spec(command=("python", "train.py", str(n)), cwd="/tmp", environ=addresses[n % 200], gpus=1)
        return Job(
            key=job_key(n), spec=spec, uid=1000 + n % asked.users, user=f"user{n % asked.users}",
            submitted_at=now - 9000, started_at=now - 8000, finished_at=now - 7000, attempt=1,
            state=JobState.FINISHED, exit_code=0, gpu_ids=(n % GPUS,),
        )  # fmt: skip

    def holder(n: int) -> Job:
        """A job that holds all GPUs. The daemon finds no process of it and restarts it, as specified."""
        spec = Spec(command=("sleep", "86400"), cwd="/", gpus=GPUS, environ=address_of(b"PATH=/usr/bin:/bin"))
        return Job(
            key=job_key(n), spec=spec, uid=0, user="root", submitted_at=now, started_at=now, started_boot=0.0,
            attempt=1, state=JobState.RUNNING, gpu_ids=tuple(range(GPUS)),
        )  # fmt: skip

    def waiting(n: int) -> Job:
        shape = n % asked.shapes
        spec = Spec(
            command=("python", "train.py", "--run", str(n)), cwd="/tmp", environ=addresses[n % 200],
            gpus=1 + shape % GPUS, cpus=shape // GPUS % 4, memory_mib=100 + shape // (GPUS * 4) if shape else 0,
        )  # fmt: skip
        return Job(
            key=job_key(n), spec=spec, uid=1000 + shape % asked.users, user=f"user{shape % asked.users}",
            submitted_at=now,
        )  # fmt: skip

    store.commit(Changes(blobs={address_of(b"PATH=/usr/bin:/bin"): b"PATH=/usr/bin:/bin"}))
    write(1, asked.finished, finished)
    write(asked.finished + 1, 1, holder)
    write(asked.finished + 2, asked.waiting, waiting)
    store.close()


if __name__ == "__main__":
    main()
