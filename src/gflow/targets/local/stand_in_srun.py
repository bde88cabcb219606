"""The stand-in `srun` of jobs on this machine: starts the tasks of a Slurm script as processes.

A program of its own, run by `bin/srun` inside jobs: it imports nothing of gflow. One task replaces this
process. Several tasks have a process group each, so that a signal to the job reaches every task once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import IO, Any, NoReturn

# Slurm's letters for the options that are used here. Every other letter is ignored.
SHORT = {
    "n": "ntasks", "c": "cpus-per-task", "K": "kill-on-bad-exit", "l": "label", "D": "chdir", "o": "output",
    "e": "error", "G": "gpus", "i": "input", "Q": "quiet", "N": "nodes", "u": "unbuffered", "v": "verbose",
}  # fmt: skip
USED = frozenset(
    {"ntasks", "ntasks-per-node", "cpus-per-task", "gpus", "gpus-per-task", "kill-on-bad-exit", "label",
     "chdir", "output", "error", "input", "export", "quiet", "exact", "exclusive"}
)  # fmt: skip
# Accepted without a word, because they change nothing here.
SILENT = frozenset({"unbuffered", "verbose", "pty", "overlap", "oversubscribe", "job-name"})
# Options without a value, or with one that only `=` (or the same word) can give.
FLAGS = SILENT.union(
    {"kill-on-bad-exit", "label", "quiet", "contiguous", "disable-status", "hold", "immediate", "no-kill",
     "overcommit", "preserve-env", "propagate", "reboot", "resv-ports", "spread-job", "use-min-nodes",
     "whole", "multi-prog", "help", "exact", "exclusive"}
) - {"job-name"}  # fmt: skip
SHORT_FLAGS = "KlQuvsEHIkOXZh"
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
KILL_WAIT_S = 30
USAGE = "usage: srun [-n TASKS] [-c CPUS] [--gpus-per-task N] [-K] [-l] [-o FILE] [-D DIR] COMMAND…"


def refuse(sentence: str, code: int = 2) -> NoReturn:
    sys.stderr.write(f"srun: {sentence}\n")
    sys.exit(code)


def parse(words: list[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Options that are used, names of the ignored ones, and the command."""
    options: dict[str, str] = {}
    ignored: dict[str, None] = {}
    queue = list(reversed(words))
    while queue and queue[-1].startswith("-") and queue[-1] != "-":
        word = queue.pop()
        if word == "--":
            break
        name, value = _split(word, queue)
        if name in ("gres", "gpus-per-node") and value.rpartition(":")[2].strip("0").isdigit():
            name = "gpus"
        if name in USED:
            options[name] = value
        elif name == "multi-prog":
            refuse("--multi-prog is not supported: start the programs one by one")
        elif name in ("help", "h"):
            sys.stdout.write(USAGE + "\n")
            sys.exit(0)
        elif name not in SILENT and not (name == "nodes" and value.partition("-")[0] == "1"):
            ignored["--" + name if len(name) > 1 else "-" + name] = None
    return options, list(ignored), queue[::-1]


