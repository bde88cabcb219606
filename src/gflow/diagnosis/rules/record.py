"""Causes that the record of a job tells: the reason of its end, its signal, its exit code."""

from __future__ import annotations

# The cause, what happened, and what to do.
Row = tuple[str, str, tuple[str, ...]]

# Reasons of an end, with the cause, what happened and what to do.
RECORD: dict[str, Row] = {
    "TimeLimit": ("time-limit", "The job reached its time limit.",
                  ("give it more: gjob redo {job} --time TIME", "or let it continue from a checkpoint: --requeue")),
    "OutOfMemory": ("host-oom", "The job used more host memory than it asked for[: {detail}].",
                    ("give it more: gjob redo {job} --memory SIZE", "load less at once, or use fewer workers")),
    "GpuMemory": ("gpu-memory-limit", "The job used more GPU memory than its share[: {detail}].",
                  ("ask for a larger share: gjob redo {job} --gpu-memory SIZE",)),
    "CancelledByUser": ("cancelled", "The job was cancelled[ {detail}].", ("who and when: gjob history {job}",)),
    "CancelledThere": ("cancelled", "The job was cancelled on its target.", ("who and when: gjob history {job}",)),
    "Preempted": ("preempted", "The job made room for another one[: {detail}].",
                  ("let it come back by itself: --requeue; checkpoints make it continue",)),
    "Reservation": ("preempted", "The job made room for a reservation[: {detail}].",
                    ("let it come back by itself: --requeue",)),
    "IdleGPU": ("idle-stop", "The job was stopped because its GPUs were idle[: {detail}].",
                ("see its usage: gjob usage {job}", "a longer limit: --stop-if-idle TIME")),
    "StoppedEarly": ("stopped-early", "The rule of --stop-when stopped the job[: {detail}].",
                     ("see its metrics: gjob show {job}", "run it without the rule: submit it again without --stop-when")),
    "StartFailed": ("start-failed", "The job could not be started[: {detail}].",
                    ("check its folder, its shell and its environment: gjob show {job}",)),
    "Lost": ("lost", "The daemon lost the job's process: it was killed together with its supervisor.",
             ("look for a reboot or the kernel's OOM killer: journalctl -k",)),
    "Reboot": ("reboot", "The machine was restarted while the job ran.", ("let it come back by itself: --requeue",)),
    "NodeFail": ("node-failure", "The node failed.", ("let it come back by itself: --requeue",)),
    "DependencyFailed": ("dependency", "A job that it depends on did not succeed[: {detail}].",
                         ("see why that one failed: gjob why {detail}", "run both again: gjob redo {detail} --cascade")),
    "TasksFailed": ("tasks-failed", "Tasks of the array failed[: {detail}].",
                    ("see them: gjob log {job} --failed", "run them again: gjob redo {job} --failed")),
    "TasksCancelled": ("cancelled", "Tasks of the array were cancelled[: {detail}].", ("see them: gjob history {job}",)),
}  # fmt: skip
# Signals by number, where no text of the log explains them.
SIGNALS: dict[int | None, Row] = {
    9: ("host-oom", "The process got KILL: mostly the kernel does that when the host's memory runs out.",
        ("see whether it was the kernel: journalctl -k -g 'out of memory'", "if so, give it more: gjob redo {job} --memory SIZE")),
    11: ("segfault", "A native library crashed (segmentation fault).",
         ("see where: gbatch --export ALL,PYTHONFAULTHANDLER=1 … prints the Python stack",)),
    7: ("bus-error", "A memory mapping went away (bus error): /dev/shm or the disk is full.",
        ("look at df -h /dev/shm and the disk",)),
    25: ("file-size", "A file became larger than the job may write (ulimit -f).",
         ("raise the limit before gbatch: ulimit -f unlimited",)),
    6: ("abort", "A native library aborted the process.", ("the last lines may say why",)),
    4: ("illegal-instruction", "The program uses an instruction that this CPU does not have.",
        ("install a build for this CPU",)),
    2: ("interrupted", "The program got an interrupt (SIGINT).", ("a person or a launcher stopped it",)),
    15: ("terminated", "The program got TERM from outside gflow.", ("who and when: gjob history {job}",)),
}  # fmt: skip
EXIT_CODES: dict[int | None, Row] = {
    126: ("permission", "The shell could not execute the command: no permission, or not a program.",
          ("chmod +x SCRIPT; check its first line (#!)",)),
    127: ("command-not-found", "The shell did not find the command.",
          ("check PATH and the environment: gjob redo {job} --venv PATH",)),
    2: ("bad-arguments", "The program exited with code 2: mostly it refuses its arguments.",
        ("compare the command with the program's --help: gjob show {job}",)),
}  # fmt: skip
