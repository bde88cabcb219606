"""The page of gflow status."""

from __future__ import annotations

import time

from gflow.core.model import Gpu
from gflow.text.overview import overview_page
from gflow.wire.answers.gpus import GpuView, Holder, Reserved, gpu_view
from gflow.wire.answers.overview import Attention, OverviewAnswer, WaitingJob, count_gpus
from gflow.wire.encoding import rfc3339

NOW = time.mktime((2026, 12, 24, 15, 0, 0, 0, 0, -1))


def gpu(index: int, *, job: int | None = None, reason: str | None = None, busy: int | None = None) -> GpuView:
    card = Gpu(index=index, uuid=f"GPU-{index}", model="NVIDIA A100", memory_mib=81920)
    view = gpu_view(card, [])
    view.reason = reason
    if busy is not None:
        view.utilisation, view.used_mib = busy, 40960
    if job is not None:
        view.holders = [Holder(id=job, name=f"job{job}", user="ann", used_mib=None, limit_mib=None)]
    return view


def overview(**fields: object) -> OverviewAnswer:
    gpus = fields.pop("gpus", [])
    usual = {
        "version": "1.0", "pid": 1, "started_at": rfc3339(NOW - 7200), "uptime_secs": 7200.0, "system": True,
        "targets": ["local"], "cpu_total": 8, "cpu_available": 8,
        "memory_total_mib": 1024, "memory_available_mib": 1024,
        "gpu_counts": count_gpus(gpus, rfc3339(NOW)), "gpus": gpus,
        "running": 0, "waiting": 0, "held": 0,
        "user": "ann",
        "my_running": 0, "my_waiting": 0, "my_running_jobs": [], "my_waiting_jobs": [], "attention": [],
    }  # fmt: skip
    return OverviewAnswer(**usual | fields)


def test_gpus_of_one_job_share_a_line_with_mean_use_and_sum_of_memory() -> None:
    gpus = [gpu(0, job=7, busy=50), gpu(1, job=7, busy=100), gpu(2), gpu(3), gpu(5, reason="Lost: gone")]
    text = overview_page(overview(gpus=gpus), NOW)
    assert "GPUs    5 (A100): 2 free, 2 in use, 1 blocked\n" in text
    assert "  0-1  ann  75% 80/160 GiB  7 (job7)\n" in text
    assert "  2-3                       idle\n" in text
    assert "  5                         Lost: gone\n" in text


def test_reserved_and_restricted_gpus_are_not_free() -> None:
    begun = gpu(0)
    begun.reserved = [Reserved("bob", rfc3339(NOW - 60), rfc3339(NOW + 3600))]
    later = gpu(1)
    later.reserved = [Reserved("bob", rfc3339(NOW + 60), rfc3339(NOW + 3600))]
    counts = count_gpus([begun, later, gpu(2, reason="Restricted")], rfc3339(NOW))
    assert (counts.free, counts.reserved, counts.restricted) == (1, 1, 1)


def test_a_full_page_fits_a_screen_of_80_columns_and_escapes_control_characters() -> None:
    hostile = "\x1b[31m" + "x" * 100
    waiting = [
        WaitingJob(id=n, name=hostile, gpus=1, reason="Resources: " + "y" * 90, expected_start=None)
        for n in range(5)
    ]
    attention = [Attention(kind="failed", text=hostile, hint="gjob log 17") for _ in range(20)]
    data = overview(
        gpus=[gpu(index, job=index) for index in range(16)],
        my_waiting=1000,
        my_waiting_jobs=waiting,
        attention=attention,
    )
    text = overview_page(data, NOW, 80)
    lines = text.splitlines()
    assert len(lines) <= 23 and max(map(len, lines)) <= 80
    assert "\x1b" not in text
    assert "  (9 more: ginfo)" in lines and "  (996 more: gqueue --me)" in lines
    assert all(line.endswith("→ gjob log 17") for line in lines[-5:-1])
    assert lines[-1] == "  (16 more: gflow status --json)"


def test_an_empty_machine_says_so() -> None:
    text = overview_page(overview(), NOW)
    assert "gflowd  1.0, for all users, since 13:00 (02:00:00)\n" in text
    assert "GPUs    none" in text
    assert text.endswith("Yours   0 running, 0 waiting (ann)\nNothing needs attention.\n")
