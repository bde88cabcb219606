"""Checks of the machine: shared memory, limits, disks, control groups, clock, other schedulers."""

from __future__ import annotations

from collections.abc import Iterator

from gflow.diagnosis.doctor.facts import Facts
from gflow.diagnosis.doctor.report import CheckResult, ok, problem, warning

# Below these, usual training runs fail.
LEAST_SHM_MIB = 1024
LEAST_FILES = 4096
LEAST_INOTIFY = 65_536
# A disk with less free space than both is low; with less than FULL_MIB it is full.
LOW_SHARE, LOW_MIB, FULL_MIB = 0.05, 20 * 1024, 512
LEAST_INODES = 1000
LOCKED_FOR_RDMA = 64 << 10


def check_shared_memory(facts: Facts) -> Iterator[CheckResult]:
    size = facts.host.shm_mib
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
    else:
        yield ok("shm", f"/dev/shm has {size / 1024:.0f} GiB")


def check_limits(facts: Facts) -> Iterator[CheckResult]:
    host = facts.host
    if 0 <= host.open_files < LEAST_FILES:
        yield warning(
            "open-files",
            f"a process may open {host.open_files} files: many data-loader workers need more",
            "ulimit -n 65536 in the job, or LimitNOFILE= of the service",
        )
    if 0 <= host.locked_memory < LOCKED_FOR_RDMA * 1024 and any(gpu.model for gpu in facts.driver.gpus):
        yield warning(
            "locked-memory",
            f"locked memory is limited to {host.locked_memory >> 10} KiB: InfiniBand (RDMA) needs more",
            "ulimit -l unlimited, in /etc/security/limits.conf",
        )
    if 0 <= host.processes < LEAST_FILES:
        yield warning(
            "processes",
            f"you may have {host.processes} processes and threads",
            "ulimit -u 65536, in /etc/security/limits.conf",
        )
    if host.inotify_watches is not None and host.inotify_watches < LEAST_INOTIFY:
        yield warning(
            "inotify",
            f"fs.inotify.max_user_watches is {host.inotify_watches}",
            "sysctl fs.inotify.max_user_watches=524288",
        )


def check_memory(facts: Facts) -> Iterator[CheckResult]:
    host = facts.host
    if host.swap_mib and host.swap_used_mib > host.swap_mib // 2 and host.swap_used_mib > 1024:
        yield warning(
            "swap",
            f"{host.swap_used_mib / 1024:.1f} GiB of swap are in use: jobs are slow",
            "give jobs --memory, so that they do not exceed the machine",
        )
    if host.memory_mib:
        yield ok("memory", f"{host.memory_mib / 1024:.0f} GiB of memory")


def check_disks(facts: Facts) -> Iterator[CheckResult]:
    for disk in facts.host.disks:
        free = f"{disk.free_mib / 1024:.1f} GiB free on {disk.path} ({disk.purpose})"
        fix = f"du -xh {disk.path} | sort -h | tail"
        if disk.free_mib < FULL_MIB:
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
            yield ok("disk", free)


def check_control_groups(facts: Facts) -> Iterator[CheckResult]:
    host = facts.host
    if "memory" in host.cgroup_controllers:
        yield ok("cgroup", f"control groups (version {host.cgroup_version}) limit memory")
    else:
        yield warning(
            "cgroup",
            "control groups do not limit memory here: gflow watches the memory of jobs itself",
            "run the daemon as a service of systemd: gflowd init --service",
        )


def check_clock(facts: Facts) -> Iterator[CheckResult]:
    if facts.host.is_clock_synchronized is False:
        yield warning("clock", "the clock is not synchronised", "timedatectl set-ntp true (as root)")


def check_schedulers(facts: Facts) -> Iterator[CheckResult]:
    if facts.host.other_schedulers:
        names = ", ".join(facts.host.other_schedulers)
        yield warning(
            "scheduler",
            f"another scheduler runs here: {names}; both would use the same GPUs",
            "keep GPUs from gflow: gctl set-gpus LIST",
        )
