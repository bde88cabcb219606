"""gctl: administer the machine: GPUs for new jobs, drain and resume, limits, tokens."""

from __future__ import annotations

import sys

from gflow.client import hot_path, http
from gflow.errors import UsageError, did_you_mean
from gflow.options.commands.gctl_options import OPTIONS, OPTIONS_OF
from gflow.options.job_options import COMMON, JSON
from gflow.options.parse import parse

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ABOUT = """Administer the machine. Running jobs continue, except that a GPU reservation stops the
jobs of other users on its GPUs when it begins.

commands:
  show-gpus              each GPU: index, status, notes
  set-gpus LIST          limit new jobs to GPUs: 0,2 or 0-3, or all; persistent
  drain [--gpu LIST]     start no more jobs, at all or on these GPUs; persistent
  resume [--gpu LIST]    end the drain of the machine, or of these GPUs; GPUs
                         drained with --gpu are resumed with --gpu only
  set-limit JOB N        run at most N tasks of this array at once, or N jobs
                         submitted together with this one; 0: no limit
  gpu-process ignore     let jobs use a GPU despite a process (--gpu 0 --pid 47)
  gpu-process unignore   let the process block its GPU again
  gpu-process list       ignored processes, until the daemon stops
  token create           create an access token for the port (daemon.port)
  token list             your tokens
  token revoke ID        revoke a token
  notify test            send a test to every configured webhook and mailbox
  quota …                limits of users and projects: gctl quota --help
  reserve …              reserve GPUs for a user: gctl reserve --help"""
EXAMPLES = """gctl set-gpus 0,2
gctl set-gpus all
gctl drain --gpu 1 --reason 'its fan is loud'
gctl drain --reason 'driver update'
gctl resume
gctl resume --gpu 1
gctl show-gpus
gctl set-limit 42 4
gctl gpu-process ignore --gpu 0 --pid 4711
gctl gpu-process list
gctl token list
gctl token revoke 3
gctl notify test
gctl token create --name dashboard --days 30
gctl quota set --user ann --max-running-gpus 4
gctl reserve create --user ann --gpus 2 --start 14:00 --duration 2h"""
# Commands with subcommands and options of their own; see `cli.gctl_quota`.
NESTED = ("quota", "reserve")


def run(words: list[str]) -> int:
    if words and words[0] in NESTED:
        from gflow.cli import gctl_quota

        return gctl_quota.run(words[0], words[1:])
    values, rest = parse(words, OPTIONS)
    if "help" in values or not rest:
        sys.stdout.write(_help(rest[0] if rest and rest[0] in COMMANDS else ""))
        return 0 if "help" in values else 2
    name, *given = rest
    if name in NESTED:
        raise UsageError(f"options of gctl {name} must follow it", hint=f"see gctl {name} --help")
    if name not in COMMANDS:
        known = (*COMMANDS, *NESTED)
        hint = did_you_mean(name, known, otherwise="commands: " + ", ".join(known))
        raise UsageError(f"gctl has no command {name!a}", hint=hint)
    handler, wanted = COMMANDS[name]
    if len(given) > len(wanted) or len(given) < sum(not word.startswith("[") for word in wanted):
        raise UsageError(f"gctl {name} takes {' '.join(wanted) or 'no arguments'}", hint="see gctl --help")
    if "gpu" in values and name not in ("drain", "resume", "gpu-process"):
        raise UsageError(f"gctl {name} takes no --gpu")
    return handler(values, *given)


def _help(name: str) -> str:
    """The help of one command, with its options and examples; of all if `name` is empty."""
    import re

    from gflow.options import help

    if not name:
        return help.render("gctl COMMAND [options]", ABOUT, OPTIONS, EXAMPLES)
    entries = re.findall(rf"^  {name} .*(?:\n {{25}}.*)*", ABOUT, re.MULTILINE)
    about = " ".join(line[25:] for line in entries[0].splitlines())
    about = f"{about[0].upper()}{about[1:]}."
    if len(entries) > 1:
        about = "\n".join(["commands:", *entries])
    own = OPTIONS_OF.get(name, ())
    options = tuple(one for one in OPTIONS if one.name in own or one in (JSON, *COMMON))
    examples = [line for line in EXAMPLES.splitlines() if line.startswith(f"gctl {name}")]
    usage = " ".join(["gctl", name, *COMMANDS[name][1], "[options]"])
    return help.render(usage, about, options, "\n".join(examples))


