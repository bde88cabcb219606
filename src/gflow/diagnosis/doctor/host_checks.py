"""Checks of the machine: shared memory, limits, disks, control groups, clock, other schedulers."""

from __future__ import annotations

from collections.abc import Iterator

from gflow.diagnosis.doctor.facts import Disk, Facts, HostFacts, Limits
from gflow.diagnosis.doctor.report import CheckResult, ok, problem, warning

# Below these, usual training runs fail.
LEAST_SHM_MIB = 1024
LEAST_FILES = 4096
LEAST_INOTIFY = 65_536
LEAST_INSTANCES = 128
LEAST_FILE_SIZE = 10 << 30
FULL_SHM_MIB = 256
LOW_MEMORY = 0.03
# A disk with less free space than both is low; with less than FULL_MIB it is full.
LOW_SHARE, LOW_MIB, FULL_MIB = 0.05, 20 * 1024, 512
LEAST_INODES = 1000
LOCKED_FOR_RDMA = 64 << 10


def check_shared_memory(facts: Facts) -> Iterator[CheckResult]:
    size, free = facts.host.shm_mib, facts.host.shm_free_mib
    if size is None:
        yield problem(
            "shm", "there is no /dev/shm: data loaders with workers fail", "mount -t tmpfs tmpfs /dev/shm"
        )
    elif size < LEAST_SHM_MIB:
        inside = (
            "docker run --shm-size=8g (or --ipc=host)"
            if facts.host.is_container
            else "mount -o remount,size=8G /dev/shm"
        )
        yield warning("shm", f"/dev/shm has {size} MiB: data loaders with workers need more", inside)
    elif free is not None and free < FULL_SHM_MIB:
        yield warning(
            "shm",
            f"/dev/shm has {free} MiB free of {size}: files of ended programs may be left there",
            "ls -lt /dev/shm; rm those of programs that have ended",
        )
    else:
        yield ok("shm", f"/dev/shm has {size / 1024:.1f} GiB")


def check_limits(facts: Facts) -> Iterator[CheckResult]:
    host = facts.host
    has_gpus = any(gpu.model for gpu in facts.driver.gpus)
    yield from check_process_limits(host.limits, has_gpus=has_gpus, has_infiniband=host.has_infiniband)
    if host.inotify_watches is not None and host.inotify_watches < LEAST_INOTIFY:
        yield warning(
            "inotify",
            f"fs.inotify.max_user_watches is {host.inotify_watches}",
            "sysctl fs.inotify.max_user_watches=524288 (as root)",
        )
    if host.inotify_instances is not None and host.inotify_instances < LEAST_INSTANCES:
        yield warning(
            "inotify",
            f"fs.inotify.max_user_instances is {host.inotify_instances}",
            "sysctl fs.inotify.max_user_instances=1024 (as root)",
        )


def check_process_limits(limits: Limits, *, has_gpus: bool, has_infiniband: bool) -> Iterator[CheckResult]:
    """Check the limits of this session or of a job."""
    if 0 <= limits.open_files < LEAST_FILES:
        yield warning(
            "open-files",
            f"a process may open {limits.open_files} files: many data-loader workers need more",
            "ulimit -n 65536 before gbatch and in the job, or LimitNOFILE= of the service",
        )
    if 0 <= limits.locked_memory < LOCKED_FOR_RDMA * 1024 and has_gpus and has_infiniband:
        yield warning(
            "locked-memory",
            f"locked memory is limited to {limits.locked_memory >> 10} KiB: InfiniBand (RDMA) needs more",
            "ulimit -l unlimited, in /etc/security/limits.conf",
        )
    if 0 <= limits.processes < LEAST_FILES:
        yield warning(
            "processes",
            f"the user may have {limits.processes} processes and threads",
            "ulimit -u 65536, in /etc/security/limits.conf",
        )
    if limits.address_space >= 0 and has_gpus:
        yield problem(
            "address-space",
            f"the address space is limited to {limits.address_space >> 30} GiB: CUDA maps more than that",
            "ulimit -v unlimited",
        )
    if 0 <= limits.file_size < LEAST_FILE_SIZE:
        yield warning(
            "file-size",
            f"a file may have {limits.file_size >> 20} MiB: checkpoints are larger",
            "ulimit -f unlimited",
        )


