"""Settings of a daemon: folders from the environment, all others from the configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import msgspec

from gflow import paths
from gflow.config.job_shapes import Shapes, shapes_of
from gflow.config.load import Config, load
from gflow.core.model import LOCAL, Gpu
from gflow.core.policy import Policy
from gflow.core.state.quotas import Limits, Quotas
from gflow.daemon.notify.destinations import Destination, destinations_of
from gflow.daemon.process import scheduler_account
from gflow.daemon.process.tcp_settings import ListenSettings, listen_settings_of
from gflow.errors import UsageError, did_you_mean
from gflow.gpu.settings import GpuSettings
from gflow.gpu.simulated import simulated_gpus
from gflow.store import ownership
from gflow.store.backup import Retention
from gflow.store.location import database_path
from gflow.targets.port import HostRules
from gflow.targets.slurm.settings import Cluster, clusters_of


class Settings(msgspec.Struct, kw_only=True, frozen=True, dict=True):
    """All settings of a daemon, fixed at its start."""

    # Whether this is system mode: one daemon, started by root, for all users of the machine.
    is_system: bool = False
    # The group of operators, and whether users see nothing of the jobs of others.
    operators: str = ""
    is_private: bool = False
    # Connections that one user may have open at once; 0: any number.
    most_connections: int = 0
    data: Path
    database: Path
    socket: Path
    config: Config
    listening: ListenSettings = ListenSettings()
    destinations: tuple[Destination, ...] = ()
    clusters: dict[str, Cluster] = {}
    # Options by the name of a shape.
    shapes: Shapes = {}
    gpus: tuple[Gpu, ...] = ()
    cpus: int = 1
    memory_mib: int = 0
    policy: Policy = Policy()
    gpu: GpuSettings = GpuSettings()
    retention: Retention = Retention()
    # A job's log is rotated when it grows over this; its older part is kept beside it. 0: never.
    log_cap_mib: int = 1024
    # Processes and threads of one job; 0: any number. Seconds after KILL until a job counts as unkillable.
    max_processes: int = 0
    unkillable_s: int = 60
    rules: HostRules = HostRules()
    # The cloud that may reclaim this machine: a name, optionally with an address; or auto, or off.
    spot_cloud: str = "off"
    paranoid: bool = False
    # The command-line flags, for a restart.
    flags: tuple[str, ...] = ()
    # Warnings about the configuration, logged at the start.
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of daemon that owns the database; see `store.ownership`."""
        return ownership.SYSTEM if self.policy.owner is None else ownership.private(self.policy.owner)

    @property
    def backups(self) -> Path:
        return self.data / "backups"

    @property
    def run_dir(self) -> Path:
        return self.data / "run"

    @property
    def tokens(self) -> Path:
        return self.data / "tokens.json"

    @property
    def web_sessions(self) -> Path:
        return self.data / "web.json"

    @property
    def progress_points(self) -> Path:
        return self.data / "progress.db"

    @property
    def samples(self) -> Path:
        return self.data / "samples.db"

    @property
    def summaries(self) -> Path:
        """The database of the statistics of past days."""
        return self.data / "statistics.db"

    @property
    def job_files_dir(self) -> Path:
        """The folder of files that jobs read."""
        return self.socket.parent / "jobs" if self.is_system else self.run_dir

    @property
    def slurm_dir(self) -> Path:
        return self.data / "slurm"

    @property
    def snapshots(self) -> Path:
        """Files of jobs for clusters, as they were at the submission."""
        return self.data / "snapshots"

    @cached_property  # every start of a job needs it
    def logs(self) -> Path:
        return self.data / "logs"


def settings_for(
    flags: Mapping[str, str],
    config_file: str = "",
    *,
    paranoid: bool = False,
    words: tuple[str, ...] = (),
    system: bool = False,
) -> Settings:
    """Settings of a private daemon, or of one in system mode, with these flags (by name)."""
    get = os.environ.get
    config = load(flags, os.environ, config_file, paths.system_config(get) if system else "")
    data = Path(paths.system_data(get) if system else paths.data_dir(get))
    simulate = config["daemon.simulate_gpus"]
    gpus = simulated_gpus(simulate) if simulate else ()
    return Settings(
        is_system=system,
        operators=config["people.operators"],
        is_private=config["people.privacy"] == "private",
        most_connections=config["people.max_connections"] if system else 0,
        data=data,
        database=database_path(data, scheduler_account.uid() if system else None),
        socket=Path(paths.system_socket(get) if system else paths.own_socket(get)),
        config=config,
        listening=listen_settings_of(config),
        destinations=destinations_of(config),
        clusters=_clusters(config),
        shapes=shapes_of(*config.found["shapes"]),
        gpus=gpus,
        cpus=config["daemon.cpus"] or len(os.sched_getaffinity(0)),
        memory_mib=_host_memory_mib(),
        policy=_policy(config, gpus, system=system),
        gpu=GpuSettings(**{name: config[f"gpu.{name}"] for name in GpuSettings.__struct_fields__}),
        retention=Retention(**{name: config[f"retention.{name}"] for name in Retention.__struct_fields__}),
        log_cap_mib=config["logs.cap_mib"],
        max_processes=_max_processes(config["jobs.max_processes"]),
        unkillable_s=config["jobs.unkillable_secs"],
        rules=_host_rules(config, system),
        spot_cloud=_spot_cloud(config),
        paranoid=paranoid,
        flags=words,
        notes=(*config.notes, *_missing(config, gpus), *_unused(config, system)),
    )


