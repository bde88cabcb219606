"""Output of gbatch: submitted jobs, and the jobs of a dry run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from gflow.core.model import Spec
from gflow.core.task_set import parse_tasks
from gflow.text.table import clock, near_moment

# Lines of a dry run that are printed at most.
MOST_LINES = 1000


def submitted_line(id_: str, name: str, *, is_parsable: bool = False) -> str:
    """`Submitted batch job 42`; with --parsable only the id."""
    if is_parsable:
        return f"{id_}\n"
    return f"Submitted batch job {id_} ({name})\n" if name else f"Submitted batch job {id_}\n"


def group_lines(count: int, group: int) -> str:
    """For jobs of a group: its id, and how to change its cap."""
    if group <= 0 or count < 2:
        return ""
    return (
        f"Submitted {count} batch jobs with group_id: {group}\n"
        f"Change how many run at once with: gctl set-limit {group} N\n"
    )


def sweep_line(first: str, last: str, count: int, group: int) -> str:
    """The output for a sweep on a terminal."""
    return (
        f"Submitted {count} batch jobs {first}-{last} as group g{group}\n"
        f"See gjob show g{group}; change how many run at once with: gctl set-limit {group} N\n"
    )


def would_start_line(
    spec: Spec, total: int, start: float | None, now: float, why: str, never: str = ""
) -> str:
    """When the first job of a submission would start. `why`: the reason why that is unknown.

    `never`: under which circumstances it cannot (`WaitReport.never`).
    """
    which = "Job" if total == 1 else f"The first of {total} jobs"
    if never:
        return f"{which} would never start {never}.\n"
    if start is None:
        return f"{which} would start {why or 'at a time that cannot be estimated'}.\n"
    gpus = f" on {spec.gpus} GPU{'s' if spec.gpus > 1 else ''}" if spec.gpus else ""
    when = "now" if start - now < 1 else f"at about {near_moment(start, now)} (in {clock(start - now)})"
    return f"{which} would start {when}{gpus}.\n"


def dry_run_page(specs: Sequence[Spec]) -> str:
    """The page of a dry run, one line per job and per task of an array."""
    total, lines = sum(map(tasks_of, specs)), list(dry_run_lines(specs))
    return dry_run_head(total) + "".join(lines) + dry_run_more(total, len(lines))


def tasks_of(spec: Spec) -> int:
    """Number of lines of this spec: the tasks of an array, else 1."""
    return len(parse_tasks(spec.array)) if spec.array else 1


def dry_run_head(total: int) -> str:
    return f"Would submit {total} batch job(s):\n"


def dry_run_lines(specs: Iterable[Spec], shown: int = 0) -> Iterator[str]:
    """Lines of these specs, up to MOST_LINES in all; `shown` lines were printed before."""
    for spec in specs:
        tasks = parse_tasks(spec.array) if spec.array else [None]
        for task in islice(tasks, MOST_LINES - shown):
            shown += 1
            which = "" if task is None else f", task_id: {task}"
            yield f"  [{shown}] {command_line(spec)} (GPUs: {spec.gpus}{which})\n"


def dry_run_more(total: int, shown: int) -> str:
    return f"  … and {total - shown} more\n" if total > shown else ""


def command_line(spec: Spec) -> str:
    """The command as a shell command line. Control characters are escaped."""
    if spec.command[:2] == ("bash", "-c") and len(spec.command) == 3:
        text = spec.command[2]
    else:
        script = shlex.quote(spec.script_path) if spec.script_path else "(script on standard input)"
        text = " ".join([script] * bool(spec.script) + [shlex.join(spec.command)] * bool(spec.command))
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
