"""Answers about the daemon: status, health, targets, backups, notifications, tokens."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gflow.wire.encoding import JobId


class Setting(msgspec.Struct):
    """A setting, and where it comes from."""

    value: Any
    origin: str


class Stray(msgspec.Struct, kw_only=True):
    """A job that runs and that the database does not know; its shim, by pid and start time."""

    job: str
    pid: int | None
    started: int | None


class StatusAnswer(msgspec.Struct, kw_only=True):
    """The daemon and what it has. `read_only`: why it takes no changes; empty: it does.

    `drained`: no job starts, for the reason `drained_reason` (null: the daemon is about to stop).
    """

    version: str
    pid: int
    uptime_secs: float
    gpu_total: int
    gpu_available: int
    gpu_simulated: bool
    cpu_total: int
    cpu_available: int
    memory_total_mib: int
    memory_available_mib: int
    read_only: str
    drained: bool = False
    drained_reason: str | None = None
    running: int
    waiting: int
    flags: list[str]
    settings: dict[str, Setting]
    config_files: list[str]
    notes: list[str]
    strays: list[Stray]
    socket: str
    data: str
    database: str


class HealthAnswer(msgspec.Struct, kw_only=True):
    """Whether the daemon takes changes."""

    status: Literal["ok", "read_only"]
    pid: int
    detail: str


class BackupAnswer(msgspec.Struct):
    """Where the backup is."""

    path: str


class Delivery(msgspec.Struct):
    """A destination of notifications; no error: it took the message."""

    destination: str
    error: str | None


class DeliveriesAnswer(msgspec.Struct):
    """What became of a test of notifications."""

    destinations: list[Delivery]


class TokenView(msgspec.Struct, kw_only=True):
    """A token, without its text."""

    id: str
    name: str
    user: str
    made_at: str
    expires_at: str


class NewTokenAnswer(TokenView):
    """A new token. Its text is here and nowhere else."""

    token: str


class TokensAnswer(msgspec.Struct):
    """Tokens."""

    tokens: list[TokenView]


class RevokedAnswer(msgspec.Struct):
    """The token that opens nothing any more."""

    revoked: TokenView


class TargetView(msgspec.Struct, kw_only=True):
    """This machine (`here`) or a cluster: its jobs, and its connection. `unused`: no job was sent there yet.

    `no_commands`: the daemon finds no sbatch. `down`: the controller does not answer, `error` says how.
    """

    name: str
    state: Literal["here", "unused", "answers", "down", "no_commands"]
    running: int
    waiting: int
    # When the controller answered last.
    answered_at: str | None = None
    error: str | None = None
    # Defaults for jobs there.
    partition: str | None = None
    account: str | None = None
    # The login node, if it is reached by SSH, and the socket of that connection.
    host: str | None = None
    control_path: str | None = None


class ClusterJobView(msgspec.Struct, kw_only=True):
    """A Slurm job as squeue shows it. gflow changes only jobs of which it is the submitter."""

    # Slurm's id: 123, 123_4 (a task of an array), 123_[5-9] (tasks that wait).
    id: str
    name: str
    # Slurm's word: RUNNING.
    state: str
    time: str
    time_limit: str | None
    nodes: int
    node_list: str | None
    # Why it waits.
    reason: str | None
    partition: str | None
    gres: str | None
    # gflow: this daemon, which calls it `job`; other_gflow: another daemon; slurm: a command of Slurm.
    submitted_by: Literal["gflow", "other_gflow", "slurm"]
    job: JobId | None


class ClusterJobsAnswer(msgspec.Struct, kw_only=True):
    """The active jobs of an account on a cluster."""

    target: str
    user: str
    jobs: list[ClusterJobView]


class PartitionView(msgspec.Struct, kw_only=True):
    """A partition of a cluster, and its nodes now."""

    name: str
    is_default: bool
    time_limit: str | None
    nodes: int
    idle_nodes: int
    # Down, drained or without an answer.
    unusable_nodes: int
    # Of the smallest node.
    cpus_per_node: int
    memory_mib_per_node: int
    gpus: int
    free_gpus: int
    gpu_types: list[str]


class PartitionsAnswer(msgspec.Struct, kw_only=True):
    """The partitions of a cluster."""

    target: str
    partitions: list[PartitionView]


class TargetsAnswer(msgspec.Struct):
    """What runs jobs: this machine first, then the clusters."""

    targets: list[TargetView]
