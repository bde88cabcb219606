"""The machine's resources: CPU slots, memory and GPUs, the free ones, and the jobs that hold the rest."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from gflow.core.ids import JobKey
from gflow.core.model import Block, Gpu, Job
from gflow.core.policy import Drained
from gflow.core.resources import Shape, slots_of

UNBOUNDED = 1 << 62
# A card sold as 80 GB reports a little less; a request for 80G means that card.
SLACK = 1.02
# Why a GPU gets no jobs: it is not among those that jobs may get (`Machine.allowed`).
RESTRICTED = "Restricted"
# GPUs that a job asks for: their type, and the memory they must have.
Kind = tuple[str, int]
# Kinds and spellings of types that are remembered at once: users may ask for any.
MOST_KINDS = 1000


class Machine:
    """CPU slots, memory and GPUs: totals, the free ones, and why a GPU is not available."""

    def __init__(self, cpus: int, memory_mib: int, allowed: frozenset[int] | None) -> None:
        self.cpus, self.memory_mib = cpus, memory_mib
        self.free_cpus, self.free_memory_mib = cpus, memory_mib
        self.gpus: dict[int, Gpu] = {}
        self.simulated: frozenset[int] = frozenset()
        # GPU indices that new jobs may get; None: all.
        self.allowed = allowed
        # GPU index -> the other daemon that has leased it. Never given to jobs.
        self.foreign: dict[int, str] = {}
        # GPU index -> why it gets no new jobs; GPU index -> MiB that tolerated unmanaged processes use.
        self.blocked: dict[int, Block] = {}
        self.taken: dict[int, int] = {}
        # Why the GPUs cannot be listed (empty: they can); and which card each index means, as stored last.
        self.gpu_trouble = self.gpu_names = ""
        # UUID -> the fault of that card, kept until an operator resumes it.
        self.faults: dict[str, str] = {}
        # GPU index -> when the last job left it (boot clock). Not stored: for display only.
        self.freed_at: dict[int, float] = {}
        # GPU index -> the running jobs on it, with the memory (MiB) that each declared; 0: exclusive use.
        self.holders: dict[int, dict[JobKey, int]] = {}
        # Derived from the above: GPUs that jobs may get, those that no job has, those that no job has alone.
        self.usable: set[int] = set()
        self.idle: set[int] = set()
        # `idle`, sorted.
        self.idle_sorted: list[int] = []
        self.open: set[int] = set()
        # Whether jobs have GPUs that are not usable any more.
        self.has_strays = False
        # Derived lazily: see `fitting` and `of_kind`.
        self._fitting: dict[Kind, frozenset[int]] = {}
        self._of_kind: dict[Kind, int] = {}
        # Type of GPU as spelled -> the number of the set of GPUs that are of this type; see `type_number`.
        self._type_numbers: dict[str, int] = {}
        self._type_sets: dict[frozenset[int], int] = {}
        # What is remembered of each kind or spelling.
        self.caches = (self._fitting, self._of_kind, self._type_numbers)
        # Drains set by operators; and whether the daemon is shutting down.
        self.drained = Drained()
        self.leaving = False
        # How many jobs may run at once: each takes file descriptors of the daemon.
        self.most_runs = UNBOUNDED
        # Why starts fail at present (empty: they do not), and how many failed in a row.
        self.stalled, self.stalls = "", 0
        # The cloud's notice that it reclaims this machine. Not stored: after a restart the machine is back.
        self.reclaimed = ""

    def see_gpus(self, gpus: Iterable[Gpu]) -> bool:
        """Replace the known GPUs; whether others, or other models, are known now."""
        before = [(index, gpu.model) for index, gpu in self.gpus.items()]
        self.gpus = {gpu.index: gpu for gpu in sorted(gpus, key=lambda gpu: gpu.index)}
        has_changed = before != [(index, gpu.model) for index, gpu in self.gpus.items()]
        self.simulated = frozenset(index for index, gpu in self.gpus.items() if gpu.simulated)
        self._of_kind.clear()
        if has_changed:
            self._type_numbers.clear()
            self._type_sets.clear()
        self.recount()
        return has_changed

    def restrict(self, allowed: frozenset[int] | None) -> None:
        self.allowed = allowed
        self.recount()

    @property
    def is_drained(self) -> bool:
        """Whether nothing at all may start."""
        return self.leaving or bool(self.reclaimed) or self.drained.everything is not None

    @property
    def drained_why(self) -> str | None:
        """The drain reason; None if the machine is shutting down rather than drained by an operator."""
        return self.reclaimed or self.drained.everything

    def closed(self, index: int) -> Block | None:
        """Why this GPU gets no new jobs; None: it may get some."""
        if index in self.blocked:
            return self.blocked[index]
        if index in self.foreign:
            return Block("Unmanaged", self.foreign[index])
        if index in self.drained.gpus:
            return Block("Drained", self.drained.gpus[index])
        is_allowed = self.allowed is None or index in self.allowed
        return None if is_allowed else Block(RESTRICTED, "")

    def recount(self) -> None:
        """Recompute `usable`, `idle` and `open`. O(GPUs)."""
        self.usable = usable = {index for index in self.gpus if self.closed(index) is None}
        self.idle = {index for index in usable if index not in self.holders}
        self.idle_sorted = sorted(self.idle)
        self.has_strays = not usable.issuperset(self.holders)
        self.open = {index for index in usable if 0 not in self.holders.get(index, {}).values()}
        self._fitting.clear()

    def fitting(self, shape: Shape) -> frozenset[int]:
        """Usable GPUs of this kind with enough memory for a job of this shape, if no other job is there."""
        kind = (shape.gpu_type, shape.gpu_memory_mib)
        found = self._fitting.get(kind)
        if found is None:
            self._bound_caches()
            found = self._fitting[kind] = frozenset(
                index
                for index in self.usable
                if suits(self.gpus[index], shape) and has_room(self, index, shape)
            )
        return found

    def of_kind(self, shape: Shape) -> int:
        """How many GPUs are of the kind that a job of this shape asks for, in use or not."""
        kind = (shape.gpu_type, shape.gpu_memory_mib)
        if kind not in self._of_kind:
            self._bound_caches()
            self._of_kind[kind] = sum(suits(gpu, shape) for gpu in self.gpus.values())
        return self._of_kind[kind]

    def type_number(self, gpu_type: str) -> int:
        """A number for the GPUs of this type, the same for all spellings that mean the same GPUs."""
        number = self._type_numbers.get(gpu_type)
        if number is None:
            self._bound_caches()
            wanted = gpu_type.lower()
            found = frozenset(index for index, gpu in self.gpus.items() if wanted in gpu.model.lower())
            number = self._type_sets.setdefault(found, len(self._type_sets))
            self._type_numbers[gpu_type] = number
        return number

    def _bound_caches(self) -> None:
        """Make room for an entry. Numbers of types stay, because `_type_sets` has them."""
        for cache in self.caches:
            if len(cache) >= MOST_KINDS:
                cache.clear()

    def take(self, job: Job) -> None:
        """Book the resources and the GPUs of a job."""
        spec = job.spec
        self.free_cpus -= slots_of(spec)
        self.free_memory_mib -= spec.memory_mib
        declared = spec.gpu_memory_mib if spec.shared else 0
        for index in job.gpu_ids:
            self.holders.setdefault(index, {})[job.key] = declared
            if index in self.idle:
                self.idle.discard(index)
                del self.idle_sorted[bisect_left(self.idle_sorted, index)]
            elif index not in self.usable:
                self.has_strays = True
            if not declared:
                self.open.discard(index)

    def give_back(self, job: Job, now: float) -> None:
        """Release the resources and the GPUs of a job."""
        spec = job.spec
        self.free_cpus += slots_of(spec)
        self.free_memory_mib += spec.memory_mib
        for index in job.gpu_ids:
            holders = self.holders[index]
            del holders[job.key]
            if not holders:
                del self.holders[index]
                self.freed_at[index] = now
            if index in self.usable:
                if not holders:
                    self.idle.add(index)
                    insort(self.idle_sorted, index)
                if 0 not in holders.values():
                    self.open.add(index)


def has_room(machine: Machine, index: int, shape: Shape) -> bool:
    """Whether unmanaged processes leave as much memory of an idle GPU as the job needs."""
    return shape.gpu_memory_mib <= (machine.gpus[index].memory_mib - machine.taken.get(index, 0)) * SLACK


def suits(gpu: Gpu, shape: Shape) -> bool:
    """Whether the GPU is of the type and size that the shape asks for, in use or not."""
    if shape.gpu_type and shape.gpu_type.lower() not in gpu.model.lower():
        return False
    return shape.gpu_memory_mib <= gpu.memory_mib * SLACK
