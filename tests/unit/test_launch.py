"""Launching: what each process is told, and that all of them end together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gflow
from gflow.cli.tools import launch as command
from gflow.errors import Refused, UsageError
from gflow.ml.launch.plan import Plan, batch_line, share_of, variables
from gflow.ml.launch.ports import FIRST, LAST, free_port
from gflow.options.commands.launch_options import OPTIONS
from gflow.options.parse import parse
from tests.harness import wait_until

RUN = """
import sys
from gflow.ml.launch.plan import Plan
from gflow.ml.launch.supervisor import launch
sys.exit(launch(Plan(tuple(sys.argv[4:]), int(sys.argv[1])), logs=sys.argv[2], **eval(sys.argv[3])))
"""

BEGIN = "import os, signal, sys, time; rank = int(os.environ['RANK'])\n"


def start(tmp_path: Path, processes: int, code: str, **options) -> subprocess.Popen[str]:
    ranks = [sys.executable, "-S", "-c", f"{BEGIN}{code}"]
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(processes), str(tmp_path / "logs"), repr(options), *ranks],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )


def finish(tmp_path: Path, processes: int, code: str, **options) -> tuple[int, str, str]:
    process = start(tmp_path, processes, code, **options)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def printed(tmp_path: Path, text: str, ranks: int) -> bool:
    logs = [tmp_path / f"logs/rank-{rank}.log" for rank in range(ranks)]
    return all(log.exists() and text in log.read_text() for log in logs)


def test_variables_of_each_rank():
    plan = Plan(("x",), 4, port=21000, nodes=2, node=1, address="node0")
    told = variables(plan, 2, {"OMP_NUM_THREADS": "7"}, 16)
    assert (told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"]) == ("6", "2", "8")
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("node0", "21000")
    assert "OMP_NUM_THREADS" not in told and "GLOO_SOCKET_IFNAME" not in told
    alone = variables(Plan(("x",), 3), 0, {}, 16)
    assert alone["OMP_NUM_THREADS"] == "5" and alone["GLOO_SOCKET_IFNAME"] == "lo"


def test_ports_are_free_and_different(tmp_path):
    with free_port(str(tmp_path)) as one, free_port(str(tmp_path)) as other:
        assert one != other and FIRST <= one <= LAST
        with socket.socket() as first_rank:
            first_rank.bind(("", one))


def test_used_port_is_not_taken(tmp_path, monkeypatch):
    with socket.socket() as held:
        held.bind(("", 0))
        monkeypatch.setattr("gflow.ml.launch.ports.random.sample", lambda *_: [held.getsockname()[1]])
        with pytest.raises(Refused, match="no free port"), free_port(str(tmp_path)):
            pass


def test_successful_launch(tmp_path):
    code, out, err = finish(tmp_path, 3, "print('hello from', rank); print('oh', file=sys.stderr)")
    assert (code, out, err) == (0, "hello from 0\n", "oh\n")
    assert (tmp_path / "logs/rank-2.log").read_text().splitlines() == ["hello from 2", "oh"]


def test_failed_rank_ends_the_others(tmp_path):
    begun = time.monotonic()
    code, _, err = finish(tmp_path, 3, "if rank == 1: print('no such file'); sys.exit(3)\nsignal.pause()")
    assert code == 3 and time.monotonic() - begun < 10
    assert "rank 1 exited with code 3; the others were stopped" in err and "[1] no such file" in err


def test_rank_that_ignores_term_is_killed(tmp_path):
    begun = time.monotonic()
    code, _, err = finish(
        tmp_path,
        2,
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif rank: os.kill(os.getpid(), 9)\ntime.sleep(60)",
    )
    assert code == 137 and time.monotonic() - begun < 10
    assert "rank 1 was killed by SIGKILL" in err


def test_a_stop_reaches_each_rank_once_and_75_comes_back(tmp_path):
    code = """
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
print('ready')
while not heard: time.sleep(0.01)
time.sleep(0.3 if rank == 0 else 0)
print('heard', len(heard))
sys.exit(75)
"""
    process = start(tmp_path, 3, code)
    wait_until(lambda: printed(tmp_path, "ready", 3))
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err.count("left with")) == (75, 0)
    assert printed(tmp_path, "heard 1\n", 3)


def test_rank_may_save_after_the_others_ended(tmp_path):
    """A script of which only the first rank handles TERM: the others die of it, and it gets its time."""
    code = """
