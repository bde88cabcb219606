"""GPUs that are not there: a stand-in for NVIDIA's library, built by the test run and driven live.

`MockGpus(folder, 4)` has four GPUs; a daemon started with its `env` sees them. What a test changes,
the daemon's next look finds.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
MIB = 1 << 20
DEVICES, PROCESSES, TEXT = 32, 160, 96
COMPUTE, GRAPHICS, MPS = 0, 1, 2
UNKNOWN_BYTES = (1 << 64) - 1
LOST, NOT_LOADED, UNKNOWN_ERROR = 15, 9, 999


class _Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint32), ("kind", ctypes.c_uint32), ("bytes", ctypes.c_uint64)]


def _numbers(kind, *names):
    return [(name, kind) for name in names]


class Device(ctypes.Structure):
    """One GPU; the fields are those of nvml.c."""

    _fields_ = [
        ("uuid", ctypes.c_char * TEXT),
        ("name", ctypes.c_char * TEXT),
        ("bus", ctypes.c_char * 32),
        *_numbers(ctypes.c_uint64, "total", "used", "reserved"),
        *_numbers(ctypes.c_int32, "present", "error", "parent"),
        *_numbers(ctypes.c_int32, "mig", "busy", "busy_memory", "milliwatts", "celsius", "clock"),
        *_numbers(ctypes.c_int32, "memory_clock"),
        *_numbers(ctypes.c_uint64, "slowed", "ecc"),
        *_numbers(ctypes.c_int32, "width", "most_width", "node", "limping"),
        *_numbers(ctypes.c_int32, "limit_milliwatts", "received_kb"),
        ("xid", ctypes.c_uint32),
        ("count", ctypes.c_int32),
        ("links", ctypes.c_uint32),
        ("living", ctypes.c_int32),
        ("processes", _Process * PROCESSES),
    ]

    def run(self, pid: int, mib: int | None, kind: int = COMPUTE) -> None:
        """Let this process use so much of the GPU; again: so much now. None: the driver does not say."""
        for process in self.processes[: self.count]:
            if process.pid == pid:
                self.used += (mib or 0) * MIB - (process.bytes if process.bytes != UNKNOWN_BYTES else 0)
                process.bytes = UNKNOWN_BYTES if mib is None else mib * MIB
                return
        process = self.processes[self.count]
        process.pid, process.kind = pid, kind
        process.bytes = UNKNOWN_BYTES if mib is None else mib * MIB
        self.used += (mib or 0) * MIB
        self.count += 1

    def end(self, pid: int) -> None:
        """This process uses the GPU no more."""
        kept = [(p.pid, p.kind, p.bytes) for p in self.processes[: self.count] if p.pid != pid]
        self.count = 0
        for at, (other, kind, size) in enumerate(kept):
            self.processes[at] = _Process(other, kind, size)
        self.count = len(kept)
        self.used = sum(size for _, _, size in kept if size != UNKNOWN_BYTES)


class _Machine(ctypes.Structure):
    _fields_ = [
        *_numbers(ctypes.c_int32, "hang", "init_error", "lock", "unused"),
        *_numbers(ctypes.c_int64, "calls", "inits"),
        ("devices", Device * DEVICES),
    ]


class MockGpus:
    """A machine's GPUs, and the environment in which a daemon sees them."""

    def __init__(
        self, folder: Path, count: int = 1, *, memory_mib: int = 81559, name: str = "NVIDIA A100"
    ) -> None:
        self.library = build(folder)
        path = folder / "gpus.bin"
        path.write_bytes(bytes(ctypes.sizeof(_Machine)))
        path.chmod(0o666)  # the library counts calls, as any user
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.machine = _Machine.from_buffer(self._map)
        self.env = {"LD_LIBRARY_PATH": str(self.library.parent), "GFLOW_MOCK_NVML": str(path)}
        self.env["GFLOW_GPU__TRUST_PIDS"] = "true"
        for device in self.machine.devices:
            device.parent = -1
        for index in range(count):
            self.add(index, memory_mib=memory_mib, name=name)

    def __getitem__(self, index: int) -> Device:
        device: Device = self.machine.devices[index]
        return device

    def add(
        self, index: int, *, memory_mib: int = 81559, name: str = "NVIDIA A100", parent: int = -1
    ) -> Device:
        """A GPU at this place; with `parent`, a MIG slice of that one."""
        device = self[index]
        kind = "GPU" if parent < 0 else "MIG"
        device.uuid = f"{kind}-{index:08x}-0000-0000-0000-000000000000".encode()
        device.name = name.encode()
        device.bus = f"00000000:{index + 1:02X}:00.0".encode()
        device.total, device.reserved = memory_mib * MIB, 600 * MIB
        device.parent, device.celsius, device.milliwatts = parent, 35, 70_000
        device.clock, device.memory_clock = 1200, 2600
        device.width = device.most_width = 16
        device.limit_milliwatts = 400_000
        if parent >= 0:
            self[parent].mig = 1
        device.present = 1
        return device


def build(folder: Path) -> Path:
    """The stand-in libraries, compiled."""
    place = folder / "mock"
    place.mkdir(parents=True, exist_ok=True)
    for source, name in (("nvml.c", "libnvidia-ml.so.1"), ("cuda.c", "libcuda.so.1")):
        command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(place / name), str(HERE / source)]
        subprocess.run(command, check=True, capture_output=True)
    return place / "libnvidia-ml.so.1"
