"""Build a job's JSON from a command line: script, shell line, program or standard input, with options."""

from __future__ import annotations

import csv
import os
import shlex
import sys
from typing import Any

from gflow.client import hot_path
from gflow.client.capture import capture, folder_there, read_file, resolve
from gflow.errors import UsageError
from gflow.options import directives, slurm
from gflow.options.job_options import GBATCH
from gflow.options.parse import parse
from gflow.options.plain_submission import JOB_NAMES, SHELL, absolute
from gflow.options.sbatch_words import merge_words, overridden_variables

# The working folder is taken from $PWD, so a job can be submitted through a link.
LINK_TO_FOLDER = 'enter the folder through a link: ln -s "$PWD" ~/link; cd ~/link'
NO_COMMAND = "gbatch COMMAND ARGS…, or gbatch script.sh"
# Options with which files and programs of the job cannot be checked at submission.
UNCHECKABLE = {"venv", "conda-env", "export", "chdir", "begin", "hold", "on"}
UNCHECKABLE |= {option.name for option in GBATCH if option.kind == "depends"}
# The script of --wrap. The mark makes it a Slurm script.
WRAPPER = "#!/bin/sh\n#SBATCH\n{}\n"
# A program that jobs have and the submitter may not have.
STAND_IN = "srun"
SHELL_WORDS = {
    ".", "alias", "cd", "eval", "exec", "export", "for", "if", "module", "set", "source", "ulimit", "while",
}  # fmt: skip


def describe(values: dict[str, Any], command: list[str]) -> str:
    """The job's JSON. Precedence of options: command line, then --config, then lines in the script."""
    if "config" in values:
        from gflow.client.jobfile import options_of

        values = merge_options(options_of(values["config"]), values)
    if unset := overridden_variables(os.environ, values):
        values = values | {"unset": unset}
    if "wrap" in values:
        if command:
            raise UsageError("--wrap takes the place of a script and a command", hint="give only one of them")
        return _script(values, "", WRAPPER.format(values["wrap"]).encode(), [])
    if not command or command[0] == "-":
        if os.isatty(0):
            raise UsageError("there is no command to run", hint=NO_COMMAND)
        return _script(values, "", sys.stdin.buffer.read(), command[1:])
    if _is_script(command):
        return _file(values, command)
    return _body(values, program_of(command, in_sight=not values.keys() & UNCHECKABLE))


def _is_script(command: list[str]) -> bool:
    """Whether the first word is a file and not a program name."""
    word = command[0]
    return hot_path.is_file(word) and (len(command) == 1 or "/" in word or not hot_path.is_on_path(word))


def program_of(command: list[str], *, in_sight: bool) -> list[str]:
    """The argv of the words: a shell command line, or a program and its arguments.

    `in_sight`: a program that does not exist now will not exist for the job either, so refuse it.
    """
    word = command[0]
    if not word.strip():
        raise UsageError("the command is empty", hint=NO_COMMAND)
    if len(command) == 1 and SHELL.intersection(word):
        return ["bash", "-c", word]
    if not in_sight or word == STAND_IN or ("/" not in word and hot_path.is_on_path(word)):
        return command
    shown = word if len(word) <= 60 else word[:57] + "…"
    if os.path.isdir(word):
        raise UsageError(f"{shown} is a folder, not a script")
    if "/" in word:
        raise UsageError(f"there is no file {shown}")
    if word in SHELL_WORDS or SHELL.intersection(word):
        raise UsageError(f"{shown} is a shell builtin or shell syntax", hint=_quoting_hint(command))
    # Debian and Ubuntu have no `python`.
    hint = "did you mean python3?" if word == "python" and hot_path.is_on_path("python3") else ""
    raise UsageError(f"{shown} is neither a file nor a program on your PATH", hint=hint)


def _quoting_hint(command: list[str]) -> str:
    """How to write a shell command line, or options that follow a quoted one."""
    if _are_options(command[1:]):
        line = shlex.join(command[1:]) + " " + shlex.quote(command[0])
        return "options stand before the command: gbatch " + (line if len(line) <= 200 else "--gpus 1 '…'")
    line = " ".join(command)
    return (
        f"quote the whole line: gbatch '{line}'"
        if len(line) <= 200 and "'" not in line
        else ("quote the whole line")
    )


def _are_options(words: list[str]) -> bool:
    """Whether all words are options of gbatch and their values."""
    try:
        return bool(words) and not parse(words, GBATCH)[1]
    except UsageError:
        return False