if rank == 0: signal.signal(signal.SIGTERM, lambda *_: None)
print('ready')
signal.pause()
time.sleep(0.5)
print('saved')
"""
    process = start(tmp_path, 3, code)
    wait_until(lambda: printed(tmp_path, "ready", 3))
    process.terminate()
    out, _ = process.communicate(timeout=20)
    assert out == "ready\nsaved\n" and process.returncode == 128 + signal.SIGTERM


def test_the_grace_time_ends(tmp_path):
    process = start(
        tmp_path,
        1,
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(60)",
        grace_s=0.2,
    )
    wait_until(lambda: printed(tmp_path, "ready", 1))
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGKILL


def test_ranks_die_with_their_launcher(tmp_path):
    process = start(tmp_path, 2, "print(os.getpid(), 'ready'); time.sleep(60)")
    wait_until(lambda: printed(tmp_path, "ready", 2))
    pids = [int((tmp_path / f"logs/rank-{rank}.log").read_text().split()[0]) for rank in (0, 1)]
    process.kill()
    process.communicate()
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


def test_stalled_ranks_are_ended(tmp_path):
    code, _, err = finish(tmp_path, 2, "print('begun'); time.sleep(60)", stall_s=0.3)
    assert code == 124 and "no rank printed anything or reported progress for 0.3 s" in err


REPORTS = f"""
sys.path.append({str(Path(gflow.__file__).parents[1])!r})
from gflow.ml.train.progress import Reporter
told = Reporter()
for step in range(25):
    told.note(step)
    time.sleep(0.1)
"""


def test_quiet_ranks_that_report_progress_are_not_stalled(tmp_path):
    assert finish(tmp_path, 2, REPORTS, stall_s=2) == (0, "", "")
    assert not (tmp_path / "logs/heartbeat").exists()
    assert finish(tmp_path, 1, f"{REPORTS}\ntime.sleep(60)", stall_s=1)[0] == 124, "the reports have ended"


def test_nccl_timeout_is_passed_to_the_ranks(tmp_path):
    script = tmp_path / "say.py"
    script.write_text("import os; print(os.environ['GFLOW_NCCL_TIMEOUT'])")
    words = [sys.executable, "-m", "gflow", "gflow", "launch", "--processes", "1", "--nccl-timeout", "30m"]
    done = subprocess.run([*words, str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1800\n")


def test_a_child_that_holds_the_pipe_is_not_waited_for(tmp_path):
    begun = time.monotonic()
    code, out, _ = finish(
        tmp_path, 1, "if os.fork() == 0: os.setsid(); time.sleep(8); os._exit(0)\nprint('done')"
    )
    assert (code, out) == (0, "done\n") and time.monotonic() - begun < 6


@pytest.mark.parametrize(
    ("visible", "wanted", "found"),
    [
        ("0,1", {}, 2),
        ("0,1", {"gpus": 1}, 1),
        ("", {}, 1),
        ("-1", {}, 1),
        ("GPU-a", {}, 1),
        ("", {"processes": 3}, 3),
    ],
)
def test_launch_has_as_many_ranks_as_gpus(monkeypatch, visible, wanted, found):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert command.processes_of(wanted) == found


def test_launch_with_too_many_ranks_is_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("GFLOW_JOB_ID", "7")
    with pytest.raises(Refused, match="--gpus 2: the job has 1"):
        command.processes_of({"gpus": 2})
    with pytest.raises(UsageError, match="do not go together"):
        command.processes_of({"gpus": 2, "processes": 2})


def test_command_of_a_launch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert command.command_of(["train.py", "--lr", "1"], is_module=False)[1:] == ("train.py", "--lr", "1")
    assert command.command_of(["mylab.train"], is_module=True)[1:] == ("-m", "mylab.train")
    assert command.command_of(["bash", "x"], is_module=False) == ("bash", "x")
    for words in ([], ["gone.py"], ["no-such-program"]):
        with pytest.raises(UsageError):
            command.command_of(words, is_module=False)


# ---------------------------------------------------------------- what NCCL says

NCCL = """
path = os.environ["NCCL_DEBUG_FILE"].replace("%h", "here").replace("%p", str(os.getpid()))
with open(path, "w") as log:
    log.write("here:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\\n")
