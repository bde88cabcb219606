"""Read the environment of a job with the rights of the caller: from its processes, or as submitted."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from gflow.client import http
from gflow.client.doctor.host_facts import read_disk
from gflow.client.doctor.programs import text_of
from gflow.client.doctor.python_facts import LIBRARIES, read_python
from gflow.diagnosis.doctor.facts import Limits
from gflow.diagnosis.doctor.job_facts import JobEnvironment, relevant
from gflow.errors import Refused

DEVICES = "CUDA_VISIBLE_DEVICES"
LIMITS = {"open_files": "Max open files", "locked_memory": "Max locked memory", "processes": "Max processes",
          "address_space": "Max address space", "file_size": "Max file size"}  # fmt: skip
# Limits whose hard value counts, because programs may raise the soft one.
HARD = ("open_files",)


def read_job(reference: str, become_owner: Callable[[int], None] | None = None) -> JobEnvironment:
    """The environment of a job. `become_owner`: drops the rights of root to those of the job's owner."""
    job = http.get(http.job_path(reference))["jobs"][0]
    label = str(job["id"])
    if job["tasks"] is not None:
        raise Refused(f"job {label} is an array", hint=f"name one of its tasks: gflow doctor --job {label}_1")
    given = http.get(http.job_path(label, "/environment"))
    socket = http.get("/status")["socket"]
    if given["uid"] != os.geteuid():
        if become_owner is None or os.geteuid():
            raise Refused(
                f"job {label} belongs to another user", hint="its owner may ask for its environment"
            )
        become_owner(given["uid"])
    pids = [pid for pid, _ in job_processes(label, socket)] if job["state"] == "Running" else []
    return examine_job(job, given["variables"], pids)


def examine_job(job: dict[str, Any], submitted: Mapping[str, str] | None, pids: list[int]) -> JobEnvironment:
    """The environment of a job with these processes, the first one first."""
    environments = [relevant(_environ(pid)) for pid in pids]
    variables = environments[0] if environments else dict(submitted or {})
    command = job["command"]
    program = _python_of(pids) or _python_in(command, variables, job["cwd"])
    found = JobEnvironment(
        job=str(job["id"]),
        state=job["state"],
        pid=pids[0] if pids else None,
        trouble="" if pids or submitted is not None else "it is not kept any more",
        gpus=job["gpus"],
        variables=variables,
        submitted_devices=(submitted or {}).get(DEVICES, ""),
        own_devices=variables.get(DEVICES, "") if pids else "",
        used_devices=tuple(dict.fromkeys(one[DEVICES] for one in environments[1:] if one.get(DEVICES))),
        device_lines=device_lines(command, _script_text(job)),
        cwd=job["cwd"],
        disk=read_disk("working folder", job["cwd"]) if os.path.isdir(job["cwd"]) else None,
        limits=parse_limits(text_of(f"/proc/{pids[0]}/limits")) if pids else None,
    )
    return found._replace(
        python=read_python(program, variables), missing_folders=_missing(variables), loaded=_loaded(pids)
    )


# ------------------------------------------------------------ processes


def job_processes(label: str, socket: str, proc: str = "/proc") -> list[tuple[int, bytes]]:
    """The processes of a job of the daemon with this socket, by age, with their environments."""
    wanted = f"\0GFLOW_JOB_ID={label}\0".encode()
    folder = f"\0GFLOW_PROGRESS={os.path.dirname(socket)}/".encode()
    found = []
    for name in os.listdir(proc):
        if name.isdecimal():
            environ = _environ(int(name), proc)
            if wanted in b"\0" + environ and folder in b"\0" + environ:
                found.append((_started(int(name), proc), int(name), environ))
    return [(pid, environ) for _, pid, environ in sorted(found)]


def _environ(pid: int, proc: str = "/proc") -> bytes:
    with suppress(OSError), open(f"{proc}/{pid}/environ", "rb") as file:
        return file.read(1 << 20)
    return b""


def _started(pid: int, proc: str) -> int:
    """When a process started, in ticks; later than all others if it is gone."""
    with suppress(OSError, ValueError, IndexError), open(f"{proc}/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])
    return 1 << 62


def _python_of(pids: list[int]) -> str:
    """The Python that a process of the job runs, as it was called: a link of a virtual environment."""
    for pid in pids:
        with suppress(OSError):
            if os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python"):
                word = text_of(f"/proc/{pid}/cmdline").partition("\0")[0]
                path = os.path.join(os.readlink(f"/proc/{pid}/cwd"), word)
                return (
                    path
                    if "/" in word and os.access(path, os.X_OK)
                    else _which(word, relevant(_environ(pid)))
                )
    return ""


def _python_in(command: list[str], variables: Mapping[str, str], cwd: str) -> str:
    """The Python that a command names; empty: the one of PATH."""
    word = command[0] if command else ""
    if not os.path.basename(word).startswith("python"):
        return ""
    return os.path.join(cwd, word) if "/" in word else _which(word, variables)


def _which(word: str, variables: Mapping[str, str]) -> str:
    return shutil.which(word, path=variables.get("PATH", os.defpath)) or ""


def _loaded(pids: list[int]) -> tuple[str, ...]:
    """The CUDA libraries that one process of the job has loaded: of the first that has any."""
    for pid in pids:
        maps = text_of(f"/proc/{pid}/maps")
        paths = dict.fromkeys(re.findall(r"(/\S+)$", maps, re.MULTILINE))
        found = tuple(path for path in paths if os.path.basename(path).startswith(LIBRARIES))
        if found:
            return found
    return ()


def parse_limits(text: str) -> Limits:
    """The limits in /proc/PID/limits."""
    values = {}
    for field, title in LIMITS.items():
        found = re.search(rf"^{title}\s+(\S+)\s+(\S+)", text, re.MULTILINE)
        word = found[2 if field in HARD else 1] if found else "unlimited"
        values[field] = int(word) if word.isdecimal() else -1
    return Limits(**values)


# ------------------------------------------------------------ files


def device_lines(command: list[str], script: str) -> tuple[str, ...]:
    """Lines that assign CUDA_VISIBLE_DEVICES, except from itself or from a variable of gflow."""
    lines = [" ".join(command), *script.splitlines()]
    pattern = re.compile(rf"(?:^|[\s;&]|['\"\]]){DEVICES}['\"\]]*\s*=\s*['\"]?[\d,]+")
    return tuple(line.strip()[:120] for line in lines if pattern.search(line.partition("#")[0]))


def _script_text(job: dict[str, Any]) -> str:
    """The batch script and the Python programs that the command names."""
    words = (job["script"], *(word for word in job["command"] if word.endswith(".py")))
    return "\n".join(text_of(os.path.join(job["cwd"], word)) for word in words if word)


def _missing(variables: Mapping[str, str]) -> tuple[str, ...]:
    folders = [variables.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    return tuple(folder for folder in folders if folder and not os.path.isdir(folder))
