"""Collect the facts of this machine for `gflow doctor`. Nothing is changed."""

from __future__ import annotations

import glob
import os
import re
import resource
import shutil
import subprocess
from contextlib import suppress
from typing import Any

import gflow
from gflow import paths
from gflow.client import http
from gflow.diagnosis.doctor.facts import (
    DaemonFacts,
    Disk,
    DriverFacts,
    Facts,
    GpuFacts,
    HostFacts,
    PythonFacts,
)
from gflow.errors import GflowError

MIB = 1 << 20
# Packages whose versions are shown.
PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "deepspeed",
    "jax",
    "tensorflow",
    "numpy",
    "nvidia_nccl",
    "nvidia_cudnn",
)
SCHEDULERS = {"slurmd": "Slurm", "pbs_mom": "PBS", "sge_execd": "Grid Engine", "condor_startd": "HTCondor"}


def collect() -> Facts:
    """All facts. Each part that fails leaves its fields empty."""
    daemon, foreign = _daemon()
    driver = _driver()
    gpus = tuple(gpu._replace(foreign=foreign.get(gpu.number, ())) for gpu in driver.gpus)
    return Facts(driver._replace(gpus=gpus), _python(), _host(), daemon)


def _daemon() -> tuple[DaemonFacts, dict[int, tuple[int, ...]]]:
    """The state of gflow, and the processes on each GPU that belong to no job."""
    from gflow.config import load

    found = DaemonFacts(client_version=gflow.__version__, has_service=_has_service(), lingers=_lingers())
    try:
        config = load.load({}, os.environ)
        if config["targets"]:
            found = found._replace(slurm_client=shutil.which("sbatch") or "")
    except GflowError as error:
        found = found._replace(config_error=str(error))
    try:
        status = http.get("/status")
        info = http.get("/info")
    except (GflowError, OSError) as error:
        return found._replace(trouble=str(error) if not isinstance(error, OSError) else ""), {}
    foreign = {gpu["index"]: tuple(one["pid"] for one in gpu["processes"]) for gpu in info["gpus"]}
    found = found._replace(
        is_running=True,
        is_read_only=bool(status["read_only"]),
        detail=status["read_only"],
        is_system=status["socket"] == paths.system_socket(os.environ.get),
        version=status["version"],
        is_simulated=status["gpu_simulated"],
        drained=(info["reason"] or "no reason given") if info["drained"] else "",
    )
    return found, foreign


def _has_service() -> bool:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.exists(f"{home}/systemd/user/gflowd.service")


def _lingers() -> bool | None:
    if not os.path.isdir("/var/lib/systemd"):
        return None
    import pwd

    return os.path.exists(f"/var/lib/systemd/linger/{pwd.getpwuid(os.getuid()).pw_name}")


# ------------------------------------------------------------ GPUs


def _driver() -> DriverFacts:
    from gflow.gpu.nvml import Nvml

    look = Nvml().look()
    if look.trouble:
        return DriverFacts(trouble=look.trouble, is_absent=look.absent)
    devices = [*glob.glob("/dev/nvidia[0-9]*"), *glob.glob("/dev/nvidiactl"), *glob.glob("/dev/nvidia-uvm")]
    closed = tuple(path for path in devices if not os.access(path, os.R_OK | os.W_OK))
    gpus = tuple(
        GpuFacts(
            number=card.number,
            model=card.model,
            memory_mib=card.memory_mib,
            problem=card.problem,
            temperature=card.sample.temperature,
            slowdown_at=card.vitals.slowdown_at,
            throttled=card.sample.slowed,
            ecc_errors=card.vitals.ecc_errors,
            is_remapping_failed=card.vitals.remapping_failed,
            pcie_width=card.vitals.width,
            pcie_most=card.vitals.most_width,
            **_settings_of(card.uuid),
        )
        for card in look.cards
    )
    return DriverFacts(look.driver, _cuda_of_driver(), "", False, gpus, closed, _logged_xids())