def _split(word: str, queue: list[str]) -> tuple[str, str]:
    """The long name and the value of an option; takes the value from the queue if it is the next word."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        takes_next = not equals and name not in FLAGS
    else:
        letter, value = word[1], word[2:]
        name = SHORT.get(letter, letter)
        takes_next = not value and letter not in SHORT_FLAGS
        if value and letter in SHORT_FLAGS and not value.isdigit():  # -lu is -l -u
            queue.append("-" + value)
            value = ""
    if takes_next:
        if not queue:
            refuse(f"{word} needs a value")
        value = queue.pop()
    return name, value


def count_of(options: dict[str, str], name: str, default: str = "") -> int:
    """The number of an option, or of its variable; 0: none. A type of GPU before `:` is left out."""
    text = options.get(name, default).rpartition(":")[2]
    if not text and name not in options:
        return 0
    if not text.isdigit() or not 1 <= int(text) <= 4096:
        refuse(f"--{name} takes a number from 1 to 4096, not {text!r}")
    return int(text)


def exported(names: str, environ: dict[str, str]) -> dict[str, str]:
    """The variables of --export: ALL, NONE, or NAME and NAME=value. Those of the job always stay."""
    parts = names.split(",")
    is_all = names in ("", "ALL") or "ALL" in parts
    kept = {
        name: value
        for name, value in environ.items()
        if is_all or name in KEPT or name in parts or name.startswith(("SLURM_", "GFLOW_"))
    }
    return kept | dict(part.split("=", 1) for part in parts if "=" in part)


def step_variables(environ: dict[str, str], tasks: int) -> dict[str, str]:
    """What every task is told. A job without `#SBATCH` has no variables of Slurm before."""
    job = environ.get("SLURM_JOB_ID") or environ.get("GFLOW_JOB_ID", "")
    host = environ.get("SLURM_JOB_NODELIST") or os.uname().nodename
    found = dict.fromkeys(
        ("NTASKS", "NPROCS", "TASKS_PER_NODE", "STEP_NUM_TASKS", "STEP_TASKS_PER_NODE"), str(tasks)
    )
    found |= dict.fromkeys(("NNODES", "JOB_NUM_NODES", "STEP_NUM_NODES"), "1")
    found |= dict.fromkeys(("JOB_NODELIST", "NODELIST", "STEP_NODELIST"), host)
    found |= dict.fromkeys(("NODEID", "STEP_ID", "STEPID"), "0")
    found |= dict.fromkeys(("JOB_ID", "JOBID"), job)
    return {f"SLURM_{name}": value for name, value in found.items()}


def task_variables(environ: dict[str, str], task: int, gpus_per_task: int) -> dict[str, str]:
    """What one task is told: its number, and its own GPUs if each task has some."""
    found = environ | {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)}
    gpus = environ.get("CUDA_VISIBLE_DEVICES", "")
    if gpus_per_task and gpus:
        mine = gpus.split(",")[task * gpus_per_task : (task + 1) * gpus_per_task]
        found |= {"CUDA_VISIBLE_DEVICES": ",".join(mine), "SLURM_GPUS_PER_TASK": str(gpus_per_task)}
    return found


def gpus_of_step(
    options: dict[str, str], environ: dict[str, str], tasks: int, per_task: int
) -> dict[str, str]:
    """The GPUs of the step; with --exclusive such that no other exclusive step has. Refuses too many."""
    gpus = [gpu for gpu in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    count = count_of(options, "gpus")
    needed = max(count, tasks * per_task)
    if not needed or "CUDA_VISIBLE_DEVICES" not in environ:
        return {}
    if needed > len(gpus):
        refuse(f"error: the step needs {needed} GPUs ({tasks} tasks), and the job has {len(gpus)}", 1)
    if options.keys() & {"exclusive", "exact"}:
        gpus = claim(gpus, needed, environ["SLURM_JOB_ID"])
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[: count or None])}


def claim(gpus: list[str], count: int, job: str) -> list[str]:
    """GPUs that no other step claims; waits until there are enough of them.

    A claim is an abstract socket address, which all processes of the step inherit and which ends with them.
    """
    is_waiting = False
    while True:
        claims: dict[str, socket.socket] = {}
        for gpu in gpus:
            held = socket.socket(socket.AF_UNIX)
            with contextlib.suppress(OSError):
                held.bind(f"\0gflow-step-{os.getuid()}-{job}-{gpu}")
                claims[gpu] = held
            if len(claims) == count:
                for one in claims.values():
                    os.set_inheritable(one.detach(), True)
                return list(claims)
        for one in claims.values():
            one.close()
        if not is_waiting:
            sys.stderr.write(f"srun: waits until {count} of the job's GPUs are free of other steps\n")
            is_waiting = True
        time.sleep(0.1 + os.getpid() % 10 / 50)


def path_of(pattern: str, environ: dict[str, str]) -> str:
    """A file name with Slurm's patterns replaced."""
    job = environ["SLURM_JOB_ID"]
    words = {
        "t": environ["SLURM_PROCID"], "j": job, "J": job + ".0", "A": environ.get("SLURM_ARRAY_JOB_ID", job),
        "a": environ.get("SLURM_ARRAY_TASK_ID", ""), "x": environ.get("SLURM_JOB_NAME", ""), "s": "0",
        "N": environ["SLURM_NODELIST"], "n": "0", "u": environ.get("USER", ""), "%": "%",
    }  # fmt: skip
    head, *parts = pattern.replace("%%", "%\0").split("%")
    return head + "".join("%" if p[:1] == "\0" else words.get(p[:1], "%" + p[:1]) + p[1:] for p in parts)


def open_files(options: dict[str, str], environ: dict[str, str], seen: set[str]) -> list[int | None]:
    """Descriptors for input, output and error; None: those of srun. A file begins empty, once."""
    fds: list[int | None] = [None, None, None]
    for number, name in enumerate(("input", "output", "error")):
        if options.get(name, "none") in ("none", "all"):
            continue
        path = path_of(options[name], environ)
        how = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        how |= os.O_TRUNC if number and path not in seen else 0
        seen.add(path)
        try:
            fds[number] = os.open(path, how | os.O_CLOEXEC, 0o666)
        except OSError as error:
            refuse(f"{path}: {error.strerror}")
    if fds[2] is None:
        fds[2] = fds[1]
    return fds


