"""gflow slurm-aliases: print shell functions that let commands of Slurm use gflow."""

from __future__ import annotations

import os
import shutil
import sys

from gflow.errors import UsageError
from gflow.options.commands.slurm_aliases_options import OPTIONS, SHELLS
from gflow.options.parse import parse

ABOUT = """Print shell functions for sbatch, srun, squeue, scancel, sacct, sinfo and scontrol. They understand
the usual options of Slurm and call gbatch, grun, gqueue, gcancel, ginfo and gjob. Only the shell that
evaluates the output has them."""
EXAMPLES = """eval "$(gflow slurm-aliases)"                 # bash, zsh
gflow slurm-aliases --shell fish | source
squeue --me -o "%i %j %T"; scancel -t PD --me"""
NAMES = ("sbatch", "srun", "squeue", "scancel", "sacct", "sinfo", "scontrol")


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow slurm-aliases [options]", ABOUT, OPTIONS, EXAMPLES))
        return 0
    if rest:
        raise UsageError(f"unexpected argument {rest[0]!a:.60}", hint='eval "$(gflow slurm-aliases)"')
    shell = values.get("shell") or os.path.basename(os.environ.get("SHELL", "bash"))
    if shell not in SHELLS:
        if "shell" in values:
            raise UsageError(f"unknown shell {shell!a:.60}", hint="shells: " + ", ".join(SHELLS))
        shell = "bash"
    sys.stdout.write("".join(_function(name, shell) for name in NAMES))
    if real := [path for name in NAMES if (path := shutil.which(name))]:
        sys.stderr.write(
            f"gflow slurm-aliases: in this shell the functions hide {real[0]} and other commands\n"
            "of Slurm. For jobs on a cluster use gbatch --on slurm.\n"
        )
    return 0


def _function(name: str, shell: str) -> str:
    if shell == "fish":
        return f"function {name}; gflow slurm {name} $argv; end\n"
    return f'{name}() {{ gflow slurm {name} "$@"; }}\n'
