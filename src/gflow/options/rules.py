"""What the option table says about fields of a spec: who may see and change them, and which go together."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from gflow.options.job_options import JOB, JobOption, refuse
from gflow.options.sbatch_words import without_replaced

# Fields that other users see, of jobs that they see.
PUBLIC_FIELDS = frozenset({option.field for option in JOB if option.seen_by == "all"})
# Fields that may change while a job runs, and those of them that may change while another target has it.
RUNNING_FIELDS = frozenset({option.field for option in JOB if option.changes in ("running", "remote")})
REMOTE_FIELDS = frozenset({option.field for option in JOB if option.changes == "remote"})
# Fields that operators may change of jobs of other users.
OPERATOR_FIELDS = frozenset({option.field for option in JOB if option.changed_by == "operators"})
_FIELDS = {option.name: option.field for option in JOB}
_WITH_RULES = tuple([option for option in JOB if option.requires or option.excludes])


def remaining_words(words: tuple[str, ...], fields: Container[str]) -> tuple[str, ...]:
    """The words for sbatch that new values of these fields do not replace."""
    return without_replaced(words, [name for name, field in _FIELDS.items() if field in fields])


def check_rules(spec: Any, default: Any) -> None:
    """Raise UsageError if options of a spec contradict each other. `default`: a spec without options."""
    for option in _WITH_RULES:
        if getattr(spec, option.field) != getattr(default, option.field):
            check_rule(option, spec, default)
    if spec.resume_args and spec.script:
        refuse(
            "--resume-args are arguments of a program, not of a script",
            "--resume-args '--ckpt_path {latest}' python train.py",
        )
    if spec.races_here and spec.array:
        refuse("a race with this machine is for single jobs, not for arrays")


def check_rule(option: JobOption, spec: Any, default: Any) -> None:
    """Check what an option that is given requires and excludes."""

    def is_given(name: str) -> bool:
        return bool(getattr(spec, _FIELDS[name]) != getattr(default, _FIELDS[name]))

    if not all(any(map(is_given, need.split(" or "))) for need in option.requires):
        needs = " and ".join(option.requires).split(" ")
        flags = " ".join(word if word in ("and", "or") else f"--{word}" for word in needs)
        refuse(f"--{option.name} needs {flags}", option.because)
    for name in filter(is_given, option.excludes):
        refuse(f"--{option.name} cannot be combined with --{name}", option.because)
