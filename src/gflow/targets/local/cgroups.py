"""Control groups: find the usable hierarchies, and create a group for each job that needs one.

Killing (version 2, `cgroup.kill`) and limits (memory, CPU weight and processes, version 2 or 1) are chosen
independently, because machines have them in any combination. Without them the shim walks the process tree
and polls the memory itself.

Jobs' groups are created in a base folder of ours, one in each hierarchy. The daemon, its zygote and its shims
hold a shared lock on it while they live; forked processes share the lock. An empty base folder that is not
locked was left by a killed daemon, and the next gflow process removes it.

Standard library only: the shim imports this.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from typing import NamedTuple

from gflow.targets.local.native_shim import restrict_devices

UNLIMITED_WEIGHT = 100
# The kernel's default period of a CPU quota.
CPU_PERIOD_US = 100_000
REMOVE_TRIES = 50


class Layers(NamedTuple):
    """Base folders in which groups can be created; empty: not available. `*_version`: 1 or 2."""

    kill: str = ""
    memory: str = ""
    memory_version: int = 0
    cpu: str = ""
    cpu_version: int = 0
    pids: str = ""
    pids_version: int = 0

    @property
    def folders(self) -> set[str]:
        """The base folders, each once."""
        return {self.kill, self.memory, self.cpu, self.pids} - {""}

    @property
    def description(self) -> str:
        """As text for users: `kill v2, memory v1, cpu v1`."""
        parts = ["kill v2" if self.kill else ""]
        parts += [f"memory v{self.memory_version}" if self.memory else ""]
        parts += [f"cpu v{self.cpu_version}" if self.cpu else ""]
        parts += [f"processes v{self.pids_version}" if self.pids else ""]
        return ", ".join(filter(None, parts)) or "none: process tree and watchdog"


def remove_layers(layers: Layers) -> None:
    """Release our base folders, and remove those that no other process needs."""
    for folder in layers.folders:
        release_base(folder)


def sweep_shims(layers: Layers) -> None:
    """Remove the groups of killed shims: shim-<pid>-<start time>."""
    for folder in {layers.kill, layers.pids} - {""}:
        with suppress(OSError):
            for name in os.listdir(folder):
                pid = name.removeprefix("shim-").partition("-")[0]
                if name.startswith("shim-") and not os.path.exists(f"/proc/{pid}"):
                    with suppress(OSError):  # it still has processes
                        os.rmdir(f"{folder}/{name}")


def drop_shim_groups(layers: Layers, name: str) -> None:
    """Remove the groups of the native shim that became this process. In a version 1 group we are a member."""
    for folder in {layers.kill, layers.pids} - {""}:
        with suppress(OSError):
            if folder == layers.pids and layers.pids_version == 1:
                _write(f"{folder}/../cgroup.procs", "0")
            os.rmdir(f"{folder}/{name}")


def sweep_others(layers: Layers) -> None:
    """Remove the empty base folders of killed daemons."""
    for folder in layers.folders:
        sweep_siblings(folder)


class Mounted(NamedTuple):
    """Our own folder in each mounted hierarchy: {"": v2, "memory": v1, …}."""

    folders: dict[str, str]

    def outside(self, tag: str) -> Mounted:
        """The folders outside our base folder, for a shim that is in one of our groups itself."""
        ours = f"/{PREFIX}{tag}"
        return Mounted(
            {
                name: (path + "/").partition(ours + "/")[0].rstrip("/") or path
                for name, path in self.folders.items()
            }
        )


def read_mounts(mountinfo: str, own: str) -> Mounted:
    """Parse /proc/self/mountinfo and /proc/self/cgroup: our own folder in every hierarchy."""
    places: dict[str, str] = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            places[name] = path
    folders: dict[str, str] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if not kind or kind[0] not in ("cgroup", "cgroup2"):
            continue
        names = [""] if kind[0] == "cgroup2" else kind[2].split(",")
        for name in names:
            if name in places:
                inside = os.path.relpath(places[name], fields[3])
                folders.setdefault(name, os.path.normpath(f"{fields[4]}/{inside}"))
    return Mounted(folders)


def find_layers(tag: str, mounted: Mounted | None = None) -> Layers:
    """Create our base folder, named after `tag`, in each hierarchy that permits it; the usable ones."""
    if os.environ.get("GFLOW_NO_CGROUPS"):
        return Layers()
    if mounted is None:
        mounted = read_mounts(_read("/proc/self/mountinfo"), _read("/proc/self/cgroup"))
    mounted = mounted.outside(tag)
    unified, controllers = _unified(mounted.folders.get("", ""), tag)
    layers = Layers(kill=unified if unified and os.path.exists(f"{unified}/cgroup.kill") else "")
    memory, memory_version = _limit_layer("memory", unified, controllers, mounted, tag)
    cpu, cpu_version = _limit_layer("cpu", unified, controllers, mounted, tag)
    pids, pids_version = _limit_layer("pids", unified, controllers, mounted, tag)
    layers = layers._replace(memory=memory, memory_version=memory_version, cpu=cpu, cpu_version=cpu_version)
    return layers._replace(pids=pids, pids_version=pids_version)


def _limit_layer(
    name: str, unified: str, controllers: set[str], mounted: Mounted, tag: str
) -> tuple[str, int]:
    """The base folder in which groups can have this controller, and its version."""
    if name in controllers:
        return unified, 2
    base = hold_base(mounted.folders.get(name, ""), tag)
    return (base, 1) if base else ("", 0)


def _unified(own: str, tag: str) -> tuple[str, set[str]]:
    """Our base folder in the version 2 tree, and the controllers that groups in it can have.

    A group with processes in it, such as our own, cannot enable controllers for groups below it. So we search
    upwards for the nearest group that can and that we may move processes into; under a service manager our
    base folder is then a sibling of our group. If there is none, groups below our own can still be killed.
    """
    _enable_controllers(own)
    place = own
    while place and os.path.exists(f"{place}/cgroup.procs"):
        base = hold_base(place, tag) if os.access(f"{place}/cgroup.procs", os.W_OK) else ""
        if base and "memory" in (controllers := _enable_controllers(base)):
            return base, controllers
        if base:
            release_base(base)
        place = os.path.dirname(place)
    base = hold_base(own, tag)
    return base, _enable_controllers(base)


def _enable_controllers(folder: str) -> set[str]:
    """Enable the limit controllers for groups below `folder`; all controllers that are then enabled."""
    for name in ("memory", "cpu", "pids"):
        with suppress(OSError):
            _write(f"{folder}/cgroup.subtree_control", f"+{name}")
    return set(_read(f"{folder}/cgroup.subtree_control").split())


# ---------------------------------------------------------------- one job's group


class Group:
    """The control groups of one run: one folder in each hierarchy that is needed."""

    def __init__(self, layers: Layers, name: str) -> None:
        self._layers = layers
        self._kill = f"{layers.kill}/{name}" if layers.kill else ""
        self._memory = f"{layers.memory}/{name}" if layers.memory else ""
        self._cpu = f"{layers.cpu}/{name}" if layers.cpu else ""
        self._pids = f"{layers.pids}/{name}" if layers.pids else ""
        self._made: list[str] = []

    def make(
        self,
        memory_mib: int,
        cpus: int,
        max_processes: int,
        devices: str = "",
        *,
        has_cpu_quota: bool = False,
    ) -> bool:
        """Create the folders and set limits; whether the kernel enforces the memory limit.

        `devices`: rules about devices. OSError: they cannot be enforced. `has_cpu_quota`: `cpus` is also the
        most CPU time that the group gets.
        """
        limits = ((self._memory, memory_mib), (self._cpu, cpus), (self._pids, max_processes))
        wanted = {self._kill, *(folder for folder, limit in limits if limit)} - {""}
        for folder in sorted(wanted):
            try:
                os.makedirs(folder, exist_ok=True)
                self._made.append(folder)
            except OSError:
                continue
        if devices:
            restrict_devices(self._kill, devices)
        if cpus and self._cpu in self._made:
            with suppress(OSError):
                self._set_cpu_weight(cpus)
                if has_cpu_quota:
                    self._set_cpu_quota(cpus)
        if max_processes and self._pids in self._made:
            with suppress(OSError):
                _write(f"{self._pids}/pids.max", str(max_processes))
        if not memory_mib or self._memory not in self._made:
            return False
        try:
            self._set_memory_limit(memory_mib << 20)
        except OSError:
            return False
        return True

    def _set_memory_limit(self, limit: int) -> None:
        if self._layers.memory_version == 2:
            _write(f"{self._memory}/memory.max", str(limit))
            _write(f"{self._memory}/memory.oom.group", "1")
            with suppress(OSError):
                _write(f"{self._memory}/memory.swap.max", "0")
            return
        _write(f"{self._memory}/memory.limit_in_bytes", str(limit))
        with suppress(OSError):
            _write(f"{self._memory}/memory.memsw.limit_in_bytes", str(limit))

    def _set_cpu_weight(self, cpus: int) -> None:
        if self._layers.cpu_version == 2:
            _write(f"{self._cpu}/cpu.weight", str(min(10_000, UNLIMITED_WEIGHT * cpus)))
        else:
            _write(f"{self._cpu}/cpu.shares", str(min(262_144, 1024 * cpus)))

    def _set_cpu_quota(self, cpus: int) -> None:
        if self._layers.cpu_version == 2:
            _write(f"{self._cpu}/cpu.max", f"{cpus * CPU_PERIOD_US} {CPU_PERIOD_US}")
        else:
            _write(f"{self._cpu}/cpu.cfs_period_us", str(CPU_PERIOD_US))
            _write(f"{self._cpu}/cpu.cfs_quota_us", str(cpus * CPU_PERIOD_US))

    def join(self, pid: int = 0) -> None:
        """Put a process (0: ourselves) and its future children into the group."""
        for folder in self._made:
            with suppress(ProcessLookupError):
                _write(f"{folder}/cgroup.procs", str(pid))

    def kill(self) -> None:
        """KILL everything in the group in one step, where the kernel supports it."""
        if self._kill:
            with suppress(OSError):
                _write(f"{self._kill}/cgroup.kill", "1")

    def out_of_memory(self) -> bool:
        """Whether the kernel killed something here because the limit was reached."""
        if not self._memory or self._memory not in self._made:
            return False
        name = "memory.events" if self._layers.memory_version == 2 else "memory.oom_control"
        for line in _read(f"{self._memory}/{name}").splitlines():
            word, _, count = line.partition(" ")
            if word == "oom_kill":
                return int(count) > 0
        return False

    def watch_memory(self) -> int | None:
        """A descriptor that becomes readable when the limit is reached.

        Version 1 then kills one process and lets the others continue; version 2 kills them all, and there is
        nothing to watch.
        """
        if self._layers.memory_version != 1 or self._memory not in self._made:
            return None
        event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            control = os.open(f"{self._memory}/memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _write(f"{self._memory}/cgroup.event_control", f"{event} {control}")
            finally:
                os.close(control)
        except OSError:
            os.close(event)
            return None
        return event

    def peak_kib(self) -> int | None:
        """The memory peak of the group; None if the kernel does not report it (version 2 before 5.19)."""
        if not self._memory or self._memory not in self._made:
            return None
        name = "memory.peak" if self._layers.memory_version == 2 else "memory.max_usage_in_bytes"
        text = _read(f"{self._memory}/{name}")
        return int(text) >> 10 if text else None

    def cpu_ms(self) -> int:
        """CPU time of all processes that ever ran in the group; 0 if the kernel does not report it."""
        text = _read(f"{self._kill}/cpu.stat") if self._kill in self._made else ""
        return next(
            (int(line[11:]) // 1000 for line in text.splitlines() if line.startswith("usage_usec ")), 0
        )

    def remove(self) -> None:
        """Remove the folders. They are empty, but the kernel may need a moment to notice."""
        for folder in self._made:
            for _ in range(REMOVE_TRIES):
                try:
                    os.rmdir(folder)
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.001)
                else:
                    break
        self._made = []

    @property
    def is_found(self) -> bool:
        """Whether this group exists where devices are restricted."""
        return self._kill in self._made

    def find(self) -> Group:
        """Attach to the folders of this group that an earlier process has created."""
        self._made = [
            folder
            for folder in {self._kill, self._memory, self._cpu, self._pids}
            if folder and os.path.isdir(folder)
        ]
        return self


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


PREFIX = "gflow-"
OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_base_locks: dict[str, int] = {}


def hold_base(folder: str, tag: str) -> str:
    """Create our base folder in this one and lock it; empty if we may not use it."""
    if not folder:
        return ""
    path = f"{folder}/{PREFIX}{tag}"
    try:
        while path not in _base_locks:
            with suppress(FileExistsError):  # another daemon removed it between two system calls
                os.makedirs(path, exist_ok=True)
            if (fd := _open_locked(path)) is not None:
                _base_locks[path] = fd
        return path if os.access(f"{path}/cgroup.procs", os.W_OK) else ""
    except OSError:
        return ""


def release_base(path: str) -> None:
    """Unlock a base folder, and remove it if no other process holds it and no job has a group in it."""
    if path in _base_locks:
        os.close(_base_locks.pop(path))
    _remove_if_unused(path)


def sweep_siblings(path: str) -> None:
    """Remove unused base folders of killed daemons next to ours."""
    above = os.path.dirname(path)
    with suppress(OSError):
        for name in os.listdir(above):
            if name.startswith(PREFIX) and f"{above}/{name}" != path:
                _remove_if_unused(f"{above}/{name}")


def _remove_if_unused(path: str) -> None:
    with suppress(OSError):
        fd = os.open(path, OPEN)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rmdir(path)
        finally:
            os.close(fd)


def _open_locked(path: str) -> int | None:
    """Open and lock a base folder; None: another process has removed it meanwhile."""
    try:
        fd = os.open(path, OPEN)
    except FileNotFoundError:
        return None
    fcntl.flock(fd, fcntl.LOCK_SH)
    with suppress(FileNotFoundError):
        if os.path.samestat(os.stat(path), os.fstat(fd)):
            return fd
    os.close(fd)
    return None
