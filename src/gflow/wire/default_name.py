"""The name of a job that was submitted without one: its script, or the program that its command runs."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Sequence

LONGEST = 40
SHELLS = ("bash", "sh", "zsh", "dash")
# Programs that run a script or another program, which tells more than their own name.
_RUNNER = re.compile(
    r"(python|pypy)[0-9.]*|bash|sh|zsh|dash|perl|ruby|node|Rscript|julia|torchrun|deepspeed|accelerate"
    r"|uv|poetry|pixi|conda|mamba|env|time|nice|nohup|exec|srun|mpirun|mpiexec|gflow|stdbuf|numactl"
)
_SCRIPT = re.compile(r"[^-].*\.(py|pyz|ipynb|sh|bash|zsh|pl|rb|js|R|jl)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
# The words of a line that quotes nothing, as shlex reads them: it takes a line apart letter by letter.
_QUOTING = frozenset("'\"\\#")
_WORD = re.compile(r"[\w~./*?=-]+|[;&|()<>\n]+|[^ \t\r]", re.ASCII)
# Commands that say less than another one of the same line.
_PREPARATION = frozenset((
    ".", "cd", "conda", "echo", "exit", "export", "mamba", "mkdir", "module", "set", "source",
    "ulimit", "umask",
))  # fmt: skip


def default_name(command: Sequence[str], script_path: str) -> str:
    """The name of a script without its folder, or the script or program that a command runs.

    `train.py` for `python train.py --lr 0.1`, `sleep` for `sleep 60`. Empty if nothing fits.
    """
    words = list(command)
    if script_path:
        name = _last_part(script_path)
    elif len(words) == 3 and _last_part(words[0]) in SHELLS and words[1] == "-c":
        name = _name_of(_main_command(words[2]))
    else:
        name = _name_of(words)
    return name[:LONGEST] if name.isprintable() and name.strip() else ""


def _main_command(line: str) -> list[str]:
    """The words of the first command of a shell line that does more than prepare."""
    commands: list[list[str]] = [[]]
    try:
        for word in _words_of(line):
            if set(word) <= set(";&|()\n"):
                commands.append([])
            else:
                commands[-1].append(word)
    except ValueError:  # a quotation without an end
        return line.split()
    found = [words for words in commands if words]
    return next((words for words in found if words[0] not in _PREPARATION), found[0] if found else [])


def _words_of(line: str) -> Iterable[str]:
    """The words and operators of a shell line. Raises ValueError for a quotation without an end."""
    if line.isascii() and _QUOTING.isdisjoint(line):
        return _WORD.findall(line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace = " \t\r"
    return lexer


def _name_of(words: Sequence[str]) -> str:
    words = list(itertools.dropwhile(_ASSIGNMENT.match, words)) or [""]
    program, rest = _last_part(words[0]), words[1:]
    if not _RUNNER.fullmatch(program) or "-c" in rest[:2]:
        return program
    script = next((word for word in rest if _SCRIPT.fullmatch(word)), "")
    if "-m" in rest[:-1] and (not script or rest.index("-m") < rest.index(script)):
        return rest[rest.index("-m") + 1]
    if script:
        return _last_part(script)
    plain = [word for word in rest if not word.startswith("-") and not _ASSIGNMENT.match(word)]
    return _last_part(plain[0]) if plain else program


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
