"""What happened to the GPUs: faults, drains, slow clocks."""

from __future__ import annotations

import time
from pathlib import Path

from gflow.store.samples import Batch, Mean, Samples
from tests.gpu_mock import MockGpus
from tests.harness import Box, wait_until


def test_faults_drains_and_slow_clocks_are_listed(box: Box, tmp_path: Path) -> None:
    gpus = MockGpus(tmp_path, 2)
    box.up(env=gpus.env | {"GFLOW_LEASE_DIR": str(tmp_path / "leases")})
    gpus[1].xid = 79

    def listed() -> list[tuple[str, list[int], str]]:
        events = box.api("GET", "/gpus/events?hours=1")[1]["events"]
        return [(one["kind"], one["gpus"], one["text"]) for one in events]

    fault = ("blocked", [1], "Unhealthy: Xid 79: fell off the bus")
    wait_until(lambda: listed() == [fault])
    gpus[0].xid = 31
    error = ("error", [0], "Xid 31: the kernel accessed an address that is not mapped")
    wait_until(lambda: listed()[0] == error)
    box.ok("gctl", "drain", "--gpu", "0", "--reason", "new fan")
    box.ok("gctl", "drain")
    box.ok("gctl", "resume", "--gpu", "0")
    found = listed()
    assert found[:3] == [
        ("resumed", [0], "resumed"),
        ("drained", [], "the machine is drained"),
        ("drained", [0], "drained: new fan"),
    ]
    by = [one["by"] for one in box.api("GET", "/gpus/events")[1]["events"]]
    assert by[0] == box.api("GET", "/me")[1]["user"] and by[-1] is None
    assert b"GPU 1: Unhealthy: Xid 79" in box.api("GET", "/gpus/events", accept="text/plain")[1]
    box.down()
    # Two intervals with a short pause are one event; the power limit is normal operation.
    now = int(time.time())
    spans = ((0, now - 900, 0x40), (0, now - 700, 0x24), (1, now - 900, 0x04))
    rows = [(gpu, Mean(at, 10, 50.0, 90, 1000, 300.0, 88, 1000.0, bits)) for gpu, at, bits in spans]
    samples = Samples(box.data / "samples.db")
    samples.write(Batch(rows, [], []))
    samples.close()
    box.up(env=gpus.env)
    assert [one for one in listed() if one[0] == "slowed"] == [
        ("slowed", [0], "slowed by heat (driver), heat (hardware)")
    ]
