"""A daemon with the past of a lab: two weeks of a replayed trace, readings, events, and jobs that run now.

The GPUs are stand-ins and say so in their names.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gflow.core.ids import job_key
from gflow.core.model import AuditEntry, Job, JobState, Spec
from gflow.core.policy import Policy
from gflow.core.reasons import parse
from gflow.simulate.replay import Replay, ReplayedJob
from gflow.simulate.trace import Entry
from gflow.store.port import Changes
from gflow.store.samples import Batch, Mean, OfJob, Samples
from gflow.store.sqlite import SqliteStore
from tests.gpu_mock import MIB, MockGpus
from tests.harness import Box, wait_until

GPUS = 8
MODEL = "Simulated H100 80GB"
DAY_S, HOUR_S = 86_400, 3600
DAYS = 14
USERS = {"ann": "nlp", "bob": "vision", "chen": "vision", "dara": "nlp", "emil": "bio"}
NAMES = (
    "llama-8b-sft",
    "vit-large",
    "diffusion-xl",
    "eval-suite",
    "resnet50",
    "protein-mlm",
    "tokenize",
    "dpo",
)
HEAT = 0x40


class Past(NamedTuple):
    """A job of the trace that ran: where, and how busy its GPUs were."""

    number: int
    ran: ReplayedJob
    gpus: tuple[int, ...]
    busy: float

    @property
    def end(self) -> float:
        return self.ran.start + self.ran.entry.duration


def trace(dice: random.Random, now: float) -> list[Entry]:
    """Two weeks of submissions: bursts in the day, long jobs of several GPUs, many short ones."""
    found = []
    for user in USERS:
        for day in range(DAYS):
            midnight = now - (DAYS - day) * DAY_S
            for _ in range(dice.choice((0, 1, 2, 4, 7)) if day % 7 < 5 else 1):
                at = midnight + dice.gauss(12, 4) * HOUR_S
                length = min(14 * HOUR_S, max(120.0, dice.lognormvariate(8.6, 1.2)))
                gpus = dice.choice((1, 1, 1, 2, 2, 4))
                found.append(Entry(at, length, gpus, user, dice.choice(NAMES), int(length * 2)))
    return sorted(one for one in found if one.submit + one.duration < now - 2 * HOUR_S)


def replay(entries: list[Entry], dice: random.Random, now: float) -> list[Past]:
    """Run the trace on the engine, and give each job the lowest free GPUs of its time."""
    free_at, found = [0.0] * GPUS, []
    ran = Replay(entries, GPUS, Policy()).run()
    for number, one in sorted(enumerate(ran, 1), key=lambda pair: pair[1].start):
        free = [gpu for gpu in range(GPUS) if free_at[gpu] <= one.start][: one.entry.gpus]
        if len(free) < one.entry.gpus or one.start + one.entry.duration > now - HOUR_S:
            continue
        for gpu in free:
            free_at[gpu] = one.start + one.entry.duration
        busy = dice.choice((3.0, 35.0)) if dice.random() < 0.12 else dice.uniform(62, 97)
        found.append(Past(number, one, tuple(free), busy))
    return found


def job_of(past: Past, dice: random.Random) -> Job:
    entry, start = past.ran.entry, past.ran.start
    state = dice.choices((JobState.FINISHED, JobState.FAILED, JobState.TIMEOUT), (88, 9, 3))[0]
    reason = {JobState.FAILED: "ExitCode:1", JobState.TIMEOUT: "TimeLimit"}.get(state, "")
    spec = Spec(
        command=("python", "train.py"), cwd="/work", gpus=entry.gpus, name=entry.name,
        project=USERS[entry.user], time_limit_s=entry.limit,
    )  # fmt: skip
    return Job(
        key=job_key(past.number), spec=spec, uid=os.getuid(), user=entry.user,
        state=state, reason=parse(reason), attempt=1, gpu_ids=past.gpus, submitted_at=entry.submit,
        started_at=start, finished_at=past.end, ran_s=entry.duration,
        exit_code={JobState.FINISHED: 0, JobState.FAILED: 1}.get(state),
    )  # fmt: skip


def readings(past: list[Past], dice: random.Random, now: float) -> Iterator[tuple[int, Mean]]:
    """Readings of a week: every five minutes, and every ten seconds in the last hour."""
    spans = [(now - at, 300) for at in range(7 * DAY_S, HOUR_S, -300)]
    spans += [(now - at, 10) for at in range(HOUR_S, 0, -10)]
    for gpu in range(GPUS):
        held = sorted((one for one in past if gpu in one.gpus), key=lambda one: one.ran.start)
        for at, span in spans:
            job = next((one for one in held if one.ran.start <= at < one.end), None)
            busy = 0.0 if job is None else max(0.0, min(100.0, job.busy + 6 * math.sin(at / 700 + gpu)))
            memory = 0 if job is None else int(12_000 + 55_000 * (job.number % 7) / 7)
            power, heat = 70 + 5.6 * busy, 33 + 0.42 * busy + dice.uniform(-1, 1)
            slowed = HEAT if gpu == 2 and 2.2 * DAY_S < now - at < 2.3 * DAY_S else 0
            yield gpu, Mean(int(at), span, busy, int(busy), memory, power, int(heat), 1700.0, slowed)


def events(now: float) -> list[AuditEntry]:
    def at(days: float, what: str, detail: str, uid: int | None = None) -> AuditEntry:
        return AuditEntry(now - days * DAY_S, None, uid, "cli" if uid == 0 else "daemon", what, detail)

    return [
        at(5.4, "gpu", "GPU 5: Unhealthy: Xid 79: fell off the bus"),
        at(5.2, "drained", '{"gpus":{"5":"card is replaced"}}', 0),
        at(4.1, "drained", "{}", 0),
        at(4.1, "gpu", "GPU 5: available"),
        at(0.6, "gpu", "GPU 3: Unmanaged: process 4711 of emil"),
        at(0.55, "gpu", "GPU 3: available"),
    ]


def write_past(data: Path, now: float) -> None:
    """Write the past of the lab into a data folder that no daemon has used yet."""
    data.mkdir(parents=True, exist_ok=True)
    dice = random.Random(22)
    past = replay(trace(dice, now), dice, now)
    store = SqliteStore(data / "gflow.db")
    jobs = {one.key: one for one in (job_of(one, dice) for one in past)}
    number = max(one.number for one in past) + 1
    store.commit(Changes(jobs=jobs, new=set(jobs), meta={"next_number": number}, audit=events(now)))
    store.close()
    totals = [
        OfJob(str(one.number), 1, gpu, Mean(int(one.ran.start), int(one.ran.entry.duration), one.busy, 99,
                                            40_000, 500.0, 66, 1700.0, 0))
        for one in past
        for gpu in one.gpus
    ]  # fmt: skip
    samples = Samples(data / "samples.db")
    samples.write(Batch(list(readings(past, dice, now)), [], totals))
    samples.close()


# Programs of the jobs, in their folder.
PROGRAMS = {
    "train.sh": """
