"""The command of a further attempt: --resume-args are added where the job runs, as its owner."""

from __future__ import annotations

import sys
from functools import cache

import msgspec

from gflow.core.model import Job
from gflow.targets.local.shim import resume_args

# A node may not have the daemon's Python: any other can run `resume_args`, which needs no package.
ANY_PYTHON = 'p=$1; shift; [ -x "$p" ] || p=python3; exec "$p" "$@"'


def with_resume_args(job: Job, *, is_remote: bool = False) -> Job:
    """The job with --resume-args added to its command, from the second attempt on."""
    spec = job.spec
    if not spec.resume_args or job.attempt < 2:
        return job
    program: tuple[str, ...] = (sys.executable, "-I", "-S", resume_args.__file__)
    if is_remote:  # its nodes may not see the files of gflow: the command contains the program
        program = ("sh", "-c", ANY_PYTHON, "sh", sys.executable, "-I", "-S", "-c", _source())
    command = (*program, spec.resume_args, *spec.command)
    return msgspec.structs.replace(job, spec=msgspec.structs.replace(spec, command=command))


@cache
def _source() -> str:
    with open(resume_args.__file__, encoding="utf-8") as file:
        return file.read()
