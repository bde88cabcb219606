from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Box
from tests.slurm.cluster import Cluster, lacks


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