name=$1 first=$2 steps=$3 pause=$4
for i in $(seq $first $steps); do
  loss=$(awk "BEGIN { srand($i); print 0.9 + 2.4 * exp(-$i / 900) + 0.06 * rand() }")
  gflow report step=$i steps=$steps loss=$loss lr=0.0003
  echo "step $i/$steps loss $loss"
  sleep $pause
done
""",
    "trial.sh": """
gflow report step=10 steps=10 loss=$(awk "BEGIN { print $1 * 3 + 1 / $2 }")
sleep 0.2
""",
    "fold.sh": """
echo "fold $GFLOW_ARRAY_TASK_ID"
[ $GFLOW_ARRAY_TASK_ID != 7 ] || { echo 'ValueError: bad label'; exit 1; }
""",
    "big.sh": """
echo "Loading checkpoint shards: 100%"
echo "Traceback (most recent call last):"
echo '  File "train.py", line 88, in <module>'
echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
exit 1
""",
}


class Lab:
    """The daemon and its stand-in GPUs. A thread moves the readings of those that are in use."""

    def __init__(self, root: Path) -> None:
        self.box, self.gpus = Box(root), MockGpus(root, GPUS, name=MODEL)
        self.gpus.env["GFLOW_LEASE_DIR"] = str(root / "leases")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._move)

    def up(self) -> Lab:
        write_past(self.box.data, time.time())
        self.box.flags = ["--cpus", "64"]
        self.box.up(env=self.gpus.env)
        self._thread.start()
        return self

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.box.clean_up()

    def _move(self) -> None:
        while not self._stop.wait(0.5):
            holders = {gpu["index"]: gpu["holders"] for gpu in self.box.api("GET", "/info?long=1")[1]["gpus"]}
            for index, held in holders.items():
                device, is_busy = self.gpus[index], bool(held) and held[0]["name"] != "jupyter"
                device.busy = int(84 + 9 * math.sin(time.time() / 7 + index)) if is_busy else 0
                device.used = ((46 + index) * 1024 if is_busy else 18_000 if held else 0) * MIB
                device.milliwatts = 70_000 + device.busy * 5600
                device.celsius = 34 + int(device.busy * 0.4) + (3 if held else 0)

    def submit_jobs(self) -> dict[str, int]:
        """Jobs of each kind: running with progress, idle, ended, failed, waiting; their numbers by name."""
        box, made = self.box, {}

        def submit(name: str, *words: str) -> None:
            made[name] = int(box.ok("gbatch", "--parsable", "--name", name, *words).split()[0])

        for program, text in PROGRAMS.items():
            (box.work / program).write_text(text)
        train = ("bash", "train.sh")
        submit("prepare-data", "true")
        submit("llama-8b-sft", "--gpus", "2", "--time", "8h", *train, "llama-8b", "1800", "4000", "1")
        submit("vit-large", "--gpus", "1", "--time", "4h", *train, "vit", "240", "900", "2")
        submit("jupyter", "--gpus", "1", "sleep", "3600")
        submit("oom", "--gpus", "1", "bash", "big.sh")
        submit("fold-eval", "--array", "1-12", "bash", "fold.sh")
        swept = ("--param", "lr=0.1,0.03,0.01", "--param", "batch=16,32,64,128")
        submit("lr-sweep", *swept, "bash", "trial.sh", "{lr}", "{batch}")
        for name in ("prepare-data", "oom", "fold-eval"):
            box.finished(made[name])
        wait_until(lambda: not [job for job in active(box) if job["name"] == "lr-sweep"], 60)
        submit("llama-70b-lora", "--gpus", "6", "--time", "12h", "true")
        submit("llama-8b-eval", "--gpus", "1", "--depends-on", str(made["llama-8b-sft"]), "true")
        submit("diffusion-xl", "--gpus", "2", "--hold", "true")
        submit("nightly", "--gpus", "1", "--begin", "now+9h", "true")
        reserve = ("gctl", "reserve", "create", "--force", "--user")
        box.ok(*reserve, "emil", "--gpu-spec", "6-7", "--start", "now+20h", "--duration", "10h")
        box.ok(*reserve, "chen", "--gpu-spec", "4-5", "--start", "now+60h", "--duration", "30h")
        box.ok(*reserve, "dara", "--gpu-spec", "7", "--start", "now+90h", "--duration", "24h")
        wait_until(lambda: box.job(made["vit-large"])["progress"])
        return made


def active(box: Box) -> list[dict[str, object]]:
    found: list[dict[str, object]] = box.api("GET", "/jobs")[1]["jobs"]
    return found
