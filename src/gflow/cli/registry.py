"""All programs: a one-line description of each, and what completion needs to know about it."""

from __future__ import annotations

from gflow.options.job_options import spellings

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gflow.options.job_options import Option

# In the order in which a new user needs them.
PROGRAMS = {
    "gflowd": "the daemon: start it, stop it, configure it",
    "gbatch": "submit a job",
    "grun": "run a job in the foreground: show its output; Ctrl-C cancels it",
    "gqueue": "list running and waiting jobs, and why they wait",
    "gjob": "show a job and its log, or change it",
    "gcancel": "cancel jobs",
    "ginfo": "show the GPUs and the jobs that use them",
    "gstats": "show statistics of jobs, by user and project",
    "gctl": "administer the machine: GPUs, drain, limits",
}
# Only as `gflow NAME`.
TOOLS = {
    "status": "show everything on one screen, and what needs attention",
    "top": "watch GPUs, jobs and logs live in the terminal",
    "memory": "show which processes and jobs hold the memory of each GPU",
    "gpus": "GPU catalogue, choice of a GPU, load of this machine's GPUs",
    "fit": "predict the memory of a training run, without a GPU",
    "plan": "find the fastest training setup that fits into GPU memory",
    "launch": "run a training script on one GPU or several",
    "scale": "measure how well a training script scales",
    "doctor": "check the machine, its GPUs, PyTorch and gflow, with the fix of each problem",
    "target": "list the clusters, log in to one, test one",
    "spot": "run a command on a spot instance; stop it before it is reclaimed",
    "web": "open the web page: GPUs, jobs, logs",
    "events": "print events as they occur",
    "report": "report progress and metrics from a shell script in a job",
    "slurm-aliases": "shell functions: squeue, sbatch, scancel, … call gflow",
    "mcp": "serve gflow to an assistant (MCP)",
    "api": "print the OpenAPI description of the HTTP API",
    "simulate": "replay a trace under other scheduling policies",
}


# Names that users try as commands of gflow or gjob, and the command that does it.
ELSEWHERE = {
    "cancel": "gcancel JOB", "kill": "gcancel JOB", "delete": "gcancel JOB", "stop": "gcancel JOB",
    "rm": "gcancel JOB", "remove": "gcancel JOB",
    "tail": "gjob log -f JOB", "logs": "gjob log JOB", "cat": "gjob log JOB",
    "output": "gjob log JOB", "help": "gjob COMMAND --help", "version": "gflow --version",
    "status": "gjob show JOB", "info": "gjob show JOB",
    "list": "gqueue", "ls": "gqueue", "ps": "gqueue",
    "submit": "gbatch", "add": "gbatch", "run": "grun", "start": "gbatch",
    "rerun": "gjob redo JOB", "retry": "gjob redo JOB", "top": "gflow top", "stats": "gstats",
}  # fmt: skip


class ProgramInfo:
    """A program as completion sees it."""

    def __init__(
        self,
        about: str,
        options: tuple[Option, ...],
        commands: dict[str, str] | None = None,
        takes: Mapping[str, str | tuple[str, ...]] | None = None,
        *,
        of_command: dict[str, tuple[Option, ...]] | None = None,
        aliases: dict[str, str] | None = None,
        until_word: bool = False,
    ) -> None:
        self.about = about
        self.options = options
        # Sub-commands, and what each does.
        self.commands = commands or {}
        # Arguments of a sub-command ("" for any other): jobs, active jobs, files, or the words of its first.
        self.takes = takes or {}
        # Options of a sub-command, where they differ.
        self.of_command = of_command or {}
        # Short names of sub-commands.
        self.aliases = aliases or {}
        # Whether options end at the first word and the rest is the command line of another program.
        self.until_word = until_word

    def options_by_spelling(self, command: str, before: list[str]) -> dict[str, Option]:
        command = command or next((word for word in before if word in self.of_command), "")
        return spellings(self.of_command.get(command, self.options))


def describe(program: str) -> ProgramInfo:
    """What completion needs to know about a program."""
    return DESCRIBE[program](PROGRAMS[program])


def _module(program: str) -> Any:
    """Import the module of one program."""
    return __import__(f"gflow.cli.{program}", fromlist=("run",))


def _options(program: str) -> tuple[Option, ...]:
    module = __import__(f"gflow.options.commands.{program}_options", fromlist=("OPTIONS",))
    options: tuple[Option, ...] = module.OPTIONS
    return options


def _gbatch(about: str) -> ProgramInfo:
    from gflow.options.job_options import GBATCH, SLURM

    new = {"new": "write a script template", "completion": "print a completion script"}
    ours = tuple(option for option in GBATCH if option not in SLURM)
    return ProgramInfo(about, ours, new, until_word=True)


def _grun(about: str) -> ProgramInfo:
    return ProgramInfo(about, _options("grun"), until_word=True)


def _gqueue(about: str) -> ProgramInfo:
    return ProgramInfo(about, _options("gqueue"), takes={"": "jobs"})


def _gstats(about: str) -> ProgramInfo:
    return ProgramInfo(about, _options("gstats"))


def _gcancel(about: str) -> ProgramInfo:
    return ProgramInfo(about, _options("gcancel"), takes={"": "active"})


def _gjob(about: str) -> ProgramInfo:
    from gflow.options.commands.gjob_options import options_of
    from gflow.options.job_options import COMMON, JSON

    gjob = _module("gjob")
    commands = gjob.COMMANDS
    options = {name: (*options_of(name), JSON, *COMMON) for name in commands}
    abouts = {name: command.about for name, command in commands.items()}
    takes = {"": "jobs", "hold": "active", "release": "active", "update": "active"}
    takes |= {"wait": "active", "profile": "active"}
    return ProgramInfo(about, (JSON, *COMMON), abouts, takes, of_command=options, aliases=gjob.ALIASES)


def _ginfo(about: str) -> ProgramInfo:
    return ProgramInfo(about, _options("ginfo"), {"info": "details of each GPU"})


def _gctl(about: str) -> ProgramInfo:
    from gflow.options.commands.gctl_options import QUOTA, RESERVE

    gctl, quota = _module("gctl"), _module("gctl_quota")
    takes: dict[str, str | tuple[str, ...]] = {
        "set-limit": "active",
        "set-gpus": ("all",),
        "gpu-process": ("ignore", "unignore", "list"),
        "token": ("create", "list", "revoke"),
        "notify": ("test",),
        "quota": tuple(quota.QUOTA_COMMANDS),
        "reserve": tuple(quota.RESERVE_COMMANDS),
    }
    commands = dict.fromkeys((*gctl.COMMANDS, *gctl.NESTED), "")
    of_command = {"quota": QUOTA, "reserve": RESERVE}
    return ProgramInfo(about, _options("gctl"), commands, takes, of_command=of_command)


def _gflowd(about: str) -> ProgramInfo:
    gflowd = _module("gflowd")
    return ProgramInfo(
        about,
        gflowd.OPTIONS,
        {name: about for name, (about, _, _) in gflowd.COMMANDS.items()},
        {"restore": "files", "service": ("install", "uninstall")},
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
