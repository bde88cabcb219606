"""Pages of docs/reference/, derived from the code's tables (`make docs`)."""

from __future__ import annotations

import ast
import inspect
import runpy
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gflow.cli.gjob import COMMANDS as GJOB
from gflow.cli.registry import PROGRAMS, TOOLS
from gflow.config.table import SETTINGS
from gflow.config.template import toml
from gflow.core.model import Gpu
from gflow.core.reasons import ReasonKind
from gflow.core.state.state import State
from gflow.core.transitions import TRANSITIONS
from gflow.daemon.api.handlers import metrics
from gflow.daemon.api.openapi import describe_api
from gflow.daemon.api.routes import ROUTES
from gflow.daemon.loop.counters import COUNTED, Meters
from gflow.errors import GflowError
from gflow.job_states import JobState
from gflow.options.commands import gqueue_options, gstats_options
from gflow.options.job_options import GBATCH, Option
from gflow.text.prometheus import Labels, Page
from gflow.wire.events import NAMES, NOTIFICATION_EVENTS

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src/gflow"
FOLDER = HERE.parent / "docs/reference"
NOTE = "<!-- Written by `make docs` from the code: edit that. -->"
# What each reason means, by code. `tests/docs` compares the codes with those of the engine.
WAIT_REASONS = {
    "Resources": "the GPUs, CPU slots or memory that it needs are not free; the text says which",
    "Priority": "the resources are free, and jobs before it in the queue get them first",
    "Promise": "a job that comes first has a start reservation (`gjob why` names it)",
    "Dependency": "a job that it depends on has not ended, or has not succeeded",
    "BeginTime": "its `--begin` has not come",
    "RetryDelay": "an attempt failed, and the delay before the next one is not over",
    "JobHeldUser": "it is held; `gjob release`",
    "RequeueLoop": "it is held because five requeued attempts in a row ended within a minute",
    "JobArrayTaskLimit": "as many tasks or jobs of its group run as `--max-concurrent` allows",
    "Quota": "its user or project uses as much as the quota allows",
    "Reservation": "free GPUs are reserved for another user, or their reservation begins before it would end",
    "Drained": "an operator drained the machine: no job starts",
    "Running": "in `gjob why`: a running job that has what it needs",
    "Arriving": "part of a large submission that is still being taken in",
    "Changing": "part of a large cancel, hold or update that is still being done",
    "Submitting": "it is being handed over to its cluster",
    "SendingFiles": "files of the project are being copied to the cluster",
}
GPU_REASONS = {
    "Unmanaged": "a process that belongs to no job uses it",
    "Unhealthy": "a health check failed; `gctl resume --gpu N` when it is repaired",
    "Lost": "the driver does not report it any more",
    "CannotTell": "it cannot be seen who uses it",
    "Drained": "an operator drained it",
    "Restricted": "it is not among the GPUs that jobs may get (`gctl set-gpus`, `daemon.gpus`)",
    "Unkillable": "a killed job that has it is still alive",
}
JOB_REASONS = {
    "Requeued": "an attempt ended, and the job is queued again (`--requeue`)",
    "Retry": "an attempt failed, and another one follows (`--max-retries`)",
    "Warned": "its warning signal (`--signal`) was sent",
    "Preempted": "stopped for another job; it is queued again",
    "IdleGPU": "it does not use its GPUs; with `--stop-if-idle`: stopped for that",
    "GpuMemory": "it used more GPU memory than its `--gpu-memory` with `--shared`",
    "StoppedEarly": "a rule of `--stop-when` applied",
    "Unkillable": "a process of the job is still alive after KILL",
    "TimeLimit": "its `--time` was reached",
    "CancelledByUser": "cancelled; by whom, if it was not the owner",
    "CancelledThere": "cancelled on the cluster, not by gflow",
    "ExitCode": "its command exited with this code",
    "Signal": "its command was killed by this signal",
    "OutOfMemory": "it used more host memory than allowed",
    "StartFailed": "it could not be started",
    "Lost": "its end was not observed: its supervisor was killed",
    "Reboot": "the machine restarted while it ran",
    "NodeFail": "its cluster node failed",
    "DependencyFailed": "this job, on which it depends, did not do what it had to",
    "TasksFailed": "so many tasks of the array failed",
    "TasksCancelled": "so many tasks of the array were cancelled",
    "Leased": "its GPUs had just been leased by another daemon; it is queued again",
    "Deferred": "the machine lacked a resource to start it; it is queued again",
    "Recalled": "withdrawn from its cluster, to run elsewhere or to be cancelled",
}
EXIT_CODES = {
    0: "done",
    1: "refused or failed",
    2: "the command line or the request cannot be understood",
    3: "the daemon is not running",
}
# Of commands that wait for jobs, besides the states with an exit code of their own.
JOB_EXIT_CODES = {
    "the job's own": "the job ended with it; 0: it succeeded",
    "128 + N": "the job was killed by signal N",
    "125": "gflow failed, not the job",
}


