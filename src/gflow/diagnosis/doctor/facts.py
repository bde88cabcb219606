"""Facts about a machine that the checks judge. A field that could not be read is None or empty."""

from __future__ import annotations

from typing import NamedTuple


class GpuFacts(NamedTuple):
    """One GPU or MIG slice, as the driver reports it."""

    number: int
    model: str = ""
    memory_mib: int = 0
    uuid: str = ""
    # The driver's error if the GPU cannot be used.
    problem: str = ""
    compute_capability: str = ""
    temperature: int | None = None
    slowdown_at: int | None = None
    # Throttle reasons as bits of the driver.
    throttled: int = 0
    ecc_errors: int | None = None
    # Whether ECC is on; None: the GPU has none.
    has_ecc: bool | None = None
    is_remapping_failed: bool = False
    is_remapping_pending: bool = False
    pcie_width: int | None = None
    pcie_most: int | None = None
    # The highest PCIe generation of card and slot.
    pcie_generation: int | None = None
    has_persistence: bool | None = None
    # 0 default, 1 and 3 exclusive, 2 prohibited.
    compute_mode: int | None = None
    power_limit_w: float | None = None
    power_usual_w: float | None = None
    # MIG now and after the next reset; None: the GPU has none. `slices`: MIG devices on it.
    is_mig: bool | None = None
    is_mig_next: bool | None = None
    slices: int = 0
    # NVLinks that are up, and all that the card has.
    links_up: int = 0
    links: int = 0
    link_errors: int = 0
    # State of the NVSwitch fabric; "": the GPU has none.
    fabric: str = ""
    numa_node: int = -1
    # Jobs of gflow on it, and pids of all its compute processes.
    jobs: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()
    # Pids of processes that belong to no job of gflow.
    foreign: tuple[int, ...] = ()


class DriverFacts(NamedTuple):
    """The NVIDIA driver. `cuda`: the newest CUDA version that it supports, as in (12, 4)."""

    version: str = ""
    cuda: tuple[int, int] | None = None
    trouble: str = ""
    # Whether it has not answered in time.
    is_slow: bool = False
    is_absent: bool = False
    gpus: tuple[GpuFacts, ...] = ()
    # Devices under /dev that the user may not open.
    closed_devices: tuple[str, ...] = ()
    # Xids that the kernel has logged since it started, by number, and the meaning of those of the card.
    xids: tuple[int, ...] = ()
    xid_meanings: dict[int, str] = {}
    # Pairs of GPU numbers that cannot copy to each other directly, with the driver's reason.
    no_p2p: tuple[tuple[int, int, str], ...] = ()
    # How many pairs can.
    p2p_pairs: int = 0
    # NVIDIA GPUs on the PCI bus, whether the open driver nouveau has them, and whether /dev/nvidia* exist.
    on_bus: int = 0
    has_nouveau: bool = False
    has_devices: bool = False
    # The control program of MPS, and whether an MPS daemon of another program than gflow runs.
    mps_program: str = ""
    is_mps_running: bool = False

    @property
    def has_no_gpu(self) -> bool:
        """Whether this machine has no NVIDIA GPU at all, also none without a driver."""
        return self.is_absent and not self.on_bus and not self.has_nouveau


class Pin(NamedTuple):
    """A version that a package requires exactly, and the one that is installed; "": none is."""

    package: str
    requires: str
    version: str
    installed: str


class LibraryFolder(NamedTuple):
    """A folder of LD_LIBRARY_PATH with libraries of CUDA: their file names."""

    path: str
    libraries: tuple[str, ...]


class PythonFacts(NamedTuple):
    """A Python environment of training scripts, read without importing a package."""

    executable: str = ""
    version: str = ""
    # Why the environment could not be read.
    trouble: str = ""
    packages: dict[str, str] = {}
    # torch.version.cuda; "" for a CPU build, None without torch.
    torch_cuda: str | None = None
    # Folders that have a torch, in the order in which Python searches them.
    torch_folders: tuple[str, ...] = ()
    # Packages of CUDA (NCCL, cuDNN, …) whose installed version is not the required one.
    pins: tuple[Pin, ...] = ()
    # Folders of LD_LIBRARY_PATH with libraries of CUDA.
    library_folders: tuple[LibraryFolder, ...] = ()


