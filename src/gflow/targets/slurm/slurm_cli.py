"""Slurm's commands, run with a time limit and without the variables that would change what they mean.

What Slurm's commands print, read. Pure. Text forms only: their JSON changed with every release.

What to do about a refusal of sbatch: which partitions, accounts and nodes there are.

Asks Slurm, so not for the daemon's loop.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gflow.errors import did_you_mean
from gflow.targets.slurm import cluster_info, node_usage
from gflow.targets.slurm.cluster_info import Size

# Slurm itself gives up after 9 seconds or so when its controller does not answer.
PATIENCE_S = 12.0
# Somebody sits at a terminal and waits for this one.
TRIED_S = 10.5
# Variables of Slurm's that say where it is; all others say what a job is to be like.
KEPT = frozenset({"SLURM_CONF"})


class Said(NamedTuple):
    """What a command said. `unsure`: it may have happened or not, as the controller did not answer."""

    ok: bool
    text: str
    error: str = ""
    unsure: bool = False


class Slurm:
    """One cluster's commands. Each call blocks for up to `patience_s`: not for the daemon's loop."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._environ = cleaned(os.environ)

    @property
    def is_here(self) -> bool:
        """Whether Slurm's commands are on the daemon's PATH."""
        return shutil.which("sbatch") is not None

    def submit(
        self, script: str, environ: Mapping[str, str], cwd: str, umask: int, *, test: bool = False
    ) -> Said:
        """The id under which Slurm has taken the script, or why not; `test`: only when it would start."""
        where = {name: value for name, value in self._environ.items() if name in KEPT}
        words = ["sbatch", "--test-only" if test else "--parsable"]
        patience_s = min(TRIED_S, self._patience_s) if test else self._patience_s
        said = self._run(words, script, cleaned(environ) | where, cwd, umask, patience_s)
        if test:
            return said._replace(text=parse_start(said.error)) if said.ok else said
        if not said.ok:
            return said
        id = parse_submitted(said.text)
        return said._replace(text=id) if id else Said(False, "", f"sbatch said {said.text!a:.100}", True)

    def queue(self) -> Said:
        """All jobs of this user that Slurm still knows, over or not."""
        form = f"--format={SQUEUE_FORMAT}"
        return self._run(["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", form])

    def sizes(self) -> list[cluster_info.Size]:
        """Which nodes there are, by partition."""
        said = self._run(["sinfo", "--noheader", f"--format={cluster_info.SINFO_FORMAT}"])
        return cluster_info.parse_sizes(said.text)

    def limits(self, account: str = "") -> list[cluster_info.Limits]:
        """What the accounting lets this user have, and an account as a whole; nothing where there is none."""
        me = pwd.getpwuid(os.getuid()).pw_name
        which = f"account={account}" if account else f"user={me}"
        found = cluster_info.parse_limits(
            self._accounts("assoc", which, f"format={cluster_info.ASSOC_FORMAT}")
        )
        return [one for one in found if one.user in ("", me)]

    def limits_of(self, id: str) -> list[str]:
        """In words, all limits of the account and of the quality of service that a job has."""
        said = self._run(["scontrol", "--oneliner", "show", "job", id])
        account, qos = cluster_info.parse_owner(said.text)
        limits = self.limits(account) if account else []
        found = [f"account {account}: {words}" for one in limits for words in one.caps]
        if qos:
            said_of_qos = self._accounts("qos", f"name={qos}", f"format={cluster_info.QOS_FORMAT}")
            found += [f"QoS {qos}: {words}" for words in cluster_info.parse_qos(said_of_qos)]
        return list(dict.fromkeys(found))

    def _accounts(self, *words: str) -> str:
        """What the accounting knows; empty where there is none."""
        return self._run(["sacctmgr", "--noheader", "--parsable2", "--readonly", "show", *words]).text

    def start_of(self, id: str) -> str | None:
        """When Slurm expects a job to start; empty: it does not say. None: it does not answer."""
        asked = ["squeue", "--noheader", "--start", f"--jobs={id}", "--format=%S"]
        said = self._run(asked, patience_s=min(TRIED_S, self._patience_s))
        if said.unsure:
            return None
        line = said.text.strip().partition("\n")[0]
        return "" if line in ("N/A", "NULL", "(null)") else line

    def probe(self, id: str) -> Said:
        """What a running job uses on its nodes, as `probing` reads it; takes a second or two."""
        said = self._run(["squeue", "--noheader", f"--jobs={id}", "--states=RUNNING", "--format=%A|%D"])
        number, _, nodes = said.text.strip().partition("\n")[0].partition("|")
        if not said.ok or not nodes.isdecimal():
            return Said(False, "", said.error, said.unsure)
        return self._run(
            ["srun", "--overlap", f"--jobid={number}", f"--nodes={nodes}", f"--ntasks={nodes}", "--label",
             "--ntasks-per-node=1", "--quiet", "sh", "-c", node_usage.SCRIPT],
            environ=self._environ | {node_usage.MARK: "1"},
        )  # fmt: skip

    def verdict(self, id: str, tag: str) -> Verdict | None:
        """How a job ended, by the controller, then by the accounting; None: nobody knows.

        A controller that was killed gives numbers out again: whose job it is, the tag says.
        """
        said = self._run(["scontrol", "--oneliner", "show", "job", id])
        if said.ok and not re.search(rf"{re.escape(tag)}(?!\d)", said.text):
            return None
        found = parse_job(said.text) if said.ok else None
        if found is not None:
            return found
        said = self._run(
            ["sacct", "--allocations", "--parsable2", "--noheader", f"--jobs={id}",
             f"--format={SACCT_FORMAT}"]
        )  # fmt: skip
        return parse_accounting(said.text, id) if said.ok else None

    def cancel(self, ids: Sequence[str], signal: str = "") -> Said:
        """End jobs, or send them a signal: to the batch shell and to its steps."""
        words = ["scancel", *((f"--signal={signal}", "--full") if signal else ()), *ids]
        return self._run(words)

    def _run(
        self,
        words: Sequence[str],
        input: str = "",
        environ: Mapping[str, str] | None = None,
        cwd: str = "/",
        umask: int = 0o077,
        patience_s: float = 0.0,
    ) -> Said:
        patience_s = patience_s or self._patience_s
        program = shutil.which(words[0])
        if program is None:
            return Said(False, "", f"there is no {words[0]} here")
        try:
            done = subprocess.run(
                [program, *words[1:]],
                input=input.encode(errors="surrogateescape"),
                env=self._environ if environ is None else environ,
                cwd=cwd,
                umask=umask,
                capture_output=True,
                timeout=patience_s,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return Said(False, "", f"{words[0]} did not answer in {patience_s:.0f} s", True)
        except OSError as error:  # the folder is gone, mostly
            return Said(False, "", f"{words[0]} cannot be run in {cwd}: {error.strerror}")
        out, error_text = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        if done.returncode == 0:
            return Said(True, out, error_text)
        return Said(False, out, error_text, is_unreachable(error_text))


def cleaned(environ: Mapping[str, str]) -> dict[str, str]:
    """Without variables by which an allocation that we happen to be in changes new jobs."""
    return {
        name: value
        for name, value in environ.items()
        if name in KEPT
        or not name.startswith(("SLURM", "SBATCH_", "SQUEUE_", "SALLOC_", "SCANCEL_", "SACCT_"))
    }


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


# Partitions and accounts that are named at most.
MOST = 4


def advise(slurm: Slurm, complaint: str, *, partition: str, account: str, qos: str, constraint: str) -> str:
    """A hint for somebody whose job was refused with these words; empty: nothing better is known.

    The names are those that the job had.
    """
    said = complaint.lower()
    if "account" in said:
        return _of("accounts", account, [one.account for one in slurm.limits()])
    if "qos" in said:
        return _of("qualities of service", qos, [name for one in slurm.limits() for name in one.qos])
    sizes = slurm.sizes()
    if "partition" in said:
        return _of("partitions", partition, [one.partition for one in sizes])
    if "feature" in said:
        return _of("features", constraint, [name for one in sizes for name in one.features])
    if "node configuration" in said or "node count" in said:
        wanted = partition.split(",") if partition else [one.partition for one in sizes if one.is_default]
        return describe_sizes([one for one in sizes if one.partition in wanted] or sizes)
    return ""


def _of(what: str, name: str, names: Sequence[str]) -> str:
    known = list(dict.fromkeys(name for name in names if name))
    if not known:
        return ""
    more = ", …" if len(known) > MOST else ""
    return did_you_mean(name, known, f"there are the {what} {', '.join(known[:MOST])}{more}")


def describe_sizes(sizes: Sequence[Size]) -> str:
    """`main has 4 nodes with 4 GPUs (a100) and 8 CPUs each`."""
    parts = []
    for one in sizes[:MOST]:
        gpus = f"{one.gpus} GPUs" + (f" ({', '.join(one.gpu_types)})" if one.gpu_types else "")
        nodes = f"{one.nodes} node{'s' if one.nodes != 1 else ''}"
        memory = f"{one.memory_mib // 1024} GiB"
        parts.append(f"{one.partition} has {nodes}, each with {gpus}, {one.cpus} CPUs and {memory} of memory")
    return "; ".join(parts)
