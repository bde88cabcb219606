"""gflowd: the daemon's life. What takes more than one question is in `hosting` and `configuring`."""

from __future__ import annotations

import sys

from gflow.client import http
from gflow.config.table import FLAGS
from gflow.errors import Unreachable, UsageError, did_you_mean
from gflow.options.parse import parse
from gflow.options.table import COMMON, JSON, Option

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any

START = (
    *FLAGS,
    Option("config", "path", "read this file too; it wins over gflow.toml", short="c", metavar="FILE"),
    Option("paranoid", "flag", "check every invariant after every step (slow)"),
    Option(
        "system", "flag", "the daemon of the whole machine: everybody's jobs, each run as its owner (root)"
    ),
    Option("private", "flag", "your own daemon although the machine has one; see GFLOW_SOCKET"),
)
INIT = (
    Option("yes", "flag", "ask nothing, take the defaults and the flags", short="y"),
    Option("force", "flag", "write over a gflow.toml that is there"),
    Option("advanced", "flag", "ask for every setting"),
    Option("timezone", "text", "time zone in which times are read and shown", metavar="TZ"),
)
DOWN = (Option("kill-jobs", "flag", "end the running jobs too; what waits goes on waiting"),)
OPTIONS = (*START, *DOWN, *INIT, JSON, *COMMON)
ABOUT = """The daemon and its life. It serves you alone, needs no rights, and lives until you stop it.
With --system, root runs one for everybody on the machine.

commands:
{commands}

Settings come from gflow.toml, then the file of --config, then variables such as
GFLOW_DAEMON__CPUS, then flags; later wins. --gpus, --gpu-allocation-strategy and
--gpu-poll-interval-secs hold for this daemon's life, the other flags through restarts."""
EXAMPLES = """gflowd up
gflowd up --simulate-gpus 4x80G
gflowd restart --gpus 0-3
gflowd status
gflowd down
sudo gflowd up --system
gflowd service install         # started by systemd, also after a reboot
sudo gflowd service install --system"""
# Commands that take a word, and what it is.
TAKES = {"restore": "the file of a backup", "service": "install or uninstall"}
# What each command does, and the module and function that do it.
COMMANDS = {
    "up": ("start it, apart from this terminal", "daemon.lifecycle", "up"),
    "start": ("the same", "daemon.lifecycle", "up"),
    "down": ("stop it; running jobs go on, and the next daemon takes them over", "daemon.lifecycle", "down"),
    "stop": ("the same", "daemon.lifecycle", "down"),
    "restart": (
        "replace it; running jobs go on, and other commands wait for it",
        "daemon.lifecycle",
        "restart",
    ),
    "reload": (
        "settings and code anew in the same process: nobody is turned away",
        "daemon.lifecycle",
        "reload",
    ),
    "status": ("what it is doing", "gflowd", "status"),
    "config": ("every setting, its value, and where that comes from", "daemon.config", "show"),
    "init": ("write a gflow.toml", "daemon.config", "init"),
    "backup": ("a checked copy of its database now (one a day is made anyway)", "gflowd", "backup"),
    "restore": (
        "put such a copy in the database's place, which is kept",
        "daemon.lifecycle",
        "restore_backup",
    ),
    "service": (
        "install|uninstall: let systemd start it (--system: the machine's)",
        "daemon.service",
        "service",
    ),
    "unit": ("print a systemd unit for the machine's daemon (--system)", "daemon.systemd", "show"),
    "run": ("the daemon in the foreground; also what gflowd alone does", "daemon.lifecycle", "run"),
}


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values:
        sys.stdout.write(_help())
        return 0
    name = rest[0] if rest else "run"
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS, otherwise="commands: " + ", ".join(COMMANDS))
        raise UsageError(f"gflowd has no command {name!a}", hint=hint)
    if len(rest[1:]) != (name in TAKES):
        raise UsageError(f"gflowd {name} takes {TAKES.get(name, 'no words')}")
    if values.keys() & {"system", "private"}:
        from gflow.cli.common.daemon_choice import choose

        choose(values)
    _, module, function = COMMANDS[name]
    handler = getattr(__import__(f"gflow.cli.{module}", fromlist=(function,)), function)
    code: int = handler(values, *rest[1:])
    return code


def _help() -> str:
    from gflow.options import help

    commands = "\n".join(f"  {name:<9} {about}" for name, (about, _, _) in COMMANDS.items())
    groups = {"options of up, restart and run": START, "options of down": DOWN, "options of init": INIT}
    about = ABOUT.format(commands=commands)
    return help.render("gflowd COMMAND [options]", about, groups | {"options": (JSON, *COMMON)}, EXAMPLES)


def say(values: dict[str, Any], text: str, **data: Any) -> None:
    """Print the text, or the data if JSON is wanted."""
    if "json" in values:
        import json

        text = json.dumps(data)
    print(text)


def status(values: dict[str, Any]) -> int:
    try:
        return http.show("/status", as_json="json" in values)
    except (ConnectionError, Unreachable):
        from gflow.client import hot_path, no_daemon

        error = no_daemon.unreachable(hot_path.getenv)
        if "json" in values:
            raise error from None
        print(f"Status: Not running\n{error.hint[0].upper()}{error.hint[1:]}")
        return 3


def backup(values: dict[str, Any]) -> int:
    return http.show_answer("POST", "/backup", b"{}", as_json="json" in values)
