"""What Slurm's commands print, read. Pure. Text forms only: their JSON changed with every release."""

from __future__ import annotations

import re
from typing import NamedTuple

# One line for each job and each task of an array; what may hold any character comes last.
SQUEUE_FORMAT = "%i|%A|%F|%K|%T|%r|%N|%k"
SACCT_FORMAT = "JobID,State,ExitCode"
# States in which a job is over. Everything else, also what we have never heard of, is not.
FINAL = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "RECONFIG_FAIL",
        "REVOKED",
        "SPECIAL_EXIT",
        "TIMEOUT",
    ]
)
# The controller was not there, or did not answer in time: whatever was asked may have happened.
UNREACHABLE = re.compile(
    r"unable to contact slurm controller|socket timed out|connection (refused|timed out|reset)|"
    r"zero bytes were transmitted|unable to establish controller|transport endpoint|"
    r"communication (connection|shutdown) failure|message (send|receive) failure|missing socket error|"
    r"controller (is )?(in standby|not responding)|network is unreachable|unexpected message received|"
    r"slurm_persist_conn|munge encode failed|failed to connect to .*munge|resource temporarily unavailable",
    re.IGNORECASE,
)

PREFIXES = re.compile(r"^((sbatch|squeue|scancel|error|allocation failure|Batch job submission failed): ?)+")


class Row(NamedTuple):
    """One job, or one task of an array, in Slurm's queue."""

    id: str
    array: str
    # The task's index; None: no task.
    task: int | None
    state: str
    reason: str
    nodes: str
    comment: str

    @property
    def is_final(self) -> bool:
        return self.state in FINAL


class Verdict(NamedTuple):
    """How Slurm says that a job ended."""

    state: str
    code: int | None
    signal: int | None


def parse_submitted(text: str) -> str:
    """The id in what `sbatch --parsable` prints: `id[;cluster]`, perhaps after lines of a site's own."""
    for line in reversed(text.strip().splitlines()):
        number = line.strip().partition(";")[0]
        if number.isascii() and number.isdecimal():
            return number
    return ""


def parse_start(text: str) -> str:
    """The time in what `sbatch --test-only` says; empty: it says none."""
    found = re.search(r"to start at (\S+)", text)
    return found[1] if found else ""


def parse_queue(text: str) -> list[Row]:
    """All of `squeue -h -r -t all -o SQUEUE_FORMAT`; lines that are none are passed over."""
    rows = []
    for line in text.splitlines():
        fields = line.split("|", 7)
        if len(fields) < 8:
            continue
        shown, number, array, task, state, reason, nodes, comment = (field.strip() for field in fields)
        index = int(task) if task.isdecimal() else _index(shown)
        of_array = array or number
        own = f"{of_array}_{index}" if index is not None else number or shown
        state = state.partition(" ")[0].rstrip("+")
        reason = "" if reason in ("None", "(null)") else reason.strip("()")
        nodes = "" if nodes in ("(null)", "None assigned") else nodes
        comment = "" if comment == "(null)" else comment
        rows.append(Row(own, of_array, index, state, reason, nodes, comment))
    return rows


def _index(shown: str) -> int | None:
    task = shown.partition("_")[2]
    return int(task) if task.isdecimal() else None


def parse_job(text: str) -> Verdict | None:
    """`scontrol -o show job ID`. Values have no quotes: a name may look like a field, so begin after it."""
    rest = text.partition(" UserId=")[2] or text
    state = re.search(r"\bJobState=([A-Z_]+)", rest)
    code = re.search(r"\bExitCode=(\d+):(\d+)", rest)
    return _verdict(state[1], *code.groups()) if state and code else None


def parse_accounting(text: str, id: str) -> Verdict | None:
    """`sacct -X -P -n -o SACCT_FORMAT`: `123|CANCELLED by 0|0:15`."""
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) >= 3 and fields[0] == id:
            code, _, signal = fields[2].partition(":")
            if code.isdecimal() and signal.isdecimal():
                return _verdict(fields[1].partition(" ")[0], code, signal)
    return None


def _verdict(state: str, code: str, signal: str) -> Verdict:
    return Verdict(state, int(code), int(signal) or None)


def is_unreachable(text: str) -> bool:
    """Whether an error means that nobody knows whether it happened."""
    return UNREACHABLE.search(text) is not None


def complaint(text: str) -> str:
    """What sbatch says is wrong, in one line without what it puts before it."""
    lines = [PREFIXES.sub("", line.strip()) for line in text.splitlines()]
    lines = [line for line in lines if line]
    return (lines[-1] if lines else "no reason given")[:300]