def make_pages() -> dict[str, str]:
    """All pages by their path below docs/."""
    api = runpy.run_path(str(HERE / "python_api.py"))
    pages = {
        "options": page("Options", options()),
        "settings": page("Settings", settings()),
        "states": page("Job states", states()),
        "reasons": page("Reasons", reasons()),
        "exit-codes": page("Exit codes", exit_codes()),
        "events": page("Event names", events()),
        "api": page("HTTP API", routes()),
        "metrics": page("Metrics", metric_table()),
        "python": page("Python API", api["make_lines"](SOURCE)),
        "runqd-names": page("Names of the other gflow (runqd)", runqd_names()),
    }
    for program in ("gflow", *PROGRAMS):
        pages[program] = command_page(program)
    found = {f"reference/{name}.md": text for name, text in pages.items()}
    return {"reference.md": index(pages)} | found


def page(title: str, lines: list[str]) -> str:
    return "\n".join([f"# {title}", "", NOTE, "", *lines]).rstrip("\n") + "\n"


def index(pages: dict[str, str]) -> str:
    about = {
        "options": "every option of `gbatch`, `gqueue`, `gstats`, `gcancel`, `ginfo`, with all spellings",
        "settings": "every setting of `gflow.toml`, its variable and its flag",
        "states": "the states of a job and the transitions between them",
        "reasons": "why a job waits, is stopped or has ended; why a GPU gets no jobs",
        "exit-codes": "exit codes of the commands, and errors of the API",
        "events": "names of events and notifications",
        "api": "every route: who may call it, its query, body and answer",
        "metrics": "every metric of `/metrics`",
        "python": "functions and classes of `gflow`, `gflow.train` and `gflow.fit`, with signatures",
        "runqd-names": "every name of the other gflow, and its name here",
    }
    lines = ["| page | what it has |", "|---|---|"]
    for name, text in about.items():
        lines.append(f"| [{pages[name].splitlines()[0].removeprefix('# ')}](reference/{name}.md) | {text} |")
    lines += ["", "## Commands", "", "| command | what it does |", "|---|---|"]
    commands = {"gflow": "all commands on one page", **PROGRAMS}
    lines += [f"| [`{name}`](reference/{name}.md) | {text} |" for name, text in commands.items()]
    lines += [
        f"| [`gflow {name}`](reference/gflow.md#gflow-{name}) | {text} |" for name, text in TOOLS.items()
    ]
    return page("Reference", lines)


def command_page(program: str) -> str:
    """The help of a program and of its commands."""
    help_of = runpy.run_path(str(HERE / "man_pages.py"))["help_of"]
    commands = TOOLS if program == "gflow" else GJOB if program == "gjob" else {}
    lines = block(help_of((program,)))
    for name in commands:
        lines += ["", f"## {program} {name}", "", *block(help_of((program, name)))]
    return page(program, lines)


def block(text: str) -> list[str]:
    return ["```text", *text.rstrip("\n").splitlines(), "```"]


def options() -> list[str]:
    from gflow.options.commands import gcancel_options, ginfo_options

    tables = {"gbatch": GBATCH, "gqueue": gqueue_options.OPTIONS, "gstats": gstats_options.OPTIONS}
    tables |= {"gcancel": gcancel_options.OPTIONS, "ginfo": ginfo_options.OPTIONS}
    lines = ["`grun`, `gjob update` and `gjob redo` take the options of `gbatch` that describe a job.", ""]
    for program, rows in tables.items():
        lines += [f"## Options of {program}", "", "| option | meaning |", "|---|---|"]
        lines += [f"| {spelled(option)} | {cell(option.help)} |" for option in rows]
        lines.append("")
    return lines


def spelled(option: Option) -> str:
    names = ([f"-{option.short}"] if option.short else []) + [f"--{option.name}"]
    names += ["-" * min(2, len(alias)) + alias for alias in option.aliases]
    value = f" {option.metavar}" if option.metavar else ""
    return ", ".join(f"`{name}{value if name == f'--{option.name}' else ''}`" for name in names)


