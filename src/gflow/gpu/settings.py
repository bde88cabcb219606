"""The settings `gpu.*`; the settings table describes each."""

from __future__ import annotations

import msgspec


class GpuSettings(msgspec.Struct, kw_only=True, frozen=True):
    """The section `gpu` of the settings."""

    unmanaged_memory_mb: int = 0
    unmanaged_graphics_mb: int = 1024
    visible_by: str = "index"
    patience_s: int = 10
    trust_pids: bool = False
    mps: bool = False
    isolate_devices: bool = True
    auto_margin_percent: int = 10
    idle_after_secs: int = 1800
    stop_idle_secs: int = 0
    drain_xids: tuple[int, ...] = ()
    ignore_xids: tuple[int, ...] = ()
    drain_ecc_errors: int = 1
    drain_temperature: int = 0
    drain_slowed: bool = True
    drain_pcie_percent: int = 25
    drain_after_secs: int = 60
