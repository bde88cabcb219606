"""Answers about the daemon: status, health, backups, notifications, tokens."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


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