def _settings_of(uuid: str) -> dict[str, Any]:
    """Settings of a GPU that only an administrator changes."""
    import pynvml

    def ask(question: Any, *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except pynvml.NVMLError:
            return None

    handle = ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
    if handle is None:
        return {}
    capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    rows = ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    persistence = ask(pynvml.nvmlDeviceGetPersistenceMode, handle)
    limit = ask(pynvml.nvmlDeviceGetPowerManagementLimit, handle)
    usual = ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    return {
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else "",
        "is_remapping_pending": bool(rows and rows[2]),
        "has_persistence": None if persistence is None else bool(persistence),
        "compute_mode": ask(pynvml.nvmlDeviceGetComputeMode, handle),
        "power_limit_w": limit and limit / 1000,
        "power_usual_w": usual and usual / 1000,
    }


def _cuda_of_driver() -> tuple[int, int] | None:
    import pynvml

    with suppress(pynvml.NVMLError):
        number = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        return number // 1000, number % 1000 // 10
    return None


def _logged_xids() -> tuple[int, ...]:
    """Numbers of Xids in the kernel's log, where this user may read it."""
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["journalctl", "-k", "-b", "--no-pager", "-q", "--grep", "NVRM: Xid"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2)
        return tuple(int(number) for number in re.findall(r"NVRM: Xid \([^)]*\): (\d+)", done.stdout))
    return ()


# ------------------------------------------------------------ Python


def _python() -> PythonFacts:
    """The environment that `python3` on PATH belongs to: the one of the user's scripts."""
    program = shutil.which("python3") or ""
    prefix = _prefix_of(program)
    folders = glob.glob(f"{prefix}/lib/python3*/site-packages") + glob.glob(
        f"{prefix}/lib/python3/dist-packages"
    )
    packages: dict[str, str] = {}
    for folder in folders:
        for path in glob.glob(f"{folder}/*.dist-info"):
            name, _, version = os.path.basename(path).removesuffix(".dist-info").partition("-")
            if name.lower().startswith(PACKAGES):
                packages.setdefault(name.lower(), version)
    return PythonFacts(
        program, packages, _torch_cuda(folders, packages), os.environ.get("LD_LIBRARY_PATH", "")
    )


def _prefix_of(program: str) -> str:
    """`sys.prefix` of a Python program, which may be a shim of pyenv."""
    with suppress(OSError, subprocess.TimeoutExpired):
        command = [program, "-I", "-S", "-c", "import sys; print(sys.prefix)"]
        return subprocess.run(command, capture_output=True, text=True, timeout=2).stdout.strip()
    return ""


def _torch_cuda(folders: list[str], packages: dict[str, str]) -> str | None:
    """`torch.version.cuda`, read from its file: importing torch takes seconds."""
    if "torch" not in packages:
        return None
    for folder in folders:
        with suppress(OSError), open(f"{folder}/torch/version.py") as file:
            found = re.search(r"^cuda(?:: [^=]*)? = '([\d.]+)'", file.read(), re.MULTILINE)
            return found[1] if found else ""
    return ""


# ------------------------------------------------------------ the host


def _host() -> HostFacts:
    memory = _meminfo()
    swap, free = memory.get("SwapTotal", 0), memory.get("SwapFree", 0)
    version, controllers = _control_groups()
    return HostFacts(
        shm_mib=_disk("", "/dev/shm").total_mib if os.path.isdir("/dev/shm") else None,
        memory_mib=memory.get("MemTotal", 0) >> 10,
        swap_mib=swap >> 10,
        swap_used_mib=(swap - free) >> 10,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        locked_memory=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        processes=resource.getrlimit(resource.RLIMIT_NPROC)[0],
        inotify_watches=_number("/proc/sys/fs/inotify/max_user_watches"),
        disks=_disks(),
        cgroup_version=version,
        cgroup_controllers=controllers,
        is_clock_synchronized=_is_clock_synchronized(),
        other_schedulers=_other_schedulers(),
        is_container=os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"),
    )


def _meminfo() -> dict[str, int]:
    """/proc/meminfo, in KiB."""
    with open("/proc/meminfo") as file:
        return {line.split(":")[0]: int(line.split()[1]) for line in file}


def _number(path: str) -> int | None:
    with suppress(OSError, ValueError), open(path) as file:
        return int(file.read())
    return None


def _disks() -> tuple[Disk, ...]:
    """The folders that gflow and its jobs write to, each file system once."""
    wanted = {
        "jobs and logs": paths.data_dir(os.environ.get),
        "this folder": os.getcwd(),
        "home": os.path.expanduser("~"),
        "temporary files": os.environ.get("TMPDIR", "/tmp"),
    }
    found: dict[int, Disk] = {}
    for purpose, path in wanted.items():
        while not os.path.isdir(path) and path != "/":
            path = os.path.dirname(path)
        with suppress(OSError):
            found.setdefault(os.stat(path).st_dev, _disk(purpose, path))
    return tuple(found.values())


def _disk(purpose: str, path: str) -> Disk:
    found = os.statvfs(path)
    inodes = found.f_favail if found.f_files else -1
    return Disk(
        purpose, path, found.f_bavail * found.f_frsize // MIB, found.f_blocks * found.f_frsize // MIB, inodes
    )


def _control_groups() -> tuple[int, tuple[str, ...]]:
    """The version of control groups, and the controllers of this session."""
    with suppress(OSError), open("/proc/self/cgroup") as file:
        lines = file.read().splitlines()
        for line in lines:
            if line.startswith("0::") and os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
                with suppress(OSError), open(f"/sys/fs/cgroup{line[3:]}/cgroup.controllers") as names:
                    return 2, tuple(names.read().split())
        return 1, tuple(name for line in lines for name in line.split(":")[1].split(",") if name)
    return 0, ()


def _is_clock_synchronized() -> bool | None:
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            ["timedatectl", "show", "-p", "NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            timeout=2,
        )
        return {"yes": True, "no": False}.get(done.stdout.strip())
    return None


def _other_schedulers() -> tuple[str, ...]:
    found = set[str]()
    for path in glob.glob("/proc/[0-9]*/comm"):
        with suppress(OSError), open(path) as file:
            if name := SCHEDULERS.get(file.read().strip()):
                found.add(name)
    return tuple(sorted(found))
