"""What a daemon is started with: folders from the environment, the rest from flags."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from gflow.core.model import Gpu
from gflow.errors import UsageError
from gflow.gpu.simulated import simulated_gpus
from gflow.options import paths
from gflow.store.keeping import Retention
from gflow.store.places import database_path


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    """Everything the daemon needs to know before it starts."""

    data: Path
    database: Path
    socket: Path
    gpus: tuple[Gpu, ...] = ()
    cpus: int = 1
    memory_mib: int = 0
    retention: Retention = Retention()
    # A job's log is cut, and its older part kept beside it, when it grows over this. 0: never.
    log_cap_mib: int = 1024
    paranoid: bool = False
    # How it was started, so that a restart can do the same.
    flags: tuple[str, ...] = ()

    @property
    def backups(self) -> Path:
        return self.data / "backups"

    @property
    def run_dir(self) -> Path:
        return self.data / "run"

    @property
    def logs(self) -> Path:
        return self.data / "logs"


def from_environment(
    simulate_gpus: str = "", cpus: int = 0, *, paranoid: bool = False, flags: tuple[str, ...] = ()
) -> Settings:
    """Settings of this user's daemon; flags win over `GFLOW_…` variables."""
    get = os.environ.get
    simulate = simulate_gpus or get("GFLOW_SIMULATE_GPUS") or ""
    data = Path(paths.data_dir(get))
    slots = cpus or _number("GFLOW_DAEMON__CPUS", 0) or len(os.sched_getaffinity(0))
    return Settings(
        data=data,
        database=database_path(data),
        socket=Path(paths.own_socket(get)),
        gpus=simulated_gpus(simulate) if simulate else (),
        cpus=slots,
        memory_mib=_host_memory_mib(),
        retention=_retention(),
        log_cap_mib=_number("GFLOW_LOG_CAP_MIB", 1024),
        paranoid=paranoid,
        flags=flags,
    )


def _retention() -> Retention:
    """`GFLOW_RETENTION__JOBS_DAYS=90` and its like."""
    usual = Retention()
    names = Retention.__struct_fields__
    return Retention(
        **{name: _number(f"GFLOW_RETENTION__{name.upper()}", getattr(usual, name)) for name in names}
    )


def _host_memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20


def _number(name: str, default: int) -> int:
    """A whole number from the environment."""
    text = os.environ.get(name)
    if not text:
        return default
    if not text.isdecimal():
        raise UsageError(f"{name} takes a whole number, not {text!r}")
    return int(text)
