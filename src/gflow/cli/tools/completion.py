"""Completion for bash, zsh and fish.

The scripts only pass the words to `gflow __complete`, which answers from the option tables and, for job ids,
from the daemon. So they never get out of date. PROGRAMS in a script is replaced by the programs' names.
"""

from __future__ import annotations

import sys

from gflow.cli.registry import PROGRAMS, TOOLS, ProgramInfo, describe
from gflow.errors import GflowError, UsageError

TYPE_CHECKING = False

if TYPE_CHECKING:
    from gflow.options.job_options import Option


# Markers printed instead of candidates: the shell completes these itself.
FILES = ":files"
COMMANDS = ":commands"
SHELLS = ("bash", "zsh", "fish")
NEWEST = 50


def script(program: str, words: list[str]) -> int:
    """`gbatch completion bash`: print the script that the shell reads at its start."""
    if len(words) != 1 or words[0] not in SHELLS:
        asked = f"not {words[0]!a}" if words else "say which"
        raise UsageError(f"completion is for {', '.join(SHELLS)}: {asked}", hint=f"{program} completion bash")
    from gflow.cli.tools.completion import SCRIPTS

    programs = ("gflow", *PROGRAMS) if program == "gflow" else (program,)
    sys.stdout.write(SCRIPTS[words[0]].replace("PROGRAMS", " ".join(programs)))
    return 0


def complete(words: list[str]) -> int:
    """`gflow __complete CURSOR WORD…`: print one candidate per line, a tab and its meaning."""
    found = jobs(active=False) if words == ["jobs"] else candidates(words[1:], int(words[0]))
    for word, meaning in found:
        sys.stdout.write(f"{word}\t{meaning}\n" if meaning else f"{word}\n")
    return 0


Candidate = tuple[str, str]


def candidates(words: list[str], cursor: int) -> list[Candidate]:
    """Candidates for the word at `cursor`; words[0] is the program."""
    program = words[0].rpartition("/")[2]
    current = words[cursor] if cursor < len(words) else ""
    before = words[1:cursor]
    if program == "gflow":
        names = PROGRAMS | TOOLS
        short = {name.removeprefix("g"): name for name in PROGRAMS}
        if not before:
            return _with_prefix(current, [*names.items(), ("completion", "print a completion script")])
        program, before = short.get(before[0], before[0]), before[1:]
    if program not in PROGRAMS:
        return []
    return _within(describe(program), before, current)


def _within(program: ProgramInfo, before: list[str], current: str) -> list[Candidate]:
    if current == "=":  # bash splits `--states=Ru` into three words
        before, current = [*before, "="], ""
    if len(before) >= 2 and before[-1] == "=":
        before = before[:-1]
    elif current.startswith("--") and "=" in current:
        name, _, value = current.partition("=")
        option = program.options_by_spelling("", before).get(name)
        found = _values(option, program, value) if option else []
        return [(f"{name}={word}", meaning) for word, meaning in found if not word.startswith(":")]
    command, spelled, awaited, words = _read(program, before)
    if awaited is not None:
        return _values(awaited, program, current)
    if current.startswith("-") and not (program.until_word and words):
        return _options(spelled, current)
    return _words(program, command, words, current)


def _read(program: ProgramInfo, before: list[str]) -> tuple[str, dict[str, Option], Option | None, list[str]]:
    """The sub-command, its options, the option that still needs its value, and the other words."""
    command = next((word for word in before if word in program.commands), "")
    spelled = program.options_by_spelling(command, before)
    awaited: Option | None = None
    words: list[str] = []
    for word in before:
        if awaited is not None:
            awaited = None
        elif word.startswith("-") and not (program.until_word and words):
            option = spelled.get(word)
            awaited = option if option is not None and not option.is_flag else None
        elif word != command or words:
            words.append(word)
    return command, spelled, awaited, words


def _options(spelled: dict[str, Option], current: str) -> list[Candidate]:
    long = [(name, option.help) for name, option in spelled.items() if name == f"--{option.name}"]
    return _with_prefix(current, long)


def _words(program: ProgramInfo, command: str, words: list[str], current: str) -> list[Candidate]:
    if program.commands and not command and not words:
        found = _with_prefix(current, list(program.commands.items()))
        return found + ([(COMMANDS, "")] if program.until_word else [])
    if program.until_word:
        return [(FILES if words else COMMANDS, "")]
    kind = program.takes.get(command, program.takes.get("", ""))
    if not kind or (isinstance(kind, tuple) and words):
        return []
    return _listed(kind, program, current)


