"""gflow target: list the clusters, log in to one by hand, and test one step by step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from gflow.cli.tools.target_connection import is_open, open_by_hand, say, ssh_of, test_connection
from gflow.client import http
from gflow.options.commands.target_options import ADD, CONNECT, LIST, TEST
from gflow.options.job_options import Option, refuse
from gflow.options.parse import parse

ABOUT = """Show this machine and the clusters of gflow.toml, and whether they answer.

gflow target add NAME --host HOST
                            look at a cluster over SSH, and write it to gflow.toml
gflow target connect NAME   log in by hand, for sites that ask for a code or a password;
                            the daemon then uses this connection
gflow target test NAME      run a tiny job through every step, and say what fails"""
EXAMPLES = """gflow target list
gflow target add gilbreth --host login.cluster.edu
gflow target connect gilbreth
gflow target test gilbreth"""
TIMEOUT_S = 300
# What the test job prints.
WORD = "gflow-target-test"
Values = dict[str, Any]


def run(words: list[str]) -> int:
    name, *others = words if words and not words[0].startswith("-") else ["list", *words]
    if name not in COMMANDS:
        refuse(f"gflow target has no command {name!a:.40}", "gflow target list, add, connect or test")
    options, command = COMMANDS[name]
    values, rest = parse(others, options)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(
            help.render("gflow target [list|add|connect|test] [options]", ABOUT, options, EXAMPLES)
        )
        return 0
    return command(values, rest)


def _list(values: Values, rest: list[str]) -> int:
    if rest:
        refuse(f"unexpected argument {rest[0]!a:.40}", "gflow target list")
    return http.show("/targets", as_json="json" in values)


def _add(values: Values, rest: list[str]) -> int:
    from gflow.cli.tools.target_add import add

    return add(values, rest)


def _find(rest: list[str]) -> dict[str, Any]:
    """The target that the command names."""
    if len(rest) != 1:
        refuse("give the name of one target", "gflow target list shows them")
    targets: list[dict[str, Any]] = http.get("/targets")["targets"]
    for target in targets:
        if target["name"] == rest[0]:
            return target
    from gflow.errors import unknown

    raise unknown("target", rest[0], [target["name"] for target in targets])


# ---------------------------------------------------------------- connect


def _connect(values: Values, rest: list[str]) -> int:
    target = _find(rest)
    if not target["host"]:
        refuse(f"{target['name']} is used without SSH", "only a target with a host needs a connection")
    ssh = ssh_of(target)
    if is_open(ssh):
        print(f"{target['name']} is connected already.")
        return 0
    code = open_by_hand(ssh)
    if code == 0 and is_open(ssh):
        print(f"{target['name']} is connected. The daemon uses this connection until it ends.")
        return 0
    sys.stderr.write(f"gflow target: {ssh.host} is not connected (ssh ended with {code})\n")
    return 1


# ---------------------------------------------------------------- test


def _test(values: Values, rest: list[str]) -> int:
    target = _find(rest)
    if target["state"] == "here":
        refuse("local is this machine", "gflow doctor checks it")
    if target["host"] and not test_connection(ssh_of(target)):
        return 1
    return _test_job(target["name"], values)


def _test_job(name: str, values: Values) -> int:
    """Submit a job, wait for its end, and compare its exit code and its log."""
    from gflow.errors import GflowError
    from gflow.library.jobs import submit

    more = {"partition": values["partition"]} if "partition" in values else {}
    try:
        job = submit(["sh", "-c", f"echo {WORD} on $(hostname); exit 7"], on=name, time="5", **more)
    except GflowError as error:
        return say(False, "submission", f"{error.message} {error.hint or ''}") or 1
    say(True, "submission", f"job {job.id}")
    try:
        job.wait(values.get("timeout", TIMEOUT_S))
    except TimeoutError:
        reason = f"{job.info()['reason'] or 'it runs'}"
        return say(False, "job", f"it has not ended: {reason}; gjob why {job.id}, gcancel {job.id}") or 1
    found = job.info()
    if found["exit_code"] != 7:
        last = job.log().strip().rpartition("\n")[2]
        text = f"it ended as {found['state']} ({found['reason']}); gjob why {job.id}"
        return say(False, "job", f"{text}; the last line of its log: {last or 'none'}") or 1
    say(True, "job", f"ran as Slurm job {found['target_id']} on {found['target_nodes'] or 'a node'}")
    if WORD not in job.log():
        return say(False, "log", f"it did not come back; gjob log {job.id}") or 1
    say(True, "log", job.log().strip())
    return 0


Command = Callable[[Values, list[str]], int]
COMMANDS: dict[str, tuple[tuple[Option, ...], Command]] = {
    "list": (LIST, _list),
    "add": (ADD, _add),
    "connect": (CONNECT, _connect),
    "test": (TEST, _test),
}
