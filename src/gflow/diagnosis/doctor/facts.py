"""Facts about a machine that the checks judge. A field that could not be read is None or empty."""

from __future__ import annotations

from typing import NamedTuple


class GpuFacts(NamedTuple):
    """One GPU, as the driver reports it."""

    number: int
    model: str = ""
    memory_mib: int = 0
    # The driver's error if the GPU cannot be used.
    problem: str = ""
    compute_capability: str = ""
    temperature: int | None = None
    slowdown_at: int | None = None
    # Throttle reasons as bits of the driver.
    throttled: int = 0
    ecc_errors: int | None = None
    is_remapping_failed: bool = False
    is_remapping_pending: bool = False
    pcie_width: int | None = None
    pcie_most: int | None = None
    has_persistence: bool | None = None
    # 0 default, 1 and 3 exclusive, 2 prohibited.
    compute_mode: int | None = None
    power_limit_w: float | None = None
    power_usual_w: float | None = None
    # Pids of processes that belong to no job of gflow; None: unknown.
    foreign: tuple[int, ...] = ()


class DriverFacts(NamedTuple):
    """The NVIDIA driver. `cuda`: the newest CUDA version that it supports, as in (12, 4)."""

    version: str = ""
    cuda: tuple[int, int] | None = None
    trouble: str = ""
    is_absent: bool = False
    gpus: tuple[GpuFacts, ...] = ()
    # Devices under /dev that the user may not open.
    closed_devices: tuple[str, ...] = ()
    # Xids that the kernel has logged since it started, by number.
    xids: tuple[int, ...] = ()


class PythonFacts(NamedTuple):
    """The Python environment of training scripts, read without importing a package."""

    executable: str = ""
    packages: dict[str, str] = {}
    # torch.version.cuda; "" for a CPU build, None without torch.
    torch_cuda: str | None = None
    library_path: str = ""


class Disk(NamedTuple):
    """A folder that gflow or its jobs write to."""

    purpose: str
    path: str
    free_mib: int
    total_mib: int
    free_inodes: int = -1


class HostFacts(NamedTuple):
    """The machine and the limits of this session."""

    shm_mib: int | None = None
    memory_mib: int = 0
    swap_mib: int = 0
    swap_used_mib: int = 0
    open_files: int = 0
    # Bytes; -1: unlimited.
    locked_memory: int = -1
    processes: int = -1
    inotify_watches: int | None = None
    disks: tuple[Disk, ...] = ()
    # Controllers that limit jobs; "" without control groups.
    cgroup_version: int = 0
    cgroup_controllers: tuple[str, ...] = ()
    is_clock_synchronized: bool | None = None
    other_schedulers: tuple[str, ...] = ()
    is_container: bool = False


class DaemonFacts(NamedTuple):
    """gflow's own state."""

    is_running: bool = False
    trouble: str = ""
    is_read_only: bool = False
    detail: str = ""
    is_system: bool = False
    version: str = ""
    client_version: str = ""
    is_simulated: bool = False
    drained: str = ""
    config_error: str = ""
    has_service: bool = False
    # Whether services of the user outlive a logout; None: not known.
    lingers: bool | None = None
    # Command of Slurm's client, as in /usr/bin/sbatch, if a Slurm target is configured; None: none is.
    slurm_client: str | None = None


class Facts(NamedTuple):
    """All facts of one machine."""

    driver: DriverFacts = DriverFacts()
    python: PythonFacts = PythonFacts()
    host: HostFacts = HostFacts()
    daemon: DaemonFacts = DaemonFacts()