class Step:
    """The tasks of one call of srun."""

    def __init__(self, *, has_label: bool, kills_others: bool) -> None:
        self._has_label, self._kills_others = has_label, kills_others
        self._running: dict[int, tuple[int, Any]] = {}
        self._copies: list[threading.Thread] = []
        self._stopped = False
        for number in PASSED:
            signal.signal(number, self._pass_on)
        signal.signal(signal.SIGALRM, lambda *_: self._send(signal.SIGKILL))

    def start(self, task: int, command: list[str], environ: dict[str, str], fds: list[int | None]) -> None:
        stdin, stdout, stderr = fds
        pipe = subprocess.PIPE if self._has_label else None
        out = stdout if stdout is not None else pipe
        error = stderr if stderr is not None else pipe
        process: Any = subprocess.Popen(
            command, env=environ, stdin=stdin, stdout=out, stderr=error, preexec_fn=os.setpgrp
        )
        self._running[process.pid] = task, process
        for source, to in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            if source is not None:
                self._copies.append(threading.Thread(target=copy_lines, args=(task, source, to.buffer)))
                self._copies[-1].start()

    def wait(self) -> int:
        """Wait for all tasks. Returns the highest exit code; those of tasks that -K stopped come last."""
        codes, stopped = [0], [0]
        while self._running:
            pid, status = os.wait()
            if pid not in self._running:
                continue
            task, process = self._running.pop(pid)
            code = process.returncode = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code
            (stopped if self._stopped else codes).append(code)
            if code and not self._stopped:
                sys.stderr.write(f"srun: error: task {task} ended with exit code {code}\n")
                self._stop_others()
        signal.alarm(0)
        for thread in self._copies:
            thread.join()
        return max(codes) or max(stopped)

    def _stop_others(self) -> None:
        if self._kills_others and self._running:
            self._stopped = True
            self._send(signal.SIGTERM)
            signal.alarm(KILL_WAIT_S)

    def _pass_on(self, number: int, frame: object) -> None:
        self._send(number)

    def _send(self, number: int) -> None:
        for pid in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)


def copy_lines(task: int, source: IO[bytes], to: IO[bytes]) -> None:
    """Copy the output of a task, each line with the number of the task (--label)."""
    for line in source:
        to.write(b"%d: %b" % (task, line))
        to.flush()


def main() -> int:
    options, ignored, command = parse(sys.argv[1:])
    if not command:
        refuse("there is no command to run")
    if ignored and "quiet" not in options:
        sys.stderr.write(f"srun: ignored: {', '.join(ignored)} (this is one machine)\n")
        sys.stderr.flush()
    here = dict(os.environ)
    tasks = count_of(options, "ntasks", here.get("SLURM_NTASKS", ""))
    tasks = tasks or count_of(options, "ntasks-per-node") or 1
    gpus_per_task = count_of(options, "gpus-per-task", here.get("SLURM_GPUS_PER_TASK", ""))
    kills = options.get("kill-on-bad-exit", here.get("SLURM_KILL_BAD_EXIT", "0")) != "0"
    environ = exported(options.get("export", "ALL"), here) | step_variables(here, tasks)
    if cpus := count_of(options, "cpus-per-task"):
        environ["SLURM_CPUS_PER_TASK"] = str(cpus)
    environ |= gpus_of_step(options, environ, tasks, gpus_per_task)
    enter(options.get("chdir", "."))
    try:
        variables = [task_variables(environ, task, gpus_per_task) for task in range(tasks)]
        if tasks == 1 and "label" not in options:
            become(command, variables[0], open_files(options, variables[0], set()))
        return run_tasks(options, command, variables, kills_others=kills)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        refuse(f"{command[0]}: {error.strerror}", 127 if missing else 126)


def enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        refuse(f"--chdir {folder}: {error.strerror}")


def become(command: list[str], environ: dict[str, str], fds: list[int | None]) -> NoReturn:
    """Replace this process by its only task."""
    for number, fd in enumerate(fds):
        if fd is not None:
            os.dup2(fd, number)
    os.execvpe(command[0], command, environ)


def run_tasks(
    options: dict[str, str], command: list[str], variables: list[dict[str, str]], *, kills_others: bool
) -> int:
    step, seen = Step(has_label="label" in options, kills_others=kills_others), set[str]()
    for task, environ in enumerate(variables):
        fds = open_files(options, environ, seen)
        step.start(task, command, environ, fds)
        for fd in set(fds) - {None}:
            os.close(fd or 0)
    return step.wait()


if __name__ == "__main__":
    sys.exit(main())
