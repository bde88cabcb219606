"""What a job does with its GPUs: samples of the daemon, and readings of NVML while the job is observed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain
from statistics import mean
from typing import Any

from gflow.diagnosis.slow_runs.run_facts import GpuUse

# Seconds of samples that are judged, and how many of them are enough without readings of our own.
WINDOW_S = 60.0
ENOUGH = 5
# GPUs whose PCIe traffic is read: a reading takes 20 ms.
MOST_PCIE = 4


class LiveGpus:
    """Readings of NVML by GPU number. Without NVML, or for simulated GPUs, there are none."""

    def __init__(self, uuids: dict[int, str]) -> None:
        self._handles: dict[int, Any] = {}
        self.readings: dict[int, list[dict[str, float]]] = {index: [] for index in uuids}
        self._limits: dict[int, dict[str, Any]] = {}
        self._received: dict[int, list[float]] = {index: [] for index in uuids}
        with suppress(Exception):  # no library, no driver, no permission
            import ctypes

            ctypes.CDLL("libnvidia-ml.so.1")
            import pynvml

            self._lib: Any = pynvml
            pynvml.nvmlInit()
            for index, uuid in uuids.items():
                self._handles[index] = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                self._limits[index] = self._read_limits(self._handles[index])

    def look(self) -> None:
        """Read utilisation, power and clock of each GPU once."""
        for index, handle in self._handles.items():
            rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
            if rates is not None:
                power = self._ask("nvmlDeviceGetPowerUsage", handle) or 0
                clock = self._ask("nvmlDeviceGetClockInfo", handle, 1) or 0
                self.readings[index].append({"busy": rates.gpu, "power_w": power / 1000, "clock_mhz": clock})

    def read_traffic(self) -> None:
        """Read the bytes that arrive over PCIe, of the first GPUs."""
        for index, handle in list(self._handles.items())[:MOST_PCIE]:
            received = self._ask("nvmlDeviceGetPcieThroughput", handle, 1)
            if received is not None:
                self._received[index].append(received / 1000)

    def _read_limits(self, handle: Any) -> dict[str, Any]:
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)
        usual = self._ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)
        return {
            "power_limit_w": limit and limit / 1000,
            "power_usual_w": usual and usual / 1000,
            "clock_most_mhz": self._ask("nvmlDeviceGetMaxClockInfo", handle, 1),
        }

    def _ask(self, name: str, *arguments: Any) -> Any:
        with suppress(self._lib.NVMLError, AttributeError):
            return getattr(self._lib, name)(*arguments)
        return None

    def facts_of(self, index: int) -> dict[str, Any]:
        """Limits and PCIe traffic, as fields of `GpuUse`."""
        received = self._received.get(index)
        return self._limits.get(index, {}) | {"received_mb_s": mean(received) if received else None}


def gpu_uses(
    job: dict[str, Any], usage: dict[str, Any], info: dict[str, Any], live: LiveGpus, now: float
) -> tuple[GpuUse, ...]:
    """The use of each GPU of the job; without those about which nothing is known."""
    views = {gpu["index"]: gpu for gpu in info.get("gpus", ())}
    totals = {one["gpu"]: one for one in usage.get("totals", ())}
    uses = []
    for index in job["gpu_ids"]:
        samples = _recent([one for one in usage.get("samples", ()) if one["gpu"] == index], now)
        if len(samples) < ENOUGH:
            samples = [*samples, *live.readings.get(index, ())]
        view = views.get(index, {})
        if samples and not view.get("simulated"):
            uses.append(
                _use(index, view, totals.get(index, {}), samples, str(job["id"]), live.facts_of(index))
            )
    return tuple(uses)


def _recent(samples: Sequence[dict[str, Any]], now: float) -> list[dict[str, Any]]:
    """The samples of the last minute, without those before the program has taken its memory."""
    most = max((one["memory_mib"] or 0 for one in samples), default=0)
    since = now - WINDOW_S
    return [
        one
        for one in samples
        if _seconds(one["at"]) + one["span_s"] >= since and (one["memory_mib"] or 0) >= most / 2
    ]


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _use(
    index: int,
    view: dict[str, Any],
    total: dict[str, Any],
    samples: list[dict[str, Any]],
    job: str,
    more: dict[str, Any],
) -> GpuUse:
    lists = [one["slowed"] for one in samples if "slowed" in one]
    shares = [(name, sum(name in some for some in lists) / len(lists)) for name in {*chain(*lists)}]
    return GpuUse(
        number=index,
        memory_total_mib=view.get("memory_mib", 0),
        memory_mib=total.get("memory_mib"),
        busy=_mean(samples, "busy"),
        busy_most=max(filter(None, (total.get("busy_most"), _most(samples))), default=0),
        samples=len(samples),
        power_w=_mean(samples, "power_w"),
        clock_mhz=_mean(samples, "clock_mhz"),
        slowed=tuple(sorted(shares, key=lambda one: -one[1])),
        others=_others(view, job),
        **more,
    )


def _mean(samples: list[dict[str, Any]], key: str) -> float | None:
    known = [one[key] for one in samples if one.get(key) is not None]
    return mean(known) if known else None


def _most(samples: list[dict[str, Any]]) -> float | None:
    return max((one["busy"] for one in samples if one.get("busy") is not None), default=None)


def _others(view: dict[str, Any], job: str) -> tuple[str, ...]:
    """Processes and jobs on this GPU besides the job, in words."""
    processes = [
        f"process {one['pid']} ({one['user']}, {one['command'][:40]}) with {one['memory_mib'] or '?'} MiB"
        for one in view.get("processes", ())
        if not one["tolerated"]
    ]
    jobs = [
        f"job {one['id'] or '?'} ({one['user']}) with {one['used_mib'] or '?'} MiB"
        for one in view.get("holders", ())
        if str(one["id"]) != job
    ]
    return (*processes, *jobs)
