"""Figures of a Chrome trace: shares of the GPU and of waits for data, kernels, operators."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gflow.client.profile_trace import profile_view
from gflow.client.run_profile import Profile
from gflow.errors import Refused
from gflow.ml.train import profile_files as files
from gflow.text.profile_page import profile_page


def event(cat: str, name: str, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur}


STEPS = [
    event("user_annotation", "ProfilerStep#1", 1000, 100),
    event("user_annotation", "ProfilerStep#2", 1100, 100),
    event("gpu_user_annotation", "ProfilerStep#1", 1020, 500),
    {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1001},
]
WORK = [
    event("kernel", "gemm", 1010, 40),
    event("kernel", "gemm", 1030, 40),  # overlaps on another stream
    event("gpu_memcpy", "Memcpy HtoD", 1150, 20),
    event("kernel", "late", 1190, 100),  # half of it after the last step
    event("gpu_user_annotation", "enumerate(DataLoader)#x", 1000, 190),
]
LOADS = [event("user_annotation", "enumerate(DataLoader)#_Iter.__next__", 1000, 50)]


def operator(name: str, **figures: float) -> dict[str, Any]:
    return {"name": name, "calls": 2, "cpu_us": 0, "gpu_us": 0, "cpu_bytes": 0, "gpu_bytes": 0, **figures}


def view(folder: Path, events: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    (folder / files.TRACE).write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    operators = [
        operator("aten::mm", cpu_us=10, gpu_us=60, gpu_bytes=3 << 20, cpu_bytes=5),
        operator("aten::add", cpu_us=30, gpu_us=20, gpu_bytes=1 << 20, cpu_bytes=15),
        operator("aten::free", cpu_us=0, gpu_bytes=-5),
    ]
    answer = {
        "device": "NVIDIA H200", "first_step": 8, "steps": 2, "operators": operators, "memory": None,
        "has_snapshot": False, "notes": [],
    }  # fmt: skip
    return profile_view(Profile("42", str(folder), answer | more))


def test_gpu_share_counts_overlaps_once_and_only_within_the_steps(tmp_path: Path) -> None:
    found = view(tmp_path, [*STEPS, *WORK, *LOADS])
    assert found["gpu_busy"] == (60 + 20 + 10) / 200
    assert found["data_loading"] == 0.25
    assert found["seconds"] == 0.0002
    assert [(one["name"], one["calls"], one["gpu_us"]) for one in found["kernels"]] == [
        ("late", 1, 100), ("gemm", 2, 80), ("Memcpy HtoD", 1, 20),
    ]  # fmt: skip
    assert found["by_time"][0] == {"name": "aten::mm", "calls": 2, "gpu_us": 60, "share": 0.75}
    assert [one["name"] for one in found["by_memory"]] == ["aten::mm", "aten::add"]


def test_without_a_gpu_cpu_times_count_and_unknown_shares_are_null(tmp_path: Path) -> None:
    found = view(tmp_path, STEPS)
    assert found["gpu_busy"] is None and found["data_loading"] is None and found["kernels"] == []
    assert [one["name"] for one in found["by_time"]] == ["aten::add", "aten::mm"]
    assert found["by_memory"][0]["cpu_bytes"] == 15


def test_page_fits_eighty_columns(tmp_path: Path) -> None:
    memory = {"allocated": 1 << 30, "peak_reserved": 3 << 30}
    kernel = event("kernel", "void cutlass_80_tensorop_" + "x" * 200, 1010, 30)
    found = view(tmp_path, [*STEPS, *WORK, *LOADS, kernel], memory=memory, has_snapshot=True, notes=["short"])
    page = profile_page(found, 80)
    tables, _, places = page.rpartition("Trace: ")
    assert max(map(len, tables.splitlines())) <= 80
    assert "Job 42 on NVIDIA H200: steps 8 to 9" in page and "GPU busy 45%,\nwaiting for data 25%" in page
    assert "Memory: allocated 1.0 GiB, peak reserved 3.0 GiB\nNote: short\n" in page
    assert "KERNEL" in page and "memory_viz" in places


DAMAGED = {"empty": b"", "plain": b"{}", "keyless": gzip.compress(b"{}"), "cut": gzip.compress(b"[1")[:-4]}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_trace_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / files.TRACE).write_bytes(DAMAGED[name])
    answer = {"operators": [], "device": "", "first_step": 1, "steps": 1, "memory": None}
    with pytest.raises(Refused, match="cannot be read"):
        profile_view(Profile("42", str(tmp_path), answer | {"has_snapshot": False, "notes": []}))
