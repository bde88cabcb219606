"""What reaches Slurm of a job, and what its further attempts get: against a real Slurm."""

from __future__ import annotations

import json

import pytest

from tests.harness import wait_until
from tests.slurm.conftest import on

pytestmark = pytest.mark.slow


def test_resume_args_in_a_further_attempt(slurm):
    line = "echo $GFLOW_ATTEMPT python train.py"
    first = f"mkdir -p out; touch out/step=1.ckpt; {line}; [ $GFLOW_ATTEMPT = 2 ] || exit 75; {line}"
    words = ("--requeue", "--resume-args", "--ckpt_path {latest:out}")
    job = slurm.submit("--on", "slurm", *words, first)
    assert slurm.finished(job, 60)["state"] == "Finished"
    text = slurm.text_of(job).splitlines()
    assert text[0] == "1 python train.py"
    assert text[-1] == "2 python train.py --ckpt_path out/step=1.ckpt"


SCRIPT = """#!/bin/bash
#SBATCH --nodes=1 --gpus-per-node=4 --cpus-per-task=2 --partition=main --time=30
echo tasks ${SLURM_NTASKS:-none}, $GFLOW_NODES x $GFLOW_GPUS GPUs, $SLURM_JOB_PARTITION, $(greet Ann)
squeue -h -j $SLURM_JOB_ID -o %l
"""


def test_variables_of_sbatch_and_functions_of_the_shell(slurm):
    """As with sbatch, variables override the script, options override both, and functions are exported."""
    (slurm.work / "job.sh").write_text(SCRIPT)
    shell = {"BASH_FUNC_greet%%": "() {  echo hello $1\n}"}
    variables = shell | {"SBATCH_PARTITION": "high", "SBATCH_TIMELIMIT": "7", "SBATCH_WAIT": "1"}
    for words, env, partition, limit in (
        ((), shell, "main", "30:00"),
        ((), variables, "high", "7:00"),
        (("--time", "5"), variables, "high", "5:00"),
        (("--partition", "low"), variables, "low", "7:00"),
    ):
        job = slurm.submit("--on", "slurm", *words, "job.sh", env=env)
        assert slurm.finished(job, 40)["state"] == "Finished", slurm.text_of(job)
        said = f"tasks none, 1 x 4 GPUs, {partition}, hello Ann\n{limit}\n"
        assert slurm.text_of(job) == said


