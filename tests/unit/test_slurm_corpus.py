"""A corpus of sbatch scripts: each asks for what its EXPECT line says and runs, or is refused.

`EXPECT gpus=1 calls=1`: resources, ignored options, and how many programs the script starts. Programs such
as python and torchrun are stubs. `EXPECT refused=SENTENCE`: the refusal.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gflow.core.ids import job_key
from gflow.core.model import Job
from gflow.daemon.execution.cluster_launch import local_note, with_words_for_target
from gflow.daemon.execution.environment import STAND_INS, slurm_variables
from gflow.errors import UsageError
from gflow.options.slurm import multiply, sbatch
from gflow.wire.requests import JobRequest, Reader

CORPUS = sorted((Path(__file__).parents[1] / "corpus" / "sbatch").glob("*.sh"))
STUBS = ("python", "torchrun", "accelerate", "deepspeed", "apptainer")
EMPTY = ("module", "conda")
SOURCED = ("venv/bin/activate", "miniconda3/etc/profile.d/conda.sh")


def expectation(text: str) -> dict[str, str]:
    line = next(line for line in text.splitlines() if line.startswith("# EXPECT "))[9:]
    if line.startswith("refused="):
        return {"refused": line.partition("=")[2]}
    return dict(word.partition("=")[::2] for word in line.split())


def asked(text: str) -> tuple[Job, dict[str, str]]:
    """The job of a script, and what it asks for in the words of EXPECT lines."""
    values, ignored = sbatch(text, "job.sh")
    options = {name: value for name, value in multiply(values).items() if name not in ("chdir", "export")}
    names = ",".join(filter(None, (options.pop("ignored", ""), *ignored)))
    request = JobRequest(command=["x"], cwd="/tmp", options=options)
    spec = with_words_for_target(Reader(lambda content: "-").read(request)[0].spec)
    note = (
        local_note([spec]).removeprefix("ignored: ").removesuffix(" (this is one machine)").replace(" ", "")
    )
    found = {
        "gpus": spec.gpus, "cpus": spec.cpus, "memory": spec.memory_mib, "time": spec.time_limit_s,
        "tasks": spec.ntasks_per_node, "array": spec.array,
        "ignored": ",".join(filter(None, (note, names))),
    }  # fmt: skip
    key = job_key(17, 3) if spec.array else job_key(17)
    spec, gpu_ids = msgspec.structs.replace(spec, name="job"), tuple(range(spec.gpus))
    job = Job(key=key, spec=spec, uid=0, user="ann", submitted_at=0.0, attempt=1, gpu_ids=gpu_ids)
    return job, {name: str(value) for name, value in found.items() if value}


def run(path: Path, job: Job, home: Path) -> tuple[int, int, str]:
    """Run a script with stubs for its programs: exit code, calls of stubs, standard error."""
    calls = home / "calls"
    (home / "bin").mkdir()
    for name in STUBS + EMPTY:
        body = f'#!/bin/sh\necho "{name} $*" >> {calls}\n' if name in STUBS else "#!/bin/sh\n"
        (home / "bin" / name).write_text(body)
        (home / "bin" / name).chmod(0o755)
    for name in SOURCED:
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text("")
    variables = slurm_variables(job) | {
        "HOME": str(home), "PATH": f"{STAND_INS}:{home}/bin:/usr/bin:/bin", "GFLOW_PYTHON": sys.executable,
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, job.gpu_ids)), "GFLOW_JOB_ID": job.label,
    }  # fmt: skip
    done = subprocess.run(["bash", str(path)], env=variables, capture_output=True, text=True, cwd=home)
    return done.returncode, len(calls.read_text().splitlines()) if calls.exists() else 0, done.stderr


def test_figures_of_the_corpus() -> None:
    refused = sum("refused" in expectation(path.read_text()) for path in CORPUS)
    sys.stdout.write(f"{len(CORPUS)} scripts: {len(CORPUS) - refused} run, {refused} are refused\n")
    assert len(CORPUS) >= 40 and refused < len(CORPUS) / 5


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_a_script_runs_or_is_refused(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    wanted = expectation(text)
    if "refused" in wanted:
        with pytest.raises(UsageError) as caught:
            asked(text)
        assert wanted["refused"] in caught.value.message
        return
    calls = int(wanted.pop("calls"))
    job, found = asked(text)
    assert found == wanted
    code, made, errors = run(path, job, tmp_path)
    assert (code, made) == (0, calls), errors
    assert "not found" not in errors and os.path.isdir(STAND_INS)
