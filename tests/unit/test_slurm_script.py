"""From a job to what sbatch gets: golden scripts for the seed's two shapes, and every option in its place."""

import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from gflow.targets.slurm.submission import read_tag
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


@pytest.mark.parametrize(
    ("fields", "words", "resources"),
    [
        ({"gpus": 4}, ("--gpus=4", "--nodes=2"), ["--gpus=4", "--nodes=2"]),
        ({"gpus": 1}, ("--licenses=x",), ["--gpus-per-node=1", "--licenses=x"]),
        ({"cpus": 4, "ntasks_per_node": 4}, ("--ntasks=4",), ["--ntasks=4"]),
        ({"cpus": 8, "ntasks_per_node": 4}, ("--ntasks=4",), ["--cpus-per-task=2", "--ntasks=4"]),
        ({"memory_mib": 5, "time_limit_s": 60}, ("--mem=0", "--time=0"), ["--mem=0", "--time=0"]),
        ({"exclusive": True}, ("--exclusive=user",), ["--exclusive=user"]),
        ({"warning": (10, 60)}, ("--signal=10@60",), ["--signal=10@60"]),
        ({"partition": "a"}, ("--partition=b",), ["--partition=b"]),
    ],
)
def test_words_of_slurm_take_the_place_of_options(fields, words, resources):
    made = job(1, attempt=1, cwd="/", slurm=words, **fields)
    inputs = sheet(cluster=Cluster(), gpus=fields.get("gpus", 0))
    plain = directives(job(1, attempt=1, cwd="/"), inputs._replace(gpus=0))
    assert [line for line in directives(made, inputs) if line not in plain] == resources


def test_shapes_of_a_race_replace_words_for_nodes_and_gpus():
    made = job(1, attempt=1, race=("n1_gpu4", "n4_gpu1"), slurm=("--gpus=4", "--nodes=1", "--exclude=n1"))
    found = directives(made, sheet(nodes=4, gpus=1))
    assert {"--nodes=4", "--gpus-per-node=1", "--exclude=n1"} <= set(found)
    assert not {"--gpus=4", "--nodes=1"} & set(found)


def test_arrays_are_slurms_own():
    made = seed_job(array="0-199", max_concurrent=8)
    made.progress = ArrayProgress(parse_tasks("0-9,11-199"))
    assert "--array=0-9,11-199%8" in directives(made, sheet())
    text = script_of(made, sheet())
    assert '/"42_$SLURM_ARRAY_TASK_ID.1"' in text
    assert 'export GFLOW_JOB_ID="42_$SLURM_ARRAY_TASK_ID"' in text


def test_part_of_an_array_has_an_offset_and_the_variables_of_the_whole():
    made = seed_job(array="0-2998:2", max_concurrent=8, command=("x",))
    made.progress = ArrayProgress(parse_tasks("0-2998:2"))
    tasks = made.progress.pending.between(1001, 2001)
    inputs = sheet(tasks=tasks, offset=1001, candidate=1002, log="/logs/42_%a.log")
    lines = script_of(made, inputs).splitlines()
    assert "#SBATCH --array=1-999:2%8" in lines and "#SBATCH --output=/dev/null" in lines
    export = "export SLURM_ARRAY_TASK_ID=$((SLURM_ARRAY_TASK_ID + 1001))"
    places = [next(at for at, line in enumerate(lines) if line.startswith(words))
              for words in ("id=$", export, "run=", "me=$run", "exec >>/logs/42_")]  # fmt: skip
    assert places == sorted(places)
    assert 'exec >>/logs/42_"$SLURM_ARRAY_TASK_ID".log' in "\n".join(lines)
    assert any("TASK_COUNT=1500 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_MAX=2998" in line for line in lines)


def test_a_task_that_is_tried_again_is_an_array_of_one():
    made = seed_job(array="0-199")
    made.key, made.attempt = job_key(42, 7), 2
    assert "--array=7" in directives(made, sheet())
    text = script_of(made, sheet(variables={"GFLOW_ATTEMPT": "2"}))
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


@pytest.mark.parametrize("field", ["name", "partition", "cwd"])
def test_value_of_several_lines_is_refused(field):
    """The shell would execute the second line."""
    with pytest.raises(ValueError, match="has a line break"):
        script_of(job(42, command=("true",), attempt=1, **{field: "x\ntouch bad\n"}), sheet())
    with pytest.raises(ValueError, match="has a line break"):
        script_of(job(42, command=("true",), attempt=1), sheet(log="/x\ntouch bad\n"))


HOSTILE = st.sampled_from(["$(touch bad)", "`touch bad`", "'", '"', "\\", ";touch bad;", "#", "%x", " "])
LINE = st.lists(HOSTILE | st.text(st.characters(exclude_characters="\0\n", exclude_categories=["Cs"]))).map(
    "".join
)


