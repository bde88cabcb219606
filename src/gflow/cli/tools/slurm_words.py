"""Split command lines of Slurm into options and arguments."""

from __future__ import annotations

from typing import NamedTuple

from gflow.errors import UsageError

# Long name of an option, and its value; empty for a flag.
Given = tuple[str, str]


class Known(NamedTuple):
    """Options of a command of Slurm: long names by letter, flags, options with a value (None: all others)."""

    letters: dict[str, str]
    flags: tuple[str, ...]
    values: tuple[str, ...] | None
    # Whether options end at the first word that is none.
    until_word: bool = False


def split(program: str, words: list[str], known: Known) -> tuple[list[Given], list[str]]:
    """The options with their values, and the other words. Raises UsageError for an unknown option."""
    given: list[Given] = []
    rest: list[str] = []
    queue = list(reversed(words))
    while queue:
        word = queue.pop()
        if not word.startswith("-") or word in ("-", "--"):
            rest += [word] * (word != "--")
            if known.until_word or word == "--":
                return given, rest + queue[::-1]
            continue
        name, equals, value = _name(program, word, known)
        if name in known.flags:
            if not word.startswith("--") and value:
                queue.append("-" + value)  # several letters in one word: -lu ann
            value = ""
        elif known.values is not None and name not in known.values:
            raise UsageError(f"gflow does not translate {word!a:.60} of {program}", hint=HINTS[program])
        elif not equals:
            if not queue:
                raise UsageError(f"{word} needs a value")
            value = queue.pop()
        given.append((name, value))
    return given, rest


def _name(program: str, word: str, known: Known) -> tuple[str, bool, str]:
    """Long name of an option, whether a value is attached to it, and that value."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return name, bool(equals), value
    if word[1] not in known.letters:
        raise UsageError(f"gflow does not translate {word!a:.60} of {program}", hint=HINTS[program])
    return known.letters[word[1]], len(word) > 2, word[2:]


HINTS = {
    "squeue": "see gqueue --help",
    "scancel": "see gcancel --help",
    "sacct": "see gqueue --help and gstats --help",
    "sinfo": "see ginfo --help; ginfo --json is for programs",
    "sbatch": "see gbatch --help",
    "srun": "see grun --help",
}
