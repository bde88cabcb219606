"""Figures of a profile: what its Chrome trace and the answer of the run say, for pages and JSON."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from typing import Any

from gflow.client.run_profile import Profile
from gflow.errors import Refused
from gflow.ml.train import profile_files as files

# Rows of each list.
MOST = 10
# Categories of events that occupy the GPU.
ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
LOADER = "enumerate(DataLoader)#"
STEP = "ProfilerStep#"

Span = tuple[float, float]


def profile_view(profile: Profile) -> dict[str, Any]:
    """All figures of a profile: shares from 0 to 1 (null: unknown), times in microseconds, bytes."""
    answer, trace = profile.answer, _Trace(_events(profile.trace))
    operators = answer["operators"]
    is_gpu = trace.gpu_busy is not None
    clock, size = ("gpu_us", "gpu_bytes") if is_gpu else ("cpu_us", "cpu_bytes")
    return {
        "job": profile.job,
        "device": answer["device"],
        "first_step": answer["first_step"],
        "steps": answer["steps"],
        "seconds": round(trace.seconds, 6),
        "gpu_busy": trace.gpu_busy,
        "data_loading": trace.data_loading,
        "memory": answer["memory"],
        "by_time": _top(operators, clock),
        "by_memory": _top(operators, size),
        "kernels": trace.kernels,
        "notes": answer["notes"],
        "files": {
            "trace": profile.trace,
            "operators": profile.path(files.TABLES),
            "memory_snapshot": profile.path(files.SNAPSHOT) if answer["has_snapshot"] else None,
        },
    }


def _top(operators: list[dict[str, Any]], figure: str) -> list[dict[str, Any]]:
    """The operators with the largest figure, and their share of its sum."""
    found = [one for one in operators if one[figure] > 0]
    total = sum(one[figure] for one in found)
    found.sort(key=lambda one: -one[figure])
    return [
        {"name": one["name"], "calls": one["calls"], figure: one[figure], "share": one[figure] / total}
        for one in found[:MOST]
    ]


def _events(path: str) -> list[dict[str, Any]]:
    try:
        with gzip.open(path, "rb") as file:
            found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise Refused(f"the trace {path} cannot be read: {error}") from error
    return found


class _Trace:
    """The events of a trace: the recorded steps, the GPU's work, and the waits for data."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        complete = [one for one in events if one.get("ph") == "X"]
        steps = [_span(one) for one in complete if _is_cpu(one) and one["name"].startswith(STEP)]
        self._begin = min((begin for begin, _ in steps), default=0.0)
        self._end = max((end for _, end in steps), default=0.0)
        work = [one for one in complete if one.get("cat") in ON_GPU]
        waits = [_span(one) for one in complete if _is_cpu(one) and one["name"].startswith(LOADER)]
        self.gpu_busy = self._share(map(_span, work)) if work else None
        self.data_loading = self._share(waits) if waits else None
        self.kernels = _kernels(work)

    @property
    def seconds(self) -> float:
        """The length of all recorded steps."""
        return (self._end - self._begin) / 1e6

    def _share(self, spans: Iterable[Span]) -> float | None:
        """The part of the recorded steps that these spans cover; overlaps count once."""
        if self._end <= self._begin:
            return None
        covered, until = 0.0, self._begin
        for begin, end in sorted(spans):
            begin, end = max(begin, until), min(end, self._end)
            if end > begin:
                covered += end - begin
                until = end
        return round(covered / (self._end - self._begin), 4)


def _span(event: dict[str, Any]) -> Span:
    return float(event["ts"]), float(event["ts"]) + float(event.get("dur", 0))


def _is_cpu(event: dict[str, Any]) -> bool:
    """Whether this annotation is on the CPU; kineto repeats annotations on the GPU's timeline."""
    return event.get("cat") in ("user_annotation", "cpu_op")


def _kernels(work: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The kernels and copies with the most time, each name once."""
    total: dict[str, list[float]] = {}
    for one in work:
        row = total.setdefault(one["name"], [0, 0.0])
        row[0] += 1
        row[1] += float(one.get("dur", 0))
    everything = sum(row[1] for row in total.values()) or 1.0
    longest = sorted(total.items(), key=lambda item: -item[1][1])[:MOST]
    return [
        {"name": name, "calls": int(calls), "gpu_us": round(us, 1), "share": us / everything}
        for name, (calls, us) in longest
    ]
