"""Facts about the machine: memory, limits, disks, control groups, clock, other schedulers."""

from __future__ import annotations

import ctypes
import glob
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import suppress

from gflow import paths
from gflow.client.doctor.programs import number_in, text_of, user_folder
from gflow.diagnosis.doctor.facts import Disk, HostFacts, Limits

MIB = 1 << 20
SCHEDULERS = {
    "slurmd": "Slurm", "pbs_mom": "PBS", "sge_execd": "Grid Engine", "condor_startd": "HTCondor",
    "sbatchd": "LSF", "kubelet": "Kubernetes", "nomad": "Nomad", "raylet": "Ray", "tsp": "Task Spooler",
}  # fmt: skip
# The status bit of adjtimex: the clock is not synchronised.
UNSYNCHRONIZED = 0x40
COMPILERS = ("cc", "gcc", "clang")


def read_host() -> HostFacts:
    memory = parse_meminfo(text_of("/proc/meminfo"))
    swap, free = memory.get("SwapTotal", 0), memory.get("SwapFree", 0)
    version, controllers, folder = _control_groups()
    shm = read_disk("", "/dev/shm") if os.path.isdir("/dev/shm") else None
    return HostFacts(
        shm_mib=shm and shm.total_mib,
        shm_free_mib=shm and shm.free_mib,
        memory_mib=memory.get("MemTotal", 0) >> 10,
        available_mib=memory["MemAvailable"] >> 10 if "MemAvailable" in memory else None,
        memory_limit_mib=_memory_limit(folder),
        swap_mib=swap >> 10,
        swap_used_mib=(swap - free) >> 10,
        limits=_limits(),
        inotify_watches=number_in("/proc/sys/fs/inotify/max_user_watches"),
        inotify_instances=number_in("/proc/sys/fs/inotify/max_user_instances"),
        disks=_disks(),
        cgroup_version=version,
        cgroup_controllers=controllers,
        may_limit_memory=_may_limit_memory(version, folder),
        is_clock_synchronized=_is_clock_synchronized(),
        other_schedulers=find_schedulers(_programs()),
        has_systemd=os.path.isdir("/run/systemd/system"),
        has_home=bool(os.environ.get("HOME")),
        is_container=any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv"))),
        numa_nodes=max(1, len(glob.glob("/sys/devices/system/node/node[0-9]*"))),
        has_infiniband=bool(glob.glob("/sys/class/infiniband/*")),
        has_compiler=any(map(shutil.which, COMPILERS)) or bool(os.environ.get("CC")),
    )


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo, in KiB."""
    rows = (line.split() for line in text.splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in rows if len(words) > 1 and words[1].isdecimal()}


def _limits() -> Limits:
    def soft(kind: int) -> int:
        return resource.getrlimit(kind)[0]

    return Limits(
        # A program may raise its soft limit up to the hard one.
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        locked_memory=soft(resource.RLIMIT_MEMLOCK),
        processes=soft(resource.RLIMIT_NPROC),
        address_space=soft(resource.RLIMIT_AS),
        file_size=soft(resource.RLIMIT_FSIZE),
    )


# ------------------------------------------------------------ disks


def _disks() -> tuple[Disk, ...]:
    """The folders that gflow and its jobs write to, each file system once."""
    home = user_folder()
    wanted = {
        "jobs and logs": paths.data_dir(os.environ.get),
        "this folder, checkpoints": _working_folder(),
        "home": home,
        "temporary files": os.environ.get("TMPDIR") or "/tmp",
        "Hugging Face cache": os.environ.get("HF_HOME") or f"{home}/.cache/huggingface",
    }
    found: dict[int, Disk] = {}
    for purpose, path in wanted.items():
        with suppress(OSError):
            place = existing_folder(path)
            found.setdefault(os.stat(place).st_dev, read_disk(purpose, place))
    return tuple(found.values())


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return "/"


def existing_folder(path: str) -> str:
    """The folder itself or the nearest one above it that exists."""
    path = "/" + path.lstrip("/") if path.startswith("/") else path
    while path and path != "/" and not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def read_disk(purpose: str, path: str) -> Disk:
    from gflow.store.location import NETWORK, kind_of

    found = os.statvfs(path)
    kind = kind_of(text_of("/proc/self/mountinfo"), os.path.realpath(path))
    return Disk(
        purpose,
        path,
        found.f_bavail * found.f_frsize // MIB,
        found.f_blocks * found.f_frsize // MIB,
        found.f_favail if found.f_files else -1,
        kind,
        kind in NETWORK,
        os.access(path, os.W_OK),
    )


# ------------------------------------------------------------ control groups


def _control_groups() -> tuple[int, tuple[str, ...], str]:
    """The version of control groups, the controllers of this session, and its folder for memory."""
    from gflow.targets.local.cgroups import read_mounts

    with suppress(ValueError, IndexError):
        folders = read_mounts(text_of("/proc/self/mountinfo"), text_of("/proc/self/cgroup")).folders
        if "memory" in folders:
            return 1, tuple(filter(None, folders)), folders["memory"]
        if "" in folders:
            return 2, tuple(text_of(f"{folders['']}/cgroup.controllers").split()), folders[""]
        return int(bool(folders)), tuple(folders), ""
    return 0, (), ""


def _may_limit_memory(version: int, folder: str) -> bool:
    """Whether this user may make groups with a memory limit; the daemon searches upwards, too."""
    if version == 1 and folder:
        return os.access(folder, os.W_OK) and _is_writable_mount(folder)
    while version == 2 and folder and os.path.exists(f"{folder}/cgroup.procs"):
        has_memory = "memory" in text_of(f"{folder}/cgroup.controllers").split()
        if has_memory and os.access(f"{folder}/cgroup.procs", os.W_OK) and _is_writable_mount(folder):
            return True
        folder = os.path.dirname(folder)
    return False


def _is_writable_mount(folder: str) -> bool:
    """`access` allows root everything except a file system that is mounted read-only."""
    return not os.statvfs(folder).f_flag & os.ST_RDONLY


def _memory_limit(folder: str) -> int | None:
    """The smallest memory limit of the group and those above it, in MiB."""
    found = []
    while folder and folder != "/":
        for name in ("memory.max", "memory.limit_in_bytes"):
            value = number_in(f"{folder}/{name}")
            if value is not None and value < 1 << 50:
                found.append(value // MIB)
        folder = os.path.dirname(folder)
    return min(found, default=None)


# ------------------------------------------------------------ clock and schedulers


class _Timex(ctypes.Structure):
    """The start of struct timex; the rest is room for what the kernel writes."""

    _fields_ = [("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long),
                ("maxerror", ctypes.c_long), ("esterror", ctypes.c_long), ("status", ctypes.c_int),
                ("rest", ctypes.c_char * 256)]  # fmt: skip


def _is_clock_synchronized() -> bool | None:
    """What the kernel says, as timedatectl prints it. `modes` 0 changes nothing."""
    found = _Timex()
    with suppress(OSError, AttributeError):
        state: int = ctypes.CDLL(None).adjtimex(ctypes.byref(found))
        return None if state < 0 else not found.status & UNSYNCHRONIZED
    return None


def find_schedulers(programs: Iterator[str]) -> tuple[str, ...]:
    return tuple(sorted({SCHEDULERS[name] for name in programs if name in SCHEDULERS}))


def _programs() -> Iterator[str]:
    """The names of all processes."""
    for path in glob.glob("/proc/[0-9]*/comm"):
        yield text_of(path).strip()