@settings(max_examples=25, deadline=None)
@given(name=LINE, cwd=LINE, log=LINE, value=LINE, words=st.lists(LINE | st.just("a\nb"), max_size=3))
def test_generated_names_paths_and_words_are_only_data(name, cwd, log, value, words):
    made = job(42, command=("printf", "<%s>", *words, "end"), attempt=1, name=name, cwd=cwd)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "42.1.ticket").touch()
        variables = {"GFLOW_ATTEMPT": "1", "GFLOW_JOB_NAME": value}
        cluster = Cluster(modules=(value, name))
        inputs = sheet(folder=folder, log=log, error_log=log, variables=variables, cluster=cluster)
        text = script_of(made, inputs)
        head = text.partition("\n\n")[0].split("\n")
        assert all(line.startswith(("#!/bin/bash", "#SBATCH --")) for line in head)
        environ = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "BASH_FUNC_module%%": "() { :; }"}
        done = subprocess.run(["bash"], input=text.encode(), env=environ, cwd=folder, capture_output=True)
        assert done.stdout == "".join(f"<{word}>" for word in [*words, "end"]).encode(), done
        assert not (Path(folder) / "bad").exists()


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


@pytest.mark.parametrize(
    ("module", "code", "output"),
    [("echo load $2 $3", 3, "load cuda/12.4 it's\nset up 1\n"), ("false", 1, "gflow: these modules cannot")],
)
def test_modules_and_setup_lines_run_before_the_command(tmp_path, module, code, output):
    cluster = Cluster(modules=("cuda/12.4", "it's"), setup=("export MINE=1",))
    (tmp_path / "42.1.ticket").touch()
    text = script_of(
        job(42, command=("bash", "-c", "echo set up $MINE; exit 3"), attempt=1),
        sheet(cluster=cluster, folder=str(tmp_path)),
    )
    (tmp_path / "go").write_text(text)
    line = f"module() {{ {module}; }}; export -f module; exec bash {tmp_path}/go"
    done = subprocess.run(
        ["bash", "-c", line],
        env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout[: len(output)]) == (code, output), done
    assert (tmp_path / "42.1.exit").read_text() == f"{code} \n"


APPTAINER = """#!/bin/bash
printf '<%s>' "$@"; echo
until [ "$1" = end ]; do shift; done
shift 2; exec "$@"
"""


@pytest.mark.parametrize(
    ("wanted", "gpus", "image"),
    [
        ("", 0, "site image.sif"),
        ("docker://a/b:1", 2, "docker://a/b:1"),
        ("it's.sif", 1, "it's.sif"),
        ("none", 1, ""),
    ],
)
def test_command_runs_in_the_container_of_the_job_or_the_target(tmp_path, wanted, gpus, image):
    cluster = Cluster(container="site image.sif", container_options=("--bind", "/a b:/data", "end"))
    (tmp_path / "apptainer").write_text(APPTAINER)
    (tmp_path / "apptainer").chmod(0o755)
    (tmp_path / "42.1.ticket").touch()
    made = job(
        42, command=("bash", "-c", 'echo "ran $1"; exit 5', "x", "two words"), attempt=1, container=wanted
    )
    text = script_of(made, sheet(cluster=cluster, folder=str(tmp_path), gpus=gpus))
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash"], input=text, env=environ, cwd="/", capture_output=True, text=True)
    assert done.returncode == 5 and done.stdout.endswith("ran two words\n"), done
    nv = "<--nv>" if gpus else ""
    words = f"<exec><--pwd></>{nv}<--bind><{tmp_path}><--bind></a b:/data><end><{image}><bash><-c>"
    assert done.stdout.startswith(words if image else "ran two words"), done
    assert (tmp_path / "42.1.exit").read_text() == "5 \n"


def test_node_without_apptainer_says_so(tmp_path):
    (tmp_path / "42.1.ticket").touch()
    made = job(42, command=("true",), attempt=1, container="x.sif")
    environ = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    text = script_of(made, sheet(folder=str(tmp_path)))
    done = subprocess.run(["bash"], input=text, env=environ, capture_output=True, text=True)
    assert done.returncode == 127 and "there is no apptainer on" in done.stdout, done


def test_second_token_of_a_run_that_has_begun_starts_nothing(tmp_path):
    (tmp_path / "42.1.claim.0.6").touch()
    (tmp_path / "42.1.ticket").touch()
    text = script_of(job(42, command=("echo", "ran"), attempt=1), sheet(folder=str(tmp_path)))
    done = subprocess.run(
        ["bash"],
        input=text,
        env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")
