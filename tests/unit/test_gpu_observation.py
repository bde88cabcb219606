"""What the client reads about the GPUs of a running job, and about a job on a cluster."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gflow.client import http, run_observation
from gflow.client.gpu_observation import LiveGpus, gpu_uses
from gflow.client.stack_sampler import spell_complaint
from gflow.errors import Refused

NOW = 1_800_000_000.0


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def sample(
    age_s: float, busy: int, memory_mib: int = 8000, gpu: int = 0, slowed: tuple[str, ...] = ()
) -> dict:
    return {
        "at": at(NOW - age_s), "gpu": gpu, "span_s": 1, "busy": busy, "busy_most": busy,
        "memory_mib": memory_mib,
        "power_w": 300, "temperature": 60, "clock_mhz": 1500, "slowed": list(slowed),
    }  # fmt: skip


def job(**changed) -> dict:
    return {
        "id": 7, "state": "Running", "reason": None, "exit_code": None, "attempt": 1, "gpu_ids": (0,),
        "progress": None,
        "simulated": False, "target": "local", "started_at": at(NOW - 300),
    } | changed  # fmt: skip


def info(**changed) -> dict:
    gpu = {
        "index": 0,
        "uuid": "GPU-0",
        "memory_mib": 80000,
        "simulated": False,
        "processes": [],
        "holders": [],
    }
    return {"gpus": [gpu | changed]}


def uses(samples: list[dict], **changed):
    totals = [{"gpu": 0, "memory_mib": 9000, "busy_most": 99}]
    return gpu_uses(job(), {"samples": samples, "totals": totals}, info(**changed), LiveGpus({}), NOW)


def test_samples_before_the_program_took_its_memory_are_left_out() -> None:
    (found,) = uses([*(sample(30 - n, 0, 600) for n in range(10)), *(sample(20 - n, 90) for n in range(10))])
    assert (found.busy, found.samples, found.memory_mib, found.busy_most) == (90, 10, 9000, 99)


def test_samples_of_the_last_minute_count() -> None:
    (found,) = uses([*(sample(200 - n, 10) for n in range(100)), *(sample(20 - n, 90) for n in range(10))])
    assert found.samples == 10 and found.busy == 90


def test_throttle_reasons_have_their_share_of_the_samples() -> None:
    (found,) = uses([sample(n, 90, slowed=("heat (driver)",) if n < 3 else ()) for n in range(12)])
    assert found.slowed == (("heat (driver)", 0.25),)


def test_foreign_processes_and_other_jobs_are_named() -> None:
    process = {"pid": 9, "user": "eve", "command": "python x.py", "memory_mib": 500, "tolerated": ""}
    holder = {"id": 7, "name": "a", "user": "ann", "used_mib": 100}
    (found,) = uses(
        [sample(n, 90) for n in range(9)],
        processes=[process, process | {"pid": 10, "tolerated": "small"}],
        holders=[holder, holder | {"id": 8, "user": "bob"}],
    )
    assert found.others == ("process 9 (eve, python x.py) with 500 MiB", "job 8 (bob) with 100 MiB")


def test_simulated_gpu_has_no_readings() -> None:
    assert uses([sample(n, 90) for n in range(9)], simulated=True) == ()


@pytest.mark.parametrize("is_refused", [False, True])
def test_job_on_a_cluster_is_unknown_and_shows_what_is_known(
    monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    node = {
        "node": "n1", "cpus": 16, "cpus_used": 3.5, "note": "",
        "gpus": [{"gpu": 0, "busy": 2, "memory_mib": 900, "memory_total_mib": 80000, "power_w": 90.0}],
    }  # fmt: skip

    def get(path: str) -> dict:
        if is_refused:
            raise Refused("the nodes of job 7 cannot be probed")
        return {"nodes": [node]}

    monkeypatch.setattr(http, "get", get)
    found = run_observation.judge_job(job(target="cluster", started_at=at(0)))
    assert found.verdict.value == "unknown" and not found.findings
    assert found.notes == (
        ("The nodes of job 7 cannot be probed.",) if is_refused else ("n1: 3.5 of 16 CPUs in use.",)
    )
    assert ("GPU 2 % busy" in found.figures) is not is_refused


@pytest.mark.parametrize(
    ("complaint", "words"),
    [
        ("Error: Permission Denied: Try running again with elevated permissions", "only to root"),
        ("Error: Failed to find a Python interpreter in the process", "not a Python program"),
        ("warning\nError: No child process\n", "No child process"),
        ("", "no samples"),
    ],
)
def test_failure_of_the_sampler_is_one_sentence(complaint: str, words: str) -> None:
    assert words in spell_complaint(complaint, 4711)
