"""Facts about a job's end besides its log: GPU events, memory, disks, other runs; findings made of them."""

# Annotations are not postponed: as texts they double the time to define a NamedTuple.
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gflow.diagnosis.finding import Evidence, Finding
from gflow.diagnosis.rules.rule import Confidence, Depth
from gflow.diagnosis.xids import CARD_FAULTS, PROGRAM_FAULTS

# A file system with less space than this, in MiB, is full.
FULL_MIB = 16
# Shares of the memory limit: above the first, KILL means the limit; below the second, it does not.
NEAR_LIMIT = 0.95
FAR_FROM_LIMIT = 0.5
# A sampled peak on a GPU is evidence only above this share of what the message says that the process had: a
# process can fill a GPU between two samples.
SEEN_SHARE = 0.9
# A GPU is suspect if so many other jobs failed on it in a day, which are this share of those it ran, and the
# share of failures on the other GPUs is at most half of that.
SUSPECT_JOBS = 3
SUSPECT_SHARE = 0.6

# Causes for which the GPU and its earlier jobs are of interest.
OF_THE_GPU = frozenset(
    {"illegal-address", "gpu-hardware", "launch-failure", "device-assert", "label-range", "cuda-library",
     "gpu-setup", "gpu-busy", "no-gpu", "nccl-error", "nccl-timeout"}
)  # fmt: skip
SHARED_MEMORY = "/dev/shm"
OF_THE_DISK = frozenset(
    {"disk-full", "shared-memory", "disk-quota", "bus-error", "file-system", "bad-checkpoint"}
)


class GpuFault(NamedTuple):
    """What the driver reported about a GPU while the job had it: `Xid 31`, or why it was drained."""

    gpu: int
    at: str
    text: str

    @property
    def xid(self) -> int | None:
        number = self.text.partition("Xid ")[2].partition(":")[0]
        return int(number) if number.isdecimal() else None


class GpuUse(NamedTuple):
    """The most memory that the job had on one of its GPUs, and the size of that GPU (0: unknown), in MiB."""

    gpu: int
    peak_mib: int
    total_mib: int = 0


class RunsOnGpu(NamedTuple):
    """How the jobs ended that ran on a GPU in the day before: how many, how many failed, some of those."""

    gpu: int | None
    ended: int
    failed: int
    jobs: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        return self.failed / self.ended if self.ended else 0.0


class Disk(NamedTuple):
    """A file system that the job wrote to, as it is now. `has_files`: whether it has inodes left."""

    folder: str
    free_mib: float
    size_mib: float
    has_files: bool = True

    @property
    def is_full(self) -> bool:
        return self.free_mib < FULL_MIB or not self.has_files


class BatchPlan(NamedTuple):
    """The plan of `gflow launch --plan`: its batch on each GPU."""

    path: str
    micro_batch: int


class Circumstances(NamedTuple):
    """Facts about a job's end besides its record and its log."""

    # Peak and limit of the host memory; None: not measured, no limit.
    peak_mib: float | None = None
    limit_mib: float | None = None
    # Memory of the machine that ran the job; 0: unknown.
    host_mib: float = 0.0
    gpus: tuple[GpuUse, ...] = ()
    gpu_faults: tuple[GpuFault, ...] = ()
    # Reasons of the earlier attempts, in order.
    attempts: tuple[str, ...] = ()
    # Other jobs of the day before: on each GPU of this job, and on all others together.
    on_gpus: tuple[RunsOnGpu, ...] = ()
    elsewhere: RunsOnGpu = RunsOnGpu(None, 0, 0)
    disks: tuple[Disk, ...] = ()
    # Who stopped the job, as in `cancelled by ann with gcancel`.
    stopped: str = ""
    # PYTORCH_CUDA_ALLOC_CONF of the job.
    allocator: str = ""
    # Samples that the command line or the sweep puts into a batch; 0: unknown.
    batch: int = 0
    # GPU memory that `--fit` predicted (0: none), and the plan that the command names.
    predicted_mib: int = 0
    plan: BatchPlan | None = None


NOTHING = Circumstances()


def find_in_circumstances(around: Circumstances, known: Iterable[Finding]) -> list[Finding]:
    """The causes that these facts name by themselves, next to those that are `known`."""
    causes = {one.cause for one in known}
    found = [*_find_xids(around, causes), *_find_full_disks(around, causes)]
    return found + list(_find_suspects(around))


def add_support(one: Finding, around: Circumstances) -> Finding:
    """The finding with the facts that support it, and with the confidence that they give it."""
    facts = list(one.support)
    if one.cause == "host-oom" and around.peak_mib:
        one, facts = _judge_memory(one, around), [*facts, _memory_fact(around)]
    if one.cause in ("cuda-oom", "gpu-memory-limit"):
        said = (one.figures or {}).get("process_mib", 0.0)
        facts += [_gpu_fact(use) for use in around.gpus if use.peak_mib > SEEN_SHARE * said]
    if one.cause in OF_THE_GPU:
        facts += [_event_fact(event) for event in around.gpu_faults]
        facts += [_history_fact(runs) for runs in around.on_gpus if runs.failed]
    if one.cause in OF_THE_DISK:
        facts += [_disk_fact(disk) for disk in around.disks if disk.is_full]
    if around.stopped and one.evidence and one.evidence.source == "record":
        facts.append(Evidence(None, around.stopped, source="record"))
    return one._replace(support=tuple(fact for fact in facts if fact != one.evidence))


