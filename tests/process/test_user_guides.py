"""Every command of the two guides that people learned gflow from, typed as it stands there.

`000:61` means line 61 of seed 000. Four simulated GPUs; the training scripts are stand-ins that say
what they got, and `nvidia-smi` is one that says it was called. A script whose name is in `$WORK/slow`
goes on until that line is gone, so that jobs run exactly while a test wants them to.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.harness import Box, wait_until

SCRIPTS = (
    "train.py", "multi_gpu_train.py", "distributed_train.py", "long_train.py", "task1.py", "urgent_task.py",
    "tf_train.py", "memory_intensive_train.py", "cpu_task.py", "gpu_task.py", "preprocess.py", "evaluate.py",
)  # fmt: skip
STAND_IN = """
import os, sys, time
from pathlib import Path
slow = Path(__file__).with_name("slow")
while slow.exists() and os.path.basename(__file__) in slow.read_text().split():
    time.sleep(0.02)
print(os.path.basename(__file__), *sys.argv[1:], "on", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
if "GFLOW_CONFIG" in os.environ:
    print("config", Path(os.environ["GFLOW_CONFIG"]).read_text().splitlines()[0])
"""
# A training configuration as people have them: nothing in it is ours but what stands below `gflow`.
CONFIG = """model: resnet50  # experiment {number}
optimizer:
  name: adamw
  lr: 3.0e-4
  betas: [0.9, 0.999]
data: &data
  root: /data/imagenet
  transforms:
    - {{resize: 256}}
    - crop
notes: |
  gflow: this is text, and no option
eval:
  <<: *data
"""


@pytest.fixture
def lab(daemon: Box) -> Box:
    for name in SCRIPTS:
        (daemon.work / name).write_text(STAND_IN)
    bin_ = daemon.root / "bin"
    bin_.mkdir()
    (bin_ / "nvidia-smi").write_text('#!/bin/sh\necho "nvidia-smi sees $CUDA_VISIBLE_DEVICES"\n')
    (bin_ / "nvidia-smi").chmod(0o755)
    daemon.env["PATH"] = f"{bin_}:{daemon.env['PATH']}"
    return daemon


def slow(lab: Box, *names: str) -> None:
    (lab.work / "slow").write_text("\n".join(names))


def typed(lab: Box, line: str) -> str:
    """What a shell prints for this line."""
    done = lab.run_shell(line)
    assert (done.returncode, done.stderr) == (0, ""), line
    out: str = done.stdout
    return out


def submitted(lab: Box, line: str) -> int:
    """The id, from exactly the line that the guides show."""
    found = re.fullmatch(r"Submitted batch job (\d+)\n", typed(lab, line))
    assert found, line
    return int(found[1])


def states(lab: Box) -> dict[Any, str]:
    return {key: job["state"] for key, job in lab.jobs().items()}


# ---------------------------------------------------------------- one command, one job

SINGLE = [
    ("000:61", "gbatch --gpus 1 python train.py", "train.py on 0"),
    ("000:64", "gbatch --gpus 2 python multi_gpu_train.py", "multi_gpu_train.py on 0,1"),
    ("000:67", "gbatch --gpus 4 python distributed_train.py", "distributed_train.py on 0,1,2,3"),
    ("000:81", "gbatch --gpus 2 nvidia-smi", "nvidia-smi sees 0,1"),
    ("000:253", "gbatch --gpus 2 python train.py", "train.py on 0,1"),
    ("000:283", "gbatch --gpus 4 python distributed_train.py", "distributed_train.py on 0,1,2,3"),
    ("000:307", "gbatch --gpus 2 python tf_train.py", "tf_train.py on 0,1"),
    ("000:321", "gbatch --gpus 1 python memory_intensive_train.py", "memory_intensive_train.py on 0"),
    ("000:386", "gbatch --gpus 1 --time 1:00:00 python train.py --test-run", "train.py --test-run on 0"),
    ("000:389", "gbatch --gpus 4 --time 8:00:00 python train.py --full", "train.py --full on 0,1,2,3"),
    ("000:417", "gbatch python train.py", "train.py on "),
    ("000:420", "gbatch --gpus 1 python train.py", "train.py on 0"),
    ("001:17", "gbatch --gpus 1 python train.py", "train.py on 0"),
    ("001:62", "gbatch --gpus 1 python train.py", "train.py on 0"),
    ("001:63", "gbatch --gpus 2 python multi_gpu_train.py", "multi_gpu_train.py on 0,1"),
    ("001:78", "gbatch --gpus 1 --shared --gpu-memory 20G python train.py", "train.py on 0"),
]


def test_submissions_of_one_line(lab: Box) -> None:
    """One after the other, so that each finds all GPUs free."""
    for where, line, says in SINGLE:
        job = submitted(lab, line)
        assert lab.finished(job)["state"] == "Finished", where
        # 000:226 and 000:476: the log is where the guide looks for it.
        log = typed(lab, f"cat ~/.local/share/gflow/logs/{job}.log")
        assert log == says + "\n", where
    limits = {job["command"][-1]: job["time_limit_s"] for job in lab.jobs().values()}
    assert (limits["--test-run"], limits["--full"]) == (3600, 8 * 3600)


def test_a_script_with_directives(lab: Box) -> None:
    """000:112-118, 001:87-91: `# GFLOW --gpus 2` in the script."""
    (lab.work / "visible.sh").write_text(
        "#!/bin/bash\n# GFLOW --gpus 2\n\n"
        'echo "Allocated GPUs: $CUDA_VISIBLE_DEVICES"\n'
        "nvidia-smi --query-gpu=index,name,memory.free --format=csv\npython train.py\n"
    )
    job = submitted(lab, "gbatch visible.sh")
    assert lab.finished(job)["gpus"] == 2
    assert lab.text_of(job) == "Allocated GPUs: 0,1\nnvidia-smi sees 0,1\ntrain.py on 0,1\n"


def test_monitoring_script_runs(lab: Box) -> None:
    """000:203-221: written by a here-document, made executable, submitted."""
    typed(
        lab,
        """cat > monitor_gpu.sh << 'EOF'
#!/bin/bash
# GFLOW --gpus 1

echo "=== GPU Allocation ==="
echo "CUDA_VISIBLE_DEVICES: $CUDA_VISIBLE_DEVICES"

echo "=== GPU Details ==="
nvidia-smi --query-gpu=index,name,memory.total,memory.free,utilization.gpu \\
           --format=csv

echo "=== Training ==="
python train.py
EOF

chmod +x monitor_gpu.sh""",
    )
    job = submitted(lab, "gbatch monitor_gpu.sh")
    assert lab.finished(job)["state"] == "Finished"
    assert lab.text_of(job).splitlines()[1] == "CUDA_VISIBLE_DEVICES: 0"
    assert lab.text_of(job).endswith("=== Training ===\ntrain.py on 0\n")


def test_a_monitor_in_the_background_ends_with_its_job(lab: Box) -> None:
    """000:522-535: `nvidia-smi … &`, the training, `kill $GPU_MONITOR_PID`."""
    (lab.root / "bin/nvidia-smi").write_text("#!/bin/sh\nexec sleep 1000\n")
    (lab.work / "monitored.sh").write_text(
        "#!/bin/bash\n# GFLOW --gpus 1\n\n# Log GPU stats before training\n"
        "nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv -l 10 > gpu_stats.log &\n"
        "GPU_MONITOR_PID=$!\n\n# Run training\npython train.py\n\n# Stop monitoring\nkill $GPU_MONITOR_PID\n"
    )
    job = submitted(lab, "gbatch monitored.sh")
    assert lab.finished(job)["state"] == "Finished"
    assert lab.text_of(job) == "train.py on 0\n"


# ---------------------------------------------------------------- waiting

QUEUE = "JOBID,NAME,ST,NODES,NODELIST(REASON)"


def test_jobs_wait_for_gpus(box: Box) -> None:
    """000:131-141: two GPUs, one job has both, the next waits with `(Resources)`."""
    box.up("--simulate-gpus", "2x80G")
    for name in SCRIPTS:
        (box.work / name).write_text(STAND_IN)
    slow(box, "long_train.py")
    assert typed(box, "gbatch --gpus 2 python long_train.py") == "Submitted batch job 1\n"
    assert typed(box, "gbatch --gpus 1 python train.py") == "Submitted batch job 2\n"
    wait_until(lambda: states(box) == {1: "Running", 2: "Queued"})
    lines = typed(box, f"gqueue -f '{QUEUE}'").splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["1", "long_train.py", "R", "2", "0,1"],
        ["2", "train.py", "PD", "1", "(Resources)"],
    ]
    slow(box)
    assert box.finished(2)["state"] == "Finished"  # 000:144: as soon as job 1 releases a GPU


def test_a_higher_priority_gets_the_gpu_first(lab: Box) -> None:
    """000:152, 000:155."""
    slow(lab, "long_train.py")
    first = submitted(lab, "gbatch --gpus 4 python long_train.py")
    wait_until(lambda: lab.job(first)["state"] == "Running")
    low = submitted(lab, "gbatch --priority 5 --gpus 1 python task1.py")
    # Only one GPU comes free for both.
    blocker = lab.submit("--priority", "200", "--gpus", "3", "python", "long_train.py")
    high = submitted(lab, "gbatch --priority 100 --gpus 1 python urgent_task.py")
    lab.ok("gcancel", "--now", str(first))
    ended = {job: lab.finished(job) for job in (low, high)}
    assert ended[high]["started_at"] < ended[low]["started_at"]
    lab.ok("gcancel", "--now", str(blocker))


def test_a_job_says_how_many_gpus_it_lacks(lab: Box) -> None:
    """000:168-176: four GPUs, three in use."""
    slow(lab, "long_train.py")
    lab.submit("--gpus", "3", "python", "long_train.py")
    job = submitted(lab, "gbatch --gpus 4 python distributed_train.py")
    reason = "Resources: Need 4 GPUs, only 1 available"
    wait_until(lambda: lab.job(job)["reason"] == reason)
    assert f"({reason})" in typed(lab, "gqueue")
    slow(lab)
    assert lab.finished(job)["state"] == "Finished"


def test_cpu_jobs_run_beside_gpu_jobs(lab: Box) -> None:
    """000:339, 000:342, 000:345."""
    slow(lab, "cpu_task.py", "gpu_task.py")
    cpu = submitted(lab, "gbatch python cpu_task.py")
    gpu = submitted(lab, "gbatch --gpus 1 python gpu_task.py")
    wait_until(lambda: states(lab) == {cpu: "Running", gpu: "Running"})
    assert (lab.job(cpu)["gpu_ids"], lab.job(gpu)["gpu_ids"]) == ([], [0])


# ---------------------------------------------------------------- patterns


def test_pipeline_runs(lab: Box) -> None:
    """000:354-362, as one script: ids by `grep -oP '\\d+'`, GPUs only in the middle."""
    out = typed(
        lab,
        r"""
# Stage 1: Preprocessing (no GPU)
ID1=$(gbatch --time 30 python preprocess.py | grep -oP '\d+')

# Stage 2: Training (uses GPU)
ID2=$(gbatch --depends-on $ID1 --gpus 1 --time 4:00:00 \
             python train.py | grep -oP '\d+')

# Stage 3: Evaluation (no GPU)
gbatch --depends-on $ID2 --time 10 python evaluate.py
echo "$ID1 $ID2"
""",
    )
    assert out == "Submitted batch job 3\n1 2\n"
    last = lab.finished(3)
    jobs = lab.jobs()
    assert [jobs[n]["state"] for n in (1, 2, 3)] == ["Finished"] * 3
    assert [jobs[n]["time_limit_s"] for n in (1, 2, 3)] == [1800, 4 * 3600, 600]
    assert jobs[1]["finished_at"] <= jobs[2]["started_at"] <= jobs[2]["finished_at"] <= last["started_at"]
    assert [jobs[n]["gpus"] for n in (1, 2, 3)] == [0, 1, 0]


def test_gbatch_prints_one_number_per_job(lab: Box) -> None:
    """000:355: `grep -oP '\\d+'` must find the id and nothing else."""
    assert typed(lab, "gbatch --name exp42 python train.py | grep -oP '\\d+'") == "1\n"


def test_experiments_with_a_configuration_each(lab: Box) -> None:
    """000:373-375: `--config config1.yaml` is the training's own file, and not ours."""
    for number in (1, 2, 3):
        (lab.work / f"config{number}.yaml").write_text(CONFIG.format(number=number))
    slow(lab, "train.py")
    for number in (1, 2, 3):
        line = (
            f"gbatch --gpus 1 --time 2:00:00 --config config{number}.yaml "
            f'--name "exp{number}" python train.py'
        )
        assert submitted(lab, line) == number
    # 000:378: with four GPUs they run in parallel.
    wait_until(lambda: states(lab) == {1: "Running", 2: "Running", 3: "Running"})
    slow(lab)
    for number in (1, 2, 3):
        final = lab.finished(number)
        assert (final["name"], final["gpus"], final["time_limit_s"]) == (f"exp{number}", 1, 7200)
        assert lab.text_of(number).splitlines()[1] == f"config model: resnet50  # experiment {number}"


def test_the_options_in_a_configuration_are_below_its_key(lab: Box) -> None:
    """The same file with a key `gflow`; what is typed wins."""
    ours = "gflow:\n  gpus: 2\n  time: 0:30:00  # short\n  name: 'from file'\n"
    (lab.work / "config.yaml").write_text(CONFIG.format(number=1) + ours)
    job = lab.submit("--config", "config.yaml", "--gpus", "1", "python", "train.py")
    final = lab.finished(job)
    assert (final["name"], final["gpus"], final["time_limit_s"]) == ("from file", 1, 1800)
    (lab.work / "config.toml").write_text("lr = 0.1\n[gflow]\ngpus = 3\nparam = { seed = [1, 2] }\n")
    assert typed(lab, "gbatch --dry-run --config config.toml python train.py {seed}") == (
        "Would submit 2 batch job(s):\n  [1] python train.py 1 (GPUs: 3)\n  [2] python train.py 2 (GPUs: 3)\n"
    )


def test_the_sweep_by_a_loop(lab: Box) -> None:
    """000:396-403: nine jobs by two loops, four at a time."""
    out = typed(
        lab,
        """for lr in 0.001 0.01 0.1; do
    for batch_size in 32 64 128; do
        gbatch --gpus 1 --time 3:00:00 \\
               --name "lr${lr}_bs${batch_size}" \\
               python train.py --lr $lr --batch-size $batch_size
    done
done""",
    )
    assert out == "".join(f"Submitted batch job {n}\n" for n in range(1, 10))
    for number in range(1, 10):
        lab.finished(number)
    jobs = lab.jobs()
    assert jobs[1]["name"] == "lr0.001_bs32"
    assert lab.text_of(9).startswith("train.py --lr 0.1 --batch-size 128 on ")


def test_sweep_in_one_line(lab: Box) -> None:
    """What the loops say, as our own way to say it: one group, all or nothing."""
    out = typed(
        lab,
        "gbatch --gpus 1 --time 3:00:00 --param lr=0.001,0.01,0.1 --param bs=32,64,128 "
        "--name 'lr{lr}_bs{bs}' --max-concurrent 2 python train.py --lr {lr} --batch-size {bs}",
    )
    assert "Submitted 9 batch jobs with group_id: 1\n" in out
    for number in range(1, 10):
        lab.finished(number)
    assert (lab.job(1)["name"], lab.job(9)["parameters"]) == ("lr0.001_bs32", {"lr": "0.1", "bs": "128"})
    assert lab.text_of(9).startswith("train.py --lr 0.1 --batch-size 128 on ")


def test_gjob_show_names_the_gpus(lab: Box) -> None:
    """001:71: `gjob show <job_id>`, to see allocated GPU ids."""
    slow(lab, "train.py")
    job = submitted(lab, "gbatch --gpus 2 python train.py")
    wait_until(lambda: lab.job(job)["state"] == "Running")
    assert "GPU ids: 0,1\n" in typed(lab, f"gjob show {job}")


def test_shared_jobs_meet_on_one_gpu(lab: Box) -> None:
    """001:78-84: shared jobs share with shared jobs only, and each needs its limit."""
    slow(lab, "train.py")
    line = "gbatch --gpus 1 --shared --gpu-memory 20G python train.py"
    first, second = submitted(lab, line), submitted(lab, line.replace("--gpu-memory", "--max-gpu-mem"))
    alone = submitted(lab, "gbatch --gpus 1 python train.py")
    wait_until(lambda: set(states(lab).values()) == {"Running"})
    assert [lab.job(n)["gpu_ids"] for n in (first, second, alone)] == [[0], [0], [1]]
    without = lab.run_shell("gbatch --gpus 1 --shared python train.py")
    assert (without.returncode, without.stdout) == (2, "")
