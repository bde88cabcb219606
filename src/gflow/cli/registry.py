"""All programs: what each is for, and how completion finds its way through it."""

from __future__ import annotations

from gflow.options.table import spellings

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any

    from gflow.options.table import Option

# In the order in which a newcomer meets them.
PROGRAMS = {
    "gflowd": "the daemon: start it, stop it, configure it",
    "gbatch": "submit a job",
    "grun": "run a job in the foreground: its output here, Ctrl-C ends it",
    "gqueue": "see the jobs that run and wait, and why",
    "gjob": "look at one job and its log, and change it",
    "gcancel": "end jobs",
    "ginfo": "see the GPUs and who has them",
    "gstats": "see what was used, by whom, and how it went",
    "gctl": "govern the machine: which GPUs, draining, limits",
}
# Only as `gflow NAME`.
TOOLS = {
    "gpus": "which GPU to take, and what those of this machine do",
    "fit": "predict the memory of a training run, without a GPU",
    "plan": "find the fastest way to train that fits",
    "launch": "run a training script on one GPU or several",
    "scale": "run a training script at several sizes: how well does it scale?",
    "spot": "run a command on a machine that the cloud may take away",
    "events": "print what happens, as it happens",
    "mcp": "serve gflow to an assistant (MCP)",
    "api": "print the description of the HTTP API",
    "simulate": "replay a trace under another policy, before you change it",
}


class Described:
    """A program as completion sees it."""

    def __init__(
        self,
        about: str,
        options: tuple[Option, ...],
        commands: dict[str, str] | None = None,
        takes: dict[str, str] | None = None,
        *,
        of_command: dict[str, tuple[Option, ...]] | None = None,
        aliases: dict[str, str] | None = None,
        until_word: bool = False,
    ) -> None:
        self.about = about
        self.options = options
        # Sub-commands, and what each does.
        self.commands = commands or {}
        # What the words after a sub-command are ("" for any other): jobs, active jobs, files.
        self.takes = takes or {}
        # Options of a sub-command, where they differ.
        self.of_command = of_command or {}
        # Short names of sub-commands.
        self.aliases = aliases or {}
        # Whether options end at the first word, and the rest is somebody else's command line.
        self.until_word = until_word

    def spelled(self, command: str, before: list[str]) -> dict[str, Option]:
        command = command or next((word for word in before if word in self.of_command), "")
        return spellings(self.of_command.get(command, self.options))


def describe(program: str) -> Described:
    """What completion needs to know about a program."""
    return DESCRIBE[program](PROGRAMS[program])


def _module(program: str) -> Any:
    """A program's module, by name: only what is asked about is loaded."""
    return __import__(f"gflow.cli.{program}", fromlist=("run",))


def _gbatch(about: str) -> Described:
    from gflow.options.table import GBATCH, SLURM

    new = {"new": "write a script to start from", "completion": "print a completion script"}
    ours = tuple(option for option in GBATCH if option not in SLURM)
    return Described(about, ours, new, until_word=True)


def _grun(about: str) -> Described:
    return Described(about, _module("grun").OPTIONS, until_word=True)


def _gqueue(about: str) -> Described:
    from gflow.options.listing import GQUEUE

    return Described(about, GQUEUE, takes={"": "jobs"})


def _gstats(about: str) -> Described:
    from gflow.options.listing import GSTATS

    return Described(about, GSTATS)


def _gcancel(about: str) -> Described:
    return Described(about, _module("gcancel").OPTIONS, takes={"": "active"})


def _gjob(about: str) -> Described:
    from gflow.options.table import COMMON, JSON

    gjob = _module("gjob")
    commands = gjob.COMMANDS
    options = {name: (*command.options, JSON, *COMMON) for name, command in commands.items()}
    abouts = {name: command.about for name, command in commands.items()}
    takes = {"": "jobs", "hold": "active", "release": "active", "update": "active", "wait": "active"}
    return Described(about, (JSON, *COMMON), abouts, takes, of_command=options, aliases=gjob.ALIASES)


def _ginfo(about: str) -> Described:
    return Described(about, _module("ginfo").OPTIONS, {"info": "all about each GPU"})


def _gctl(about: str) -> Described:
    gctl = _module("gctl")
    return Described(
        about, gctl.OPTIONS, dict.fromkeys((*gctl.COMMANDS, *gctl.GOVERNING), ""), {"set-limit": "active"}
    )


def _gflowd(about: str) -> Described:
    gflowd = _module("gflowd")
    return Described(
        about,
        gflowd.OPTIONS,
        {name: about for name, (about, _, _) in gflowd.COMMANDS.items()},
        {"restore": "files"},
    )


DESCRIBE = {
    "gbatch": _gbatch,
    "grun": _grun,
    "gqueue": _gqueue,
    "gstats": _gstats,
    "gcancel": _gcancel,
    "gjob": _gjob,
    "ginfo": _ginfo,
    "gctl": _gctl,
    "gflowd": _gflowd,
}