def attempts_fact(around: Circumstances) -> list[Evidence]:
    """One line about the earlier attempts of the job."""
    if not around.attempts:
        return []
    count = len(around.attempts)
    kinds = sorted(set(around.attempts))
    how = f"{'all ' if count > 1 else ''}{kinds[0]}" if len(kinds) == 1 else ", ".join(around.attempts[-4:])
    text = f"{count} earlier attempt{'s' if count > 1 else ''} of the job: {how}"
    return [Evidence(None, text, source="history")]


# ------------------------------------------------------------ host memory


def _judge_memory(one: Finding, around: Circumstances) -> Finding:
    """More certain if the peak is at the limit; less if it is far below it."""
    most = around.limit_mib or around.host_mib
    share = (around.peak_mib or 0) / most if most else 0.0
    if share >= NEAR_LIMIT:
        return one._replace(confidence=Confidence.CERTAIN)
    if most and share < FAR_FROM_LIMIT and one.depth is not Depth.ROOT:
        return one._replace(confidence=Confidence.POSSIBLE)
    return one


def _memory_fact(around: Circumstances) -> Evidence:
    if around.limit_mib:
        limit = f" of {spell_mib(around.limit_mib)} asked for"
    else:
        host = f", of {spell_mib(around.host_mib)} of the machine" if around.host_mib else ""
        limit = f"{host}; the job has no limit"
    return Evidence(
        None, f"peak of the host memory {spell_mib(around.peak_mib or 0)}{limit}", source="memory"
    )


# ------------------------------------------------------------ GPUs


def _find_xids(around: Circumstances, causes: set[str]) -> Iterator[Finding]:
    for event in around.gpu_faults:
        number = event.xid
        if number in CARD_FAULTS or (number is None and "Lost" in event.text):
            yield _card_finding(event, CARD_FAULTS.get(number or 0, ""))
        elif number in PROGRAM_FAULTS and causes.isdisjoint(OF_THE_GPU):
            yield Finding(
                "illegal-address",
                f"The driver stopped a kernel of the job (Xid {number}): {PROGRAM_FAULTS[number]}.",
                ("find the line: gbatch --export ALL,CUDA_LAUNCH_BLOCKING=1 …",),
                Confidence.LIKELY,
                Depth.GENERAL,
                _event_fact(event),
            )


def _card_finding(event: GpuFault, meaning: str) -> Finding:
    what = f"Xid {event.xid}: {meaning}" if meaning else event.text
    return Finding(
        "gpu-hardware",
        f"GPU {event.gpu} failed while the job had it ({what}).",
        (
            "run the job again on another GPU: gjob redo {job}",
            f"an operator can drain it: gctl drain --gpu {event.gpu}; ginfo -l shows its state",
        ),
        Confidence.CERTAIN,
        Depth.ROOT,
        _event_fact(event),
    )


def _event_fact(event: GpuFault) -> Evidence:
    return Evidence(None, f"GPU {event.gpu}, {event.at}: {event.text}", source="gpu")


def _gpu_fact(use: GpuUse) -> Evidence:
    total = f" of {spell_mib(use.total_mib)}" if use.total_mib else ""
    return Evidence(None, f"peak of the job on GPU {use.gpu}: {spell_mib(use.peak_mib)}{total}", source="gpu")


def _find_suspects(around: Circumstances) -> Iterator[Finding]:
    for runs in around.on_gpus:
        is_bad = runs.failed >= SUSPECT_JOBS and runs.share >= SUSPECT_SHARE
        if is_bad and around.elsewhere.ended >= SUSPECT_JOBS and around.elsewhere.share <= runs.share / 2:
            yield Finding(
                "gpu-suspect",
                f"GPU {runs.gpu} may be at fault: {runs.failed} of {runs.ended} other jobs failed on it "
                f"within a day, and {around.elsewhere.failed} of {around.elsewhere.ended} elsewhere.",
                ("compare: gjob why " + " ".join(runs.jobs[:1]), "gflow doctor; ginfo -l"),
                Confidence.POSSIBLE,
                Depth.CONSEQUENCE,
                _history_fact(runs),
            )


def _history_fact(runs: RunsOnGpu) -> Evidence:
    which = f" ({', '.join(runs.jobs)})" if runs.jobs else ""
    text = f"{runs.failed} of {runs.ended} other jobs failed on GPU {runs.gpu} in the day before{which}"
    return Evidence(None, text, source="history")


# ------------------------------------------------------------ disks


def _find_full_disks(around: Circumstances, causes: set[str]) -> Iterator[Finding]:
    full = [disk for disk in around.disks if disk.is_full]
    if full and causes.isdisjoint(OF_THE_DISK):
        yield Finding(
            "shared-memory" if full[0].folder == SHARED_MEMORY else "disk-full",
            f"The file system of {full[0].folder} is full now.",
            (
                f"look at it: df -h {full[0].folder} (and df -i for file numbers)",
                "remove files there",
            ),
            Confidence.POSSIBLE if causes else Confidence.LIKELY,
            Depth.GENERAL,
            _disk_fact(full[0]),
        )


def _disk_fact(disk: Disk) -> Evidence:
    left = (
        f"{spell_mib(disk.free_mib)} of {spell_mib(disk.size_mib)} free"
        if disk.has_files
        else "no inode free"
    )
    return Evidence(None, f"the file system of {disk.folder} has {left} now", source="disk")


def spell_mib(size: float) -> str:
    """`3.9 GiB` or `512 MiB`."""
    return f"{size / 1024:.1f} GiB" if size >= 1024 else f"{size:.0f} MiB"
