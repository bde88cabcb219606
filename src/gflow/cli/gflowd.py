"""gflowd: run and configure the daemon. Most commands are in `cli.daemon`."""

from __future__ import annotations

import sys

from gflow.client import http
from gflow.config.table import FLAGS
from gflow.options.commands.gflowd_options import DOWN, INIT, INIT_FILE, RUN
from gflow.options.job_options import COMMON, JSON, refuse
from gflow.options.parse import parse

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any

    from gflow.options.job_options import Option

# The options of up, restart and run.
START = (*FLAGS, *RUN)
OPTIONS = (*START, *DOWN, *INIT, JSON, *COMMON)
ABOUT = """Run and configure the daemon. It serves only you, needs no privileges, and runs until you stop it.
With --system, root runs one for all users of the machine.

commands:
{commands}

Settings come from gflow.toml, the file of --config, environment variables such as
GFLOW_DAEMON__CPUS, and flags; later ones take precedence. gflowd restart keeps the flags, except
--gpus, --gpu-allocation-strategy and --gpu-poll-interval-secs."""
EXAMPLES = """gflowd up
gflowd up --simulate-gpus 4x80G
gflowd restart --gpus 0-3
gflowd status
gflowd down
gflowd down --kill-jobs
gflowd reload
gflowd config
gflowd init --yes
gflowd backup
gflowd restore ~/.local/share/gflow/backups/gflow-20261118-120000.db
sudo gflowd up --system
gflowd service install         # started by systemd, also after a reboot
sudo gflowd service install --system"""
# Commands that take an argument, and its description.
TAKES = {"restore": "a backup file", "service": "install or uninstall"}
ARGUMENTS = {"restore": "FILE", "service": "install|uninstall"}
# What each command does, and the module and function that do it.
COMMANDS = {
    "up": ("start the daemon in the background", "daemon.lifecycle", "up"),
    "start": ("same as up", "daemon.lifecycle", "up"),
    "down": (
        "stop the daemon; running jobs continue under the next daemon",
        "daemon.lifecycle",
        "down",
    ),
    "stop": ("same as down", "daemon.lifecycle", "down"),
    "restart": (
        "replace the daemon; running jobs continue, other commands wait",
        "daemon.lifecycle",
        "restart",
    ),
    "reload": (
        "reload settings and code in the same process; no request is refused",
        "daemon.lifecycle",
        "reload",
    ),
    "status": ("show the state of the daemon", "gflowd", "status"),
    "config": ("show every setting, its value and its source", "daemon.config", "show"),
    "init": ("write a gflow.toml", "daemon.config", "init"),
    "backup": ("make a verified copy of the database now (one a day is automatic)", "gflowd", "backup"),
    "restore": (
        "replace the database by a backup; the old database is kept",
        "daemon.lifecycle",
        "restore_backup",
    ),
    "service": (
        "install|uninstall: the systemd service (--system: for all users)",
        "daemon.service",
        "service",
    ),
    "unit": ("print the systemd unit of the system-wide daemon", "daemon.systemd", "show"),
    "run": ("run the daemon in the foreground; the default without a command", "daemon.lifecycle", "run"),
}


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values:
        sys.stdout.write(_command_help(rest[0]) if rest and rest[0] in COMMANDS else _help())
        return 0
    name = rest[0] if rest else "run"
    if name not in COMMANDS:
        from gflow.errors import did_you_mean

        hint = did_you_mean(name, COMMANDS, otherwise="commands: " + ", ".join(COMMANDS))
        refuse(f"gflowd has no command {name!a}", hint)
    if len(rest[1:]) != (name in TAKES):
        refuse(f"gflowd {name} takes {TAKES.get(name, 'no arguments')}")
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


def _command_help(name: str) -> str:
    """The help of one command, with the examples that show it."""
    from gflow.options import help

    about, _, function = COMMANDS[name]
    special = {"up": START, "restart": START, "run": START}
    usage = f"gflowd {name} [options]" + (f" {ARGUMENTS[name]}" if name in ARGUMENTS else "")
    choice = _named("system", "private")
    special |= {"down": (*DOWN, *choice), "init": (*INIT, INIT_FILE, *FLAGS, *_named("system"))}
    options = (*special.get(function, choice), JSON, *COMMON)
    examples = [line for line in EXAMPLES.splitlines() if f"gflowd {name}" in line]
    text = f"{about[0].upper()}{about[1:]}."
    return help.render(usage, text, options, "\n".join(examples))


def _named(*names: str) -> tuple[Option, ...]:
    return tuple(option for option in RUN if option.name in names)


def say(values: dict[str, Any], text: str, **data: Any) -> None:
    """Print the text, or the data as JSON with --json."""
    if "json" in values:
        import json

        text = json.dumps(data)
    print(text)


def status(values: dict[str, Any]) -> int:
    from gflow.errors import Unreachable

    try:
        code = http.show("/status", as_json="json" in values)
        if "json" not in values:
            from gflow.client.private_daemon import other_jobs

            print(other_jobs(), end="")
        return code
    except (ConnectionError, Unreachable):
        from gflow.client import hot_path, no_daemon

        error = no_daemon.unreachable(hot_path.getenv)
        if "json" in values:
            raise error from None
        print(f"Status: Not running\n{error.hint[0].upper()}{error.hint[1:]}")
        return 3


def backup(values: dict[str, Any]) -> int:
    return http.show_answer("POST", "/backup", b"{}", as_json="json" in values)
