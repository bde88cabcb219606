"""A cluster as gflow.toml describes it: `[targets.NAME]` with `type = "slurm"`."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gflow.core.model import DEFAULT_OVERFLOW_AFTER_S
from gflow.errors import UsageError, unknown

# The target that exists without any entry in gflow.toml.
USUAL = "slurm"


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
    # A folder that the nodes mount under the same path; empty: a folder in gflow's data folder.
    folder: str = ""
    # Jobs with --overflow are handed over if they do not start on this machine within this many seconds.
    overflow_after_secs: int = DEFAULT_OVERFLOW_AFTER_S
    # A job that Slurm no longer knows is Lost after this many seconds.
    lost_after_secs: int = 300
    # Seconds between two polls of the controller: the minimum, and the maximum while nothing changes.
    poll_secs: int = 2
    poll_most_secs: int = 60


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
    return clusters


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
