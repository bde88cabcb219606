"""The parser of all command lines of gflow, driven by a table of options."""

from __future__ import annotations

from gflow.options.job_options import Option, refuse, spellings

TYPE_CHECKING = False  # typing costs 15 ms to import, and this runs inside every gbatch
if TYPE_CHECKING:
    from typing import Any, NoReturn


def parse(
    words: list[str], table: tuple[Option, ...], *, until_word: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Split `words` into option values (by option name) and the remaining words.

    With `until_word`, options end at the first word that is not an option: the rest is the command of the
    job.
    """
    spelled: dict[str, Option] = {}  # filled for the first option: most commands have none
    values: dict[str, Any] = {}
    rest: list[str] = []
    queue = list(reversed(words))
    while queue:
        word = queue.pop()
        if word == "--":
            rest.extend(reversed(queue))
            break
        if word == "-" or not word.startswith("-"):
            rest.append(word)
            if until_word:
                rest.extend(reversed(queue))
                break
            continue
        spelled = spelled or spellings(table)
        option, value = _split(word, spelled, table)
        if value is None and not option.is_flag:
            if not queue:
                refuse(f"--{option.name} needs a value")
            value = queue.pop()
        for taken, raw in _translate(option, True if value is None else value, spelled):
            from gflow.options.values import read  # not needed by a command without options

            try:
                result = read(taken, raw)
            except Exception as error:
                _add_letter_hint(error, word, option, spelled)
                raise
            values[taken.name] = _append(values.get(taken.name), result) if taken.many else result
    return values, rest


def _append(before: Any, result: Any) -> Any:
    """Append to the values of a repeated option, without duplicates. Text is joined by commas."""
    if isinstance(result, str):
        return f"{before},{result}" if before else result
    return tuple(dict.fromkeys((before or ()) + result))


def _translate(option: Option, value: Any, spelled: dict[str, Option]) -> list[tuple[Option, Any]]:
    """The option itself, or the options that a Slurm option, a shape or `--gpus a100:2` stands for."""
    has_type = option.name in ("gpus", "gpus-per-task") and ":" in value
    if option.kind not in ("slurm", "shape") and not has_type:
        return [(option, value)]
    from gflow.options.slurm import translate

    return [
        (spelled.get("--" + name) or _IGNORED, raw) for name, raw in translate(option.name, value).items()
    ]


# Names of Slurm options that mean nothing here, joined by commas: reported by the client.
_IGNORED = Option("ignored", "text", "", many=True)


def _split(word: str, spelled: dict[str, Option], table: tuple[Option, ...]) -> tuple[Option, str | None]:
    """Split `--gpus=2`, `--gpus`, `-g2` or `-g` into the option and the attached value, if any."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        attached = value if equals else None
    else:
        name, attached = word[:2], word[2:] or None
        long = "-" + word.partition("=")[0]
        if attached and long in spelled:
            refuse(f"unknown option {long[1:]!a}", f"did you mean {long}?")
    option = spelled.get(name) or _of_slurm(name, spelled)
    if attached is not None and option.is_flag:
        refuse(f"{name} takes no value")
    return option, attached


def _add_letter_hint(error: Any, word: str, option: Option, spelled: dict[str, Option]) -> None:
    """Say what a letter means here, if it means something else in Slurm: `-p gpu`."""
    if word.startswith("--") or "--gres" not in spelled:
        return
    from gflow.options.slurm import SHORT

    theirs = SHORT.get(word[1], "")
    if theirs and spelled.get("--" + theirs) is not option:
        error.hint = f"-{word[1]} is --{option.name} here; Slurm's -{word[1]} is --{theirs}"


def _of_slurm(name: str, spelled: dict[str, Option]) -> Option:
    """The option of sbatch with this name, for commands that take them; else a refusal."""
    if "--gres" in spelled:
        from gflow.options.slurm import unsupported

        if found := unsupported(name, spelled):
            return found
    return _refuse_unknown(name, spelled)


def _refuse_unknown(name: str, spelled: dict[str, Option]) -> NoReturn:
    from gflow.errors import nearest

    close = nearest(name.lstrip("-"), [text[2:] for text in spelled if text.startswith("--")])
    refuse(f"unknown option {name!a}", f"did you mean --{close}?" if close else "see --help")
