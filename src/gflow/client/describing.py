"""From what was typed to a job's JSON: script, shell line, program or standard input, and its options."""

from __future__ import annotations

import csv
import os
import sys
from typing import Any

from gflow.client import fast
from gflow.client.capture import captured, with_environments
from gflow.errors import UsageError
from gflow.options import directives, slurm

NO_COMMAND = "gbatch COMMAND ARGS…, or gbatch script.sh"


def describe(values: dict[str, Any], command: list[str]) -> str:
    """The job's JSON. Options on the command line win over --config, that over lines in the script."""
    if "config" in values:
        from gflow.client.jobfile import options_of

        values = merged(options_of(values["config"]), values)
    if not command or command == ["-"]:
        if os.isatty(0):
            raise UsageError("there is no command to run", hint=NO_COMMAND)
        return _script(values, "", sys.stdin.buffer.read())
    word = command[0]
    if len(command) > 1:
        return _body(values, command)
    if os.path.isdir(word):
        raise UsageError(f"{word} is a folder, not a script")
    if fast.is_file(word):
        return _script(values, os.path.abspath(word), read_file(word))
    return _body(values, command_of(word))


def command_of(word: str) -> list[str]:
    """The command that a single argument stands for: a line for the shell, or a program on PATH."""
    if not word.strip():
        raise UsageError("the command is empty", hint=NO_COMMAND)
    if fast.SHELL.intersection(word):
        return ["bash", "-c", word]
    if "/" in word:
        raise UsageError(f"there is no file {word}")
    if not fast.is_program(word):
        raise UsageError(f"{word} is neither a file nor a program on your PATH")
    return [word]


def read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Values of two places: the second wins, and recipients of mail add up."""
    both = under | over
    for name in ("notify-email", "notify-on"):
        if name in under and name in over:
            both[name] = tuple(dict.fromkeys((*under[name], *over[name])))
    return both


def _script(values: dict[str, Any], path: str, content: bytes) -> str:
    if not content.strip():
        raise UsageError(f"the script {path or 'on standard input'} is empty")
    if b"\0" in content[:1024] or content.startswith(b"\x7fELF"):
        return _body(values, [path])  # a program, not a text
    text, where = content.decode(errors="replace"), path or "standard input"
    asked, ignored = slurm.sbatch(text, where)
    if ignored:
        sys.stderr.write(f"gbatch: {where}: #SBATCH options that mean nothing here: {', '.join(ignored)}\n")
    asked = merged(asked, directives.read(text, where))
    script = f',"script":"{fast.base64(content)}","script_path":{fast.dumps(path)}'
    return _body(merged(asked, values), [], script)


def _body(values: dict[str, Any], command: list[str], script: str = "") -> str:
    rows = f',"rows":{fast.dumps(_rows(values["param-file"]))}' if "param-file" in values else ""
    return fast.job_body(with_environments(values), command, script + rows, captured(values))


def _rows(path: str) -> list[dict[str, str]]:
    """The rows of a CSV file by the names in its first."""
    text = read_file(path)
    try:
        lines = list(csv.reader(text.decode("utf-8-sig").splitlines(), skipinitialspace=True, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is not a CSV file: {error}") from None
    lines = [line for line in lines if line]
    if len(lines) < 2:
        raise UsageError(f"{path} needs a row of names, then one row for each job")
    names = [name.strip() for name in lines[0]]
    if len(set(names)) < len(names):
        raise UsageError(f"{path} has a name twice in its first row")
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(names):
            raise UsageError(f"{path}: row {number} has {len(line)} values, and there are {len(names)} names")
    return [dict(zip(names, line, strict=True)) for line in lines[1:]]
