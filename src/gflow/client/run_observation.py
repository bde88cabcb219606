"""Observe a running job for two seconds and judge it: `gjob why` of a running job."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from datetime import datetime
from typing import Any

from gflow.client import hot_path, http, job_processes
from gflow.client.gpu_observation import LiveGpus, gpu_uses
from gflow.client.stack_sampler import StackSampler
from gflow.diagnosis.log_text import Frame
from gflow.diagnosis.slow_runs.run_facts import GpuUse, RunFacts, StackUse, StepUse
from gflow.diagnosis.slow_runs.run_verdict import RunDiagnosis, RunFinding, judge
from gflow.errors import GflowError
from gflow.gpu.owners import CLIENTS

SECONDS = 2
LOOKS = 10
SCRIPT = 256 << 10
LOCAL = "local"
_DATA_PARALLEL = re.compile(r"^(?!\s*(?:#|from |import )).*?(?<![\w])DataParallel\(")


def judge_job(job: dict[str, Any], become_owner: Any = None) -> RunDiagnosis:
    """Observe a running job and judge it. `become_owner` gets the owner's uid before processes are read."""
    if job["target"] != LOCAL:
        return judge(observe_remote(job))
    return judge(observe(job, become_owner))


def observe(job: dict[str, Any], become_owner: Any = None, age_s: float | None = None) -> RunFacts:
    """The facts about a running job of this machine. `age_s` replaces its age."""
    name = str(job["id"])
    notes: list[str] = []
    usage, info = _ask(name, "/usage", notes), _ask("", "/info", notes)
    history = _ask(name, "/history", notes) if job["progress"] else {}
    place = _ask(name, "/log", notes)
    folder = os.path.dirname(hot_path.find_socket())
    if become_owner is not None and place:
        become_owner(place["uid"])
    uuids = {gpu["index"]: gpu["uuid"] for gpu in info.get("gpus", ()) if gpu["index"] in job["gpu_ids"]}
    live = LiveGpus({} if job["simulated"] else uuids)
    # Root reads no processes of an owner whom it could not become.
    is_allowed = bool(place) or os.geteuid() != 0
    pids = job_processes.pids_of(name, job["attempt"], folder) if is_allowed else []
    if not pids:
        notes.append("Its processes cannot be read: they belong to another user, or have ended.")
    seen = _watch(pids, live)
    if job["simulated"]:
        notes.append("Its GPUs are simulated: nothing is known about their use.")
    if seen["has_container"]:
        notes.append("It runs in a container: the processes of the container cannot be observed.")
    if seen["stack"].missing:
        notes.append(f"There is no stack sample: {seen['stack'].missing}.")
    return RunFacts(
        job=name,
        age_s=_age_s(job) if age_s is None else age_s,
        gpu_count=len(job["gpu_ids"]),
        gpus=gpu_uses(job, usage, info, live, time.time()),
        steps=_steps(job, history),
        log_age_s=_log_age_s(place.get("path", "")),
        notes=tuple(notes),
        **seen,
    )


def _ask(job: str, path: str, notes: list[str]) -> dict[str, Any]:
    """An answer of the daemon; empty if it refuses, which is noted."""
    try:
        found = http.get(http.job_path(job, path) if job else path)
    except GflowError as error:
        notes.append(f"{str(error)[:1].upper()}{str(error)[1:]}.")
        return {}
    return found if isinstance(found, dict) else {}


