"""What one user's work does to the waits of others, under gflow's policy and others.

    python -m benchmarks.fairness                  all scenarios
    python -m benchmarks.fairness a c --seeds 3    two of them, the mean of three workloads

A cell is the mean wait of the victims in hours without the harmful work, with it, and the longest wait with it.
`slurm` is a model of Slurm's multifactor priority and backfill (`benchmarks/slurm_model.py`), with the time limits
that its users have to give; the other policies see a limit only where the scenario is about one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import accumulate
from random import Random

from benchmarks.fair_workload import ANY_GPU, HOUR, SCENARIOS, Machine, Request
from benchmarks.slurm_model import SlurmModel
from gflow.core.engine import step
from gflow.core.events import GpusSeen, Submit
from gflow.core.model import Gpu, Moment, Spec
from gflow.core.policy import Policy
from gflow.core.state.state import State
from gflow.simulate.replay import PLENTY, POLICIES, Replay
from gflow.simulate.trace import Entry

# The highest priority that users may ask for: the default of `people.max_priority`.
MAX_PRIORITY = 10
COLUMNS = ("fifo", "greedy", "easy", "slurm", "ours")


class MachineReplay(Replay):
    """A replay on a machine with kinds of GPUs and CPU slots, of requests that use these."""

    def __init__(
        self, requests: list[Request], machine: Machine, policy: Policy, *, uses_limits: bool
    ) -> None:
        entries = [Entry(one.submit, one.duration, one.gpus, one.user) for one in requests]
        super().__init__(entries, 0, policy)
        self._requests, self._uses_limits, self._sent = requests, uses_limits, 0
        self.state = State(cpus=machine.cpus, memory_mib=PLENTY, policy=policy)
        kinds = [kind for kind, count in machine.gpus.items() for _ in range(count)]
        gpus = tuple(
            Gpu(index=index, uuid=str(index), model=kind, memory_mib=81920, simulated=True)
            for index, kind in enumerate(kinds)
        )
        step(self.state, GpusSeen(at=Moment(0.0, 0.0), gpus=gpus))

    def _submission(self, entry: Entry, now: float) -> Submit:
        request = self._requests[self._sent]
        self._sent += 1
        spec = Spec(
            command=(),
            cwd="",
            gpus=request.gpus,
            name=request.name,
            name_template=request.name_template,
            array=f"0-{request.tasks - 1}" if request.tasks else "",
            cpus=request.cpus,
            gpu_type="" if request.kind == ANY_GPU else request.kind,
            time_limit_s=int(request.slurm_limit) if self._uses_limits else request.limit,
            priority=min(request.priority, MAX_PRIORITY),
        )
        user = request.user
        return Submit(at=Moment(now, now), uid=self._uids[user], user=user, specs=(spec,), outcomes={})


def starts_of(policy: str, requests: list[Request], machine: Machine) -> list[float]:
    if policy == "slurm":
        tasks = [one for one in requests for _ in range(one.tasks or 1)]
        firsts = list(accumulate((one.tasks or 1 for one in requests[:-1]), initial=0))
        starts = SlurmModel(tasks, machine).run()
        return [starts[first] for first in firsts]
    replay = MachineReplay(requests, machine, POLICIES[policy][1], uses_limits=policy == "easy")
    replay.run()
    return replay.starts


def waits_of(policy: str, requests: list[Request], machine: Machine) -> list[float]:
    """The waits of the victims in hours."""
    requests = sorted(requests)
    starts = starts_of(policy, requests, machine)
    return [(start - one.submit) / HOUR for one, start in zip(requests, starts, strict=True) if one.is_victim]


def cell(policy: str, name: str, seeds: int) -> str:
    before, after, longest = 0.0, 0.0, 0.0
    for seed in range(seeds):
        scenario = SCENARIOS[name](Random(seed))
        alone = waits_of(policy, scenario.honest, scenario.machine)
        harmed = waits_of(policy, scenario.honest + scenario.harmful, scenario.machine)
        before += sum(alone) / len(alone) / seeds
        after += sum(harmed) / len(harmed) / seeds
        longest = max(longest, *harmed)
    return f"{before:.1f} > {after:.1f} ({longest:.0f})"


def main(show: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", choices=[[], *SCENARIOS], help=", ".join(SCENARIOS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--policies", type=lambda text: text.split(","), default=list(COLUMNS))
    asked = parser.parse_args()
    show(f"{'scenario':<44}{'victims':<28}" + "".join(f"{policy:>20}" for policy in asked.policies))
    for name in asked.scenarios or SCENARIOS:
        scenario = SCENARIOS[name](Random(0))
        cells = "".join(f"{cell(policy, name, asked.seeds):>20}" for policy in asked.policies)
        show(f"{scenario.title:<44}{scenario.victims:<28}{cells}")


if __name__ == "__main__":
    main()
