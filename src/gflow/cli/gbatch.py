"""gbatch: what the hot path leaves: scripts, shell lines, --wait, --json, --help."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from gflow.cli import call
from gflow.cli.capture import captured
from gflow.client import fast
from gflow.errors import UsageError
from gflow.options import directives, help
from gflow.options.parse import parse
from gflow.options.table import GBATCH

ABOUT = """Submit a job: a command, a script, or a script on standard input.

One argument that is a file is a script; one with spaces or shell characters is a line for
bash; several arguments are a command and are passed on untouched. Options end at the first
word that is not one. Scripts may carry options in lines that start with `# GFLOW`."""
EXAMPLES = """gbatch --gpus 1 python train.py --lr 3e-4
gbatch --gpus 2 --time 4:00:00 --name big train.sh
gbatch 'cd runs && ./all.sh > out.txt'
ID=$(gbatch --parsable prepare.sh); gbatch --depends-on $ID --gpus 1 python train.py
gbatch --depends-on @ evaluate.sh        # after the job submitted last"""


def run(words: list[str]) -> int:
    values, command = parse(words, GBATCH, until_word=True)
    if "help" in values:
        sys.stdout.write(help.render("gbatch [options] COMMAND… | SCRIPT", ABOUT, GBATCH, EXAMPLES))
        return 0
    if "version" in values:
        from gflow import __version__

        print(f"gbatch {__version__}")
        return 0
    return _submit(values, command)


def _submit(values: dict[str, Any], command: list[str]) -> int:
    body = fast.submission(os.urandom(16).hex(), _job(values, command))
    if "wait" not in values and "json" not in values:
        return fast.show(*fast.deliver(body, fast.target(values)))
    status, _, content = fast.deliver(body, "/jobs", "application/json")
    answer = json.loads(content)
    if status >= 400:
        raise call.DaemonError(answer)
    job = answer["jobs"][0]
    if "json" in values and "wait" not in values:
        print(json.dumps(answer))
        return 0
    if "json" not in values:
        print(job["id"] if "parsable" in values else f"Submitted batch job {job['id']}", flush=True)
    return _wait(job, as_json="json" in values)


def _wait(job: dict[str, Any], *, as_json: bool) -> int:
    from gflow.cli.waiting import exit_code_of, wait_for

    final = wait_for(str(job["id"]))
    if as_json:
        print(json.dumps({"jobs": [final], "total": 1}))
    return exit_code_of(final)


def _job(values: dict[str, Any], command: list[str]) -> str:
    """The job's JSON from what was typed: script, shell line, program, or standard input."""
    if not command or command == ["-"]:
        if os.isatty(0):
            raise UsageError("there is no command to run", hint="gbatch COMMAND ARGS…, or gbatch script.sh")
        return _script(values, "", sys.stdin.buffer.read(), [])
    word = command[0]
    if len(command) > 1:
        return _body(values, command)
    if os.path.isdir(word):
        raise UsageError(f"{word} is a folder, not a script")
    if fast.is_file(word):
        return _script(values, os.path.abspath(word), _read(word), command[1:])
    if not word.strip():
        raise UsageError("the command is empty", hint="gbatch COMMAND ARGS…, or gbatch script.sh")
    if fast.SHELL.intersection(word):
        return _body(values, ["bash", "-c", word])
    if "/" in word:
        raise UsageError(f"there is no file {word}")
    if fast.is_program(word):
        return _body(values, command)
    raise UsageError(f"{word} is neither a file nor a program on your PATH")


def _body(values: dict[str, Any], command: list[str], script: str = "") -> str:
    return fast.job_body(values, command, script, captured(values))


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _script(values: dict[str, Any], path: str, text: bytes, arguments: list[str]) -> str:
    if not text.strip():
        raise UsageError(f"the script {path or 'on standard input'} is empty")
    if b"\0" in text[:1024] or text.startswith(b"\x7fELF"):
        return _body(values, [path, *arguments])  # a program, not a text
    merged = directives.read(text.decode(errors="replace"), path or "standard input") | values
    script = f',"script":"{fast.base64(text)}","script_path":{fast.dumps(path)}'
    return _body(merged, arguments, script)
