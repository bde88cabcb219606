"""The table of sbatch options in docs/slurm.md, held against what one machine and a cluster get of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gflow.core.model import DEFAULT_SPEC, Spec
from gflow.daemon.execution.cluster_launch import local_note, with_words_for_target
from gflow.errors import UsageError
from gflow.options.sbatch_words import STANDS_FOR, name_of
from gflow.options.slurm import FLAGS, PASSED, SHORT, TRANSLATIONS, UNSUPPORTED, multiply, sbatch
from gflow.targets.slurm.script import ScriptInputs, directives
from gflow.targets.slurm.settings import Cluster
from gflow.wire.requests import JobRequest, Reader

from .builders import job

DOCUMENT = Path(__file__).parents[2] / "docs" / "slurm.md"
VALUES = {
    "array": "1-3", "begin": "now+60", "dependency": "singleton", "signal": "USR1@60", "mem": "1G",
    "gres": "gpu:1", "nodes": "2",
    "mem-per-cpu": "1G", "mem-per-gpu": "1G", "mail-user": "a@b.org", "mail-type": "END", "chdir": "/tmp",
    "kill-on-invalid-dep": "yes", "open-mode": "append", "constraint": "x", "wrap": "true", "export": "ALL",
}  # fmt: skip
# Words of gflow that are no options of sbatch.
OURS = {"shape"}


def rows() -> list[tuple[list[str], str, str]]:
    """Options as written in the table, and its cells for one machine and Slurm."""
    text = DOCUMENT.read_text().partition("| option of sbatch |")[2].partition("\n\n")[0]
    cells = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    return [(re.findall(r"`--([a-z0-9-]+(?:=[^`]*)?)`", names), here, there) for names, here, there in cells]


CASES = [(option, here, there) for names, here, there in rows() for option in names]


def asked(line: str, on: str = ""):
    """The spec of a job with this line in its script, and the options that no job can have."""
    values, ignored = sbatch(f"#SBATCH {line}\n", "job.sh")
    options = {k: v for k, v in multiply(values).items() if k not in ("chdir", "export", "test-only")}
    options = options | ({"on": on} if on else {})
    spec = Reader(lambda text: "-").read(JobRequest(command=["x"], cwd="/", options=options))[0].spec
    return with_words_for_target(spec), ignored


def sbatch_options(spec: Spec) -> list[str]:
    inputs = ScriptInputs(Cluster(), "/", "tag", "/log", "/log", {}, nodes=spec.nodes, gpus=spec.gpus)
    return directives(job(1, **{name: getattr(spec, name) for name in spec.__struct_fields__}), inputs)


def line_of(option: str) -> str:
    name, equals, _ = option.partition("=")
    if equals or (name in FLAGS and name != "exclusive"):
        return f"--{option}"
    return f"--{name}={VALUES.get(name, '1')}" if name != "exclusive" else "--exclusive"


@pytest.mark.parametrize(("option", "here", "there"), CASES, ids=[case[0] for case in CASES])
def test_an_option_means_what_the_table_says(option: str, here: str, there: str) -> None:
    line, name = line_of(option), option.partition("=")[0]
    if here.startswith("refused"):
        with pytest.raises(UsageError):
            asked(line)
    else:
        spec, ignored = asked(line)
        is_ignored = f"--{name}" in local_note([spec]) or f"--{name}" in ignored
        assert is_ignored == (here.startswith("ignored") or "command line" in here)
    spec, ignored = asked(line, on="slurm")
    is_passed = line in set(sbatch_options(spec)) - set(sbatch_options(DEFAULT_SPEC))
    assert is_passed == there.startswith("passed on")
    assert (f"--{name}" in ignored) == there.startswith(("ignored", "by `gbatch`, on its"))


def test_the_table_has_every_option() -> None:
    """Those of pyxis are represented by two."""
    named = {name_of(option) for option, _, _ in CASES}
    known = {*PASSED, *UNSUPPORTED, *TRANSLATIONS, *STANDS_FOR, *SHORT.values()} - OURS
    assert {name for name in known - named if "container-" not in name} == set()