def cell(text: str) -> str:
    """Text for a cell of a table: angle brackets are not markup."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def settings() -> list[str]:
    """Every setting of gflow.toml, its variable and its flag, a table for each section."""
    lines = ["[configuration.md](../configuration.md) explains where settings come from.", ""]
    sections: dict[str, list[str]] = {}
    for setting in SETTINGS:
        ways = [f"`{name}`" for name in setting.variables] + ([f"`--{setting.flag}`"] if setting.flag else [])
        row = (f"`{setting.key}`", f"`{toml(setting.default)}`", ", ".join(ways), cell(setting.help))
        section = setting.key.rpartition(".")[0] or "Top level"
        sections.setdefault(section, []).append(f"| {' | '.join(row)} |")
    for section, rows in sections.items():
        lines += [
            f"## {section}",
            "",
            "| setting | default | variable, flag | meaning |",
            "|---|---|---|---|",
        ]
        lines += [*rows, ""]
    return lines


def states() -> list[str]:
    lines = ["A finer distinction is a [reason](reasons.md).", ""]
    lines += ["| state | short | for `gqueue -s` also | next states |", "|---|---|---|---|"]
    for state in JobState:
        following = ", ".join(sorted(one.value for one in TRANSITIONS[state])) or "none: it has ended"
        lines.append(f"| {state.value} | {state.row.short} | {state.row.alias or '-'} | {following} |")
    lines += ["", "`CG` in a listing is a running job that is being stopped."]
    return lines


def reasons() -> list[str]:
    lines = ["`gqueue` prints the reason in its last column, `gjob show` and the API as `reason`. Programs"]
    lines += ["compare the part before the colon. `gjob why ID` explains it.", ""]
    tables = {"Why a job waits": WAIT_REASONS, "Why a job is stopped or has ended": JOB_REASONS}
    tables |= {"Why a GPU gets no jobs": GPU_REASONS}
    for title, rows in tables.items():
        lines += [f"## {title}", "", "| reason | meaning |", "|---|---|"]
        lines += [f"| `{code}` | {text} |" for code, text in rows.items()] + [""]
    lines += ["A job on a Slurm cluster has the reason that Slurm gives, with words where gflow knows some."]
    return lines


def reason_codes() -> set[str]:
    """The codes that the engine knows, without those that stand for no reason or for any text."""
    kinds = {kind.value for kind in ReasonKind} - {"", "Other"}
    built = {code for path in SOURCE.rglob("*.py") for code in made_codes(path)}
    return kinds | built


def made_codes(path: Path) -> list[str]:
    """Codes in calls `Blocker("Code", …)` and `Block("Code", …)` of a module."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args
        if is_call and node.func.id in ("Blocker", "Block"):
            found += [one.value for one in ast.walk(node.args[0]) if is_text(one)]
    return [code for code in found if code.isalpha()]


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def exit_codes() -> list[str]:
    missing = {one.exit_code for one in error_classes()} - set(EXIT_CODES)
    if missing:
        raise SystemExit(f"no meaning of exit codes {missing}: add them to EXIT_CODES")
    lines = ["| exit code | meaning |", "|---|---|"]
    lines += [f"| {code} | {text} |" for code, text in EXIT_CODES.items()]
    lines += ["", "## Commands that wait for a job", ""]
    lines += ["`gbatch --wait`, `grun` and `gjob wait` (of several jobs: the highest):", ""]
    ends = {str(one.row.exit_code): f"the job ended as {one.value}" for one in JobState if one.row.exit_code}
    lines += ["| exit code | meaning |", "|---|---|"]
    lines += [f"| {code} | {text} |" for code, text in (JOB_EXIT_CODES | ends).items()]
    lines += ["", "## Errors", "", "`--json` and the API name the error in `code`.", ""]
    lines += ["| code | exit code | HTTP status | meaning |", "|---|---|---|---|"]
    for one in error_classes():
        about = " ".join((one.__doc__ or "").split())
        lines.append(f"| `{one.code}` | {one.exit_code} | {one.http_status} | {about} |")
    return lines


def error_classes() -> list[type[GflowError]]:
    """The error classes, base classes first."""
    from gflow import errors

    found = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, GflowError)]
    return sorted(found, key=lambda one: (one.exit_code, one.http_status, one.code))


def events() -> list[str]:
    lines = ["[events.md](../events.md) says when each event occurs, and how to read them. An entry of the"]
    lines += ["audit log (`gjob history`) has one name or several.", ""]
    lines += ["| entry | events | notification |", "|---|---|---|"]
    for entry, names in NAMES.items():
        told = NOTIFICATION_EVENTS.get(entry)
        lines.append(
            f"| {entry} | {', '.join(f'`{one}`' for one in names)} | {f'`{told}`' if told else '-'} |"
        )
    return lines


