"""The parser of all command lines of gflow, driven by a table of options."""

from __future__ import annotations

from gflow.options.job_options import AS_WRITTEN, Option, refuse, spellings

TYPE_CHECKING = False  # typing costs 15 ms to import, and this runs inside every gbatch
if TYPE_CHECKING:
    from typing import Any, NoReturn


# Values of --time for a job without a limit.
NO_LIMIT = ("0", "UNLIMITED", "INFINITE")


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
        option, value = _split(word, spelled, words)
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
    name = _name_in_slurm(option, value, "--gres" in spelled)
    if not name:
        return [(option, value)]
    from gflow.options.slurm import translate

    if option.kind == "word":
        return [(spelled["--slurm"], f"--{name}={value}")]
    return [
        (spelled.get("--" + ours) or _IGNORED, raw)
        for ours, raw in translate(name, value).items()
        if ours != "slurm" or "--gres" in spelled  # a cluster gets words of Slurm with the job only
    ]


def _name_in_slurm(option: Option, value: Any, has_slurms: bool) -> str:
    """The Slurm option that this one is translated as; empty: it is none, and has none of Slurm's values."""
    name = option.name
    if option.kind in ("slurm", "shape", "word") or (has_slurms and name in AS_WRITTEN):
        return name
    if name in ("gpus", "gpus-per-task") and ":" in value:
        return "gpus-per-node" if name == "gpus" else name
    if not has_slurms or value is True:
        return ""
    if name == "memory":
        return "mem" if value[:1] == "0" and not value.strip("0KMGTkmgt") else ""
    has_slurms_value = (
        (name == "time" and value.upper() in NO_LIMIT) or (name == "nodes" and "-" in value)
    ) or name == "exclusive"
    return name if has_slurms_value else ""


# Names of Slurm options that no job of gflow can have, joined by commas: reported by the client.
_IGNORED = Option("ignored", "text", "", many=True)


def _split(word: str, spelled: dict[str, Option], words: list[str]) -> tuple[Option, str | None]:
    """Split `--gpus=2`, `--gpus`, `-g2` or `-g` into the option and the attached value, if any."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        attached = value if equals else None
    else:
        name, attached = word[:2], word[2:] or None
        long = "-" + word.partition("=")[0]
        if attached and long in spelled:
            refuse(f"unknown option {long[1:]!a}", f"did you mean {long}?")
    option = spelled.get(name) or _of_slurm(name, spelled, attached is not None and _has_target(words))
    takes_value = (option.kind == "slurm" and not option.help) or name == "--exclusive"  # optional values
    if attached is not None and option.is_flag and not takes_value:
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


def _of_slurm(name: str, spelled: dict[str, Option], is_for_cluster: bool) -> Option:
    """The option of sbatch with this name, for commands that take them; else a refusal."""
    if "--gres" in spelled:
        from gflow.options.slurm import find_option

        if found := find_option(name, spelled, is_for_cluster=is_for_cluster):
            return found
    return _refuse_unknown(name, spelled)


def _has_target(words: list[str]) -> bool:
    return any(word == "--on" or word.startswith("--on=") for word in words)


def _refuse_unknown(name: str, spelled: dict[str, Option]) -> NoReturn:
    from gflow.errors import nearest

    word = name.lstrip("-")
    known = [text[2:] for text in spelled if text.startswith("--")]
    having = [text for text in known if word in text.split("-")]
    close = nearest(word, known) or (having[0] if len(having) == 1 else "")
    refuse(f"unknown option {name!a}", f"did you mean --{close}?" if close else "see --help")


def output_of(values: dict[str, Any], options: tuple[Option, ...]) -> str:
    """The requested output format."""
    output: str = "json" if "json" in values else values.get("output", "table").lower()
    (choices,) = [option.choices for option in options if option.name == "output"]
    if output not in choices:
        from gflow.errors import unknown

        raise unknown("output format", output, choices)
    return output
