"""Stand-ins for squeue and sacct: listings of jobs in the formats of Slurm."""

from __future__ import annotations

import csv
import os
import re

from gflow.cli.common.listing import add_me, since_of
from gflow.cli.tools.slurm_words import Given, Known, split
from gflow.client import hot_path, http
from gflow.errors import UsageError
from gflow.options.slurm import UNITS

SQUEUE = Known(
    {"u": "user", "j": "jobs", "t": "states", "n": "name", "A": "account", "p": "partition", "l": "long",
     "i": "iterate", "h": "noheader", "o": "format", "O": "Format", "r": "array", "a": "all", "S": "sort"},
    flags=("me", "long", "start", "noheader", "array", "all", "help"),
    values=("user", "users", "jobs", "job", "states", "state", "name", "account", "partition", "iterate",
            "format", "Format", "sort"),
)  # fmt: skip
SACCT = Known(
    {"j": "jobs", "u": "user", "o": "format", "S": "starttime", "s": "state", "n": "noheader",
     "P": "parsable2", "p": "parsable", "X": "allocations", "a": "allusers", "b": "brief",
     "A": "account"},
    flags=("noheader", "parsable2", "parsable", "allocations", "allusers", "brief", "help"),
    values=("jobs", "job", "user", "users", "uid", "format", "starttime", "state", "name", "account"),
)  # fmt: skip
# Options with a value that select jobs, and their names in the query of gflow.
SELECTED = {
    "user": "users", "users": "users", "uid": "users", "name": "names", "account": "projects",
}  # fmt: skip
# Letters of `squeue -o`: the heading, and gflow's column; empty: there is none on one machine.
LETTERS = {
    "i": ("JOBID", "JOBID"), "A": ("JOBID", "JOBID"), "F": ("ARRAY_JOB_ID", "JOBID"), "j": ("NAME", "NAME"),
    "u": ("USER", "USER"), "t": ("ST", "ST"), "T": ("STATE", "STATE"), "M": ("TIME", "TIME"),
    "l": ("TIME_LIMIT", "TIMELIMIT"), "D": ("NODES", ""), "P": ("PARTITION", ""), "q": ("QOS", ""),
    "R": ("NODELIST(REASON)", "NODELIST(REASON)"), "N": ("NODELIST", "NODELIST(REASON)"),
    "r": ("REASON", "REASON"), "b": ("TRES_PER_NODE", "GPUS"), "C": ("CPUS", "CPUS"),
    "m": ("MIN_MEMORY", "MEMORY"), "S": ("START_TIME", "START"), "e": ("END_TIME", "END"),
    "V": ("SUBMIT_TIME", "SUBMIT"), "Q": ("PRIORITY", "PRIORITY"), "p": ("PRIORITY", "PRIORITY"),
    "a": ("ACCOUNT", "PROJECT"), "o": ("COMMAND", "COMMAND"), "Z": ("WORK_DIR", "WORKDIR"),
}  # fmt: skip
# Fields of `squeue -O` and `sacct --format`, and the letters that print the same.
FIELDS = {
    "jobid": "i", "jobarrayid": "i", "jobidraw": "i", "arrayjobid": "F", "name": "j", "jobname": "j",
    "username": "u", "user": "u", "state": "T", "statecompact": "t", "timeused": "M", "elapsed": "M",
    "timelimit": "l", "numnodes": "D", "nnodes": "D", "allocnodes": "D", "partition": "P", "qos": "q",
    "reasonlist": "R", "nodelist": "N", "reason": "r", "tres": "b", "gres": "b", "alloctres": "b",
    "reqtres": "b", "numcpus": "C", "ncpus": "C", "alloccpus": "C", "reqcpus": "C", "minmemory": "m",
    "reqmem": "m", "starttime": "S", "start": "S", "endtime": "e", "end": "e", "submittime": "V",
    "submit": "V", "priority": "Q", "account": "a", "command": "o", "workdir": "Z",
}  # fmt: skip
# Further fields of sacct, and gflow's columns.
MORE = {"exitcode": "EXIT", "maxrss": "MAXRSS"}
# Slurm's own formats: scripts pick columns by their position.
DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.9T %.10M %.10l %.6D %R"
START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %R"
SACCT_DEFAULT = "JobID,JobName,Account,AllocCPUS,State,ExitCode"
SACCT_BRIEF = "JobID,State,ExitCode"
# The partition of every job on this machine.
PARTITION = "local"
# States of Slurm, by those of gflow; and what their names select.
STATES = {
    "Queued": "PENDING", "Hold": "PENDING", "Running": "RUNNING", "Finished": "COMPLETED",
    "Failed": "FAILED", "Cancelled": "CANCELLED", "Timeout": "TIMEOUT", "H": "PD",
}  # fmt: skip
SELECTING = {
    "PENDING": "PD,H", "PD": "PD,H", "RUNNING": "R", "COMPLETING": "R", "CG": "R", "COMPLETED": "CD",
    "FAILED": "F", "CANCELLED": "CA", "TIMEOUT": "TO",
}  # fmt: skip
DIRECTIVE = re.compile(r"%(\.?)(\d*)([A-Za-z])")
# A column to print: its heading, and gflow's column.
Column = tuple[str, str]