def merge_options(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge option values: `over` takes precedence, except that notify options are combined."""
    both = under | over
    for name in ("notify-email", "notify-on"):
        if name in under and name in over:
            both[name] = tuple(dict.fromkeys((*under[name], *over[name])))
    if slurm.IGNORED in under and slurm.IGNORED in over:
        both[slurm.IGNORED] = f"{under[slurm.IGNORED]},{over[slurm.IGNORED]}"
    words = merge_words(under, over)
    return both | {"slurm": words} if "slurm" in both else both


def _file(values: dict[str, Any], command: list[str]) -> str:
    """A file and its arguments: an executable or a script."""
    path = absolute(command[0], hot_path.working_folder())
    if hot_path.is_binary(path):
        return _body(values, [path, *command[1:]])
    content = read_file(command[0])
    if path.endswith(".py") and not content.startswith(b"#!"):
        words = [*command[1:], "python3", command[0]] if _are_options(command[1:]) else ["python3", *command]
        raise UsageError(
            f"{command[0]} has no #! line, so bash would run it",
            hint=f"gbatch {shlex.join(words)}, or #!/usr/bin/env python3 as its first line",
        )
    return _script(values, path, content, command[1:])


def _script(values: dict[str, Any], path: str, content: bytes, arguments: list[str]) -> str:
    if not content.strip():
        raise UsageError(f"the script {path or 'on standard input'} is empty")
    if b"\0" in content[:1024]:
        return _body(values, [path, *arguments])  # a binary, not text
    text, where = content.decode(errors="replace"), path or "standard input"
    options, ignored = slurm.sbatch(text, where)
    if ignored:
        options[slurm.IGNORED] = ",".join(ignored)
    options = merge_options(options, directives.read(text, where))
    _check_utf8(path, "the path of the script", "enter its folder through a link: ln -s")
    script = f',"script":"{hot_path.base64(content)}","script_path":{hot_path.dumps(path)}'
    return _body(merge_options(options, values), arguments, script)


def _body(values: dict[str, Any], command: list[str], script: str = "") -> str:
    values = slurm.multiply(values)
    if slurm.IGNORED in values:
        names = ", ".join(dict.fromkeys(values.pop(slurm.IGNORED).split(",")))
        sys.stderr.write(f"gbatch: ignored: {names} (no job of gflow can have them)\n")
    rows = f',"rows":{hot_path.dumps(_rows(values["param-file"]))}' if "param-file" in values else ""
    captured, there = capture(values), folder_there(values)
    chdir = f',"chdir":{hot_path.dumps(there)}' if there else ""
    return _job_body(resolve(values), command, script + rows + chdir, captured)


def _job_body(values: dict[str, Any], command: list[str], script: str, captured: tuple[str, bytes]) -> str:
    """One job as JSON. `script`: further members, already JSON. `captured`: its folder and environment."""
    options = {name: value for name, value in values.items() if name in JOB_NAMES}
    folder, block = captured
    _check_utf8("".join(command), "the command", "put it into a script")
    _check_utf8(folder, "the name of the working folder", LINK_TO_FOLDER)
    parts = (
        '"command":' + hot_path.dumps(command),
        '"cwd":' + hot_path.dumps(folder),
        f'"umask":{hot_path.umask()}',
        '"environ":"' + hot_path.base64(block) + '"',
        '"options":' + hot_path.dumps(options),
    )
    return "{" + ",".join(parts) + script + "}"


def _check_utf8(text: str, what: str, hint: str) -> None:
    """Refuse text that is not UTF-8 (lone surrogates in Python), because JSON cannot carry it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} contains bytes that are not UTF-8", hint=hint) from None


def _rows(path: str) -> list[dict[str, str]]:
    """The rows of a CSV file as dictionaries, keyed by its header row."""
    text = read_file(path)
    try:
        lines = list(csv.reader(text.decode("utf-8-sig").splitlines(), skipinitialspace=True, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is not a CSV file: {error}") from None
    lines = [line for line in lines if line]
    if len(lines) < 2:
        raise UsageError(f"{path} needs a header row and one row for each job")
    names = [name.strip() for name in lines[0]]
    if len(set(names)) < len(names):
        raise UsageError(f"{path} has a duplicate name in its header row")
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(names):
            raise UsageError(
                f"{path}: row {number} has {len(line)} values, but the header has {len(names)} names"
            )
    return [dict(zip(names, line, strict=True)) for line in lines[1:]]