def check_memory(facts: Facts) -> Iterator[CheckResult]:
    host = facts.host
    if host.swap_mib and host.swap_used_mib > host.swap_mib // 2 and host.swap_used_mib > 1024:
        yield warning(
            "swap",
            f"{host.swap_used_mib / 1024:.1f} GiB of swap are in use: jobs are slow",
            "give jobs --memory, so that they do not exceed the machine",
        )
    if host.available_mib is not None and host.available_mib < LOW_MEMORY * host.memory_mib:
        yield warning(
            "memory",
            f"{host.available_mib} MiB of {host.memory_mib / 1024:.0f} GiB memory are available",
            "ps -eo rss,user,pid,comm --sort=-rss | head",
        )
    elif host.memory_limit_mib and host.memory_limit_mib < host.memory_mib:
        yield ok(
            "memory",
            f"{host.memory_mib / 1024:.0f} GiB of memory, limited to {host.memory_limit_mib / 1024:.1f} GiB"
            " by a control group",
        )
    elif host.memory_mib:
        yield ok("memory", f"{host.memory_mib / 1024:.0f} GiB of memory")


def check_home(facts: Facts) -> Iterator[CheckResult]:
    if not facts.host.has_home:
        yield warning(
            "home",
            "HOME is not set: gflow looks for its files below /",
            "export HOME=FOLDER, before gflowd up",
        )


def check_disks(facts: Facts) -> Iterator[CheckResult]:
    for disk in facts.host.disks:
        yield from check_disk(disk)


def check_disk(disk: Disk) -> Iterator[CheckResult]:
    """Check space, inodes and rights of one folder."""
    free = f"{disk.free_mib / 1024:.1f} GiB free on {disk.path} ({disk.purpose})"
    fix = f"du -xh {disk.path} | sort -h | tail"
    if not disk.is_writable:
        yield warning(
            "disk-closed",
            f"you cannot write to {disk.path} ({disk.purpose})",
            f"ls -ld {disk.path}; findmnt -T {disk.path}",
        )
    elif disk.free_mib < FULL_MIB:
        yield problem("disk", free, fix)
    elif disk.free_mib < LOW_MIB and disk.free_mib < LOW_SHARE * disk.total_mib:
        yield warning("disk", free, fix)
    elif 0 <= disk.free_inodes < LEAST_INODES:
        yield problem(
            "inodes",
            f"{disk.path} has {disk.free_inodes} free inodes: no file can be made soon",
            f"find {disk.path} -xdev | cut -d/ -f1-5 | sort | uniq -c | sort -n | tail",
        )
    else:
        yield ok("disk", free + (f", {disk.kind}: on a network" if disk.is_remote else ""))


def check_control_groups(facts: Facts) -> Iterator[CheckResult]:
    host = facts.host
    if host.may_limit_memory:
        yield ok("cgroup", f"control groups (version {host.cgroup_version}) limit the memory of jobs")
    elif "memory" in host.cgroup_controllers:
        yield warning(
            "cgroup",
            f"you may not make control groups (version {host.cgroup_version}): gflow watches the memory of"
            " jobs itself",
            _group_fix(host),
        )
    else:
        yield warning(
            "cgroup",
            "control groups do not limit memory here: gflow watches the memory of jobs itself",
            _group_fix(host),
        )


def _group_fix(host: HostFacts) -> str:
    if host.has_systemd:
        return "gflowd service install runs the daemon with groups of its own"
    return "mount -o remount,rw /sys/fs/cgroup (as root), or run the daemon where systemd runs"


def check_compiler(facts: Facts) -> Iterator[CheckResult]:
    if not facts.host.has_compiler and facts.python.torch_cuda:
        yield warning(
            "compiler", "there is no C compiler: torch.compile and Triton fail", "apt install gcc (as root)"
        )


def check_clock(facts: Facts) -> Iterator[CheckResult]:
    if facts.host.is_clock_synchronized is False:
        where = "" if facts.host.has_systemd else "on the host: "
        yield warning("clock", "the clock is not synchronised", where + "timedatectl set-ntp true (as root)")


def check_schedulers(facts: Facts) -> Iterator[CheckResult]:
    if facts.host.other_schedulers:
        names = ", ".join(facts.host.other_schedulers)
        yield warning(
            "scheduler",
            f"another scheduler runs here: {names}; both would use the same GPUs",
            "gctl set-gpus LIST keeps the other GPUs from gflow",
        )
