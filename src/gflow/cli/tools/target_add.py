"""gflow target add: look at a cluster over SSH, show what it has, and write it to gflow.toml."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gflow import paths
from gflow.cli.tools.target_connection import open_by_hand, say, test_connection
from gflow.options.job_options import refuse

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
# Keys of a target that options set.
KEYS = ("host", "partition", "account", "chdir", "folder")
QUESTIONS = (
    ("partition", "partition of your jobs", "the default of the cluster"),
    ("account", "account of your jobs", "your default there"),
    ("chdir", "folder in which your jobs run", "your home there"),
)
ACCOUNTS = 'sacctmgr -nP show assoc user="$(id -un)" format=account 2>/dev/null | sort -u'
SCRATCH = 'for path in "$SCRATCH" "$WORK" "/scratch/$(id -un)"; do [ ! -d "$path" ] || echo "$path"; done'


def add(values: dict[str, Any], rest: list[str]) -> int:
    """Test the connection, print what the cluster has, ask what is open, and write the configuration."""
    name = _checked_name(values, rest)
    path = Path(paths.config_file(os.environ.get))
    _refuse_known(name, path)
    from gflow.targets.slurm.ssh.ssh_runner import SshRunner

    ssh = SshRunner(values["host"], Path(paths.data_dir(os.environ.get)) / "slurm/ssh", name=name)
    if sys.stdin.isatty() and not ssh.run(["true"], timeout_s=60, environ={}).ok:
        open_by_hand(ssh)
    if not test_connection(ssh):
        say(False, "configuration", f"not written; when ssh {ssh.host} works: gflow target add again")
        return 1
    found = _show_cluster(ssh)
    if sys.stdin.isatty() and sys.stdout.isatty():
        values |= ask_missing(found, values)
    lines = [
        f"[targets.{name}]",
        'type = "slurm"',
        *(f"{key} = {_quote(values[key])}" for key in KEYS if key in values),
    ]
    _append(path, "\n".join(lines) + "\n")
    say(True, "configuration", f"written to {path}:")
    print("\n".join(f"      {line}" for line in lines))
    print(f"Next: gflowd reload, then gflow target test {name}")
    return 0


def _checked_name(values: dict[str, Any], rest: list[str]) -> str:
    if len(rest) != 1 or "host" not in values:
        refuse("give a name and a host", "gflow target add gilbreth --host login.cluster.edu")
    if not NAME.fullmatch(rest[0]) or rest[0] == "local":
        refuse(
            f"{rest[0]!a:.40} cannot be the name of a target",
            "letters, digits, - and _; local is this machine",
        )
    host = values["host"]
    if host.startswith("-") or re.search(r"\s", host):
        refuse(f"{host!a:.60} is not a host", "as in: ssh HOST")
    return rest[0]


def _refuse_known(name: str, path: Path) -> None:
    import tomllib

    if not path.exists():
        return
    try:
        known = tomllib.loads(path.read_text()).get("targets", {})
    except ValueError as error:
        refuse(f"{path} is not valid TOML: {error}", "gflowd config shows every setting and its source")
    if name in known:
        refuse(f"{path} has a target {name} already", f"gflow target test {name}")


def _show_cluster(ssh: Any) -> dict[str, list[str]]:
    """Print partitions, accounts and scratch folders; return their names by the key of a target."""
    from gflow.targets.slurm.commands.slurm_cli import Slurm

    sizes = Slurm(60, ssh, environ={}).sizes()
    found = {"partition": list(dict.fromkeys(size.partition for size in sizes))}
    for size in sizes:
        gpus = f", {size.gpus} GPUs ({', '.join(size.gpu_types)})" if size.gpus else ""
        usual = " (default)" if size.is_default else ""
        text = f"{size.nodes} nodes, each with {size.cpus} CPUs, {size.memory_mib // 1024} GiB{gpus}"
        say(True, f"partition {size.partition}{usual}", text)
    for key, title, script in (("account", "accounts", ACCOUNTS), ("chdir", "scratch", SCRATCH)):
        words = ssh.run_script(script, timeout_s=60).output.decode(errors="replace").split()
        found[key] = list(dict.fromkeys(words))
        if words:
            say(True, title, ", ".join(found[key]))
    return found


def ask_missing(
    found: dict[str, list[str]], values: dict[str, Any], read: Callable[[str], str] = input
) -> dict[str, str]:
    """Ask for what the options leave open and the cluster has a choice of. Enter leaves it to the cluster."""
    answers = {}
    for key, question, usual in QUESTIONS:
        choices = found[key]
        is_open = key == "chdir"  # any folder
        if key in values or len(choices) < (1 if is_open else 2):
            continue
        while (answer := _read_answer(f"{question} ({', '.join(choices)}) [{usual}]: ", read)) is not None:
            if answer in choices or (is_open and answer.startswith("/")):
                answers[key] = answer
                break
            print("  an absolute path" if is_open else f"  one of {', '.join(choices)}")
    return answers


def _read_answer(prompt: str, read: Callable[[str], str]) -> str | None:
    """The words of the user; None: Enter, or the end of the input."""
    try:
        return read(prompt).strip() or None
    except EOFError:
        print()
        return None


def _quote(value: str) -> str:
    """A string of TOML."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _append(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text() if path.exists() else ""
    gap = "\n" if before and not before.endswith("\n\n") else ""
    with path.open("a") as file:
        file.write(("\n" if before and not before.endswith("\n") else "") + gap + text)