"""
WARN = """
with open(path, "a") as log:
    log.write("here:1:2 [0] NCCL WARN Call to connect failed\\n")
"""


def test_nccl_transport_is_reported_once(tmp_path):
    code, _, err = finish(tmp_path, 2, NCCL)
    assert (code, err) == (0, "gflow: NCCL: within a node from GPU to GPU (P2P/CUMEM)\n")
    code, _, err = finish(tmp_path, 1, "sys.exit('NCCL_DEBUG_FILE' in os.environ)")
    assert (code, err) == (0, ""), "one rank has no peer"


def test_nccl_transport_is_reported_early(tmp_path):
    process = start(tmp_path, 2, NCCL + "time.sleep(300)")
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "gflow: NCCL: within a node from GPU to GPU (P2P/CUMEM)\n"
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.parametrize("code", [0, 3])
def test_the_last_warnings_of_nccl_are_shown(tmp_path, code):
    found, _, err = finish(tmp_path, 2, NCCL + WARN + f"sys.exit({code})")
    assert (found, err.count("gflow: NCCL warned: Call to connect failed\n")) == (code, 1)


def test_user_setting_of_nccl_log_is_kept():
    plan = Plan(("x",), 2)
    assert variables(plan, 0, {}, 4, "/logs/nccl")["NCCL_DEBUG_FILE"] == "/logs/nccl"
    for given in ({"NCCL_DEBUG": "TRACE"}, {"NCCL_DEBUG_FILE": "x"}):
        told = variables(plan, 0, given, 4, "/logs/nccl")
        assert "NCCL_DEBUG_FILE" not in told and told.get("NCCL_DEBUG") != "INFO"


# ---------------------------------------------------------------- the effective batch


def test_each_rank_gets_its_part_of_the_effective_batch():
    plan = Plan(("x",), 2, nodes=2, node=1)
    told = [
        variables(plan, local, {"GFLOW_EFFECTIVE_BATCH": "10"}, 8)["GFLOW_RANK_BATCH"] for local in (0, 1)
    ]
    assert told == ["2", "3"]
    assert "GFLOW_RANK_BATCH" not in variables(plan, 0, {}, 8)
    parts = [share_of(10, 4, rank) for rank in range(4)]
    assert sum(parts) == 10 and max(parts) - min(parts) == 1
    assert batch_line(256, 4) == "effective batch 256 = 4 processes x 64 samples"
    assert batch_line(10, 4) == "effective batch 10: 4 processes with 2 or 3 samples each"


def test_the_launch_says_what_a_step_consists_of(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "gflow", "gflow", "launch", "--processes", "2", "/bin/true"],
        env={"GFLOW_EFFECTIVE_BATCH": "64", "PATH": "/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == "gflow: effective batch 64 = 2 processes x 32 samples\n"


def test_expandable_segments_keep_other_settings_of_the_allocator():
    from gflow.ml.launch.allocator_setting import expandable_setting

    assert expandable_setting({}) == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    both = "max_split_size_mb:64,expandable_segments:True"
    given = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    assert expandable_setting(given) == {"PYTORCH_CUDA_ALLOC_CONF": both}
    assert expandable_setting({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}) == {
        "PYTORCH_CUDA_ALLOC_CONF": both, "PYTORCH_ALLOC_CONF": both
    }  # fmt: skip
    assert expandable_setting({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}) == {}


@pytest.mark.parametrize("words", ["--nproc-per-node 4 --nnodes 2", "--nproc_per_node=4 --nnodes=2"])
def test_options_of_torchrun_are_accepted(words: str) -> None:
    values, script = parse([*words.split(), "train.py", "--nnodes", "9"], OPTIONS, until_word=True)
    assert (values["gpus"], values["nodes"], script) == (4, 2, ["train.py", "--nnodes", "9"])
