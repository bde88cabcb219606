"""The adapter of Slurm: controller and one node on this machine, with one GPU (a link to /dev/null).

The cluster is that of the tests (`tests/slurm/cluster.py`): munge, no accounting, no control groups. Its scheduler is set
to react at once (`sched_min_interval=0`, `batch_sched_delay=0`); a site's usually waits longer.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from collections.abc import Iterator

from benchmarks.measure import NotOffered, wait_until
from benchmarks.systems import FOREVER, System, first_line_of, register
from tests.slurm.cluster import PATH, Cluster, lacks


@register
class Slurm(System):
    """Slurm with one node on this machine; many jobs of one request are an array."""

    name = "slurm"
    many = 64
    array_most = 2000  # MaxArraySize of the cluster
    at_most = {"gap": 20}
    holder = "bench-hold"

    def __init__(self) -> None:
        super().__init__()
        self.cluster: Cluster | None = None

    def version(self) -> str:
        if missing := lacks():
            raise NotOffered(f"{missing} missing")
        return first_line_of([shutil.which("slurmctld", path=PATH) or "slurmctld", "-V"])

    # ------------------------------------------------------------ life

    def start(self, slots: int | None = None, hold: bool = False) -> None:
        self.stop()
        self.fresh()
        root = self.dir / "cluster"
        root.mkdir()
        # The holder of the GPU has a CPU as well.
        self.cluster = Cluster(root, nodes=1, gpus=1, cpus=(slots or self.many) + hold)
        name, _, value = self.mark.partition("=")
        self.cluster.env[name] = value  # so that an aborted run is cleared away
        self.env |= {"SLURM_CONF": str(self.cluster.conf), "PATH": PATH}
        self.cluster.start()
        if hold:
            self.call([*self.sbatch("exec " + " ".join(FOREVER)), "--gpus=1", "--job-name", self.holder])
            if not wait_until(lambda: self.states("RUNNING"), 30, 0.1):
                raise RuntimeError("the GPU could not be taken")

    def stop(self) -> None:
        if self.cluster:
            self.cluster.stop()
            self.cluster = None
            self.sweep()

    def kill9(self) -> None:
        assert self.cluster
        self.cluster.kill_controller()

    def restart(self) -> None:
        assert self.cluster
        self.cluster.start_controller()
        if not wait_until(self.answers, 60, 0.1):
            raise RuntimeError("slurmctld did not come back")

    def answers(self) -> bool:
        words = ["squeue", "-h"]
        return subprocess.run(words, env=self.env, capture_output=True, timeout=60).returncode == 0

    def pids(self) -> list[int]:
        """slurmctld, slurmd and munged; a job's slurmstepd is not among them."""
        files = ("slurmctld.pid", "run/slurmd-node1.pid", "munge/munged.pid")
        return [int((self.dir / "cluster" / name).read_text()) for name in files]

    # ------------------------------------------------------------ command lines

    @staticmethod
    def sbatch(script: str) -> list[str]:
        return ["sbatch", "--output=/dev/null", f"--wrap={script}"]

    def cmd_submit(self, script: str) -> list[str]:
        return self.sbatch(script)

    def cmd_submit_blocked(self) -> list[str]:
        return [*self.sbatch("true"), "--gpus=1"]

    def cmd_submit_limited(self, script: str, limit_s: int) -> list[str]:
        raise NotOffered("limits are whole minutes")

    def cmd_queue(self) -> list[str]:
        return ["squeue"]

    def cmd_info(self) -> list[str]:
        return ["sinfo"]

    def cmd_show(self) -> list[str]:
        return ["scontrol", "show", "job", "1"]

    def cmd_help(self) -> list[str]:
        return ["sbatch", "--help"]

    # ------------------------------------------------------------ many jobs

    def bulk(self, count: int, script: str, kind: str = "run") -> float:
        more = ["--gpus=1"] if kind == "blocked" else []
        begin = time.perf_counter()
        for size in self.arrays(count):
            self.call([*self.sbatch(script), f"--array=1-{size}", *more])
        return time.perf_counter() - begin

    def arrays(self, count: int) -> Iterator[int]:
        """The sizes of as few arrays as hold so many jobs."""
        for number in range(math.ceil(count / self.array_most)):
            yield min(self.array_most, count - number * self.array_most)

    def run_all(self, count: int, script: str) -> tuple[float, int]:
        """As for the others, but squeue is asked less often: each call costs several milliseconds."""
        begin = time.perf_counter()
        self.bulk(count, script)
        wait_until(lambda: self.done() >= count, self.throughput_timeout_s, 0.2)
        return time.perf_counter() - begin, self.done()

    def states(self, states: str) -> list[str]:
        """The names of the jobs in these states, one for each task of an array."""
        return self.call(["squeue", "-h", "-r", "-o", "%j", "-t", states]).split()

    def done(self) -> int:
        return len(self.states("COMPLETED"))

    def known(self) -> int:
        return sum(name != self.holder for name in self.states("all"))
