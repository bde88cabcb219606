from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import PROGRAM, Box
from tests.slurm.cluster import Cluster, lacks
from tests.sshd import LoginNode, login_node

# A daemon that prunes every second what is a second old, and not every hour what is an hour old.
HASTY = """
import sys
from gflow.daemon.monitors import snapshot_pruning
from gflow.targets.slurm.files import local_snapshots, snapshot_transfer
snapshot_pruning.FIRST_LOOK_S = snapshot_pruning.LOOK_S = 1.0
local_snapshots.YOUNG_S = snapshot_transfer.YOUNG_S = 1.0
from gflow.cli.gflowd import run
sys.exit(run(sys.argv[1:]))
"""
PRUNING_PROGRAM = (sys.executable, "-c", HASTY, *PROGRAM[4:])


def _started(accounting: bool) -> Iterator[Cluster]:
    if missing := lacks(accounting=accounting):
        pytest.skip(f"no Slurm here: {missing} missing; scripts/slurm-packages --accounting installs it")
    with tempfile.TemporaryDirectory(prefix="slurm-") as root:  # short: it holds a socket
        cluster = Cluster(Path(root), accounting=accounting)
        try:
            yield cluster.start()
        finally:
            cluster.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Four nodes with four GPUs each, without accounting."""
    yield from _started(False)


@pytest.fixture(scope="session")
def accounting() -> Iterator[Cluster]:
    """The same with slurmdbd."""
    yield from _started(True)


@pytest.fixture
def slurm(cluster: Cluster, box: Box) -> Box:
    """A daemon with simulated GPUs of its own, beside the cluster."""
    return on(cluster, box)


def on(cluster: Cluster, box: Box) -> Box:
    """A daemon that talks to this cluster."""
    cluster.forget_jobs()
    box.env["SLURM_CONF"] = str(cluster.conf)
    box.env["PATH"] += ":/usr/sbin"
    return box.up("--simulate-gpus", "4x80G", "--cpus", "4")


@pytest.fixture(scope="session")
def login(cluster: Cluster) -> Iterator[LoginNode]:
    """The login node of the cluster, with a user of its own."""
    with login_node({"SLURM_CONF": str(cluster.conf)}) as node:
        yield node


@pytest.fixture
def elsewhere(login: LoginNode, cluster: Cluster, box: Box) -> Box:
    """A daemon that has the cluster as the target `far`, and only an SSH login for it."""
    return at_a_distance(login, cluster, box)


def at_a_distance(login: LoginNode, cluster: Cluster, box: Box, port: int = 0, settings: str = "") -> Box:
    """A daemon without Slurm's commands or files. `port`: that of a proxy in front of the login node."""
    cluster.forget_jobs()
    login.install(box, port=port)
    config = box.home / ".config/gflow/gflow.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(f'[targets.far]\ntype = "slurm"\nhost = "login"\n{settings}')
    return box.up("--simulate-gpus", "4x80G", "--cpus", "4")