def routes() -> list[str]:
    lines = [
        "[api.md](../api.md) tells how to call the API. `gflow api` and `GET /openapi.json` describe the",
        "types of bodies and answers. *Who* applies to the system-wide daemon; a daemon of one's own serves",
        "its owner and root, who may do all of it.",
        "",
    ]
    paths = describe_api(ROUTES)["paths"]
    for route in ROUTES:
        operation = paths[route.path][route.method.lower()]
        about = operation["description"].rpartition("\n\n")[0]
        lines += [f"## {route.method} {route.path}", "", cell(about), ""]
        lines += [f"- Who: {route.permission.value}"]
        named = [one["name"] for one in operation["parameters"] if one["in"] == "query"]
        lines += ["- Query: " + ", ".join(f"`{name}`" for name in named)] if named else []
        if route.body is not None:
            kind = "bytes" if route.body is bytes else route.body.__name__
            lines.append(f"- Body: `{kind}`")
        kinds = route.answer if isinstance(route.answer, tuple) else (route.answer,)
        answers = [getattr(kind, "__name__", str(kind)) for kind in kinds if kind is not None]
        lines += [f"- Answer: {' or '.join(f'`{name}`' for name in answers) or f'`{route.media}`'}", ""]
    return lines


def metric_table() -> list[str]:
    lines = ["[monitoring.md](../monitoring.md) tells how to scrape them.", ""]
    lines += ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for name, kind, labels, about in collect_metrics():
        told = ", ".join(f"`{label}`" for label in labels) or "-"
        lines.append(f"| `{name}` | {kind} | {told} | {about} |")
    return lines


class Recorder(Page):
    """A page of metrics that remembers families instead of text."""

    def __init__(self) -> None:
        super().__init__()
        self.families: list[tuple[str, str, list[str], str]] = []

    def family(self, name: str, kind: str, about: str, samples: Iterable[tuple[Labels, float]]) -> None:
        found = list(samples)
        self.families.append((name, kind, sorted(found[0][0]) if found else [], about))

    def histogram(self, name: str, about: str, several: Iterable[tuple[Labels, *tuple[Any, ...]]]) -> None:
        labels = {label for one in several for label in one[0]}
        self.families.append((name, "histogram", sorted(labels), about))


def collect_metrics() -> list[tuple[str, str, list[str], str]]:
    """All families, from the functions that `/metrics` calls, with one GPU and one user."""
    state, meters, found = State(cpus=1, memory_mib=1), Meters(), Recorder()
    state.machine.see_gpus([Gpu(index=0, uuid="GPU-0", model="A100", memory_mib=1)])
    meters.users.update({(what, "ann"): 1 for what in COUNTED})
    sample = SimpleNamespace(**{field: 1.0 for _, _, field, _ in metrics.METERED})
    watch = SimpleNamespace(latest=SimpleNamespace(cards={0: SimpleNamespace(sample=sample)}))
    loop = SimpleNamespace(state=state, meters=meters, read_only=False)
    context = SimpleNamespace(loop=loop, watch=watch, started_boot=0.0)
    metrics._user_counters(found, meters, is_named=True)
    metrics._jobs(found, context)
    metrics._machine(found, state.machine)
    metrics._gpus(found, context)
    metrics._daemon(found, context)
    return found.families


def runqd_names() -> list[str]:
    """Every name of the other gflow, by section of compat.toml."""
    found = tomllib.loads((HERE.parent / "docs/compat.toml").read_text())
    found = {name: table for name, table in found.items() if name not in ("bugs", "gaps")}
    lines = ["[From the other gflow](../migrate/from-runqd.md) has the steps. A test runs each name that",
             "exists here; `docs/compat.toml` names it.", ""]  # fmt: skip
    for title, names in sections(found):
        lines += [f"## {title}", ""]
        same = [f"`{name}`" for name, told in names.items() if isinstance(told, str)]
        lines += ["The same here: " + ", ".join(same) + ".", ""] if same else []
        others = [(name, told["why"]) for name, told in names.items() if not isinstance(told, str)]
        rows = [f"| `{cell(name)}` | {cell(why)} |" for name, why in others]
        lines += ["| name of runqd | here |", "|---|---|", *rows, ""] if rows else []
    return lines


def sections(table: dict[str, object], title: str = "") -> Iterator[tuple[str, dict[str, object]]]:
    """The tables of names in a TOML file, nested ones after the one that has them."""
    names = {name: told for name, told in table.items() if isinstance(told, str) or "why" in told}
    if names:
        yield title, names
    for name, told in table.items():
        if name not in names:
            yield from sections(told, f"{title} {name}".strip())
