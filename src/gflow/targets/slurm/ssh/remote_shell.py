"""Scripts for the shell of another machine, as text. Pure.

A script is sent on the standard input of `/bin/sh`: the command line of ssh passes through the user's login
shell, which may be csh or fish, so it holds nothing that depends on the job. The whole script is one
compound command: a shell that gets only a part of it, as the connection broke, runs nothing of it.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Runs in any login shell.
SHELL = "exec /bin/sh"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Shells that are not login shells may lack the folder of Slurm's commands. The profile of a site sets it.
FIND_SLURM = """command -v sbatch >/dev/null 2>&1 || {
found=$( { . /etc/profile; } </dev/null >/dev/null 2>&1; printf '%s\\n%s' "$PATH" "$SLURM_CONF")
PATH=${found%%
*}; export PATH
[ ! "${found#*
}" ] || { SLURM_CONF=${found#*
}; export SLURM_CONF; }
}"""


class Frame(NamedTuple):
    """Marks around the output of a section: a login shell may print text of its own before it."""

    nonce: str

    def section(self, body: str, umask: int = 0o077) -> str:
        """Lines that run `body` in a subshell between marks. The code of its last command is the result."""
        begin, end = f"gflow-begin-{self.nonce}", f"gflow-end-{self.nonce}"
        return (
            f"echo {begin}; echo {begin} >&2\n(\numask {umask:03o}\n{body}\n) </dev/null\n"
            f'code=$?; echo {end} >&2; echo "{end} $code"'
        )

    def parse(self, output: bytes) -> tuple[int | None, bytes]:
        """The exit code and the output of the section; None: it has not come to its end."""
        text, found, rest = self._after_begin(output).rpartition(f"gflow-end-{self.nonce} ".encode())
        code, newline, _ = rest.partition(b"\n")
        if not found or not newline or not code.isdigit():
            return None, b""
        return int(code), text

    def parse_error(self, output: bytes) -> str:
        """The error output of the section; without its marks, that of ssh."""
        text = self._after_begin(output) if f"gflow-begin-{self.nonce}".encode() in output else output
        return text.partition(f"gflow-end-{self.nonce}".encode())[0].decode(errors="replace").strip()

    def _after_begin(self, output: bytes) -> bytes:
        return output.partition(f"gflow-begin-{self.nonce}\n".encode())[2]


def program(sections: Sequence[str]) -> bytes:
    """The text for the shell: one compound command with these sections."""
    text = "\n".join(["{", FIND_SLURM, *sections, "exit 0", "}"]) + "\n"
    return text.encode(errors="surrogateescape")


def make_frame() -> Frame:
    return Frame(secrets.token_hex(8))


def quote(word: str) -> str:
    """Quote a word for a POSIX shell. ValueError: no word can hold a NUL."""
    if "\0" in word:
        raise ValueError("a word of a command cannot hold a NUL")
    return shlex.quote(word)


def join(words: Sequence[str]) -> str:
    """A command line. The first word is a program, never a builtin's option or a variable."""
    return " ".join(map(quote, words))


def export(environ: Mapping[str, str]) -> list[str]:
    """Lines that export these variables. Names that a shell cannot hold are left out."""
    return [
        f"export {name}={quote(value)}"
        for name, value in environ.items()
        if VARIABLE.fullmatch(name) and "\0" not in value
    ]


def emit(content: bytes) -> str:
    """A command that prints exactly these bytes."""
    return f"printf '%b' '{ESCAPED.sub(_escape, content).decode('ascii')}'"


# All bytes but printable ASCII and newlines; of these, quotes and backslashes.
ESCAPED = re.compile(rb"[^ -~\n]|['\\]")


def _escape(found: re.Match[bytes]) -> bytes:
    return b"\\0%03o" % found[0][0]


def command_line(script: str) -> str:
    """A script as one line for any login shell, for commands that need their standard input themselves.

    csh and fish pass it on as it is: only single quotes, and nothing in them that they would expand.
    """
    content = script.encode(errors="surrogateescape")
    return EVALUATE.format(UNSAFE.sub(_escape, content).decode("ascii"))


EVALUATE = """exec /bin/sh -c 'eval "$(printf %b "$1")"' sh '{}'"""
# All bytes but those that no shell expands, also not at the beginning of a word.
UNSAFE = re.compile(rb"[^A-Za-z0-9 _./:=,@%+-]")


def command_script(words: Sequence[str], environ: Mapping[str, str], input: bytes, cwd: str) -> str:
    """A script that runs one command in a folder, with this input and these variables."""
    command = f"{emit(input)} | {join(words)}" if input else join(words)
    return "\n".join([*export(environ), f"{enter(cwd)} && {command}"])


def enter(folder: str) -> str:
    """A command that enters a folder; it fails with a message if there is none."""
    message = quote(f"the command cannot be run in {folder}: no such folder there")
    return f"{{ cd -- {quote(folder)} 2>/dev/null || {{ echo {message} >&2; false; }}; }}"
