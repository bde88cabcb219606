"""A launch over several nodes: who is who, and what NCCL is told about the network."""

import pytest

from gflow.errors import Refused
from gflow.launch.network import chosen
from gflow.launch.slurm import MEETING, Here, check, here, nodes_of

JOB = {"SLURM_JOB_ID": "17", "SLURM_NNODES": "2", "SLURM_NODEID": "1"}


def test_who_we_are():
    assert nodes_of({}) == nodes_of({"SLURM_NNODES": "4"}) == 1
    assert nodes_of(JOB) == 2
    assert here(JOB) is None, "nobody has said where to meet"
    assert here(JOB | {MEETING: "node1:20500"}) == Here(1, 2, "node1", 20500)


def test_nodes_are_those_of_the_job():
    assert check(None, JOB) == check(2, JOB) == 2
    with pytest.raises(Refused, match="--nodes 3: the job has 2"):
        check(3, JOB)
    with pytest.raises(Refused, match="outside of a Slurm job there is 1"):
        check(2, {})


@pytest.mark.parametrize(
    ("network", "adapters", "interfaces", "told", "why"),
    [
        ("auto", [], ["lo", "eth0"], {"NCCL_IB_DISABLE": "1"}, "ethernet (no InfiniBand adapter)"),
        (
            "auto",
            ["mlx5_0"],
            ["lo", "ib0"],
            {"NCCL_IB_HCA": "mlx5_0", "NCCL_SOCKET_IFNAME": "ib0"},
            "found mlx5_0",
        ),
        ("ethernet", ["mlx5_0"], ["ib0"], {"NCCL_IB_DISABLE": "1"}, "asked for"),
        ("infiniband", [], ["eth0"], {"NCCL_IB_DISABLE": "0"}, "asked for"),
    ],
)
def test_networks(network, adapters, interfaces, told, why):
    choice = chosen(network, adapters, interfaces)
    assert told.items() <= choice.variables.items()
    assert why in choice.why
