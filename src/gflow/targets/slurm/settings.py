"""A cluster as gflow.toml describes it: `[targets.NAME]` with `type = "slurm"`."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gflow.core.model import DEFAULT_OVERFLOW_AFTER_S
from gflow.errors import UsageError, unknown
from gflow.options.job_options import JOB
from gflow.options.values import read

# The target that exists without any entry in gflow.toml.
USUAL = "slurm"
# Settings that mean the same as an option of a job.
FILE_OPTIONS = {
    key: next(option for option in JOB if option.name == name)
    for key, name in {"sync": "sync", "sync_limit": "sync-size", "outputs": "outputs"}.items()
}


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults for jobs on this cluster, and how gflow polls it."""

    type: str = "slurm"
    account: str = ""
    partition: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    # Options passed to sbatch for every job.
    sbatch: tuple[str, ...] = ()
    # A folder that the nodes mount under the same path; empty: a folder in gflow's data folder, or, with
    # `host`, ~/.gflow there.
    folder: str = ""
    # The login node, as ssh knows it; empty: Slurm's commands are on the daemon's PATH.
    host: str = ""
    # The configuration of the cluster, if Slurm's commands here know several; empty: the usual one.
    slurm_conf: str = ""
    # The working folder of jobs on a cluster with `host`; empty: the home there.
    chdir: str = ""
    # Environment modules to load, and shell lines to run, before the command of each job.
    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    # Image in which the command of each job runs, by apptainer, and options for `apptainer exec`.
    container: str = ""
    container_options: tuple[str, ...] = ()
    # Folder whose files are sent with each job, relative to the job's folder; empty: none are sent.
    sync: str = ""
    # The most that one submission may send.
    sync_limit: str = "200M"
    # Whether unchanged files are read-only hard links on the cluster, and not copies.
    sync_links: bool = False
    # Patterns of files that are fetched when a job ends.
    outputs: tuple[str, ...] = ()
    # Jobs with --overflow are handed over if they do not start on this machine within this many seconds.
    overflow_after_secs: int = DEFAULT_OVERFLOW_AFTER_S
    # A job that Slurm no longer knows is Lost after this many seconds.
    lost_after_secs: int = 300
    # Seconds between two polls of the controller: the minimum, and the maximum while nothing changes.
    poll_secs: int = 2
    poll_most_secs: int = 60
    # Seconds after which a command of Slurm is ended and its outcome counts as unknown: more than the
    # MessageTimeout of the cluster (scontrol show config).
    command_timeout_secs: int = 60


def clusters_of(tables: dict[str, dict[str, Any]], where: str) -> dict[str, Cluster]:
    """Parse and check all `[targets.*]` tables. An unknown key is an error, never a silent default."""
    clusters = {USUAL: Cluster()}
    for name, table in tables.items():
        if name == "local":
            raise UsageError(f"{where}: local is this machine and cannot be the name of a target")
        if table.get("type") != "slurm":
            wrong = f", not {table['type']!a:.60}" if "type" in table else ""
            raise UsageError(
                f'{where}: targets.{name} needs type = "slurm"{wrong}',
                hint="slurm is the only type of target besides this machine",
            )
        for key in table.keys() - set(Cluster.__struct_fields__):
            raise _in(unknown("setting", f"targets.{name}.{key}", _names(name)), where)
        try:
            clusters[name] = msgspec.convert(table, Cluster)
        except msgspec.ValidationError as error:
            raise UsageError(f"{where}: targets.{name}{_wrong(str(error))}") from None
        if any(word.partition("=")[0] == "--comment" for word in clusters[name].sbatch):
            raise UsageError(
                f"{where}: targets.{name}.sbatch cannot set --comment: gflow finds its jobs by it",
                hint="gbatch --comment TEXT is shown by gjob show",
            )
        _check_files(clusters[name], f"{where}: targets.{name}")
        if clusters[name].command_timeout_secs < 1:
            raise UsageError(f"{where}: targets.{name}.command_timeout_secs is at least 1")
        _check_host(clusters[name], f"{where}: targets.{name}")
        if clusters[name].container.startswith("-"):
            raise UsageError(
                f"{where}: targets.{name}.container is an image, not an option",
                hint='options: container_options = ["--bind", "/scratch"]',
            )
    return clusters


def _check_host(cluster: Cluster, where: str) -> None:
    """Refuse a host that ssh would take for an option, and paths that mean nothing there."""
    if cluster.host.startswith("-") or re.search(r"[\s\0]", cluster.host):
        raise UsageError(f"{where}.host is {cluster.host!a}, which is not a host", hint="as in: ssh HOST")
    if cluster.slurm_conf and (cluster.host or not cluster.slurm_conf.startswith("/")):
        raise UsageError(f"{where}.slurm_conf is the path of a file on this machine, without a host")
    if cluster.chdir and not cluster.host:
        raise UsageError(
            f"{where}.chdir is for clusters with a host",
            hint="run gbatch in that folder, or give it --chdir",
        )
    for key, path in (("folder", cluster.folder), ("chdir", cluster.chdir)):
        if cluster.host and path and not re.match(r"/|~/|~$", path):
            raise UsageError(f"{where}.{key} is a path on {cluster.host}: it begins with / or ~/")


def _check_files(cluster: Cluster, where: str) -> None:
    """Check the settings about files as the options of the same meaning are checked."""
    for key, option in FILE_OPTIONS.items():
        try:
            if value := getattr(cluster, key):
                read(option, value)
        except UsageError as error:
            raise UsageError(f"{where}.{key}: {error.message}", hint=error.hint) from None


def limit_mib(cluster: Cluster) -> int:
    """The most that one submission may send, in MiB."""
    size: int = read(FILE_OPTIONS["sync_limit"], cluster.sync_limit)
    return size


def _wrong(problem: str) -> str:
    """Reword an error of msgspec for users: `.poll_secs takes a whole number`."""
    found = re.fullmatch(r"Expected `(\w+)`.* - at `\$(\.\w+)(\[.+\])?`", problem)
    if found is None:
        return f": {problem}"
    kinds = {"int": "a whole number", "str": "text", "array": "a list of texts"}
    return f"{found[2]} takes {kinds['array'] if found[3] else kinds.get(found[1], found[1])}"


def _names(name: str) -> list[str]:
    return [f"targets.{name}.{field}" for field in Cluster.__struct_fields__]


def _in(error: UsageError, where: str) -> UsageError:
    return UsageError(f"{where}: {error.message}", hint=error.hint)
