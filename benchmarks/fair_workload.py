"""Workloads of several users on one machine: honest work, the work of one user that harms it, and its victims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

HOUR, DAY = 3600.0, 86400.0
ANY_GPU = "gpu"


class Request(NamedTuple):
    """One job. `limit` is what gflow is told (0: none), `slurm_limit` what a Slurm user has to give."""

    submit: float
    duration: float
    gpus: int
    user: str
    name: str = ""
    limit: int = 0
    slurm_limit: float = 0.0
    cpus: int = 0
    kind: str = ANY_GPU
    priority: int = 10
    is_victim: bool = False
    # The jobs of a sweep have the template of their names in common, those of an array are one request.
    name_template: str = ""
    tasks: int = 0


class Machine(NamedTuple):
    """GPUs by kind, and CPU slots."""

    gpus: dict[str, int] = {ANY_GPU: 8}
    cpus: int = 1 << 20

    def share(self, request: Request) -> float:
        """What a request occupies: the part of the GPUs or of the CPU slots, whichever is larger."""
        return max(request.gpus / sum(self.gpus.values()), request.cpus / self.cpus)


class Scenario(NamedTuple):
    """A workload with and without what harms the victims."""

    title: str
    victims: str
    machine: Machine
    honest: list[Request]
    harmful: list[Request]


# Time limits that Slurm users give: the next of these above one and a half times the run time.
USUAL_LIMITS_H = (0.5, 1, 2, 4, 8, 12, 24, 48, 72, 168)


def slurm_limit(duration: float) -> float:
    return next((hours * HOUR for hours in USUAL_LIMITS_H if hours * HOUR >= 1.5 * duration), duration * 1.5)


def job(submit: float, duration: float, gpus: int, user: str, **more: object) -> Request:
    """A request whose Slurm limit is the usual one unless given."""
    return Request(submit, duration, gpus, user, **{"slurm_limit": slurm_limit(duration), **more})  # type: ignore[arg-type]


def poisson(random: Random, every_s: float, until: float, begin: float = 0.0) -> Iterator[float]:
    at = begin + random.expovariate(1 / every_s)
    while at < until:
        yield at
        at += random.expovariate(1 / every_s)


def background(
    random: Random, load: float, days: float, *, gpus: int = 8, users: int = 4, **more: object
) -> list[Request]:
    """Named 1- and 2-GPU jobs of some minutes to some hours, by several users, at this load of `gpus` GPUs."""
    mean_s, mean_gpus = 1.65 * HOUR, 1.25
    every = mean_s * mean_gpus / (load * gpus)
    found = []
    for at in poisson(random, every, days * DAY):
        user = random.randrange(users)
        work = random.randrange(3)
        length = min(
            12 * HOUR, max(60.0, random.lognormvariate(0.0, 0.5) * (0.5, 1.5, 3.0)[work] * HOUR * 0.88)
        )
        wanted = 2 if random.random() < 0.25 else 1
        found.append(job(at, length, wanted, f"user{user}", name=f"work{work}", **more))
    return found


def victims(
    random: Random, every_s: float, days: float, duration: float, gpus: int, **more: object
) -> list[Request]:
    return [
        job(at, duration * random.uniform(0.9, 1.1), gpus, "victim", name="wide", is_victim=True, **more)
        for at in poisson(random, every_s, days * DAY)
    ]


def long_limit(random: Random) -> Scenario:
    honest = background(random, 0.82, 28) + victims(random, 8 * HOUR, 28, HOUR, 4)
    harmful = [job(DAY, 2 * HOUR, 8, "long", limit=int(60 * DAY), slurm_limit=60 * DAY)]
    return Scenario("a  one job with a limit of 60 days", "4-GPU 1 h jobs", Machine(), honest, harmful)


def unique_names(random: Random) -> Scenario:
    honest = background(random, 0.2, 28) + victims(random, 12 * HOUR, 28, HOUR, 8)
    times = poisson(random, 3 * HOUR / (0.55 * 8), 28 * DAY)
    harmful = [
        job(at, 3 * HOUR * random.uniform(0.9, 1.1), 1, "namer", name=f"run-{index}")
        for index, at in enumerate(times)
    ]
    return Scenario("b  3 h jobs with unique names", "8-GPU 1 h jobs", Machine(), honest, harmful)


def flood(random: Random) -> Scenario:
    honest = [one._replace(is_victim=one.submit < 6 * DAY) for one in background(random, 0.4, 10)]
    harmful = [job(HOUR, 600.0 * random.uniform(0.8, 1.2), 1, "flood", name="tiny") for _ in range(3000)]
    return Scenario("c  3,000 ten-minute jobs of one user", "honest users", Machine(), honest, harmful)


def bimodal(random: Random) -> Scenario:
    honest = background(random, 0.1, 28) + victims(random, 12 * HOUR, 28, HOUR, 8)
    lengths = (600.0, 10 * HOUR)
    mean = 0.8 * lengths[0] + 0.2 * lengths[1]
    harmful = [
        job(at, lengths[random.random() < 0.2], 1, f"both{index % 3}", name="train", slurm_limit=12 * HOUR)
        for index, at in enumerate(poisson(random, mean / (0.6 * 8), 28 * DAY))
    ]
    return Scenario("d  80 % minutes, 20 % ten hours", "8-GPU 1 h jobs", Machine(), honest, harmful)


def two_kinds(random: Random) -> Scenario:
    machine = Machine({"A": 4, "B": 4})
    honest = background(random, 0.7, 28, gpus=4, kind="B") + victims(random, 8 * HOUR, 28, HOUR, 4, kind="B")
    harmful = background(random, 0.7, 28, gpus=4, kind="A")
    harmful += [
        job(at, 12 * HOUR, 4, "wide-a", name="wide-a", kind="A") for at in poisson(random, 2 * DAY, 28 * DAY)
    ]
    return Scenario("e  jobs for one kind of GPU", "4-GPU 1 h jobs of the other", machine, honest, harmful)


def cpu_flood(random: Random) -> Scenario:
    machine = Machine(cpus=64)
    honest = [one._replace(cpus=4, is_victim=one.submit < 6 * DAY) for one in background(random, 0.5, 10)]
    harmful = [
        job(HOUR, HOUR * random.uniform(0.8, 1.2), 0, "cpus", name="prepare", cpus=8, kind=ANY_GPU)
        for _ in range(600)
    ]
    return Scenario("f  600 jobs that use CPUs only", "GPU jobs with --cpus 4", machine, honest, harmful)


def high_priority(random: Random) -> Scenario:
    honest = [one._replace(is_victim=True) for one in background(random, 0.55, 28)]
    harmful = [one._replace(user="boss", priority=255) for one in background(random, 0.35, 28, users=1)]
    return Scenario("g  every job with --priority 255", "honest users", Machine(), honest, harmful)


def pieces(random: Random) -> Scenario:
    honest = [one._replace(is_victim=True) for one in background(random, 0.55, 28)]
    harmful = []
    for at in poisson(random, 12 * HOUR, 28 * DAY):
        for number in range(120):  # 30 GPU-hours
            harmful.append(job(at, 900.0, 1, "splitter", name=f"part-{number}"))
    return Scenario("h  work split into 15-minute pieces", "honest users", Machine(), honest, harmful)


def sweep_names(random: Random) -> Scenario:
    honest = background(random, 0.3, 21) + victims(random, 12 * HOUR, 21, HOUR, 8)
    harmful = []
    for number, at in enumerate(poisson(random, DAY, 21 * DAY)):
        length = random.uniform(1.0, 4.0) * HOUR
        for run in range(random.randrange(10, 50)):
            harmful.append(
                job(
                    at,
                    length * random.uniform(0.8, 1.2),
                    1,
                    f"sweeper{number % 3}",
                    name=f"s{number}-lr{run}",
                )
            )
    return Scenario(
        "i  sweeps whose runs have names of their own", "8-GPU 1 h jobs", Machine(), honest, harmful
    )


def letters(random: Random) -> str:
    """A name as trackers of experiments choose them, which has nothing in common with others."""
    return "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=8))


def unique_letters(random: Random) -> Scenario:
    found = unique_names(random)
    harmful = [one._replace(name=letters(random)) for one in found.harmful]
    return found._replace(title="k  as b, with names of letters only", harmful=harmful)


def bimodal_letters(random: Random) -> Scenario:
    found = bimodal(random)
    harmful = [one._replace(name=letters(random)) for one in found.harmful]
    return found._replace(title="l  as d, with names of letters only", harmful=harmful)


def sweep_template(random: Random) -> Scenario:
    found = sweep_names(random)
    harmful = [one._replace(name_template=one.name.partition("-")[0] + "-lr{lr}") for one in found.harmful]
    return found._replace(title="m  as i, with gbatch --param", harmful=harmful)


def arrays(random: Random) -> Scenario:
    """The work of i as arrays, whose tasks take equally long."""
    found = sweep_names(random)
    first = {(one.submit, one.user[:-1]): one for one in reversed(found.harmful)}
    count = Counter((one.submit, one.user[:-1]) for one in found.harmful)
    harmful = [one._replace(tasks=count[key]) for key, one in first.items()]
    return found._replace(title="n  as i, as arrays", harmful=harmful)


def newcomers(random: Random) -> Scenario:
    honest = [one._replace(is_victim=True) for one in background(random, 0.6, 21, users=2)]
    harmful = [
        one._replace(user=f"new{index}")
        for index, one in enumerate(background(random, 0.35, 21))
        if one.submit > 7 * DAY
    ]
    return Scenario("j  many users join, each with one job", "honest users", Machine(), honest, harmful)


SCENARIOS: dict[str, Callable[[Random], Scenario]] = {
    "a": long_limit,
    "b": unique_names,
    "c": flood,
    "d": bimodal,
    "e": two_kinds,
    "f": cpu_flood,
    "g": high_priority,
    "h": pieces,
    "i": sweep_names,
    "j": newcomers,
    "k": unique_letters,
    "l": bimodal_letters,
    "m": sweep_template,
    "n": arrays,
}