def _max_processes(wanted: int | str) -> int:
    """The limit as a number; a percentage is of the kernel's limit on processes."""
    if isinstance(wanted, int):
        return wanted
    most = min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))
    return max(1, most * int(wanted.rstrip("%")) // 100)


def _host_rules(config: Config, system: bool) -> HostRules:
    rule = config["jobs.default_memory_rule"]
    if rule == "auto":
        rule = "on" if system else "off"
    wanted = config["jobs.default_memory"]
    if isinstance(wanted, str):
        wanted = _host_memory_mib() * int(wanted.rstrip("%")) // 100
    return HostRules(
        memory_mib=0 if rule == "off" else wanted,
        is_memory_advice=rule == "warn",
        has_cpu_quota=config["jobs.cpu_limit"] == "quota",
        oom_score=min(1000, config["jobs.oom_score"]),
        has_private_tmp=system and config["jobs.private_tmp"],
    )


def _spot_cloud(config: Config) -> str:
    wanted, origin = config.found["spot.cloud"]
    if wanted not in ("auto", "off"):
        from gflow.cloud import bases_of

        try:
            bases_of(wanted)
        except UsageError as error:
            raise UsageError(f"{origin}: spot.cloud: {error.message}", hint=error.hint) from None
    return str(wanted)


def _clusters(config: Config) -> dict[str, Cluster]:
    clusters = clusters_of(*config.found["targets"])
    wanted, origin = config.found["default_target"]
    if wanted != LOCAL and wanted not in clusters:
        raise UsageError(
            f"{origin}: default_target is {wanted!a}, and there is no such target",
            hint=did_you_mean(wanted, clusters, f"there are: {', '.join([LOCAL, *clusters])}"),
        )
    wanted, origin = config.found["default_overflow"]
    if wanted and wanted not in clusters:
        raise UsageError(
            f"{origin}: default_overflow is {wanted!a}, and there is no such target",
            hint=f"there are: {', '.join(clusters)}",
        )
    return clusters


def _policy(config: Config, gpus: tuple[Gpu, ...], *, system: bool) -> Policy:
    wanted, origin = config.found["daemon.gpus"]
    allowed = None if wanted is None else frozenset(wanted)
    is_from_flag = origin.startswith("--")
    policy = Policy(
        strategy=config["daemon.gpu_allocation_strategy"],
        gpus=allowed,
        gpus_win=is_from_flag,
        owner=None if system else os.geteuid(),
        most_jobs=config["people.max_jobs"] if system else 0,
        most_running=config["people.max_running"] if system else 0,
        order=config["policy.order"],
        fair_share=config["policy.fair_share"],
        half_life_s=config["policy.half_life_days"] * 86400.0,
        patience=float(config["policy.patience"]) if config["policy.protect"] else -1.0,
        stop_idle_s=config["gpu.stop_idle_secs"],
        is_private=config["people.privacy"] == "private",
        quotas=_quotas(config),
    )
    if gpus:  # real GPUs are not known yet
        check_typed(policy, gpus)
    return policy


def _quotas(config: Config) -> Quotas:
    """The configured quotas of users and projects. The name "" has the default."""

    def limits_by_name(default: str, by_name: str) -> dict[str, Limits]:
        found = {"": config[default], **config[by_name]}
        return {name: Limits(**limits) for name, limits in found.items() if limits}

    users = limits_by_name("quota.default_user", "quota.users")
    return Quotas(users, limits_by_name("quota.default_project", "quota.projects"))


def check_typed(policy: Policy, gpus: tuple[Gpu, ...]) -> None:
    """Refuse GPUs of the flag --gpus that do not exist."""
    if policy.gpus_win and policy.gpus and (unknown := policy.gpus - {gpu.index for gpu in gpus}):
        raise UsageError(f"--gpus: there is no GPU {min(unknown)} here", hint="ginfo lists the GPUs")


def _missing(config: Config, gpus: tuple[Gpu, ...]) -> list[str]:
    """Notes about configured GPUs that do not exist. No error: a broken GPU must not disable the others."""
    wanted, origin = config.found["daemon.gpus"]
    unknown = sorted(set(wanted or ()) - {gpu.index for gpu in gpus}) if gpus else []
    return [f"{origin}: daemon.gpus names GPU {index}, which is not here" for index in unknown]


def _unused(config: Config, system: bool) -> list[str]:
    """Notes about settings that have no effect in system mode."""
    if system and config["gpu.mps"]:
        return ["gpu.mps is ignored: an MPS server serves one user, and this daemon serves all users"]
    return []


def _host_memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
