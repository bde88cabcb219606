"""From a job to what sbatch gets: golden scripts for the seed's two shapes, and every option in its place."""

import subprocess
from pathlib import Path

import pytest

from gflow.core.ids import job_key
from gflow.core.model import ArrayProgress
from gflow.core.task_set import parse_tasks
from gflow.options.slurm import multiply, sbatch
from gflow.targets.slurm.script import (
    ScriptInputs,
    directives,
    interpreter_of,
    quote,
    script_of,
    shapes_of,
    slurm_time,
)
from gflow.targets.slurm.settings import Cluster
from gflow.targets.slurm.tracker import read_tag
from gflow.wire.requests import JobRequest, Reader

from .builders import job, spec

GOLDEN = Path(__file__).parent / "golden"
GILBRETH = Cluster(account="lusu", partition="a100-80gb")


def sheet(**fields):
    usual = {
        "cluster": GILBRETH, "folder": "/home/ann/.local/share/gflow/slurm/gilbreth", "candidate": 0,
        "tag": "gflow:0123456789:42.1:0", "log": "/home/ann/.local/share/gflow/logs/42.log", "nodes": 1,
        "error_log": "/home/ann/.local/share/gflow/logs/42.log", "gpus": 0,
        "variables": {"GFLOW_ATTEMPT": "1"},
    }  # fmt: skip
    return ScriptInputs(**usual | fields)


def seed_job(**fields):
    usual = {
        "cpus": 64, "time_limit_s": 48 * 3600, "on": "gilbreth", "cwd": "/home/ann/smart", "script": "x",
        "command": ("--config", "a.yaml"), "script_path": "/home/ann/t.sh",
    }  # fmt: skip
    return job(42, attempt=1, target="gilbreth", **usual | fields)


@pytest.mark.parametrize(("name", "nodes", "gpus"), [("n1_gpu4", 1, 4), ("n4_gpu1", 4, 1)])
def test_the_shapes_of_the_seed(name, nodes, gpus):
    made = seed_job(name=f"smart_{name}", nodes=nodes, gpus=gpus)
    text = script_of(made, sheet(nodes=nodes, gpus=gpus, interpreter="bash"))
    path = GOLDEN / f"slurm_{name}.sh"
    assert text == path.read_text(), f"if that is meant: write it to {path}"


# The header of the seed's two scripts.
HEADER = """#!/bin/bash
#SBATCH -A lusu                     # Account
#SBATCH -p a100-80gb                # Partition
#SBATCH --nodes={nodes}                   # nodes
#SBATCH --gpus-per-node={gpus}           # GPUs
#SBATCH --cpus-per-task=64          # CPUs
#SBATCH --time=48:00:00             # 48 hour limit
"""


@pytest.mark.parametrize(("name", "nodes", "gpus"), [("n1_gpu4", 1, 4), ("n4_gpu1", 4, 1)])
def test_the_scripts_of_the_seed_as_they_are(name, nodes, gpus):
    """What they ask for reaches sbatch, also where gflow.toml says nothing of the cluster."""
    options, ignored = sbatch(HEADER.format(nodes=nodes, gpus=gpus), "seed")
    asked = (
        Reader(lambda text: "-").read(JobRequest(command=["x"], cwd="/", options=multiply(options)))[0].spec
    )
    assert ignored == []
    fields = ("project", "partition", "nodes", "gpus", "cpus", "time_limit_s")
    made = seed_job(**{field: getattr(asked, field) for field in fields})
    found = directives(made, sheet(cluster=Cluster(), nodes=asked.nodes, gpus=asked.gpus))
    golden = (GOLDEN / f"slurm_{name}.sh").read_text()
    for option in ("account", "partition", "nodes", "gpus-per-node", "cpus-per-task", "time"):
        (line,) = [line for line in found if line.startswith(f"--{option}=")]
        assert f"#SBATCH {line}\n" in golden


