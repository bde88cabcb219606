"""Pages of gflow memory, and the rows behind them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gflow.core.ids import job_key
from gflow.daemon.api.handlers.gpu_memory import gpu_memory
from gflow.daemon.api.visibility import Viewer
from gflow.daemon.auth.users import JobOwner
from gflow.gpu.census import JobProcess, Report, UnmanagedProcess
from gflow.gpu.port import Card, Process, Sample
from gflow.text.memory_page import Trace, memory_page
from gflow.text.table import width
from gflow.wire.answers.gpu_memory import GpuMemoryAnswer, MemoryUse, Offer, add_processes, memory_view

from .builders import running
from .machine import gpu

ANN, BOB = 1001, 1002


def use(pid: int | None, memory_mib: int | None, **more: Any) -> MemoryUse:
    usual = {"user": "ann", "command": "python train.py", "is_job": True, "job_id": 42, "job_name": "train"}
    return MemoryUse(pid=pid, memory_mib=memory_mib, **usual | more)


def answer(*processes: MemoryUse, order: str = "", **more: Any) -> GpuMemoryAnswer:
    view = memory_view(0, "GPU-0", "NVIDIA H200", 143_000, 12_000)
    add_processes(view, list(processes), order)
    return GpuMemoryAnswer(gpus=[msgspec.structs.replace(view, **more)], trouble="")


OTHER = {"is_job": False, "job_id": None, "job_name": None, "user": "eve", "command": "python eve.py"}


def test_page_shows_processes_jobs_peaks_and_the_offer():
    found = answer(
        use(7, 2_000, **OTHER),
        use(9, 9_216, job_peak_mib=10_240, job_limit_mib=20_480),
        offer=Offer(memory_mib=61_440, shared=True, reason=None),
    )
    assert memory_page(found, 80) == (
        "GPU 0: H200, 11.7 GiB of 139.6 GiB used (8 %), 127.9 GiB free\n"
        "  PID  USER  MEMORY   PEAK      JOB\n"
        "  9    ann   9.0 GiB  10.0 GiB  42 (train), limit 20.0 GiB, python train.py\n"
        "  7    eve   2.0 GiB  -         not a job of gflow, python eve.py\n"
        "  Of no listed process: 784 MiB (driver contexts)\n"
        "  New jobs: 60.0 GiB (42 %) with --shared --gpu-memory 60G\n"
    )


def test_page_stays_within_the_terminal():
    found = answer(use(12345678, 9_216, command="python " + "very-long " * 9), use(3, 5, user="a" * 40))
    assert max(map(width, memory_page(found, 80).splitlines())) <= 80


def test_watch_shows_growth_and_peak_of_each_process():
    found = answer(use(9, 9_216), use(8, 1_024), use(7, 512), use(6, None))
    traces = {(0, 9): Trace(8_192, 12_288), (0, 8): Trace(2_048, 2_048), (0, 7): Trace(512, 512)}
    rows = [line.split("  ") for line in memory_page(found, 0, traces).splitlines()[2:6]]
    shown = {row[1]: [cell.strip() for cell in row if cell.strip()][2:5] for row in rows}
    assert shown["9"] == ["9.0 GiB", "+1.0 GiB", "12.0 GiB"]
    assert shown["8"] == ["1.0 GiB", "-1.0 GiB", "2.0 GiB"]
    assert shown["7"] == ["512 MiB", "0", "512 MiB"]
    assert shown["6"] == ["-", "-", "-"]


@pytest.mark.parametrize(
    ("order", "pids"),
    [("", [3, 1, 2]), ("memory", [3, 1, 2]), ("pid", [1, 2, 3]), ("user", [2, 3, 1]), ("job", [2, 1, 3])],
)
def test_processes_are_sorted(order: str, pids: list[int]):
    found = answer(use(1, 20, user="zoe", job_id=10), use(2, 10, job_id=9), use(3, 30, **OTHER), order=order)
    assert [one.pid for one in found.gpus[0].processes] == pids


def test_gpu_without_readings_and_without_offer():
    view = memory_view(0, "GPU-0", "NVIDIA H200", 143_000, None)
    page = memory_page(GpuMemoryAnswer(gpus=[view], trouble=""))
    assert page == "GPU 0: H200, 139.6 GiB (it cannot be read)\n"
    assert memory_page(GpuMemoryAnswer(gpus=[], trouble="no answer")).endswith("(no answer)\n")


# ---------------------------------------------------------------- rows of the daemon


def context(report: Report, *jobs: Any) -> Any:
    """What the handler uses of the daemon: two GPUs, and these running jobs."""
    holders: dict[int, dict[Any, int]] = {}
    for job in jobs:
        for index in job.gpu_ids:
            holders.setdefault(index, {})[job.key] = job.spec.gpu_memory_mib if job.spec.shared else 0
    machine = SimpleNamespace(
        gpus={0: gpu(0), 1: gpu(1)}, holders=holders, taken={}, is_drained=False, gpu_trouble="",
        closed=lambda index: None,
    )  # fmt: skip
    by_key = {job.key: job for job in jobs}
    reserved = SimpleNamespace(active=[SimpleNamespace(user="zoe", gpus=(1,))])
    state = SimpleNamespace(
        machine=machine, jobs=by_key, running=SimpleNamespace(stuck=()), reserved=reserved
    )
    history = SimpleNamespace(peak_mib=lambda run, index: 9_000 if run == "5.1" else None)
    watch = SimpleNamespace(latest=report, history=history)
    return SimpleNamespace(loop=SimpleNamespace(state=state), watch=watch)


def viewer(uid: int, *, names: bool, context: Any) -> Viewer:
    jobs = context.loop.state.jobs
    return Viewer(JobOwner(uid), sees_all=False, sees_names=names, job=jobs.get)


CARD = Card(
    uuid="GPU-0", number=0, model="A100", memory_mib=81_920, sample=Sample(memory_mib=9_500),
    processes=(Process(11, 8_000), Process(12, 1_000), Process(13, 200)),
)  # fmt: skip
REPORT = Report(
    cards={0: CARD},
    of_jobs={0: [JobProcess(11, "5.1", "python train.py --key=k", 8_000)]},
    unmanaged={0: (UnmanagedProcess(12, "eve", "python eve.py", 1_000),)},
)


def rows(uid: int, *, names: bool = True) -> list[MemoryUse]:
    made = context(REPORT, running(5, 0, user="ann", name="secret"))
    return gpu_memory(made, viewer(uid, names=names, context=made)).gpus[0].processes


def test_owner_sees_job_peak_and_command():
    job, other, unknown = rows(ANN)
    assert (job.pid, job.job_id, job.job_name, job.job_peak_mib) == (11, 5, "secret", 9_000)
    assert job.command == "python train.py --key=k" and job.is_job
    assert (other.user, other.command, other.is_job) == ("eve", "python eve.py", False)
    assert (unknown.pid, unknown.note) == (13, "not visible from here")


def test_command_of_a_job_is_shown_to_its_owner_only():
    job, *_ = rows(BOB)
    assert (job.user, job.job_id, job.command) == ("ann", 5, "")


def test_private_machine_shows_memory_and_neither_names_nor_commands():
    shown = rows(BOB, names=False)
    assert [one.memory_mib for one in shown] == [8_000, 1_000, 200]
    text = msgspec.json.encode(shown).decode()
    assert not any(word in text for word in ("ann", "eve", "secret", "train.py", '"job_id":5'))


@pytest.mark.parametrize(
    ("jobs", "offer"),
    [
        ([], (81_920, False, None)),
        ([{"number": 5}], (0, False, "job 5 (true) has it alone")),
        ([{"number": 5, "shared": True, "gpu_memory_mib": 20_480}], (61_440, True, None)),
        (
            [{"number": 5, "shared": True, "gpu_memory_mib": 81_920}],
            (0, False, "the jobs on it have declared all of its memory"),
        ),
    ],
)
def test_offer_to_new_jobs(jobs: list[dict[str, Any]], offer: tuple[int, bool, str | None]):
    made = context(REPORT, *(running(one.pop("number"), 0, name="true", **one) for one in map(dict, jobs)))
    found = gpu_memory(made, viewer(ANN, names=True, context=made)).gpus[0].offer
    assert found is not None and (found.memory_mib, found.shared, found.reason) == offer


@pytest.mark.parametrize(("names", "user"), [(True, "zoe"), (False, "private")])
def test_gpu_that_is_reserved_for_another_user_offers_nothing(names: bool, user: str):
    made = context(REPORT)
    found = gpu_memory(made, viewer(ANN, names=names, context=made)).gpus[1].offer
    assert found is not None and (found.memory_mib, found.reason) == (0, f"reserved for {user}")


def test_job_that_has_not_used_its_gpu_is_listed():
    made = context(REPORT, running(5, 0), running(6, 0, 1))
    assert job_key(6) in made.loop.state.jobs
    first, second = gpu_memory(made, viewer(ANN, names=True, context=made)).gpus
    assert [(one.pid, one.job_id, one.note) for one in first.processes if one.job_id == 6] == [
        (None, 6, "no process on it")
    ]
    assert [(one.pid, one.memory_mib) for one in second.processes] == [(None, None)], "no reading of it"
