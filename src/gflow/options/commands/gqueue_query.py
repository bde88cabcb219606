"""What gqueue asks the daemon for: its options as a query.

Read by the Python client, and by the daemon for thin clients.
"""

from __future__ import annotations

from gflow.options.commands.gqueue_options import OPTIONS
from gflow.options.job_options import refuse
from gflow.options.parse import output_of, parse

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


def read_gqueue(words: list[str]) -> tuple[dict[str, Any], str]:
    """The options of gqueue, and its output format; with --help only the options."""
    if words[-1:] == ["-r"]:
        refuse("-r takes an order, such as -r time", "-r is --sort here; Slurm's -r is --expand here")
    values, rest = _parse(words)
    if "help" in values:
        return values, ""
    if "tree" in values and rest and rest[0].isalpha():
        refuse(f"{rest[0]!a} is not a job id", "-t is --tree here; Slurm's -t is --states, here -s")
    if "%" in values.get("output", ""):
        refuse(f"unknown format {values['output']!a}", "-o is --output here; Slurm's -o is --format, here -f")
    if rest:
        values["jobs"] = ",".join([*filter(None, [values.get("jobs")]), *rest])
    output = output_of(values, OPTIONS)
    _check_shape(values, output)
    return values, output


def _parse(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Parse options. An error about an option of squeue says what it is here."""
    try:
        return parse(words, OPTIONS)
    except Exception as error:
        for word, hint in SQUEUE.items():
            if word in words and (word in str(error) or "--limit" in str(error)):
                error.hint = hint  # type: ignore[attr-defined]
        raise


def clusters_of(values: dict[str, Any], output: str) -> list[str]:
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


def gqueue_query(values: dict[str, Any], output: str) -> dict[str, str]:
    """The query for the daemon, without the time of --since, which is read in the user's time zone."""
    query = {name: _word(values[option]) for option, name in PASSED.items() if option in values}
    query["form"] = "group" if "group" in values else "tree" if "tree" in values else output
    return query


def _word(value: Any) -> str:
    return "1" if value is True else str(value)
