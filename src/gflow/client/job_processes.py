"""Observe the processes of a job through /proc, with the rights of the caller."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from gflow.diagnosis.slow_runs.run_facts import ProcessUse

MOST_PROCESSES = 256
MOST_THREADS = 64
TICKS_S = os.sysconf("SC_CLK_TCK")
# Names of threads that exchange gradients; PyTorch and NCCL set them. The kernel cuts them to 15 letters.
COMMUNICATION = ("pt_gloo", "NCCL", "nccl", "pt_nccl", "gloo")
WORKER = "pt_data_worker"
# A process counts as a main one with this part of the CPU time of the busiest one since its start.
MAIN_SHARE = 0.25


class ThreadTimes(NamedTuple):
    """CPU time and time without a CPU of one thread, in seconds since its start."""

    name: str
    cpu_s: float
    wait_s: float


class ProcessTimes(NamedTuple):
    """The counters of one process at one time."""

    parent: int
    name: str
    state: str
    cpu_s: float
    major_faults: int
    read_bytes: int
    written_bytes: int
    swap_mib: int
    threads: dict[int, ThreadTimes]


def pids_of(job: str, attempt: int, folder: str) -> list[int]:
    """The processes that carry the variables of this run of the daemon with its socket in `folder`, and the
    processes below them. Those of other users are left out: their environment cannot be read."""
    wanted = (f"GFLOW_JOB_ID={job}".encode(), f"GFLOW_ATTEMPT={attempt}".encode())
    own, parents = set[int](), dict[int, int]()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        fields = _stat(f"/proc/{pid}/stat")
        if fields is None or int(pid) == os.getpid():
            continue
        parents[int(pid)] = int(fields[2][1])
        words = (_read(f"/proc/{pid}/environ") or b"").split(b"\0")
        if all(word in words for word in wanted) and _is_of_daemon(words, folder):
            own.add(int(pid))
    return sorted(_with_descendants(own, parents))[:MOST_PROCESSES]


def _is_of_daemon(words: list[bytes], folder: str) -> bool:
    """Whether the job belongs to this daemon: another one of the same user has the same job ids."""
    sockets = [word.partition(b"=")[2] for word in words if word.startswith(b"GFLOW_PROGRESS=")]
    with suppress(OSError):
        return any(os.path.samefile(os.path.dirname(os.fsdecode(path)), folder) for path in sockets)
    return False


def _with_descendants(found: set[int], parents: dict[int, int]) -> set[int]:
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found = found | more
    return found - {os.getpid()}


def read_times(pids: Iterable[int]) -> dict[int, ProcessTimes]:
    """The counters of these processes; without those that have ended."""
    return {pid: times for pid in pids if (times := _times(pid)) is not None}


def _times(pid: int) -> ProcessTimes | None:
    found = _stat(f"/proc/{pid}/stat")
    if found is None:
        return None
    name, state, fields = found
    counters = dict(_pairs(f"/proc/{pid}/io"))
    swap_kib = next((value for key, value in _pairs(f"/proc/{pid}/status") if key == "VmSwap"), 0)
    return ProcessTimes(
        parent=int(fields[1]),
        name=name,
        state=state,
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_S,
        major_faults=int(fields[9]),
        read_bytes=counters.get("read_bytes", 0),
        written_bytes=counters.get("write_bytes", 0),
        swap_mib=swap_kib >> 10,
        threads=_threads(pid),
    )


def _threads(pid: int) -> dict[int, ThreadTimes]:
    threads = {}
    with suppress(OSError):
        for tid in os.listdir(f"/proc/{pid}/task")[:MOST_THREADS]:
            found = _stat(f"/proc/{pid}/task/{tid}/stat")
            if found is not None:
                name, _, fields = found
                waited = (_read(f"/proc/{pid}/task/{tid}/schedstat") or b"0 0 0").split()[1]
                cpu_s = (int(fields[11]) + int(fields[12])) / TICKS_S
                threads[int(tid)] = ThreadTimes(name, cpu_s, int(waited) / 1e9)
    return threads


def state_of(pid: int) -> tuple[str, str]:
    """The state of the first thread, and the kernel function that it waits in."""
    found = _stat(f"/proc/{pid}/stat")
    if found is None:
        return "", ""
    return found[1], _kernel_function(pid) if found[1] == "D" else ""


def _kernel_function(pid: int) -> str:
    """The kernel function that the first thread waits in; empty: it runs, or the kernel hides it."""
    return (_read(f"/proc/{pid}/wchan") or b"").decode(errors="replace").strip("0\n")


def compare(
    before: dict[int, ProcessTimes],
    after: dict[int, ProcessTimes],
    looks: list[dict[int, tuple[str, str]]],
    seen_s: float,
) -> tuple[ProcessUse, ...]:
    """What each process did between two readings. `looks`: states in between, by process."""
    roles = roles_of(after)
    return tuple(
        _use(pid, before[pid], now, roles[pid], [look[pid] for look in looks if pid in look], seen_s)
        for pid, now in after.items()
        if pid in before
    )


def _use(
    pid: int, old: ProcessTimes, now: ProcessTimes, role: str, looks: list[tuple[str, str]], seen_s: float
) -> ProcessUse:
    spent = {
        tid: one.cpu_s - old.threads[tid].cpu_s for tid, one in now.threads.items() if tid in old.threads
    }
    busiest = max(spent, key=lambda tid: spent[tid], default=None)
    waited = {tid: now.threads[tid].wait_s - old.threads[tid].wait_s for tid in spent}
    talking = sum(
        spent[tid] + waited[tid] for tid in spent if now.threads[tid].name.startswith(COMMUNICATION)
    )
    waits = [where for state, where in looks if state == "D"]
    command = (_read(f"/proc/{pid}/cmdline") or b"").replace(b"\0", b" ").decode(errors="replace").split()
    return ProcessUse(
        pid=pid,
        name=now.name,
        role=role,
        cpu=100 * (now.cpu_s - old.cpu_s) / seen_s,
        busiest=now.threads[busiest].name if busiest else now.name,
        busiest_cpu=100 * spent[busiest] / seen_s if busiest else 0.0,
        communication_cpu=100 * talking / seen_s,
        io_wait=len(waits) / len(looks) if looks else 0.0,
        waits_in=next(filter(None, waits), "") or _kernel_function(pid),
        command=" ".join(command),
        state=now.state,
        is_stopped=_is_stopped([state for state, _ in looks]),
        swap_mib=now.swap_mib,
        major_faults_s=(now.major_faults - old.major_faults) / seen_s,
        read_mb_s=(now.read_bytes - old.read_bytes) / seen_s / 1e6,
        written_mb_s=(now.written_bytes - old.written_bytes) / seen_s / 1e6,
        cpu_wait=waited[busiest] / seen_s if busiest else 0.0,
    )


def _is_stopped(states: list[str]) -> bool:
    """Whether it is stopped in the second half of the looks: a process sees a signal once it gets a CPU."""
    return bool(states) and all(state in ("T", "t") for state in states[len(states) // 2 :])


def roles_of(times: dict[int, ProcessTimes]) -> dict[int, str]:
    workers = {pid for pid, one in times.items() if _is_worker(pid, one, times)}
    most = max((one.cpu_s for pid, one in times.items() if pid not in workers), default=0.0)
    return {
        pid: "worker" if pid in workers else "main" if one.cpu_s >= MAIN_SHARE * most else "other"
        for pid, one in times.items()
    }


def _is_worker(pid: int, one: ProcessTimes, times: dict[int, ProcessTimes]) -> bool:
    """Whether this is a worker of a data loader: by its name, or forked from a Python program of the job."""
    if one.name.startswith(WORKER[:15]):
        return True
    command = _read(f"/proc/{pid}/cmdline") or b""
    if one.parent not in times or b"python" not in command or command != _read(f"/proc/{one.parent}/cmdline"):
        return False
    return not any(thread.name.startswith(COMMUNICATION) for thread in one.threads.values())


def count_ranks(times: dict[int, ProcessTimes], roles: dict[int, str]) -> int:
    """Processes that train together: WORLD_SIZE of one of them, or those with threads that communicate."""
    sizes = [0]
    for pid in (pid for pid, role in roles.items() if role == "main"):
        for word in (_read(f"/proc/{pid}/environ") or b"").split(b"\0"):
            if word.startswith(b"WORLD_SIZE=") and word[11:].isdigit():
                sizes.append(int(word[11:]))
    talking = sum(
        any(thread.name.startswith(COMMUNICATION) for thread in one.threads.values())
        for one in times.values()
    )
    return max(1, talking, *sizes)


def _stat(path: str) -> tuple[str, str, list[bytes]] | None:
    """Name, state, and the fields from the state on; None: it has ended, or is hidden."""
    text = _read(path)
    if not text or b")" not in text:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    name = text[text.index(b"(") + 1 : text.rindex(b")")].decode(errors="replace")
    return "".join(mark if mark.isprintable() else "?" for mark in name), fields[0].decode(), fields


def _pairs(path: str) -> Iterator[tuple[str, int]]:
    for line in (_read(path) or b"").splitlines():
        key, _, value = line.partition(b":")
        words = value.split()
        if words and words[0].isdigit():
            yield key.decode(errors="replace"), int(words[0])


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return None
