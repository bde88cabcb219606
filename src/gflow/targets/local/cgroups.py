"""Control groups: what this machine lets us use, and one group per job that needs one.

Two layers are chosen apart from each other, because machines have them in any combination:
killing (version 2, `cgroup.kill`) and limits (memory, CPU weight and processes, version 2 or 1). Where
there is none, the shim's own walk of the process tree and its watchdog do the work.

Standard library only: this runs beside jobs.

The folders of ours in which jobs' control groups are made: one in each hierarchy, held while it is needed.

A daemon, its zygote and its shims lock them as long as they live; forked processes share the lock.
An empty one that nobody holds was left by somebody who was killed: whoever comes by drops it.

Standard library only: this runs beside jobs.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from typing import NamedTuple

UNLIMITED_WEIGHT = 100
REMOVE_TRIES = 50


class Layers(NamedTuple):
    """Folders under which groups can be made; empty: not here. `*_version`: 1 or 2."""

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
    def shown(self) -> str:
        """For people: `kill v2, memory v1, cpu v1`."""
        parts = ["kill v2" if self.kill else ""]
        parts += [f"memory v{self.memory_version}" if self.memory else ""]
        parts += [f"cpu v{self.cpu_version}" if self.cpu else ""]
        parts += [f"processes v{self.pids_version}" if self.pids else ""]
        return ", ".join(filter(None, parts)) or "none: process tree and watchdog"


def remove_layers(layers: Layers) -> None:
    """Let go of our base folders and drop them, unless somebody needs them still."""
    for folder in layers.folders:
        let_go(folder)


def sweep_shims(layers: Layers) -> None:
    """Drop groups of shims that were killed: shim-<pid>-<when it started>."""
    for folder in {layers.kill, layers.pids} - {""}:
        with suppress(OSError):
            for name in os.listdir(folder):
                pid = name.removeprefix("shim-").partition("-")[0]
                if name.startswith("shim-") and not os.path.exists(f"/proc/{pid}"):
                    with suppress(OSError):  # there is somebody in it still
                        os.rmdir(f"{folder}/{name}")


def drop_shim_groups(layers: Layers, name: str) -> None:
    """Drop the groups of the plain shim that we have been; in that of version 1 we are ourselves."""
    for folder in {layers.kill, layers.pids} - {""}:
        with suppress(OSError):
            if folder == layers.pids and layers.pids_version == 1:
                _write(f"{folder}/../cgroup.procs", "0")
            os.rmdir(f"{folder}/{name}")


def sweep_others(layers: Layers) -> None:
    """Drop the empty base folders of daemons that were killed and never came back."""
    for folder in layers.folders:
        sweep_beside(folder)


class Mounted(NamedTuple):
    """Where the hierarchies are and where we are in each: {"": v2, "memory": v1, …}."""

    folders: dict[str, str]

    def outside(self, tag: str) -> Mounted:
        """The same for a shim that is in a group of ours itself: our base folder is above it, not below."""
        ours = f"/{PREFIX}{tag}"
        return Mounted(
            {
                name: (path + "/").partition(ours + "/")[0].rstrip("/") or path
                for name, path in self.folders.items()
            }
        )


def read_mounts(mountinfo: str, own: str) -> Mounted:
    """Our own folder in every hierarchy, from the text of /proc/self/mountinfo and /proc/self/cgroup."""
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
    """Make our base folder in each hierarchy that lets us, named after `tag`; what can be used."""
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
    """Where groups with this controller can be made, and of which version."""
    if name in controllers:
        return unified, 2
    base = hold(mounted.folders.get(name, ""), tag)
    return (base, 1) if base else ("", 0)


def _unified(own: str, tag: str) -> tuple[str, set[str]]:
    """Our base folder in the version 2 tree, and the controllers that groups in it can have.

    A group with processes in it, such as our own, cannot give limits to groups below it. So we
    look upwards for the nearest place that can and where we may put processes; under a service
    manager that is beside us, not below us. If there is none, groups below our own can still be killed.
    """
    _allow(own)
    place = own
    while place and os.path.exists(f"{place}/cgroup.procs"):
        base = hold(place, tag) if os.access(f"{place}/cgroup.procs", os.W_OK) else ""
        if base and "memory" in (controllers := _allow(base)):
            return base, controllers
        if base:
            let_go(base)
        place = os.path.dirname(place)
    base = hold(own, tag)
    return base, _allow(base)


def _allow(folder: str) -> set[str]:
    """Let groups below `folder` have the controllers of limits; those that they then have."""
    for name in ("memory", "cpu", "pids"):
        with suppress(OSError):
            _write(f"{folder}/cgroup.subtree_control", f"+{name}")
    return set(_read(f"{folder}/cgroup.subtree_control").split())


# ---------------------------------------------------------------- one job's group


class Group:
    """The control groups of one run: one folder, or one in each hierarchy that is needed."""

    def __init__(self, layers: Layers, name: str) -> None:
        self._layers = layers
        self._kill = f"{layers.kill}/{name}" if layers.kill else ""
        self._memory = f"{layers.memory}/{name}" if layers.memory else ""
        self._cpu = f"{layers.cpu}/{name}" if layers.cpu else ""
        self._pids = f"{layers.pids}/{name}" if layers.pids else ""
        self._made: list[str] = []

    def make(self, memory_mib: int, cpus: int, max_processes: int) -> bool:
        """Make the folders and set limits; whether the memory limit is held by the kernel."""
        limits = ((self._memory, memory_mib), (self._cpu, cpus), (self._pids, max_processes))
        wanted = {self._kill, *(folder for folder, limit in limits if limit)} - {""}
        for folder in sorted(wanted):
            try:
                os.makedirs(folder, exist_ok=True)
                self._made.append(folder)
            except OSError:
                continue
        if cpus and self._cpu in self._made:
            with suppress(OSError):
                self._weigh(cpus)
        if max_processes and self._pids in self._made:
            with suppress(OSError):
                _write(f"{self._pids}/pids.max", str(max_processes))
        if not memory_mib or self._memory not in self._made:
            return False
        try:
            self._limit(memory_mib << 20)
        except OSError:
            return False
        return True

    def _limit(self, limit: int) -> None:
        if self._layers.memory_version == 2:
            _write(f"{self._memory}/memory.max", str(limit))
            _write(f"{self._memory}/memory.oom.group", "1")
            with suppress(OSError):
                _write(f"{self._memory}/memory.swap.max", "0")
            return
        _write(f"{self._memory}/memory.limit_in_bytes", str(limit))
        with suppress(OSError):
            _write(f"{self._memory}/memory.memsw.limit_in_bytes", str(limit))

    def _weigh(self, cpus: int) -> None:
        if self._layers.cpu_version == 2:
            _write(f"{self._cpu}/cpu.weight", str(min(10_000, UNLIMITED_WEIGHT * cpus)))
        else:
            _write(f"{self._cpu}/cpu.shares", str(min(262_144, 1024 * cpus)))

    def join(self, pid: int = 0) -> None:
        """Put a process (0: ourselves) and its future children into the group."""
        for folder in self._made:
            with suppress(ProcessLookupError):
                _write(f"{folder}/cgroup.procs", str(pid))

    def kill(self) -> None:
        """KILL everything in the group, in one step, where the kernel can."""
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

        Version 1 then kills one process and lets the others go on; version 2 kills them all and needs
        no watching.
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
        """The most memory the group ever used; None if the kernel does not tell (version 2 before 5.19)."""
        if not self._memory or self._memory not in self._made:
            return None
        name = "memory.peak" if self._layers.memory_version == 2 else "memory.max_usage_in_bytes"
        text = _read(f"{self._memory}/{name}")
        return int(text) >> 10 if text else None

    def cpu_ms(self) -> int:
        """CPU time of all that ever ran in the group; 0 if the kernel does not tell."""
        text = _read(f"{self._kill}/cpu.stat") if self._kill in self._made else ""
        return next(
            (int(line[11:]) // 1000 for line in text.splitlines() if line.startswith("usage_usec ")), 0
        )

    def remove(self) -> None:
        """Drop the folders. They are empty, but the kernel may need a moment to see it."""
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

    def find(self) -> Group:
        """The same group, as an earlier process may have left it."""
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
_held: dict[str, int] = {}


def hold(folder: str, tag: str) -> str:
    """Make our folder in this one and hold it; empty if we may not use it."""
    if not folder:
        return ""
    path = f"{folder}/{PREFIX}{tag}"
    try:
        while path not in _held:
            os.makedirs(path, exist_ok=True)
            if (fd := _locked(path)) is not None:
                _held[path] = fd
        return path if os.access(f"{path}/cgroup.procs", os.W_OK) else ""
    except OSError:
        return ""


def let_go(path: str) -> None:
    """Hold it no longer; drop it if nobody else does and no job has a group in it."""
    if path in _held:
        os.close(_held.pop(path))
    _sweep(path)


def sweep_beside(path: str) -> None:
    """Drop what killed daemons left beside this one of ours."""
    above = os.path.dirname(path)
    with suppress(OSError):
        for name in os.listdir(above):
            if name.startswith(PREFIX) and f"{above}/{name}" != path:
                _sweep(f"{above}/{name}")


def _sweep(path: str) -> None:
    with suppress(OSError):
        fd = os.open(path, OPEN)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rmdir(path)
        finally:
            os.close(fd)


def _locked(path: str) -> int | None:
    """The folder, opened and locked; None: it was swept away meanwhile."""
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
