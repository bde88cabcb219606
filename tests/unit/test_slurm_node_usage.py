"""Usage reports of the nodes of a running job, and the pages made of them."""

import subprocess

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gflow.targets.slurm.commands import node_usage
from gflow.targets.slurm.commands.node_usage import parse_probe
from gflow.text.usage import nodes_csv, nodes_page
from gflow.wire.answers.job_details import GpuOnNode

# Two nodes, their lines mixed as srun --label mixes them. Of the second one's GPU less is known.
SAID = """0: node a1
1: node a2
1: cpus 16
0: cpus 16
0: clock 100.00
0: used 5 40.00 900
1: clock 200.00
1: used 2 10.00 300
0: clock 101.00
0: used 5 43.50 1024
1: clock 201.00
1: used 1 4.00 200
0: gpu 0, NVIDIA A100-SXM4-80GB, 97, 71234, 81920, 389.41, 64
0: gpu 1, NVIDIA A100-SXM4-80GB, 0, 3, 81920, 61.20, 35
1: gpu 0, NVIDIA A100-SXM4-80GB, [N/A], 10, 81920, [Not Supported], 40
"""


def test_two_nodes():
    first, second = parse_probe(SAID)
    assert msgspec.structs.astuple(first)[:6] == ("a1", 16, 3.5, 43.5, 1024, 5)
    assert first.gpus[0] == GpuOnNode(0, "NVIDIA A100-SXM4-80GB", 97, 71234, 81920, 389.41, 64)
    assert second.cpus_used == 0.0, "a process that ended took its time along"
    assert (second.gpus[0].busy, second.gpus[0].power_w, second.gpus[0].temperature) == (None, None, 40)


def test_no_nvidia_smi_and_one_that_fails():
    (node,) = parse_probe("0: node a1\n0: cpus 2\n0: without 0,1\n")
    note = "no nvidia-smi on this node, so the use of its GPUs is unknown (0,1)"
    assert msgspec.structs.astuple(node) == ("a1", 2, 0.0, 0.0, 0, 0, [], note)
    (node,) = parse_probe("0: node a1\n0: gpu NVIDIA-SMI has failed because it could not talk, sorry\n")
    assert node.note == "nvidia-smi says: NVIDIA-SMI has failed because it could not talk, sorry"


@given(st.text())
def test_any_text_can_be_read(text):
    parse_probe(text)
    parse_probe(f"0: node x\n0: {text}")


def test_the_page():
    nodes = parse_probe(SAID)
    lines = nodes_page(nodes).splitlines()
    assert lines[1].split() == ["a1", "3.5", "of", "16", "00:00:43", "1024", "MiB", "5"]
    assert "a1    0    NVIDIA A100-SXM4-80GB  97%   71234 of 81920 MiB  389 W  64 °C" in lines
    assert nodes_csv(nodes).splitlines()[1:] == [
        "a1,16,3.5,43.5,1024,5,0,97,71234,81920,389.4,64",
        "a1,16,3.5,43.5,1024,5,1,0,3,81920,61.2,35",
        "a2,16,0.0,4.0,200,1,0,,10,81920,,40",
    ]


def test_the_step_counts_what_is_the_jobs_and_not_itself(tmp_path):
    """Run here as on a node: two processes of the job, one of another job, and a GPU that answers."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\necho "$2, NVIDIA A100, 12, 34, 81920, 56.7, 40"\n')
    smi.chmod(0o755)
    mine = {"SLURM_JOB_ID": "987001", "SLURMD_NODENAME": "here", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    sleepers = [
        subprocess.Popen(["sleep", "60"], env=mine | other)
        for other in ({}, {"X": "1"}, {"SLURM_JOB_ID": "98700"}, {"SLURMD_NODENAME": "there"})
    ]
    try:
        step = mine | {"CUDA_VISIBLE_DEVICES": "3", "SLURM_CPUS_ON_NODE": "8", node_usage.MARK: "1"}
        done = subprocess.run(["sh", "-c", node_usage.SCRIPT], env=step, capture_output=True, text=True)
    finally:
        for one in sleepers:
            one.kill()
            one.wait()
    assert done.stderr == ""
    (node,) = parse_probe("".join(f"0: {line}\n" for line in done.stdout.splitlines()))
    assert (node.node, node.cpus, node.processes, node.note) == ("here", 8, 2, "")
    assert node.gpus == [GpuOnNode(3, "NVIDIA A100", 12, 34, 81920, 56.7, 40)]
