"""The table of docs/slurm-options.md, held against what each kind of target gets of each option."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gflow.core.ids import job_key
from gflow.core.model import ArrayProgress, Job, RemoteState, Spec
from gflow.core.task_set import parse_tasks
from gflow.daemon.execution.cluster_launch import check_targets, local_note, remote_launch
from gflow.errors import Refused
from gflow.options.job_options import CAPTURE, JOB
from gflow.targets.slurm.remote_launch import build_script
from gflow.targets.slurm.settings import Cluster
from gflow.targets.slurm.submission import SlurmSubmission
from gflow.wire.requests import JobRequest, Reader

DOCUMENT = Path(__file__).parents[2] / "docs" / "slurm-options.md"
SETTINGS: Any = SimpleNamespace(
    clusters={"slurm": Cluster(), "far": Cluster(host="login")},
    is_system=False,
    logs=Path("/logs"),
    config={"containers.runtime": "auto"},
)
# Values that differ from the defaults; others are 2, or x.
VALUES = {
    "fit": 500, "gpu-memory": "4G", "memory": "4G", "shape": "n2_gpu2", "race": "n1_gpu2,n2_gpu1",
    "slurm": "--licenses=x", "sync": "/w", "outputs": "out", "array": "1-3", "param": "x=1,2",
    "stop-when": "loss > 2 at step 5", "retry-on": "oom", "signal": "USR1@60", "venv": "/v",
    "conda-env": "/c", "output": "/o", "error": "/e", "notify-email": "a@b.org", "notify-on": "job_failed",
    "begin": "now+60", "on": "slurm", "overflow": "slurm", "time": "2:00:00", "sync-size": "2G",
}  # fmt: skip
# Options without which another one is refused.
NEEDED = {
    "gpu-type": {"gpus": "1"}, "gpu-memory": {"gpus": "1"}, "fit": {"gpus": "1"},
    "shared": {"gpus": "1", "gpu-memory": "4G"}, "stop-if-idle": {"gpus": "1"},
    "preemptible": {"gpus": "1"}, "gpus-per-task": {"gpus": "2"}, "retry-on": {"max-retries": "1"},
    "retry-delay": {"max-retries": "1"}, "overflow-after": {"overflow": "slurm"},
    "max-concurrent": {"param": "x=1,2"}, "no-auto-cancel": {"depends-on": "1"}, "signal": {"time": "60"},
    "notify-on": {"notify-email": "a@b.org"}, "requeue": {"time": "60"}, "resume-args": {"requeue": True},
}  # fmt: skip


def rows() -> list[tuple[str, str, str, str]]:
    """Options with their cells for one machine, Slurm, and Slurm over SSH."""
    text = DOCUMENT.read_text().partition("| option |")[2]
    cells = [line.strip("| ").split(" | ") for line in text.splitlines()[2:] if line.startswith("|")]
    return [
        (name, here, there, far)
        for names, here, there, far in cells
        for name in re.findall(r"`--([a-z-]+)`", names)
    ]


OPTIONS = {option.name: option for option in JOB}
CASES = [row for row in rows() if row[0] in OPTIONS]


def spec_of(options: dict[str, Any], on: str = "") -> Spec:
    where = {"on": on} if on and "overflow" not in options else {}
    request = JobRequest(command=["x"], cwd="/w", options=options | where)
    return Reader(lambda text: "-").read(request)[0].spec


def directives(options: dict[str, Any], on: str) -> set[str]:
    """The #SBATCH lines of a job with these options on this target."""
    spec = msgspec.structs.replace(spec_of(options, on), sync="")  # its folder is not part of this
    check_targets(SETTINGS, [spec])
    progress = ArrayProgress(parse_tasks(spec.array)) if spec.array else None
    job = Job(
        key=job_key(1), spec=spec, uid=0, user="", submitted_at=0.0, attempt=1, target=on, progress=progress,
        remote=RemoteState(),
    )  # fmt: skip
    launch = remote_launch(SETTINGS, job, None, b"")
    candidate = SlurmSubmission(launch, was_submitted=False).candidates[0]
    text = build_script(launch, candidate, SETTINGS.clusters[on], "/folder", "tag")
    lines = {line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")}
    usual = "--chdir" if "output" in options else ("--chdir", "--output")  # these have usual places there
    return {line for line in lines if not line.startswith(usual)}


@pytest.mark.parametrize(("name", "here", "there", "far"), CASES, ids=[case[0] for case in CASES])
def test_option_means_what_the_table_says(name: str, here: str, there: str, far: str) -> None:
    needed = NEEDED.get(name, {})
    value = VALUES.get(name, True if OPTIONS[name].kind == "flag" else "2")
    if OPTIONS[name].kind == "depends":
        value = "1"
    options = needed | {name: value}
    if here == "refused":
        with pytest.raises(Refused):
            check_targets(SETTINGS, [spec_of(options)])
    elif name not in ("on", "overflow", "overflow-after", "race"):
        assert (f"--{name}" in local_note([spec_of(options)])) == (here == "ignored") or name == "slurm"
    added = {}
    for on, cell in (("slurm", there), ("far", there if far == "same" else far)):
        if cell.startswith("refused"):
            with pytest.raises(Refused):
                directives(options, on)
            continue
        added[on] = directives(options, on) - directives(needed, on)
        if cell.startswith("`--"):
            passed = re.match(r"`(--[a-z-]+)`", cell)
            assert passed and any(line.partition("=")[0] == passed[1] for line in added[on]), added
        elif cell.startswith(("by gflow", "no effect")) and name not in ("max-concurrent", "race"):
            assert added[on] == set()
    if far == "same":
        assert added["slurm"] == added["far"]


@pytest.mark.parametrize(("on", "option"), [("slurm", "output"), ("far", "output"), ("far", "error")])
def test_path_with_a_line_break_is_refused(on: str, option: str) -> None:
    with pytest.raises(Refused, match="line break"):
        check_targets(SETTINGS, [spec_of({option: "x\ntouch bad"}, on)])
    check_targets(SETTINGS, [spec_of({option: "x\ntouch bad"})])


def test_the_table_has_every_option_once() -> None:
    names = [row[0] for row in rows()]
    assert sorted(names) == sorted([*OPTIONS, *(option.name for option in CAPTURE)])