def squeue(words: list[str]) -> int:
    given, jobs = split("squeue", words, SQUEUE)
    options = dict(given)
    if "help" in options:
        raise UsageError("this is gflow's stand-in for squeue", hint="see gqueue --help")
    template = options.get("format") or (LONG if "long" in options else DEFAULT)
    if "Format" in options:
        template = " ".join("%20" + _letter(field) for field in options["Format"].split(","))
    query = _query(given, jobs)
    if "start" in options:
        template, query["states"] = options.get("format") or START, "PD"

    def ask() -> bytes:
        return _page(template, query, has_header="noheader" not in options).encode()

    if "iterate" in options:
        from gflow.cli.common.watch import watch

        return watch(ask, float(options["iterate"]), "squeue " + " ".join(words))
    hot_path.write(1, ask())
    return 0


def sacct(words: list[str]) -> int:
    given, jobs = split("sacct", words, SACCT)
    options = dict(given)
    if jobs or "help" in options:
        raise UsageError("sacct takes jobs as -j 42", hint="see gqueue --help and gstats --help")
    query = _query(given, []) | {"all": "1"}
    if "jobs" not in query:
        query["since"] = since_of(_since(options.get("starttime", "today")))
        if "allusers" not in options and "users" not in query:
            query["users"] = _me()
    names = (options.get("format") or (SACCT_BRIEF if "brief" in options else SACCT_DEFAULT)).split(",")
    columns = [_field(name.partition("%")[0]) for name in names]
    rows = [[heading for heading, _ in columns]] * ("noheader" not in options)
    rows += [
        [_cell(column, row) for column in columns] for row in _rows([ours for _, ours in columns], query)
    ]
    if "parsable" in options or "parsable2" in options:
        lines = ["|".join(row) + "|" * ("parsable" in options) for row in rows]
    else:
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        lines = [" ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    hot_path.write(1, "".join(line + "\n" for line in lines).encode())
    return 0


def gflow_id(text: str) -> str:
    """The id of a job here. A task of an array knows itself by the number in SLURM_JOB_ID."""
    is_own = text and text == os.environ.get("SLURM_JOB_ID")
    return os.environ.get("GFLOW_JOB_ID", text) if is_own else text


def states_of(text: str) -> str:
    """States as gflow spells them, for states of Slurm."""
    return ",".join(SELECTING.get(name.upper(), name) for name in text.split(","))


def _query(given: list[Given], jobs: list[str]) -> dict[str, str]:
    """The query for the jobs that the options select."""
    query: dict[str, str] = {}
    for name, value in given:
        if name in SELECTED:
            query[SELECTED[name]] = value
        elif name in ("jobs", "job"):
            jobs = [*jobs, *value.split(",")]
        elif name in ("states", "state"):
            query |= {"all": "1"} if value.lower() == "all" else {"states": states_of(value)}
        elif name == "partition" and PARTITION not in value.split(","):
            raise UsageError(f"there is no partition {value!a:.60}", hint=f"all jobs are in {PARTITION!r}")
        elif name == "me":
            query["users"] = _me()
    if jobs:
        query["jobs"] = ",".join(map(gflow_id, jobs))
    return query


def _me() -> str:
    values: dict[str, str | bool] = {"me": True}
    add_me(values)
    return str(values["user"])


def _since(text: str) -> str:
    """A time of sacct as gflow reads it: `now-2days` is `2d`."""
    if not text.startswith("now-"):
        return text
    digits = text[4:].rstrip("abcdefghijklmnopqrstuvwxyz")
    word = text[4 + len(digits) :].removesuffix("s")
    return digits + (UNITS.get(word, word) if word else "s")


def _letter(field: str) -> str:
    name = field.partition(":")[0].lower()
    if name not in FIELDS:
        raise UsageError(f"gflow has no column for {field!a:.60}", hint="fields: " + ", ".join(FIELDS))
    return FIELDS[name]


def _field(name: str) -> Column:
    """The column of a field of sacct. Its heading is the name as given."""
    return name, MORE.get(name.lower()) or LETTERS[_letter(name)][1]


def _page(template: str, query: dict[str, str], *, has_header: bool) -> str:
    """The jobs, each printed by the template of `squeue -o`: `%i %.10j`."""
    letters = [letter for _, _, letter in DIRECTIVE.findall(template)]
    for letter in letters:
        if letter not in LETTERS:
            raise UsageError(f"gflow has no column for %{letter}", hint="letters: " + " ".join(LETTERS))
    columns = [LETTERS[letter] for letter in letters]
    lines = [[heading for heading, _ in columns]] * has_header
    lines += [
        [_cell(column, row) for column in columns] for row in _rows([ours for _, ours in columns], query)
    ]
    return "".join(_line(template, cells) + "\n" for cells in lines)


def _line(template: str, cells: list[str]) -> str:
    left = iter(cells)

    def replace(found: re.Match[str]) -> str:
        right, width, cell = found[1], int(found[2] or 0), next(left)
        cell = cell[:width] if width else cell
        return cell.rjust(width) if right else cell.ljust(width)

    return DIRECTIVE.sub(replace, template).rstrip()


def _rows(columns: list[str], query: dict[str, str]) -> list[dict[str, str]]:
    """The columns of the selected jobs."""
    wanted = ",".join(dict.fromkeys(filter(None, ["JOBID", *columns])))
    content = http.ask("GET", "/jobs", b"", "text/plain", query | {"form": "csv", "format": wanted})
    return list(csv.DictReader(content.decode().splitlines()))


def _cell(column: Column, row: dict[str, str]) -> str:
    """One cell in Slurm's spelling."""
    heading, ours = column
    if not ours:
        return "1" if "nodes" in heading.lower() else PARTITION
    text = row[ours]
    if ours == "EXIT":
        return f"0:{text[7:]}" if text.startswith("signal ") else f"{0 if text == '-' else text}:0"
    if ours == "START":
        return text.removeprefix("~")  # expected
    return STATES.get(text, text) if ours in ("STATE", "ST") else text
