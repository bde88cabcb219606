"""gqueue: list jobs."""

from __future__ import annotations

import sys

from gflow.cli.common.listing import add_me, output_of, since_of
from gflow.client import hot_path, http
from gflow.options.commands.gqueue_options import OPTIONS
from gflow.options.job_options import refuse
from gflow.options.parse import parse

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any

# Options that are passed to the daemon unchanged, and their query names.
PASSED = {
    "states": "states", "jobs": "jobs", "names": "names", "user": "users", "project": "projects",
    "target": "targets", "partition": "partitions",
    "sort": "sort", "limit": "limit", "offset": "offset", "format": "format", "all": "all",
    "completed": "completed", "expand": "expand", "collapse": "collapse",
}  # fmt: skip

# Options that choose jobs, or columns that only jobs of gflow have.
CHOOSING = frozenset(
    {"states", "jobs", "names", "user", "project", "partition", "since", "sort", "limit", "offset", "format",
     "completed", "group", "tree"}
)  # fmt: skip

# Options of squeue that gqueue lacks, or that mean something else.
SQUEUE = {
    "-n": "-n is --limit here; Slurm's -n is --name, here -N",
    "-l": "Slurm's -l: gqueue -f 'JOBID,NAME,USER,STATE,TIME,TIMELIMIT,NODELIST(REASON)'",
    "-i": "Slurm's -i is --watch --interval here",
    "--start": "expected starts: gqueue -f JOBID,NAME,ST,START; gjob why 42",
    "--noheader": "programs read --json, -o csv or -o yaml",
    "-O": "Slurm's -O is -f here: gqueue -f JOBID,NAME,ST",
    "-A": "Slurm's -A is -P here",
}


def run(words: list[str]) -> int:
    if words[-1:] == ["-r"]:
        refuse("-r takes an order, such as -r time", "-r is --sort here; Slurm's -r is --expand here")
    values, rest = _parse(words)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gqueue [options] [JOB…]", _about(), OPTIONS, EXAMPLES))
        return 0
    if "tree" in values and rest and rest[0].isalpha():
        refuse(f"{rest[0]!a} is not a job id", "-t is --tree here; Slurm's -t is --states, here -s")
    if "%" in values.get("output", ""):
        refuse(f"unknown format {values['output']!a}", "-o is --output here; Slurm's -o is --format, here -f")
    if rest:
        values["jobs"] = ",".join([*filter(None, [values.get("jobs")]), *rest])
    output = output_of(values, OPTIONS)
    clusters = _clusters(values, output)
    add_me(values)
    _check_shape(values, output)
    query = _query(values, output)
    if "watch" in values:
        from gflow.cli.common.watch import watch

        title, interval_s = "gqueue " + " ".join(words), values.get("interval", 2)
        return watch(lambda: _ask(query, output), interval_s, title, is_data=output != "table")
    sys.stdout.flush()
    content, code = _ask(query, output), 0
    if clusters:
        from gflow.cli.common.other_slurm_jobs import add_others

        content, code = add_others(content, clusters, is_json=output == "json")
    hot_path.write(1, content)
    if "width" in query:
        from gflow.client.private_daemon import other_jobs

        hot_path.write(1, other_jobs().encode())
    return code


def _parse(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Parse options. An error about an option of squeue says what it is here."""
    try:
        return parse(words, OPTIONS)
    except Exception as error:
        for word, hint in SQUEUE.items():
            if word in words and (word in str(error) or "--limit" in str(error)):
                error.hint = hint  # type: ignore[attr-defined]
        raise


def _ask(query: dict[str, str], output: str) -> bytes:
    accept = "application/json" if output == "json" else "text/plain"
    content = http.ask("GET", "/jobs", b"", accept, query)
    return http.json_line(content) if output == "json" else content


def _clusters(values: dict[str, Any], output: str) -> list[str]:
    """The clusters of --target of which all Slurm jobs are listed: none if jobs are chosen otherwise."""
    if "target" not in values or output not in ("table", "json") or CHOOSING & values.keys():
        return []
    names = [name.strip() for name in str(values["target"]).split(",")]
    return [name for name in names if name not in ("", "local")]


def _check_shape(values: dict[str, Any], output: str) -> None:
    if output != "table" and ("group" in values or "tree" in values):
        refuse(f"--group and --tree print tables, not {output}")
    if "group" in values and "tree" in values:
        refuse("--group or --tree, not both")
    if "collapse" in values and "expand" in values:
        refuse("--collapse or --expand, not both")
    if "collapse" in values and (output != "table" or "group" in values or "tree" in values):
        refuse("--collapse prints a plain table", "gjob show g116 --json has the figures of a group")


def _query(values: dict[str, Any], output: str) -> dict[str, str]:
    """The query for the daemon."""
    query = {name: _word(values[option]) for option, name in PASSED.items() if option in values}
    query["form"] = "group" if "group" in values else "tree" if "tree" in values else output
    if "since" in values:
        query["since"] = since_of(values["since"])
    if output == "table":
        query |= hot_path.terminal()
    return query


def _word(value: Any) -> str:
    return "1" if value is True else str(value)


def _about() -> str:
    from gflow.job_states import JobState

    states = {state: f"{state.row.short} {state.value}" for state in JobState}
    states[JobState.RUNNING] += ", CG being stopped"
    return ABOUT.format(states=", ".join(states.values()))


ABOUT = """List running and waiting jobs, with the reason why each one waits.

On a terminal, a last line counts the jobs and GPUs, long reasons wrap, and jobs that report their
progress show PROGRESS, ETA and LOSS. There, a sweep or an array with several listed jobs is one line
with its counts by state, a progress bar and the expected time to its end, unless jobs (ids, -N, -s, -n),
an order or columns are chosen; --expand and --collapse say which.

--target NAME of a cluster also lists your Slurm jobs there that this daemon did not submit, unless jobs
or columns are chosen. gflow does not change them.

columns: JOBID NAME ST STATE TIME TIMELIMIT NODES (requested GPUs) NODELIST(REASON) (its GPUs, or why
it waits or failed) REASON GPUS GPUIDS CPUS MEMORY USER PROJECT PRIORITY SUBMIT START (with ~ the
expected start of a waiting job) END EXIT ATTEMPT PROGRESS ETA (time to its end) LOSS RATE (samples
per second, as the job reports them) MAXRSS (peak memory) GPU% (mean use of its GPUs) GPUMEM (peak
memory of a GPU) GROUP PARAMS TARGET COMMAND WORKDIR (and any metric that jobs report)

states: {states}"""
EXAMPLES = """gqueue
gqueue -s Running,Queued -f 'JOBID,NAME,ST,NODES,NODELIST(REASON)'
gqueue -c --since today -f JOBID,NAME,STATE,EXIT,TIME,END
gqueue --me -N 'lr*'
gqueue --target slurm
gqueue -a -f JOBID,NAME,ST,TIME,MAXRSS,GPU%,GPUMEM
gqueue -u ann -r priority -n 10
gqueue -a -r loss -f JOBID,NAME,PROGRESS,LOSS,accuracy
gqueue g116 -f JOBID,ST,PARAMS,LOSS -r loss
gqueue --expand
gqueue --tree
gqueue --watch --interval 5
gqueue --all -o csv > jobs.csv"""
