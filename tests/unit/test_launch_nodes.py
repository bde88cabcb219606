"""A launch over several nodes: who is who, and what NCCL is told about the network."""

import time

import pytest

from gflow.errors import Refused, UsageError
from gflow.ml.launch.hosts import is_here, position, read_hosts
from gflow.ml.launch.network import Adapter, choose, detect
from gflow.ml.launch.slurm import (
    MEETING,
    NodePosition,
    check,
    deadline_here,
    node_position,
    nodes_of,
    remaining_time,
)
from gflow.ml.train.stop import boot_s

JOB = {"SLURM_JOB_ID": "17", "SLURM_NNODES": "2", "SLURM_NODEID": "1"}


def test_node_count_and_position():
    assert nodes_of({}) == nodes_of({"SLURM_NNODES": "4"}) == 1
    assert nodes_of(JOB) == 2
    assert node_position(JOB) is None, "no meeting point is given"
    assert node_position(JOB | {MEETING: "node1:20500"}) == NodePosition(1, 2, "node1", 20500)


def test_nodes_are_those_of_the_job():
    assert check(None, JOB) == check(2, JOB) == 2
    with pytest.raises(Refused, match="--nodes 3: the job has 2"):
        check(3, JOB)
    with pytest.raises(Refused, match="outside of a Slurm job there is 1"):
        check(2, {})


def test_time_limit_is_told_as_a_duration():
    """The clock of another node may be off, and its boot clock differs."""
    told = remaining_time({"GFLOW_END_TIME": str(int(time.time()) + 100)})
    left = float(deadline_here(told)["GFLOW_DEADLINE"]) - boot_s()
    assert 95 < left < 101, "the two clocks are read a moment apart"
    assert remaining_time({}) == deadline_here({}) == {}


ON, OFF, ROCE = Adapter("mlx5_0"), Adapter("mlx5_1", is_active=False), Adapter("mlx5_2", layer="Ethernet")


@pytest.mark.parametrize(
    ("network", "adapters", "interfaces", "told", "why"),
    [
        ("auto", [], ["lo", "eth0"], {"NCCL_IB_DISABLE": "1"}, "ethernet (no InfiniBand adapter)"),
        ("auto", [OFF], ["lo", "eth0"], {"NCCL_IB_DISABLE": "1"}, "ethernet (mlx5_1 not active)"),
        (
            "auto",
            [ON, OFF],
            ["lo", "ib0"],
            {"NCCL_IB_HCA": "mlx5_0", "NCCL_SOCKET_IFNAME": "ib0"},
            "infiniband (found mlx5_0)",
        ),
        ("auto", [ROCE], ["eth0"], {"NCCL_IB_HCA": "mlx5_2"}, "infiniband (found mlx5_2, RoCE)"),
        ("ethernet", [ON], ["ib0"], {"NCCL_IB_DISABLE": "1"}, "ethernet (asked for)"),
        (
            "infiniband",
            [],
            ["eth0"],
            {"NCCL_IB_DISABLE": "0"},
            "infiniband (asked for; this node has no adapter for it)",
        ),
        ("infiniband", [OFF], [], {"NCCL_IB_DISABLE": "0"}, "asked for; mlx5_1 not active"),
    ],
)
def test_network_choice(network, adapters, interfaces, told, why):
    choice = choose(network, adapters, interfaces)
    assert told.items() <= choice.variables.items()
    assert why in choice.why


def test_adapters_and_interfaces_of_a_machine(tmp_path):
    """As /sys says it: two ports, of which one works; an adapter that is off; interfaces that are up."""
    files = {
        "infiniband/mlx5_0/ports/1/state": "1: DOWN", "infiniband/mlx5_0/ports/2/state": "4: ACTIVE",
        "infiniband/mlx5_0/ports/1/link_layer": "InfiniBand", "infiniband/mlx5_1/ports/1/state": "1: DOWN",
        "infiniband/mlx5_1/ports/1/link_layer": "Ethernet", "net/eth0/operstate": "up",
        "net/eth1/operstate": "down", "net/lo/operstate": "unknown",
    }  # fmt: skip
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    adapters = [Adapter("mlx5_0"), Adapter("mlx5_1", is_active=False, layer="Ethernet")]
    assert detect(str(tmp_path)) == (adapters, ["eth0", "lo"])
    assert detect(str(tmp_path / "none")) == ([], [])


def test_machine_finds_itself_among_the_hosts(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# two boxes\nann.lab  slots=8\n\nbob.lab # the new one\n")
    hosts = read_hosts(str(path))
    assert hosts == ["ann.lab", "bob.lab"]
    assert position(hosts, None, None, lambda host: host == "bob.lab") == NodePosition(1, 2, "ann.lab", 29500)
    assert position(hosts, 0, 4000, lambda host: False) == NodePosition(0, 2, "ann.lab", 4000)
    with pytest.raises(UsageError, match=r"none of the hosts is this machine: ann\.lab, bob\.lab"):
        position(hosts, None, None, lambda host: False)
    with pytest.raises(UsageError, match="2 of the hosts are this machine"):
        position(hosts, None, None, lambda host: True)
    with pytest.raises(UsageError, match="--node 2: there are 2 hosts"):
        position(hosts, 2, None)
    path.write_text("# nobody\n")
    with pytest.raises(UsageError, match="names no hosts"):
        read_hosts(str(path))
    with pytest.raises(UsageError, match="cannot be read"):
        read_hosts(str(tmp_path / "nothing"))


def test_own_addresses_are_recognised():
    assert is_here("127.0.0.1") and is_here("localhost")
    assert not is_here("192.0.2.1"), "an address that is reserved for documentation"
    assert not is_here("no-such-host.invalid")


def test_options_of_plain_hosts_need_their_file(tmp_path, monkeypatch):
    from gflow.cli.tools.launch import run

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "hosts").write_text("localhost\n")
    with pytest.raises(UsageError, match="--node requires --nodes-file"):
        run(["--processes", "1", "--node", "1", "train.py"])
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="machines without Slurm"):
        run(["--processes", "1", "--nodes-file", "hosts", "train.py"])
