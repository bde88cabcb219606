"""Features of the queue with a cluster over SSH: dependencies, races, overflow, resume, several nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import gflow
from tests.harness import Box, wait_until
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import at_a_distance
from tests.slurm.test_ssh_target import running, submit
from tests.sshd import LoginNode, login_node
from tests.unit.test_scale import SCRIPT

pytestmark = pytest.mark.slow


def test_dependencies_from_here_to_there_and_back(elsewhere: Box) -> None:
    first = elsewhere.submit("sleep 1; echo here > order")
    second = submit(elsewhere, "--depends-on", str(first), "test ! -e order; echo there")
    third = elsewhere.submit("--depends-on", str(second), "echo back >> order")
    assert elsewhere.job(second)["reason"] == "Dependency"
    assert elsewhere.finished(third)["state"] == "Finished"
    assert (elsewhere.work / "order").read_text() == "here\nback\n"
    assert elsewhere.ok("gjob", "log", str(second)) == "there\n"
    broken = submit(elsewhere, "exit 3")
    after = elsewhere.submit("--depends-on", str(broken), "true")
    anyway = submit(elsewhere, "--depends-on-failure", str(broken), "true")
    assert elsewhere.finished(after)["reason"] == f"DependencyFailed:{broken}"
    assert elsewhere.finished(anyway)["exit_code"] == 0


def test_further_attempt_there_gets_the_latest_checkpoint_there(elsewhere: Box, login: LoginNode) -> None:
    line = "echo $GFLOW_ATTEMPT train.py"
    first = f"mkdir -p out; touch out/step=1.ckpt; {line}; [ $GFLOW_ATTEMPT = 2 ] || exit 75; {line}"
    number = submit(elsewhere, "--requeue", "--resume-args", "--ckpt_path {latest:out}", first)
    assert elsewhere.finished(number, 90)["state"] == "Finished"
    lines = elsewhere.ok("gjob", "log", str(number)).splitlines()
    assert (lines[0], lines[-1]) == ("1 train.py", "2 train.py --ckpt_path out/step=1.ckpt")
    assert (login.home / "out/step=1.ckpt").exists()


RACE = ("--race", "local:n1_gpu2,far:n2_gpu1", "--time", "10")
WHERE = "echo ${SLURM_JOB_ID:+there} $GFLOW_NODES $GFLOW_GPUS"


def test_race_between_here_and_there_has_one_winner(elsewhere: Box, cluster: Cluster) -> None:
    here = elsewhere.submit(*RACE, WHERE)
    assert elsewhere.finished(here)["target"] == "local"
    assert not cluster.call("squeue", "-h")
    blocker = elsewhere.submit("--gpus", "4", "sleep 600")
    running(elsewhere, blocker)
    there = elsewhere.submit(*RACE, WHERE)
    assert elsewhere.finished(there)["target"] == "far"
    assert elsewhere.ok("gjob", "log", str(there)) == "there 2 1\n"
    # The cluster is busy, and this machine is free first: the token there is taken back.
    full = submit(elsewhere, "--nodes", "4", "--exclusive", "sleep 600")
    running(elsewhere, full)
    back = elsewhere.submit(*RACE, WHERE)
    wait_until(lambda: elsewhere.job(back)["target_id"], 30, "its id in Slurm")
    assert "local/far" in elsewhere.ok("gqueue", "-j", str(back), "-f", "JOBID,TARGET")
    elsewhere.ok("gcancel", "--now", str(blocker))
    assert elsewhere.finished(back)["target"] == "local"
    wait_until(lambda: cluster.call("squeue", "-h").count("\n") == 1, 30, "the loser's end")
    # Shapes of the cluster alone.
    shapes = submit(elsewhere, "--race", "n1_gpu4,n4_gpu1", "sleep 1")
    elsewhere.ok("gcancel", "--now", str(full))
    assert elsewhere.finished(shapes, 90)["exit_code"] == 0
    wait_until(lambda: not cluster.call("squeue", "-h"), 30, "an empty queue")


def test_race_is_won_here_while_the_cluster_is_away(elsewhere: Box, login: LoginNode) -> None:
    blocker = elsewhere.submit("--gpus", "4", "sleep 600")
    running(elsewhere, blocker)
    login.stop()
    try:
        number = elsewhere.submit(*RACE, WHERE)
        wait_until(lambda: "unreachable" in (elsewhere.job(number)["reason"] or ""), 60, "the reason")
        elsewhere.ok("gcancel", "--now", str(blocker))
        assert elsewhere.finished(number)["target"] == "local"
    finally:
        login.start()


def test_job_overflows_to_the_cluster(elsewhere: Box) -> None:
    free = elsewhere.submit("--gpus", "1", "--overflow", "far", WHERE)
    assert elsewhere.finished(free)["target"] == "local"
    running(elsewhere, elsewhere.submit("--gpus", "4", "--time", "60", "sleep 600"))
    number = elsewhere.submit("--gpus", "2", "--overflow", "far", "--overflow-after", "5", WHERE)
    assert elsewhere.finished(number)["target"] == "far"
    assert elsewhere.ok("gjob", "log", str(number)) == "there 1 2\n"


def test_output_is_followed_and_progress_shown(elsewhere: Box) -> None:
    """`gjob attach` follows a job there; `gjob why` and the queue know what Slurm says."""
    go = "mkdir -p attach; until [ -e attach/go ]; do sleep 0.2; done"
    number = submit(elsewhere, f"echo begins; {go}; echo ends")
    running(elsewhere, number)
    with ThreadPoolExecutor() as pool:
        shown = pool.submit(elsewhere.run, "gjob", "attach", str(number))
        wait_until(lambda: "begins" in elsewhere.ok("gjob", "log", str(number)), 30, "its first line")
        elsewhere.ok("gjob", "exec", str(number), "touch", "attach/go")
        assert shown.result(60).stdout.startswith("begins\nends\n"), shown.result()


def test_partitions_and_free_gpus_are_shown(elsewhere: Box) -> None:
    running(elsewhere, submit(elsewhere, "--nodes", "2", "--gpus", "3", "sleep 100"))
    words = ("ginfo", "--target", "far")
    rows = [line.split()[:7] for line in elsewhere.ok(*words).splitlines()]
    assert ["main*", "4", "2", "0", "16", "10", "a100"] in rows, rows
    partitions = json.loads(elsewhere.ok(*words, "--json"))["partitions"]
    assert next(one for one in partitions if one["name"] == "main") == {  # other tests add partitions
        "name": "main", "is_default": True, "time_limit": "7-00:00:00", "nodes": 4, "idle_nodes": 2,
        "unusable_nodes": 0, "cpus_per_node": 8, "memory_mib_per_node": 16000, "gpus": 16, "free_gpus": 10,
        "gpu_types": ["a100"],
    }  # fmt: skip
    refused = elsewhere.run("ginfo", "--target", "fra")
    assert refused.returncode == 2 and "did you mean far?" in refused.stderr


def test_controller_killed_among_submissions_runs_each_job_once(
    elsewhere: Box, login: LoginNode, cluster: Cluster
) -> None:
    line = "mkdir -p ctld; echo x >> ctld/$GFLOW_JOB_ID; exit 5"
    numbers = [submit(elsewhere, line) for _ in range(15)]
    cluster.kill_controller()
    try:
        numbers += [submit(elsewhere, line) for _ in range(15)]
    finally:
        cluster.start_controller()
    for number in numbers:
        wait_until(lambda: cluster.resume_nodes() or True)
        assert elsewhere.finished(number, 120)["exit_code"] == 5, elsewhere.job(number)
    ran = {path.name: path.read_text() for path in (login.home / "ctld").iterdir()}
    assert ran == {str(number): "x\n" for number in numbers}


def test_login_by_hand_is_used_until_it_ends(login: LoginNode, cluster: Cluster, box: Box) -> None:
    """A site that asks for a code: the key is there only while a user types it."""
    at_a_distance(login, cluster, box, settings="poll_secs = 1\npoll_most_secs = 2\n")
    config, code = box.home / ".ssh/config", box.home / "code"
    text = config.read_text()
    (key,) = [line for line in text.splitlines() if "IdentityFile" in line]
    match = f'Match originalhost login exec "test -e {code}"\n{key}\n'
    config.write_text(text.replace(f"{key}\n", " IdentityFile none\n") + match)

    def connect_by_hand() -> None:
        code.touch()
        assert "far is connected" in box.ok("gflow", "target", "connect", "far")
        code.unlink()

    def waits(number: int) -> None:
        said = "unreachable since", "gflow target connect far"
        wait_until(
            lambda: all(words in (box.job(number)["reason"] or "") for words in said),
            60,
            f"the reason; {box.job(number)['reason']}",
        )

    first = submit(box, "exit 4")
    waits(first)
    connect_by_hand()
    assert box.finished(first)["exit_code"] == 4
    box.kill9()
    box.up()
    assert box.finished(submit(box, "exit 5"))["exit_code"] == 5
    long = submit(box, "sleep 4; exit 6")
    running(box, long)
    (path,) = {row["control_path"] for row in box.api("GET", "/targets")[1]["targets"] if row["host"]}
    assert box.run_shell(f"ssh -o ControlPath={path} -O exit login").returncode == 0
    later = submit(box, "exit 7")
    waits(later)
    assert box.job(long)["state"] == "Running"
    connect_by_hand()
    assert [box.finished(number)["exit_code"] for number in (long, later)] == [6, 7]


@pytest.mark.parametrize("offset_s", [-3600, 3600])
def test_clock_there_is_off_by_an_hour(cluster: Cluster, box: Box, offset_s: int) -> None:
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not libraries:
        pytest.skip("no faketime here: scripts/ssh-packages installs it")
    wrong = {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME": f"{offset_s:+}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with login_node({"SLURM_CONF": str(cluster.conf), **wrong}) as node:
        at_a_distance(node, cluster, box, settings="sync = '.'\noutputs = ['out*']\n")
        (box.work / "code").write_text("here")
        line = "date +%s; cp code out$GFLOW_JOB_ID; echo x >> ran; test $(cat ran) = x || exit 99; exit "
        numbers = {submit(box, line + str(code)): code for code in range(4)}
        array = submit(box, "--array", "1-2", "exit $GFLOW_ARRAY_TASK_ID")
        again = submit(box, "--requeue", "test $GFLOW_ATTEMPT = 2 || exit 75")
        long = submit(box, "--requeue", "sleep 100")
        running(box, long)
        box.ok("gcancel", str(long))
        for number, code in numbers.items():
            assert box.finished(number)["exit_code"] == code, box.job(number)
            there = int(box.ok("gjob", "log", str(number)))
            assert abs(there - offset_s - time.time()) < 1000
            assert (box.work / f"out{number}").read_text() == "here"
        assert [box.finished(f"{array}_{task}")["exit_code"] for task in (1, 2)] == [1, 2]
        assert box.finished(again)["exit_code"] == 0
        assert box.finished(long)["state"] == "Cancelled"
        assert "Traceback" not in box.log()


# ---------------------------------------------------------------- gflow on the cluster


def gflow_there(login: LoginNode) -> str:
    """A folder with a `gflow` that the user of the login node can run. Skips where there can be none."""
    source = Path(gflow.__file__).parents[1]
    packages = sysconfig.get_path("purelib")
    for python in (sys.executable, "/usr/bin/python3"):
        program = f'#!/bin/sh\nPYTHONPATH={source}:{packages} exec {python} -m gflow gflow "$@"\n'
        login.call("mkdir", "-p", f"{login.home}/bin")
        path = login.home / "bin/gflow"
        path.write_text(program)
        path.chmod(0o755)
        words = ["setpriv", f"--reuid={login.person.pw_uid}", f"--regid={login.person.pw_gid}",
                 "--init-groups", str(path), "--version"]  # fmt: skip
        if subprocess.run(words, cwd="/", capture_output=True).returncode == 0:
            return f"{login.home}/bin"
    pytest.skip("the user of the login node cannot run this Python")


@pytest.fixture
def trains(login: LoginNode, cluster: Cluster, box: Box) -> Box:
    """A cluster elsewhere that has gflow, and gets the files of the folder."""
    return at_a_distance(
        login, cluster, box, settings=f"setup = ['PATH={gflow_there(login)}:$PATH']\nsync = '.'\n"
    )


def test_launch_on_two_nodes(trains: Box) -> None:
    (trains.work / "ranks.py").write_text(
        "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.uname().nodename)\n"
        "open('out.' + os.environ['RANK'], 'w').write(os.environ['LOCAL_RANK'])\n"
    )
    words = ["--nodes", "2", "--gpus", "2", "--outputs", "out.*", "gflow", "launch", "ranks.py"]
    number = submit(trains, *words)
    assert trains.finished(number, 90)["exit_code"] == 0, trains.ok("gjob", "log", str(number))
    assert "rank 0 of 4 node" in trains.ok("gjob", "log", str(number))
    found = {path.name: path.read_text() for path in trains.work.glob("out.*")}
    assert found == {"out.0": "0", "out.1": "1", "out.2": "0", "out.3": "1"}


def test_scale_on_one_node_and_two(trains: Box) -> None:
    (trains.work / "train.py").write_text(SCRIPT)
    done = trains.run(
        "gflow", "scale", "--on", "far", "--gpus", "1,2", "--shape", "n2_gpu1", "--warmup", "2",
        "--job", "--time 5", "--json", "--", "train.py", timeout_s=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [row["measured"] for row in json.loads(done.stdout)["rows"]]
    assert [(row["size"]["nodes"], row["size"]["each"]) for row in rows] == [(1, 1), (1, 2), (2, 1)]
    assert [row["effective_batch"] for row in rows] == [8, 16, 16]
    assert os.listdir(trains.work) == ["train.py"]
