"""Translate Slurm options to gflow options: on the command line, and in `#SBATCH` lines.

A translation is for one machine. The option itself is kept as a word of `--slurm` (`sbatch_words`), which a
cluster gets unchanged. The daemon reports words that mean nothing if the job runs on this machine.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from gflow.errors import UsageError
from gflow.job_states import END_EVENTS, JobState
from gflow.options.job_options import CAPTURE, JOB, PER_UNIT, SLURM, SUBMIT, Option, spellings
from gflow.options.node_shape import is_name, parse_shape
from gflow.options.sbatch_words import STANDS_FOR, merge_words, word_of
from gflow.options.values import read

MARK = "#SBATCH"
USUAL_PRIORITY = 10
Meant = dict[str, Any]

# Short flags of Slurm, which differ from those of gflow.
SHORT = {
    "A": "account", "a": "array", "c": "cpus-per-task", "D": "chdir", "d": "dependency", "e": "error",
    "G": "gpus", "H": "hold", "J": "job-name", "N": "nodes", "n": "ntasks", "o": "output", "p": "partition",
    "q": "qos", "t": "time", "x": "exclude", "w": "nodelist", "C": "constraint", "L": "licenses",
    "b": "begin", "M": "clusters", "F": "nodefile", "S": "core-spec", "B": "extra-node-info",
    "m": "distribution", "k": "no-kill", "s": "oversubscribe", "O": "overcommit", "W": "wait", "Q": "quiet",
}  # fmt: skip
# Other names of options.
ALIASES = {"tasks-per-node": "ntasks-per-node"}
# Options of sbatch that gflow does not translate: the command line accepts them, a cluster gets them, and one
# machine ignores them. Lines of scripts may have others, such as those of a site's plugins.
PASSED = frozenset((
    "acctg-freq", "bb", "bbf", "cluster-constraint", "container", "container-id", "contiguous",
    "core-spec", "cores-per-socket", "cpu-freq", "deadline", "delay-boot", "distribution", "exclude", "extra",
    "extra-node-info", "get-user-env", "gpu-bind", "gpu-freq", "gpus-per-socket", "gres-flags", "hint",
    "input", "licenses", "mcs-label", "mem-bind", "mincpus", "network", "no-kill", "nodefile", "nodelist",
    "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-socket", "oom-kill-step", "overcommit", "oversubscribe",
    "power", "prefer", "profile", "propagate", "reboot", "resv-ports", "segment", "sockets-per-node",
    "spread-job", "stepmgr", "switches", "thread-spec", "threads-per-core", "time-min", "tmp", "tres-bind",
    "tres-per-task", "use-min-nodes", "wckey", "x11",
    # Of pyxis.
    "container-image", "container-mounts", "container-workdir", "container-name", "container-save",
    "container-env", "container-mount-home", "no-container-mount-home", "container-remap-root",
    "no-container-remap-root", "container-entrypoint", "no-container-entrypoint", "container-writable",
    "container-readonly",
))  # fmt: skip
# Options that no job of gflow can have, and how their names are collected.
UNSUPPORTED = frozenset(("clusters", "export-file", "gid", "ignore-pbs", "uid", "verbose"))
IGNORED = "ignored"
FLAGS = frozenset(
    {"hold", "requeue", "no-requeue", "exclusive", "parsable", "wait", "overcommit", "contiguous", "quiet",
     "no-kill", "oversubscribe", "reboot", "spread-job", "use-min-nodes", "verbose", "get-user-env",
     "ignore-pbs", "test-only", "propagate", "resv-ports", "stepmgr", "x11", "container-mount-home",
     "no-container-mount-home", "container-remap-root", "no-container-remap-root", "container-entrypoint",
     "no-container-entrypoint", "container-writable", "container-readonly"}
)  # fmt: skip
_STARTED = JobState.RUNNING.row.event
# Events of --mail-type. END in Slurm covers every outcome.
MAIL = {
    "BEGIN": (_STARTED,),
    "END": END_EVENTS,
    "FAIL": tuple(event for event in END_EVENTS if event != JobState.FINISHED.row.event),
    "TIME_LIMIT": (JobState.TIMEOUT.row.event,),
    "ALL": (_STARTED, *END_EVENTS),
}
# Kinds of --dependency, and the option for each.
DEPENDENCIES = {
    "afterok": "depends-on",
    "afterany": "depends-on-end",
    "afternotok": "depends-on-failure",
    "after": "depends-on-start",
}
NO_DEPENDENCY = {
    "aftercorr": "afterok:17 waits for all tasks of an array, afterok:17_3 for one of them",
    "after": "write after:17; a delay after its start is not supported: use --begin",
}
# Options of gbatch itself, which lines of scripts cannot set.
_CLIENTS = frozenset([option.name for option in SUBMIT])
UNITS = {"second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w"}


def translate(name: str, value: Any) -> Meant:
    """The gflow options (by name) for one Slurm option, and its word for a cluster. Values stay text."""
    if name in UNSUPPORTED:
        return {IGNORED: "--" + name}
    meant = TRANSLATIONS[name](str(value)) if name in TRANSLATIONS else {name: value}
    if name in PASSED:
        meant = {}
    is_passed = name in PASSED or (name in STANDS_FOR and (name, value) != ("exclusive", True))
    return {**meant, "slurm": word_of(name, value)} if is_passed else meant


def find_option(name: str, spelled: dict[str, Option], *, is_for_cluster: bool) -> Option | None:
    """The option for a name of sbatch that gflow's table lacks: `--exclude`, `-C`; None: sbatch has none.

    Of a job for a cluster, sbatch decides whether there is such an option.
    """
    if len(name) == 2:
        return spelled.get("--" + SHORT.get(name[1:], ""))
    long = ALIASES.get(name[2:], name[2:])
    if long in PASSED or long in UNSUPPORTED or long in TRANSLATIONS:
        return Option(long, "slurm", "", metavar="" if long in FLAGS else "VALUE")
    return spelled.get("--" + long) or (Option(long, "word", "", metavar="VALUE") if is_for_cluster else None)


def sbatch(script: str, where: str) -> tuple[dict[str, Any], list[str]]:
    """Option values of the `#SBATCH` lines of a script, and the options that no job of gflow can have."""
    options = spellings(JOB + CAPTURE + SLURM)
    values: dict[str, Any] = {}
    ignored: list[str] = []
    for number, words in _lines(script, where):
        try:
            for name, value in _split(words):
                for ours, raw in _translate_line(name, value, options).items():
                    option = options.get("--" + ours)
                    if option is None or ours == "wrap":
                        ignored.append("--" + name)
                    elif option.name == "slurm":
                        values["slurm"] = merge_words(values, {"slurm": read(option, raw)})
                    else:
                        values[option.name] = read(option, raw)
        except UsageError as error:
            message = f"{where}, line {number}: {error.message}"
            raise UsageError(message, hint=error.hint) from None
    return values, list(dict.fromkeys(ignored))


def _translate_line(name: str, value: Any, options: dict[str, Option]) -> Meant:
    """As `translate`; options that gflow does not know are passed to sbatch."""
    name = ALIASES.get(name, name)
    known = name in TRANSLATIONS or name in PASSED or name in UNSUPPORTED or "--" + name in options
    return translate(name, value) if known or name in _CLIENTS else {"slurm": word_of(name, value)}


def multiply(values: dict[str, Any]) -> dict[str, Any]:
    """Totals of the job (on each node) for quantities of each task, CPU or GPU. A given total stays."""
    found = {name: value for name, value in values.items() if name not in PER_UNIT}
    tasks = -(-values.get("ntasks", 0) // values.get("nodes", 1)) or values.get("ntasks-per-node", 0)
    if tasks:
        found["ntasks-per-node"] = tasks
    if "gpus-per-task" in values:
        found.setdefault("gpus", max(1, tasks) * values["gpus-per-task"])
    gpus = found.get("gpus", 0)
    if "cpus-per-task" in values:
        found.setdefault("cpus", max(1, tasks) * values["cpus-per-task"])
    elif "cpus-per-gpu" in values and gpus:
        found.setdefault("cpus", gpus * values["cpus-per-gpu"])
    elif tasks > 1:
        found.setdefault("cpus", tasks)
    if "mem-per-gpu" in values and gpus:
        found.setdefault("memory", gpus * values["mem-per-gpu"])
    elif "mem-per-cpu" in values:
        found.setdefault("memory", max(1, found.get("cpus", 1)) * values["mem-per-cpu"])
    return found


def _lines(script: str, where: str) -> list[tuple[int, list[str]]]:
    """The words of every `#SBATCH` line before the first command, without comments."""
    found = []
    for number, line in enumerate(script.splitlines(), 1):
        if line.startswith(MARK + " "):
            try:
                found.append((number, shlex.split(line[len(MARK) :].split(" #")[0])))
            except ValueError as error:
                raise UsageError(f"{where}, line {number}: {error}") from None
        elif line.strip() and not line.startswith("#"):
            break
    return found


def _split(words: list[str]) -> list[tuple[str, Any]]:
    """Split words into long names of Slurm options and their values."""
    pairs: list[tuple[str, Any]] = []
    queue = list(reversed(words))
    while queue:
        word = queue.pop()
        value: Any
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1:
            name, value = SHORT.get(word[1], word[1]), word[2:]
            equals = value
        else:
            raise UsageError(f"{word!a} is not an option")
        if not equals:
            value = True if name in FLAGS or not queue or queue[-1].startswith("-") else queue.pop()
        pairs.append((name, value))
    return pairs


# ---------------------------------------------------------------- one option each


def _nice(value: str) -> Meant:
    """Nice values lower the priority. 0 is the default priority, 100 that of `--nice` alone."""
    value = "100" if value == "True" else value
    digits = value.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 10:
        raise UsageError(f"--nice takes a whole number, not {value!a:.60}")
    return {"priority": max(0, min(255, USUAL_PRIORITY - int(value)))}


def _gpus(value: str) -> Meant:
    """`2`, `a100:2`, `gpu`, `gpu:2`, `gpu:a100:2`; other resources of a list are for clusters alone."""
    parts = value.partition("(")[0].split(":")
    if parts[0] == "gpu":
        parts = parts[1:] or ["1"]
    kind = parts[0] if len(parts) == 2 or not parts[0].isdecimal() else ""
    if len(parts) > 2 or not parts[0]:
        raise UsageError(f"{value!a:.60} is not a number of GPUs", hint="write gpu:2 or gpu:a100:2")
    count = parts[-1] if parts[-1].isdecimal() or len(parts) == 2 else "1"
    return {"gpus": count} | ({"gpu-type": kind} if kind else {})


def _dependency(value: str) -> Meant:
    """`afterok:17:18,afterany:19,singleton`, `afterok:17?afterok:18` for any of them; or plain ids."""
    found: dict[str, list[str]] = {}
    for part in value.replace("?", ",").split(","):
        kind, colon, rest = part.strip().partition(":")
        if kind == "singleton" and not colon:
            found["singleton"] = []
        elif not colon and not kind.startswith("after"):
            found.setdefault("depends-on", []).append(kind)
        elif kind in DEPENDENCIES and rest and "+" not in rest:
            found.setdefault(DEPENDENCIES[kind], []).extend(rest.split(":"))
        else:
            raise UsageError(
                f"gflow does not support the dependency {part.strip()!a:.60}",
                hint=NO_DEPENDENCY.get(
                    kind, "write afterok:17:18, afterany:17, afternotok:17, after:17 or singleton"
                ),
            )
    if "?" in value:
        if found.keys() != {"depends-on"} or "," in value:
            raise UsageError(
                f"gflow supports ? between afterok alone, not {value!a:.60}",
                hint="write afterok:17?afterok:18",
            )
        found = {"depends-on-any": found["depends-on"]}
    return {name: ",".join(ids) if ids else True for name, ids in found.items()}


def _mail_type(value: str) -> Meant:
    events: list[str] = []
    for part in value.upper().split(","):
        if part == "NONE" or part in ("REQUEUE", "STAGE_OUT", "ARRAY_TASKS", "INVALID_DEPEND"):
            continue
        if part not in MAIL and not part.startswith("TIME_LIMIT"):
            raise UsageError(f"--mail-type: unknown type {part!a:.60}", hint="types: " + ", ".join(MAIL))
        events += MAIL.get(part, MAIL["TIME_LIMIT"])
    return {"notify-on": ",".join(dict.fromkeys(events))} if events else {}


def _begin(value: str) -> Meant:
    """After `now+` a bare number is seconds in Slurm, minutes in gflow; Slurm spells units out."""
    amount = value.removeprefix("now+")
    if amount == value:
        return {"begin": value}
    digits = amount.rstrip("abcdefghijklmnopqrstuvwxyz")
    word = amount[len(digits) :].removesuffix("s")
    return {"begin": f"now+{digits}{UNITS.get(word, word) if word else 's'}"}


def _nodes(value: str) -> Meant:
    """Of a range, take the minimum: the number of nodes must be known before the start."""
    return {"nodes": value.strip().partition("-")[0]}


def _shape(value: str) -> Meant:
    """Nodes and GPUs; or a name, which the daemon resolves."""
    return (
        {"shape": value} if is_name(value) else dict(zip(("nodes", "gpus"), parse_shape(value), strict=True))
    )


def _gpus_per_task(value: str) -> Meant:
    found = _gpus(value)
    return {"gpus-per-task": found.pop("gpus")} | found


def _gres(value: str) -> Meant:
    """`gpu:2`, `gpu:a100:2`, `gpu:2,tmp:1`. One machine has GPUs only: see `check_local_words`."""
    gpus = [part for part in value.split(",") if is_gpu(part)]
    return _gpus(gpus[0]) if gpus else {}


def is_gpu(resource: str) -> bool:
    """Whether a generic resource is GPUs: `gpu:2`, or a number alone."""
    name = resource.partition(":")[0].partition("(")[0]
    return name == "gpu" or name.isdecimal()


def check_local_words(words: tuple[str, ...]) -> None:
    """Refuse resources that one machine does not have."""
    for word in words:
        others = [part for part in word.removeprefix("--gres=").split(",") if not is_gpu(part)]
        if word.startswith("--gres=") and others:
            raise UsageError(
                f"gflow supports only GPUs on this machine, not {others[0]!a:.60}",
                hint="write --gres gpu:2, and a type of GPU as --gres gpu:a100:2",
            )


def _kill_on_invalid_dep(value: str) -> Meant:
    if value.lower() not in ("yes", "no"):
        raise UsageError(f"--kill-on-invalid-dep takes yes or no, not {value!a:.60}")
    return {} if value.lower() == "yes" else {"no-auto-cancel": True}


TRANSLATIONS: dict[str, Callable[[str], Meant]] = {
    "nice": _nice,
    "gres": _gres,
    "gpus": _gpus,
    "gpus-per-node": _gpus,
    "gpus-per-task": _gpus_per_task,
    "dependency": _dependency,
    "kill-on-invalid-dep": _kill_on_invalid_dep,
    "mail-user": lambda value: {"notify-email": value},
    "mail-type": _mail_type,
    "account": lambda value: {"project": value},
    "mem": lambda value: {} if not value.rstrip("KMGTkmgt").strip("0") else {"memory": value},
    "begin": _begin,
    "output": lambda value: {"output": value.replace("%N", "%h")},
    "error": lambda value: {"error": value.replace("%N", "%h")},
    "nodes": _nodes,
    "shape": _shape,
    "no-requeue": lambda value: {"requeue": False},
    "exclusive": lambda value: {"exclusive": True},
    "parsable": lambda value: {},
    "quiet": lambda value: {},
    "open-mode": lambda value: {},
}