def test_options_of_gbatch_replace_those_of_the_script(slurm, cluster):
    (slurm.work / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2 --gpus=8 --exclude=node1\nsleep 60\n")
    job = slurm.submit("--on", "slurm", "--hold", "job.sh")
    slurm.ok("gjob", "update", str(job), "--gpus", "1")
    slurm.ok("gjob", "release", str(job))
    wait_until(lambda: slurm.job(job)["target_id"], 20, "its id in Slurm")
    shown = cluster.call("scontrol", "show", "job", slurm.job(job)["target_id"])
    assert "TresPerNode=gres:gpu:1" in shown and "TresPerJob" not in shown
    assert "ExcNodeList=node1" in shown and "NumNodes=2" in shown
    slurm.ok("gcancel", "--now", str(job))


def test_interrupt_and_standard_input(slurm):
    """SIGINT reaches the program, and its standard input is the file of --input."""
    program = "import sys, time\nprint(sys.stdin.read(), flush=True)\ntry: time.sleep(60)\n"
    program += "except KeyboardInterrupt: sys.exit(4)\n"
    (slurm.work / "wait.py").write_text(program)
    (slurm.work / "words").write_text("from a file")
    job = slurm.submit("--on", "slurm", "--input=words", "python3", "wait.py")
    wait_until(lambda: "from a file" in slurm.text_of(job), 30, "its first line")
    wait_until(lambda: slurm.job(job)["state"] == "Running", 30, "its start")
    slurm.ok("gcancel", "--signal", "INT", "-b", str(job))
    assert slurm.finished(job, 30)["exit_code"] == 4


STOPPING = """import os, sys, time
from gflow.ml.train.stop import Stop
node, attempt = os.uname().nodename, os.environ["GFLOW_ATTEMPT"]
stop = Stop(margin_s=170 if attempt == "1" else None).listen()
open(f"{attempt}.{os.environ['RANK']}", "w").write(f"{node} {stop.left_s():.0f}")
while attempt == "1" and not stop.is_asked:
    time.sleep(0.2)
open(f"{attempt}.{os.environ['RANK']}.reason", "w").write(stop.reason)
sys.exit(75 if stop.is_asked else 0)
"""


def test_jobs_on_two_nodes_stop_before_their_limit(slurm):
    """By the limit, also if it is that of the partition, and by --signal, which no shell gets."""
    warned, limited = slurm.work / "warned", slurm.work / "limited"
    for folder, margin in ((warned, "1"), (limited, "170")):
        folder.mkdir()
        (folder / "train.py").write_text(STOPPING.replace("margin_s=170", f"margin_s={margin}"))
    launch = "gflow launch --processes 1 train.py"
    words, signal = ("--on", "slurm", "--nodes", "2"), ("--time", "1", "--signal", "TERM@55")
    by_signal = slurm.submit(*words, *signal, f"{launch}; echo shell $?", cwd=warned)
    by_limit = slurm.submit(*words, "--requeue", "--time", "3", *launch.split(), cwd=limited)
    final = slurm.finished(by_limit, 90)
    assert (final["state"], final["attempt"]) == ("Finished", 2), slurm.text_of(by_limit)
    said = [(limited / f"{attempt}.{rank}").read_text().split() for attempt in "12" for rank in "01"]
    assert len({node for node, _ in said}) >= 2
    assert all(150 < int(left) <= 240 for _, left in said), said
    assert [(limited / f"1.{rank}.reason").read_text() for rank in "01"] == ["time limit"] * 2
    line = "echo $((GFLOW_END_TIME - $(date +%s))) ${GFLOW_DEADLINE:-none}"
    job = slurm.submit(*words, "--requeue", line)
    slurm.finished(job, 40)
    left, deadline = slurm.text_of(job).split()
    assert 3500 < int(left) <= 3660 and deadline == "none"
    assert slurm.finished(by_signal, 90)["state"] == "Finished"
    assert slurm.text_of(by_signal).endswith("shell 75\n")
    assert [(warned / f"1.{rank}.reason").read_text() for rank in "01"] == ["TERM"] * 2


CONFIG = """default_target = "lab"
[targets.lab]
type = "slurm"
folder = "{}"
"""


def test_a_cluster_with_a_folder_of_its_own(cluster, box):
    """Logs are in the folder that the nodes see; nodes and GPU-hours count; --overflow starts here."""
    config = box.home / ".config/gflow/gflow.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    (box.work / "shared").mkdir()
    config.write_text(CONFIG.format(box.work / "shared"))
    lab = on(cluster, box)
    job = lab.submit("--shape", "n2_gpu2", "--time", "5", "sleep 2; echo done")
    wait_until(lambda: lab.job(job)["state"] == "Running", 30, "its start")
    assert lab.ok("gqueue", "-f", "JOBID,NODES").split()[-2:] == [str(job), "2"]
    final = lab.finished(job, 40)
    assert (final["state"], final["gpus"], final["total_gpus"]) == ("Finished", 2, 4)
    assert lab.ok("gjob", "log", str(job)) == "done\n"
    assert (box.work / f"shared/gflow/logs/{job}.log").read_text() == "done\n"
    assert json.loads(lab.ok("gstats", "--json"))["total_gpu_hours"] >= 0.002
    here = lab.submit("--overflow", "lab", "echo ${SLURM_JOB_ID:-here}")
    assert (lab.finished(here, 40)["target"], lab.text_of(here)) == ("local", "here\n")


def test_two_clusters_on_one_machine(cluster, accounting, box):
    """Each has its configuration; the environment of the daemon and of the job names neither."""
    config = box.home / ".config/gflow/gflow.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    tables = {"one": cluster, "two": accounting}
    lines = [f'[targets.{name}]\ntype = "slurm"\nslurm_conf = "{at.conf}"\n' for name, at in tables.items()]
    config.write_text("".join(lines))
    for at in tables.values():
        at.forget_jobs()
    box.env["PATH"] += ":/usr/sbin"
    box.up("--simulate-gpus", "4x80G")
    numbers = {name: box.submit("--on", name, "scontrol show config | grep -i SLURM_CONF") for name in tables}
    for name, at in tables.items():
        assert box.finished(numbers[name], 40)["exit_code"] == 0, box.text_of(numbers[name])
        assert str(at.conf) in box.text_of(numbers[name])
    long = box.submit("--on", "two", "sleep 100")
    wait_until(lambda: box.job(long)["state"] == "Running", 30, "its start")
    assert str(accounting.conf) in box.ok("gjob", "exec", str(long), "printenv", "SLURM_CONF")
    box.ok("gcancel", "--now", str(long))
    assert box.finished(long, 30)["state"] == "Cancelled"


def test_progress_of_a_job_on_a_cluster(slurm):
    """Also of array tasks, and of the last step before the end; `gflow report` works too."""
    (slurm.work / "train.py").write_text(
        "import time\nfrom gflow.train import report\n"
        "report(10, steps=40, loss=0.5)\ntime.sleep(8)\nreport(40, steps=40, loss=0.25)\n"
    )
    job = slurm.submit("--on", "slurm", "python3", "train.py", env={"PATH": slurm.env["PATH"]})
    array = slurm.submit("--on", "slurm", "--array", "3", "gflow report step=7 accuracy=0.5; sleep 8")
    row = ("gqueue", "-f", "PROGRESS,LOSS", "-j", str(job))
    wait_until(lambda: slurm.ok(*row).split()[-2:] == ["25%", "0.5"], 40, "its progress")
    wait_until(
        lambda: (slurm.job(f"{array}_3")["progress"] or {}).get("step") == 7, 40, "the task's progress"
    )
    assert slurm.finished(job, 40)["progress"]["step"] == 40