@pytest.mark.parametrize("name", ["n1_gpu4", "n4_gpu1"])
def test_bash_accepts_the_scripts(name):
    assert subprocess.run(["bash", "-n", str(GOLDEN / f"slurm_{name}.sh")]).returncode == 0


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        ({"gpu_type": "a100"}, ["--gpus-per-node=a100:2"]),
        ({"memory_mib": 2048}, ["--mem=2048M"]),
        ({"project": "other"}, ["--account=other"]),
        ({"partition": "a,b"}, ["--partition=a,b"]),
        ({"qos": "high", "constraint": "h100&ib"}, ["--qos=high", "--constraint=h100&ib"]),
        ({"reservation": "course", "exclusive": True}, ["--reservation=course", "--exclusive"]),
        ({"warning": (10, 60)}, ["--signal=B:10@60"]),
        ({"warning": (-10, 60)}, ["--signal=B:10@60"]),
        ({"slurm": ("--licenses=matlab:2", "--contiguous")}, ["--licenses=matlab:2", "--contiguous"]),
        ({"slurm": ("--mail-user=a b",)}, ['--mail-user="a b"']),
        ({"name": 'it\'s "x" #1'}, ['--job-name="it\'s \\"x\\" #1"']),
        ({"time_limit_s": 90}, ["--time=00:01:30"]),
    ],
    ids=str,
)
def test_options_become_directives(fields, lines):
    found = directives(seed_job(**fields), sheet(gpus=2))
    assert [line for line in lines if line not in found] == []


def test_directives_of_every_job():
    found = directives(seed_job(), sheet(cluster=Cluster(sbatch=("--mail-type=FAIL",))))
    assert {"--no-requeue", "--open-mode=append", "--export=ALL", "--mail-type=FAIL"} <= set(found)
    assert not [line for line in found if line.startswith(("--account", "--gpus", "--mem", "--error"))]


def test_arrays_are_slurms_own():
    made = seed_job(array="0-199", max_concurrent=8)
    made.progress = ArrayProgress(parse_tasks("0-9,11-199"))
    assert "--array=0-9,11-199%8" in directives(made, sheet())
    text = script_of(made, sheet())
    assert '/"42_$SLURM_ARRAY_TASK_ID.1"' in text
    assert 'export GFLOW_JOB_ID="42_$SLURM_ARRAY_TASK_ID"' in text


def test_a_task_that_is_tried_again_is_an_array_of_one():
    made = seed_job(array="0-199")
    made.key, made.attempt = job_key(42, 7), 2
    assert "--array=7" in directives(made, sheet())
    text = script_of(made, sheet())
    assert '/"42_7.2"' in text
    assert "echo 'gflow: attempt 2'" in text


def test_race_loser_writes_no_log():
    made = seed_job(race=("n1_gpu4", "n4_gpu1"))
    text = script_of(made, sheet(log="/logs/it's 100%% %N.log", error_log="/logs/e"))
    assert "#SBATCH --output=/dev/null\n" in text
    claim, redirection = text.index('mv "$run.ticket"'), text.index("exec >>")
    assert claim < redirection
    assert """exec >>'/logs/it'"'"'s 100'%' '"$(hostname)".log 2>>/logs/e\n""" in text


def test_shapes_of_a_job():
    assert shapes_of(spec(nodes=2, gpus=4)) == [(2, 4)]
    assert shapes_of(spec(race=("n1_gpu4", "n4_gpu1"))) == [(1, 4), (4, 1)]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, ""), (59, "00:00:59"), (3600, "01:00:00"), (90061, "1-01:01:01")]
)
def test_time_limits(seconds, text):
    assert slurm_time(seconds) == text


@pytest.mark.parametrize(
    ("script", "words"),
    [(b"echo\n", "bash"), (b"#!/bin/sh\n", "/bin/sh"), (b"#! /usr/bin/env  py\nx", "/usr/bin/env py"),
     (b"#!/usr/bin/env -S a b\n", "/usr/bin/env '-S a b'")],
)  # fmt: skip
def test_interpreter_of_a_script(script, words):
    assert interpreter_of(script) == words


def test_directive_quoting():
    assert quote("plain_1.2/%a,b") == "plain_1.2/%a,b"
    assert quote('a"b\\c') == '"a\\"b\\\\c"'


@pytest.mark.parametrize(
    ("comment", "task", "found"),
    [
        ("gflow:me:42.1:0", None, ("42.1", "42.1", 0)),
        ("gflow:me:42.1:1", 3, ("42_3.1", "42.1", 1)),
        ("gflow:me:42_3.2:0", 3, ("42_3.2", "42_3.2", 0)),
        ("gflow:you:42.1:0", None, None),
        ("another comment", None, None),
        ("gflow:me:42.1:x", None, None),
    ],
)
def test_comment_tags_are_parsed(comment, task, found):
    assert read_tag(comment, "me", task) == found
