"""The facts about a running job that its diagnosis rests on. None and empty mean: not known."""

from __future__ import annotations

from typing import NamedTuple

from gflow.diagnosis.log_text import Frame


class GpuUse(NamedTuple):
    """What the job does with one of its GPUs, as means over the last minute."""

    number: int
    memory_total_mib: int = 0
    # Memory of the job: its peak on this GPU.
    memory_mib: int | None = None
    # Percent of the time in which a kernel runs; `busy_most`: the highest reading of the whole run.
    busy: float | None = None
    busy_most: float | None = None
    samples: int = 0
    power_w: float | None = None
    # The limit that is set, and the one that the card is delivered with.
    power_limit_w: float | None = None
    power_usual_w: float | None = None
    clock_mhz: float | None = None
    clock_most_mhz: float | None = None
    # Why the clock is reduced, and the part of the samples in which it is.
    slowed: tuple[tuple[str, float], ...] = ()
    # Megabytes per second that arrive over PCIe.
    received_mb_s: float | None = None
    # Processes and jobs on this GPU that are not of this job, in words.
    others: tuple[str, ...] = ()

    @property
    def power_share(self) -> float | None:
        limit = self.power_usual_w or self.power_limit_w
        return self.power_w / limit if limit and self.power_w is not None else None


class ProcessUse(NamedTuple):
    """What one process of the job does while it is observed. CPU is in percent of one core."""

    pid: int
    name: str
    # `main` (trains, or does the work), `worker` (of a data loader) or `other`.
    role: str = "main"
    cpu: float = 0.0
    # The thread with the most CPU time.
    busiest: str = ""
    busiest_cpu: float = 0.0
    # CPU time of threads that exchange gradients, and the time that they wait for a CPU.
    communication_cpu: float = 0.0
    # The part of the looks at which it is in uninterruptible sleep, and the kernel function it waits in.
    io_wait: float = 0.0
    waits_in: str = ""
    # Its command line, and its state at the end: a letter, as in `ps`.
    command: str = ""
    state: str = ""
    is_stopped: bool = False
    swap_mib: int = 0
    # Pages per second that are read from disk or swap.
    major_faults_s: float = 0.0
    read_mb_s: float = 0.0
    written_mb_s: float = 0.0
    # The part of the time in which its busiest thread could run and has no CPU.
    cpu_wait: float = 0.0

    @property
    def wanted_cpu(self) -> float:
        """The CPU time that it would take if a CPU were always free."""
        return self.cpu + 100 * self.cpu_wait

    @property
    def busiest_wanted_cpu(self) -> float:
        return self.busiest_cpu + 100 * self.cpu_wait


class StackUse(NamedTuple):
    """Samples of the stack of the main thread. `missing`: why there are none.

    `dump`: the command that prints the stack once; empty without samples, as it would fail, too.
    """

    samples: int = 0
    # Activity (see `stack_samples`) -> part of the samples, and the line of the program with most of them.
    shares: dict[str, float] = {}
    frames: dict[str, Frame] = {}
    missing: str = ""
    dump: str = ""

    def share(self, *activities: str) -> float:
        return sum(self.shares.get(one, 0.0) for one in activities)


class StepUse(NamedTuple):
    """The progress that the job reports."""

    step: int
    steps: int = 0
    # Seconds since the last report.
    age_s: float = 0.0
    # Seconds per step: since the start, between two earlier reports, and while it is observed.
    usual_s: float | None = None
    earlier_s: float | None = None
    now_s: float | None = None


class RunFacts(NamedTuple):
    """All facts. `seen_s`: how long processes and GPUs were observed."""

    job: str = "ID"
    age_s: float = 0.0
    seen_s: float = 2.0
    # GPUs that the job has, also if nothing is known about their use.
    gpu_count: int = 0
    gpus: tuple[GpuUse, ...] = ()
    processes: tuple[ProcessUse, ...] = ()
    stack: StackUse = StackUse()
    steps: StepUse | None = None
    # Seconds since the last byte of the log; None: it cannot be read, or is empty.
    log_age_s: float | None = None
    # CPUs that the job may use, and processes that train together.
    cpus: int = 0
    ranks: int = 1
    # Where the program uses nn.DataParallel.
    data_parallel: Frame | None = None
    # What could not be observed, in sentences.
    notes: tuple[str, ...] = ()
    # Whether the client of a container engine is among its processes: its work is done by others.
    has_container: bool = False
    # Whether the job runs on a cluster, where its processes cannot be observed.
    is_remote: bool = False

    @property
    def has_processes(self) -> bool:
        return bool(self.processes)

    @property
    def busy(self) -> float | None:
        """Mean utilisation of the GPUs that it uses, in percent; of all, if it uses none."""
        known = [gpu.busy for gpu in self.gpus if gpu.busy is not None]
        used = [busy for busy in known if busy >= 1]
        return sum(used or known) / len(used or known) if known else None

    @property
    def power_share(self) -> float | None:
        known = [gpu.power_share for gpu in self.gpus if gpu.power_share is not None]
        return max(known, default=None)

    @property
    def memory_share(self) -> float | None:
        known = [gpu.memory_mib / gpu.memory_total_mib for gpu in self.gpus
                 if gpu.memory_mib is not None and gpu.memory_total_mib]  # fmt: skip
        return max(known, default=None)

    def of_role(self, role: str) -> list[ProcessUse]:
        return [one for one in self.processes if one.role == role]

    @property
    def main(self) -> ProcessUse | None:
        """The main process with the most CPU time."""
        return max(self.of_role("main"), key=lambda one: one.cpu, default=None)

    @property
    def cpu(self) -> float:
        return sum(one.cpu for one in self.processes)
