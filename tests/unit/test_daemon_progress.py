"""Progress of jobs: what was said before the end is heard before the end."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from types import SimpleNamespace

from gflow.core.model import Moment
from gflow.daemon.monitors import job_progress
from gflow.daemon.monitors.job_progress import ProgressReport, ProgressSocket
from gflow.metric_names import MOST_METRICS
from gflow.privileged.in_process import InProcess


def test_last_progress_report_is_read_at_the_end(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(job_progress, "AT_ONCE", 1)
    monkeypatch.setattr(job_progress, "PAUSE_S", 60.0)
    monkeypatch.chdir(tmp_path)  # a long path does not fit into an address
    job = SimpleNamespace(key=1 << 20, uid=os.getuid())
    settings = SimpleNamespace(is_system=False, socket=tmp_path / "gflowd.sock")
    monkeypatch.setattr(job_progress, "parse_label", lambda text: job.key)
    state = SimpleNamespace(jobs={job.key: job}, running={})
    heard: list[int] = []

    async def main() -> None:
        ear = ProgressSocket(
            settings,
            lambda: state,
            lambda make: heard.append(make(Moment(1.0, 1.0)).progress.step),
            InProcess(tmp_path, tmp_path, is_system=False),
        )
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            for step in range(1, 6):
                said = {"job": "1", "attempt": 1, "step": step}
                sock.sendto(json.dumps(said).encode(), "progress.sock")
        await asyncio.sleep(0.01)
        assert heard == [1], "reading pauses"
        ear.drain(job.uid)
        assert heard == [1, 2, 3, 4, 5]
        ear.close()
        assert not (tmp_path / "progress.sock").exists()

    asyncio.run(main())


def test_metrics_of_a_report_are_checked() -> None:
    names = {"ok": 1.0, "no name": 2.0, "": 3.0, "x" * 49: 4.0, "inf": float("inf")}
    report = ProgressReport(job="1", attempt=1, step=1, metrics=names | {f"m{n}": 0.0 for n in range(99)})
    kept = job_progress._job_progress(report, Moment(1.0, 1.0)).metrics
    assert len(kept) == MOST_METRICS and kept["ok"] == 1.0 and not kept.keys() & {"no name", "", "inf"}