def _watch(pids: list[int], live: LiveGpus) -> dict[str, Any]:
    """Observe processes and GPUs for `SECONDS`: fields of `RunFacts`."""
    before, begun = job_processes.read_times(pids), time.monotonic()
    roles = job_processes.roles_of(before)
    chosen = _choose(before, roles)
    sampler = StackSampler(chosen, SECONDS) if chosen else None
    looks = []
    for number in range(LOOKS):
        looks.append({pid: job_processes.state_of(pid) for pid in before})
        live.look()
        if number in (LOOKS // 3, 2 * LOOKS // 3):
            live.read_traffic()
        time.sleep(max(0.0, begun + SECONDS * (number + 1) / LOOKS - time.monotonic()))
    after, seen_s = job_processes.read_times(before), time.monotonic() - begun
    return {
        "seen_s": seen_s,
        "processes": job_processes.compare(before, after, looks, seen_s),
        "stack": sampler.finish() if sampler else StackUse(),
        "cpus": _cpus(chosen),
        "ranks": job_processes.count_ranks(after, roles),
        "data_parallel": _find_data_parallel(chosen),
        "has_container": any(one.name.encode() in CLIENTS for one in before.values()),
    }


def _choose(times: dict[int, job_processes.ProcessTimes], roles: dict[int, str]) -> int:
    """The process whose stack is sampled: the main one with the most CPU time; 0: there is none."""
    main = [pid for pid in times if roles[pid] == "main"]
    return max(main, key=lambda pid: (times[pid].cpu_s, pid), default=0)


def _cpus(pid: int) -> int:
    with suppress(OSError):
        return len(os.sched_getaffinity(pid))
    return 0


def _find_data_parallel(pid: int) -> Frame | None:
    """The line of the program's script that uses nn.DataParallel."""
    with suppress(OSError, StopIteration):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = [os.fsdecode(word) for word in file.read(1 << 16).split(b"\0")]
        script = next(word for word in words if word.endswith(".py"))
        path = script if os.path.isabs(script) else f"/proc/{pid}/cwd/{script}"
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as opened:
            lines = opened.read(SCRIPT).decode(errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            if _DATA_PARALLEL.match(line):
                return Frame(script, number, "", line.strip()[:120])
    return None


# ------------------------------------------------------------ progress and log


def _age_s(job: dict[str, Any]) -> float:
    return max(0.0, time.time() - _seconds(job["started_at"])) if job["started_at"] else 0.0


def _steps(job: dict[str, Any], history: dict[str, Any]) -> StepUse | None:
    """The progress, with the seconds per step before and while the job was observed."""
    first = job["progress"]
    if first is None:
        return None
    latest = first
    with suppress(GflowError, KeyError, IndexError):
        latest = http.get(http.job_path(str(job["id"])))["jobs"][0]["progress"] or first
    step, at = latest["step"], _seconds(latest["at"])
    started = _seconds(job["started_at"]) if job["started_at"] else at
    return StepUse(
        step=step,
        steps=latest["steps"] or 0,
        age_s=max(0.0, time.time() - at),
        usual_s=(at - started) / step if step > 0 and at > started and job["attempt"] == 1 else None,
        earlier_s=_earlier_s(history, step),
        now_s=_rate((first["step"], _seconds(first["at"])), (step, at)),
    )


def _earlier_s(history: dict[str, Any], step: int) -> float | None:
    """Seconds per step between the first and the last report in the audit log."""
    found = []
    for entry in history.get("events", ()):
        match = re.search(r"\bstep (\d+)", entry["detail"]) if entry["event"] == "progress" else None
        if match and int(match[1]) <= step:
            found.append((int(match[1]), _seconds(entry["at"])))
    return _rate(found[0], found[-1]) if len(found) > 1 else None


def _rate(old: tuple[int, float], new: tuple[int, float]) -> float | None:
    return (new[1] - old[1]) / (new[0] - old[0]) if new[0] > old[0] and new[1] > old[1] else None


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _log_age_s(path: str) -> float | None:
    """Seconds since the last byte of the log; None: it is empty, or cannot be read."""
    with suppress(OSError):
        found = os.stat(path)
        return max(0.0, time.time() - found.st_mtime) if found.st_size else None
    return None


# ------------------------------------------------------------ clusters


def observe_remote(job: dict[str, Any]) -> RunFacts:
    """What is known about a job on a cluster: its progress, and its nodes at this moment."""
    name, notes = str(job["id"]), list[str]()
    usage = _ask(name, "/usage", notes)
    nodes = usage.get("nodes") or []
    for node in nodes:
        notes.append(f"{node['node']}: {node['cpus_used']:.1f} of {node['cpus'] or '?'} CPUs in use.")
    gpus = tuple(
        GpuUse(
            gpu["gpu"],
            gpu["memory_total_mib"] or 0,
            gpu["memory_mib"],
            gpu["busy"],
            samples=1,
            power_w=gpu["power_w"],
        )
        for node in nodes
        for gpu in node["gpus"]
    )
    return RunFacts(
        job=name,
        age_s=_age_s(job),
        gpu_count=len(gpus),
        gpus=gpus,
        steps=_steps(job, {}),
        notes=tuple(notes),
        is_remote=True,
    )


# ------------------------------------------------------------ JSON


def run_view(job: dict[str, Any], found: RunDiagnosis) -> dict[str, Any]:
    """The diagnosis as JSON: the keys of that of an ended job, and the verdict."""
    return {
        "job": job["id"], "state": job["state"], "reason": job["reason"], "exit_code": job["exit_code"],
        "verdict": found.verdict.value, "summary": found.summary,
        "cause": found.findings[0].cause if found.findings else None,
        "findings": [_finding_view(one) for one in found.findings],
        "figures": list(found.figures), "notes": list(found.notes), "ask_again_s": found.ask_again_s,
        "last_lines": [], "log_error": None,
    }  # fmt: skip


def _finding_view(one: RunFinding) -> dict[str, Any]:
    return {
        "cause": one.cause, "verdict": one.verdict.value, "summary": one.summary,
        "confidence": one.confidence.name.lower(), "advice": list(one.advice), "experiment": one.experiment,
        "evidence": {
            "text": "; ".join(one.figures), "line": None, "rank": None, "figures": list(one.figures),
        },
        "frame": one.frame and one.frame._asdict(),
    }  # fmt: skip