def _show_gpus(values: dict[str, Any]) -> int:
    return http.show("/gpus", as_json="json" in values)


def _set_gpus(values: dict[str, Any], spec: str) -> int:
    return _post("/gpus", {"allowed_indices": None if spec == "all" else _indices(spec)}, values)


def _drain(values: dict[str, Any]) -> int:
    return _set_drain(values, on=True)


def _resume(values: dict[str, Any]) -> int:
    return _set_drain(values, on=False)


def _set_drain(values: dict[str, Any], *, on: bool) -> int:
    gpus = _indices(values["gpu"]) if "gpu" in values else None
    return _post("/drain", {"on": on, "gpus": gpus, "reason": values.get("reason", "")}, values)


def _set_limit(values: dict[str, Any], job: str, limit: str) -> int:
    if not limit.isascii() or not limit.isdecimal() or len(limit) > 9:
        raise UsageError(
            f"a limit is a whole number, not {limit!a}", hint="gctl set-limit 42 4; 0 removes the limit"
        )
    return _post("/limits", {"job": job, "max_concurrent": int(limit)}, values)


def _gpu_process(values: dict[str, Any], verb: str) -> int:
    if verb == "list":
        return http.show("/gpu-processes", as_json="json" in values)
    if verb not in ("ignore", "unignore"):
        raise UsageError(f"gctl gpu-process has no command {verb!a}", hint="commands: ignore, unignore, list")
    gpus = _indices(values.get("gpu", ""))
    if len(gpus) != 1 or "pid" not in values:
        raise UsageError("which process on which GPU?", hint=f"gctl gpu-process {verb} --gpu 0 --pid 4711")
    return _post(f"/gpu-processes/{verb}", {"gpu_index": gpus[0], "pid": values["pid"]}, values)


def _token(values: dict[str, Any], verb: str, number: str = "") -> int:
    if verb not in ("create", "list", "revoke"):
        raise UsageError(f"gctl token has no command {verb!a}", hint="commands: create, list, revoke")
    if (verb == "revoke") != bool(number):
        raise UsageError(
            f"gctl token {verb} takes {'an ID' if verb == 'revoke' else 'no arguments'}",
            hint="see gctl --help",
        )
    if verb == "list":
        return http.show("/tokens", as_json="json" in values)
    if verb == "revoke":
        return _post("/tokens/revoke", {"id": number}, values)
    body: dict[str, Any] = {name: values[name] for name in ("name", "days") if name in values}
    return _post("/tokens", body, values)


def _notify(values: dict[str, Any], verb: str) -> int:
    if verb != "test":
        raise UsageError(f"gctl notify has no command {verb!a}", hint="gctl notify test")
    return _post("/notifications/test", {}, values)


def _indices(text: str) -> list[int]:
    from gflow.options.lists import parse_indices

    found = parse_indices(text)
    if found is None:
        raise UsageError(f"{text!a} is not a list of GPUs", hint="write 0,2 or 0-3; ginfo shows the GPUs")
    return list(found)


def _post(path: str, body: dict[str, Any], values: dict[str, Any]) -> int:
    return http.show_answer("POST", path, hot_path.dumps(body).encode(), as_json="json" in values)


COMMANDS: dict[str, tuple[Callable[..., int], tuple[str, ...]]] = {
    "show-gpus": (_show_gpus, ()),
    "set-gpus": (_set_gpus, ("LIST",)),
    "drain": (_drain, ()),
    "resume": (_resume, ()),
    "set-limit": (_set_limit, ("JOB", "N")),
    "gpu-process": (_gpu_process, ("ignore|unignore|list",)),
    "notify": (_notify, ("test",)),
    "token": (_token, ("create|list|revoke", "[ID]")),
}