class Toolkit(NamedTuple):
    """A CUDA toolkit on disk."""

    path: str
    version: str


class CudaFacts(NamedTuple):
    """CUDA outside of Python packages."""

    toolkits: tuple[Toolkit, ...] = ()
    # `nvcc` on PATH.
    nvcc: str = ""
    nvcc_version: str = ""
    # CUDA_HOME, and whether it exists.
    home: str = ""
    is_home_missing: bool = False
    # Libraries of the system: versions of libnccl and libcudnn.
    nccl: str = ""
    cudnn: str = ""


class Disk(NamedTuple):
    """A folder that gflow or its jobs write to."""

    purpose: str
    path: str
    free_mib: int
    total_mib: int
    free_inodes: int = -1
    # The type of its file system, and whether it is on a network.
    kind: str = ""
    is_remote: bool = False
    is_writable: bool = True


class Limits(NamedTuple):
    """Resource limits of a process; -1: unlimited. Sizes are in bytes."""

    open_files: int = -1
    locked_memory: int = -1
    processes: int = -1
    address_space: int = -1
    file_size: int = -1


class HostFacts(NamedTuple):
    """The machine and the limits of this session."""

    shm_mib: int | None = None
    shm_free_mib: int | None = None
    memory_mib: int = 0
    available_mib: int | None = None
    # The memory limit of the container or session; None: none.
    memory_limit_mib: int | None = None
    swap_mib: int = 0
    swap_used_mib: int = 0
    limits: Limits = Limits()
    inotify_watches: int | None = None
    inotify_instances: int | None = None
    disks: tuple[Disk, ...] = ()
    # Controllers that limit jobs; "" without control groups.
    cgroup_version: int = 0
    cgroup_controllers: tuple[str, ...] = ()
    # Whether this user may make groups with a memory limit.
    may_limit_memory: bool = False
    is_clock_synchronized: bool | None = None
    other_schedulers: tuple[str, ...] = ()
    has_systemd: bool = True
    # Whether HOME is set.
    has_home: bool = True
    is_container: bool = False
    numa_nodes: int = 1
    has_infiniband: bool = False
    # Whether the C compiler exists that torch.compile and CUDA extensions call.
    has_compiler: bool = True


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
    gpu_count: int = 0
    drained: str = ""
    # Why a job of the system daemon can open the GPUs of other jobs.
    isolation_problem: str = ""
    # Jobs that run and that the database does not know.
    strays: tuple[str, ...] = ()
    config_error: str = ""
    config_hint: str = ""
    # Settings in the file that are ignored.
    config_notes: tuple[str, ...] = ()
    # Files that other users may change, and files with passwords that other users may read.
    open_configs: tuple[str, ...] = ()
    readable_secrets: tuple[str, ...] = ()
    has_service: bool = False
    # What systemd says of the service: active, inactive, failed; "": it does not answer.
    service_state: str = ""
    # Whether services of the user outlive a logout; None: not known.
    lingers: bool | None = None
    # Whether logind kills the processes of a user at logout.
    kills_at_logout: bool = False
    # Command of Slurm's client, as in /usr/bin/sbatch, if a Slurm target is configured; None: none is.
    slurm_client: str | None = None
    # Why the Slurm controller does not answer; "": it does, or was not asked.
    slurm_trouble: str = ""
    # Folders of targets that are missing or cannot be written.
    closed_folders: tuple[str, ...] = ()


class Facts(NamedTuple):
    """All facts of one machine. `late`: parts that took too long to read.

    `missing_extras`: extras of gflow that are not installed; `extras_command`: the command that adds them.
    """

    driver: DriverFacts = DriverFacts()
    python: PythonFacts = PythonFacts()
    host: HostFacts = HostFacts()
    daemon: DaemonFacts = DaemonFacts()
    cuda: CudaFacts = CudaFacts()
    late: tuple[str, ...] = ()
    missing_extras: tuple[str, ...] = ()
    extras_command: str = ""