def _values(option: Option, program: ProgramInfo, current: str) -> list[Candidate]:
    kind = option.choices or NAMES.get(option.name) or KINDS.get(option.kind, "")
    return _listed(kind, program, current)


def _listed(kind: str | tuple[str, ...], program: ProgramInfo, current: str) -> list[Candidate]:
    """Candidates for the last item of a comma-separated list."""
    if kind == "files":
        return [(FILES, "")]
    head, comma, last = current.rpartition(",")
    chosen = set(head.split(","))
    known = [(word, "") for word in kind] if isinstance(kind, tuple) else _source(kind, program)
    return [
        (head + comma + word, meaning) for word, meaning in _with_prefix(last, known) if word not in chosen
    ]


def _source(kind: str, program: ProgramInfo) -> list[Candidate]:
    if kind in ("jobs", "active"):
        return jobs(active=kind == "active")
    if kind == "states":
        from gflow.job_states import JobState

        return [(state.value, state.row.short) for state in JobState]
    if kind == "columns":
        from gflow.text.queue import COLUMNS

        return [(name, "") for name in COLUMNS]
    return []


def jobs(*, active: bool) -> list[Candidate]:
    """Ids of jobs with their state and name, and of their groups.

    None if the daemon cannot be reached: Tab prints no errors.
    """
    from gflow.client import hot_path

    query = "format=JOBID,ST,GROUP,NAME" + ("" if active else f"&all=1&limit=-{NEWEST}")
    try:
        status, _, content = hot_path.request("GET", f"/jobs?{query}")
    except (OSError, GflowError):
        return []
    if status != 200:
        return []
    lines = content.decode(errors="replace").splitlines()[1:]
    rows = [row for row in (line.split(None, 3) for line in lines) if len(row) == 4 and row[0][0].isdigit()]
    found = [(id.partition("_[")[0], f"{state} {name}") for id, state, _, name in rows]
    return found + _groups([(group, name) for _, _, group, name in rows if group != "-"])


def _groups(members: list[Candidate]) -> list[Candidate]:
    """Ids of groups with the name of their jobs, `run_1, …` if these differ. `members`: group and name."""
    names: dict[str, list[str]] = {}
    for group, name in members:
        names.setdefault(group, []).append(name)
    return [(group, of[0] if len(set(of)) == 1 else f"{of[0]}, …") for group, of in names.items()]


def _with_prefix(current: str, known: list[Candidate]) -> list[Candidate]:
    return [(word, meaning) for word, meaning in known if word.lower().startswith(current.lower())]


# Kind of an option's value where it has no choices: by the option's name, or by its kind.
NAMES = {"jobs": "jobs", "states": "states", "state": "states", "format": "columns", "param-file": "files"}
KINDS = {"depends": "jobs", "path": "files"}


BASH = r"""# gflow completion for bash. In ~/.bashrc: eval "$(gflow completion bash)"
_gflow() {
    local line word current=${COMP_WORDS[COMP_CWORD]}
    [[ $current == "=" ]] && current=
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
            :commands) mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -c -f -- "$current") ;;
            *) printf -v word %q "${line%%$'\t'*}"; COMPREPLY+=("${word//\\,/,}")
               compopt -o nosort 2>/dev/null ;;
        esac
    done < <(gflow __complete "$COMP_CWORD" "${COMP_WORDS[@]}" 2>/dev/null)
}
complete -F _gflow PROGRAMS
"""

ZSH = r"""#compdef PROGRAMS
# gflow completion for zsh. In ~/.zshrc, after compinit: eval "$(gflow completion zsh)"
_gflow() {
    local line
    local -a found
    for line in "${(@f)$(gflow __complete $((CURRENT - 1)) "${words[@]}" 2>/dev/null)}"; do
        case $line in
            '') ;;
            :files) _files ;;
            :commands) _command_names -e; _files ;;
            *$'\t'*) found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
            *) found+=("${line//:/\\:}") ;;
        esac
    done
    if (( $#found )); then _describe -V gflow found; fi
}
compdef _gflow PROGRAMS
"""

FISH = r"""# gflow completion for fish. In ~/.config/fish/config.fish: gflow completion fish | source
function __gflow_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in (gflow __complete (math (count $words) - 1) $words 2>/dev/null)
        switch $line
            case ':files'
                __fish_complete_path (commandline -ct)
            case ':commands'
                __fish_complete_command
            case '*'
                echo $line
        end
    end
end
for program in PROGRAMS
    complete -c $program -f -a '(__gflow_complete)'
end
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
