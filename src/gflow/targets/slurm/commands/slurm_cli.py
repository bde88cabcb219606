"""Run Slurm's commands, parse their output, and give hints for a refusal of sbatch.

Commands run in a `CommandRunner`, without the environment variables that change their meaning. Parsing is
pure and uses the text formats: the JSON formats changed with every release. Commands block, so the daemon's
loop must not call them.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gflow.errors import did_you_mean
from gflow.targets.slurm.array_parts import USUAL_LIMIT
from gflow.targets.slurm.commands import cluster_info, efficiency, node_usage
from gflow.targets.slurm.commands.cluster_info import Size
from gflow.targets.slurm.commands.command_runner import CommandResult, CommandRunner, Runner

# Timeout of commands for which a user waits at a terminal.
INTERACTIVE_TIMEOUT_S = 10.5
# Slurm's variables that locate the cluster. All others change the options of a job.
KEPT = frozenset({"SLURM_CONF"})


class Slurm:
    """The commands of one cluster. Each call blocks for up to `timeout_s`: not for the daemon's loop."""

    def __init__(
        self, timeout_s: float, runner: Runner | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        """`environ`: the environment of the commands; by default our own."""
        self._timeout_s = timeout_s
        # MaxArraySize; 0: not known yet.
        self.array_limit = 0
        self._runner = runner or CommandRunner()
        self._environ = clean_environ(os.environ if environ is None else environ)

    @property
    def runner(self) -> Runner:
        return self._runner

    @property
    def conf(self) -> str | None:
        """SLURM_CONF of the commands; None: the usual one."""
        return self._environ.get("SLURM_CONF")

    @property
    def is_here(self) -> bool:
        """Whether Slurm's commands are on the daemon's PATH."""
        return self._runner.has("sbatch")

    @property
    def user(self) -> str:
        """The account that submits."""
        return pwd.getpwuid(os.getuid()).pw_name

    @property
    def uid(self) -> str:
        """Its uid, as text."""
        return str(os.getuid())

    def submit(
        self, script: str, environ: Mapping[str, str], cwd: str, umask: int, *, test: bool = False
    ) -> CommandResult:
        """Submit a script: the job id, or the error. `test`: only ask when the job would start."""
        where = {name: value for name, value in self._environ.items() if name in KEPT}
        words = ["sbatch", "--test-only" if test else "--parsable"]
        timeout_s = min(INTERACTIVE_TIMEOUT_S, self._timeout_s) if test else self._timeout_s
        result = self._run(words, script, submitters_environ(environ) | where, cwd, umask, timeout_s)
        if test:
            return result._replace(text=parse_start(result.error)) if result.ok else result
        return answer_of(result)

    def submit_after(
        self, before: str, script: str, environ: Mapping[str, str], cwd: str, umask: int
    ) -> CommandResult:
        """Submit a script after these shell lines, if they succeed: for a cluster that is elsewhere."""
        raise NotImplementedError

    def queue(self) -> CommandResult:
        """All jobs of this user that Slurm still knows, finished ones included."""
        return self._run(queue_words(self.uid))

    def list_active(self, format: str) -> CommandResult:
        """The jobs of this user that wait or run, a line for each."""
        words = ["squeue", "--noheader", f"--user={self.uid}", f"--format={format}"]
        return self._run(words, timeout_s=min(INTERACTIVE_TIMEOUT_S, self._timeout_s))

    def max_array_size(self) -> int:
        """MaxArraySize of the cluster: indices of tasks are less. 0: Slurm does not say now."""
        if not self.array_limit:
            result = self._run(["scontrol", "show", "config"])
            found = re.search(r"^MaxArraySize\s*=\s*(\d+)", result.text, re.M)
            self.array_limit = (int(found[1]) if found else 0) or USUAL_LIMIT if result.ok else 0
        return self.array_limit

    def sizes(self) -> list[cluster_info.Size]:
        """The nodes of the cluster, by partition."""
        result = self._run(["sinfo", "--noheader", f"--format={cluster_info.SINFO_FORMAT}"])
        return cluster_info.parse_sizes(result.text)

    def list_nodes(self) -> CommandResult:
        """The nodes of all partitions, for `cluster_info.parse_partitions`."""
        fields = ",".join(f"{name}:{width}" for name, width in cluster_info.NODE_FIELDS.items())
        words = ["sinfo", "--noheader", "--Node", f"--Format={fields}"]
        return self._run(words, timeout_s=min(INTERACTIVE_TIMEOUT_S, self._timeout_s))

    def limits(self, account: str = "") -> list[cluster_info.Limits]:
        """Limits of this user and of the account as a whole; empty without accounting."""
        me = self.user
        which = f"account={account}" if account else f"user={me}"
        found = cluster_info.parse_limits(
            self._query_accounting("assoc", which, f"format={cluster_info.ASSOC_FORMAT}")
        )
        return [one for one in found if one.user in ("", me)]

    def limits_of(self, id: str) -> list[str]:
        """All limits of a job's account and QoS, as text; without an id, of the user's accounts."""
        if not id:
            return [f"account {one.account}: {words}" for one in self.limits() for words in one.caps]
        result = self._run(["scontrol", "--oneliner", "show", "job", id])
        account, qos = cluster_info.parse_owner(result.text)
        limits = self.limits(account) if account else []
        found = [f"account {account}: {words}" for one in limits for words in one.caps]
        if qos:
            qos_text = self._query_accounting("qos", f"name={qos}", f"format={cluster_info.QOS_FORMAT}")
            found += [f"QoS {qos}: {words}" for words in cluster_info.parse_qos(qos_text)]
        return list(dict.fromkeys(found))

    def _query_accounting(self, *words: str) -> str:
        """The output of `sacctmgr show`; empty without accounting."""
        return self._run(["sacctmgr", "--noheader", "--parsable2", "--readonly", "show", *words]).text

    def start_of(self, id: str) -> str | None:
        """When Slurm expects a job to start; empty: not known. None: Slurm does not answer."""
        words = ["squeue", "--noheader", "--start", f"--jobs={id}", "--format=%S"]
        result = self._run(words, timeout_s=min(INTERACTIVE_TIMEOUT_S, self._timeout_s))
        if result.unsure:
            return None
        line = result.text.strip().partition("\n")[0]
        return "" if line in ("N/A", "NULL", "(null)") else line

    def probe(self, id: str) -> CommandResult:
        """Sample the usage of a running job on its nodes, for `node_usage.parse_probe`. Takes 1 to 2 s."""
        result = self._run(["squeue", "--noheader", f"--jobs={id}", "--states=RUNNING", "--format=%A|%D"])
        number, _, nodes = result.text.strip().partition("\n")[0].partition("|")
        if not result.ok or not nodes.isdecimal():
            return CommandResult(False, "", result.error, result.unsure)
        return self._run(
            ["srun", "--overlap", f"--jobid={number}", f"--nodes={nodes}", f"--ntasks={nodes}", "--label",
             "--ntasks-per-node=1", "--quiet", "sh", "-c", node_usage.SCRIPT],
            environ=self._environ | {node_usage.MARK: "1"},
        )  # fmt: skip

    def usage_of(self, id: str) -> CommandResult:
        """What an ended job used, for `efficiency.parse_efficiency`."""
        return self._run(
            ["sacct", "--parsable2", "--noheader", "--units=M", f"--jobs={id}",
             f"--format={efficiency.FORMAT}"]
        )  # fmt: skip

    def verdict(self, id: str, tag: str) -> Verdict | None:
        """How a job ended, from the controller, else from the accounting; None: neither knows.

        A controller that was killed reuses job ids, so the job is matched by its tag.
        """
        result = self._run(["scontrol", "--oneliner", "show", "job", id])
        if result.ok and not re.search(rf"{re.escape(tag)}(?!\d)", result.text):
            return None
        found = parse_job(result.text) if result.ok else None
        if found is not None:
            return found
        result = self._run(
            ["sacct", "--allocations", "--parsable2", "--noheader", f"--jobs={id}",
             f"--format={SACCT_FORMAT}"]
        )  # fmt: skip
        return parse_accounting(result.text, id) if result.ok else None

    def has_tag(self, id: str, tag: str) -> bool:
        """Whether the batch script of a job has this tag as its comment, whatever a site made of it."""
        result = self._run(["scontrol", "write", "batch_script", id, "-"])
        return (
            result.ok and re.search(rf"^#SBATCH --comment={re.escape(tag)}$", result.text, re.M) is not None
        )

    def nice_of(self, id: str) -> int | None:
        """The nice value of a job; None: not known."""
        found = re.search(r"\bNice=(\d+)", self._run(["scontrol", "--oneliner", "show", "job", id]).text)
        return int(found[1]) if found else None

    def set_nice(self, id: str, nice: int) -> CommandResult:
        """Move a waiting job back in the queue, or to its place again. Users may do both."""
        return self._run(["scontrol", "update", f"JobId={id}", f"Nice={nice}"])

    def cancel(
        self, ids: Sequence[str], signal: str = "", *, to_batch_only: bool = False, only_pending: bool = False
    ) -> CommandResult:
        """Cancel jobs, or send a signal to their batch shells and steps, or only to the batch shells."""
        reach = "--batch" if to_batch_only else "--full"
        words = ["scancel", *((f"--signal={signal}", reach) if signal else ())]
        return self._run([*words, *(["--state=PENDING"] if only_pending else []), *ids])

    def _run(
        self,
        words: Sequence[str],
        input: str = "",
        environ: Mapping[str, str] | None = None,
        cwd: str = "/",
        umask: int = 0o077,
        timeout_s: float = 0.0,
    ) -> CommandResult:
        return self._runner.run(
            words,
            timeout_s=timeout_s or self._timeout_s,
            environ=self._environ if environ is None else environ,
            input=input,
            cwd=cwd,
            umask=umask,
        )


def answer_of(result: CommandResult) -> CommandResult:
    """The answer of `sbatch --parsable`: the job id, or the error."""
    if not result.ok:
        return result
    id = parse_submitted(result.text)
    if not id:
        return CommandResult(False, "", f"sbatch said {result.text!a:.100}", True)
    return result._replace(text=id)


def queue_words(user: str) -> list[str]:
    """The words of squeue for all jobs of a user that Slurm still knows, finished ones included."""
    return [
        "squeue", "--noheader", "--array", "--states=all", f"--user={user}", f"--format={SQUEUE_FORMAT}"
    ]  # fmt: skip


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Remove the variables of an allocation that the process is in: they would change new jobs."""
    return {
        name: value
        for name, value in environ.items()
        if name in KEPT
        or not name.startswith(("SLURM", "SBATCH_", "SQUEUE_", "SALLOC_", "SCANCEL_", "SACCT_"))
    }


def submitters_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for sbatch: as `clean_environ`, and with the variables that set options (SBATCH_…).

    Without those of options that gflow sets itself. As in Slurm they take precedence over lines of a script;
    the client removes those that its command line overrides.
    """
    options = {
        name: value
        for name, value in environ.items()
        if name.startswith("SBATCH_") and name.removeprefix("SBATCH_") not in OURS
    }
    return clean_environ(environ) | options


# Variables of sbatch (SBATCH_…) for options that gflow sets itself.
OURS = frozenset(
    {"ARRAY_INX", "CLUSTERS", "EXPORT", "IGNORE_PBS", "NO_REQUEUE", "OPEN_MODE", "REQUEUE", "WAIT"}
)
# One line for each job and each array task. The comment may hold any character, so it comes last.
SQUEUE_FORMAT = "%i|%A|%F|%K|%T|%r|%N|%k"
# A job name may hold any character, so it comes last.
SACCT_FORMAT = "JobID,State,ExitCode,JobName"
# Final job states. Every other state, unknown ones included, is not final.
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
PREFIXES = re.compile(r"^((sbatch|squeue|scancel|error|allocation failure|Batch job submission failed): ?)+")


class Row(NamedTuple):
    """One job, or one task of an array, in Slurm's queue."""

    id: str
    array: str
    # The index of an array task; None: not a task.
    task: int | None
    state: str
    reason: str
    nodes: str
    comment: str

    @property
    def is_final(self) -> bool:
        return self.state in FINAL


class Verdict(NamedTuple):
    """The end of a job as Slurm reports it."""

    state: str
    code: int | None
    signal: int | None
    # The name of the job, from the accounting, which does not know its tag; empty: not known.
    name: str = ""


def parse_submitted(text: str) -> str:
    """The id in the output of `sbatch --parsable`: `id[;cluster]`, possibly after lines added by the site."""
    for line in reversed(text.strip().splitlines()):
        number = line.strip().partition(";")[0]
        if number.isascii() and number.isdecimal():
            return number
    return ""


def parse_start(text: str) -> str:
    """The start time in the output of `sbatch --test-only`; empty if there is none."""
    found = re.search(r"to start at (\S+)", text)
    return found[1] if found else ""


def parse_queue(text: str) -> list[Row]:
    """Parse `squeue -h -r -t all -o SQUEUE_FORMAT`; malformed lines are skipped."""
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
    """Parse `scontrol -o show job ID`. Values are unquoted; a job name may look like a field, so skip it."""
    rest = text.partition(" UserId=")[2] or text
    state = re.search(r"\bJobState=([A-Z_]+)", rest)
    code = re.search(r"\bExitCode=(\d+):(\d+)", rest)
    return _make_verdict(state[1], *code.groups()) if state and code else None


def parse_accounting(text: str, id: str) -> Verdict | None:
    """Parse `sacct -X -P -n -o SACCT_FORMAT`: `123|CANCELLED by 0|0:15|name`.

    For the id of an array: the end of its last task; None if not all have ended.
    """
    found: dict[str, Verdict] = {}
    for line in text.splitlines():
        fields = line.split("|", 3)
        code, _, signal = fields[2].partition(":") if len(fields) >= 3 else ("", "", "")
        if code.isdecimal() and signal.isdecimal():
            verdict = _make_verdict(fields[1].partition(" ")[0], code, signal)
            found[fields[0]] = verdict._replace(name="".join(fields[3:]))
    if id in found:
        return found[id]
    tasks = [verdict for number, verdict in found.items() if number.startswith(f"{id}_")]
    return tasks[-1] if tasks and all(task.state in FINAL for task in tasks) else None


def _make_verdict(state: str, code: str, signal: str) -> Verdict:
    return Verdict(state, int(code), int(signal) or None)


def complaint(text: str) -> str:
    """The error message of sbatch in one line, without its prefixes."""
    lines = [PREFIXES.sub("", line.strip()) for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith('Try "sbatch')]
    return (lines[-1] if lines else "no reason given")[:300]


# Maximum number of partitions or accounts in a hint.
MAX_NAMES = 4


def advise(slurm: Slurm, complaint: str, *, partition: str, account: str, qos: str, constraint: str) -> str:
    """A hint for a job that was refused with this message; empty: none.

    `partition`, `account`, `qos` and `constraint` are those of the job.
    """
    text = complaint.lower()
    if "policy" in text:  # a limit, and Slurm does not say which
        return ""
    if "account" in text:
        return _list_known("accounts", account, [one.account for one in slurm.limits()])
    if "qos" in text:
        return _list_known("qualities of service", qos, [name for one in slurm.limits() for name in one.qos])
    sizes = slurm.sizes()
    if "partition" in text:
        return _list_known("partitions", partition, [one.partition for one in sizes])
    if "feature" in text:
        return _list_known("features", constraint, [name for one in sizes for name in one.features])
    if "node configuration" in text or "node count" in text:
        wanted = partition.split(",") if partition else [one.partition for one in sizes if one.is_default]
        return describe_sizes([one for one in sizes if one.partition in wanted] or sizes)
    return ""


def _list_known(what: str, name: str, names: Sequence[str]) -> str:
    known = list(dict.fromkeys(name for name in names if name))
    if not known:
        return ""
    more = ", …" if len(known) > MAX_NAMES else ""
    return did_you_mean(name, known, f"there are the {what} {', '.join(known[:MAX_NAMES])}{more}")


def describe_sizes(sizes: Sequence[Size]) -> str:
    """Describe nodes as text: `main has 4 nodes, each with 4 GPUs (a100), 8 CPUs and …`."""
    parts = []
    for one in sizes[:MAX_NAMES]:
        gpus = f"{one.gpus} GPUs" + (f" ({', '.join(one.gpu_types)})" if one.gpu_types else "")
        nodes = f"{one.nodes} node{'s' if one.nodes != 1 else ''}"
        memory = f"{one.memory_mib // 1024} GiB"
        parts.append(f"{one.partition} has {nodes}, each with {gpus}, {one.cpus} CPUs and {memory} of memory")
    return "; ".join(parts)
