"""/metrics: read by Prometheus's own parser, under the rules that promtool checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from tests.harness import Box, wait_until
from tests.system import system

# Names that another gflow gave them, kept for dashboards that are there.
OLD = {"gflow_gpus_total", "gflow_memory_total_mb", "gflow_memory_available_mb"}
# What names end with where a unit is meant; anything else of a quantity is against the conventions.
UNITS = ("bytes", "seconds", "ratio", "celsius", "watts", "info", "total")
NOT_BASE = re.compile(r"_(mb|mib|kb|gb|ms|minutes|hours|percent|milliseconds)$")
LABELS = {"user", "gpu", "uuid", "le", "operation", "version"}


@pytest.fixture(scope="module")
def box(tmp_path_factory: Any) -> Iterator[Box]:
    made = Box(tmp_path_factory.mktemp("metrics"))
    yield made.up("--simulate-gpus", "2x80G", "--cpus", "2")
    made.clean_up()


def families(text: bytes) -> dict[str, Any]:
    return {family.name: family for family in parsed(text.decode())}


def value(found: dict[str, Any], name: str, **labels: str) -> float:
    (sample,) = [one for one in found[name].samples if one.labels == labels]
    return sample.value


def test_names_units_and_help_are_as_promtool_wants_them(box: Box) -> None:
    box.finished(box.submit("true"))
    status, text = box.api("GET", "/metrics")
    assert status == 200
    found = families(text)
    assert len(found) > 20
    for family in found.values():
        names = {sample.name for sample in family.samples}
        assert family.documentation.strip(), family
        assert re.fullmatch(r"(gflow|process)_[a-z_]+", family.name), family
        assert family.type in ("counter", "gauge", "histogram")
        if family.type == "counter":
            assert all(name.endswith("_total") for name in names)
        elif family.name not in OLD:
            assert not family.name.endswith("_total") and not NOT_BASE.search(family.name), family
        assert {label for sample in family.samples for label in sample.labels} <= LABELS
    told = text.decode().splitlines()
    samples = [line.rpartition(" ")[0] for line in told if not line.startswith("#")]
    assert len(set(samples)) == len(samples), "a series is there twice"
    assert len([line for line in told if line.startswith("# TYPE")]) == len(found), "a family is in two parts"


def test_figures_follow_what_happens(box: Box) -> None:
    before = families(box.api("GET", "/metrics")[1])
    user = box.job(box.submit("true"))["user"]
    box.submit("--hold", "true")
    box.finished(box.submit("false"))
    running = box.submit("--gpus", "1", "sleep", "600")
    box.submit("--gpus", "2", "true")
    array = box.submit("--cpus", "0", "--array", "1-2", "sleep", "600")
    wait_until(lambda: box.job(running)["state"] == "Running")
    wait_until(lambda: box.job(array)["state"] == "Running")

    def now(name: str, **labels: str) -> float:
        return value(families(box.api("GET", "/metrics")[1]), name, **labels)

    def was(name: str, **labels: str) -> float:
        return value(before, name, **labels) if name in before else 0.0

    assert now("gflow_jobs_submitted", user=user) == was("gflow_jobs_submitted", user=user) + 6
    assert now("gflow_jobs_failed", user=user) == 1
    assert now("gflow_jobs_held") == 1
    assert now("gflow_jobs_queued") == 1
    assert now("gflow_jobs_running") == 3
    assert now("gflow_gpus") == now("gflow_gpus_total") == 2
    assert now("gflow_gpus_available") == 1
    assert now("gflow_gpus_allocated_ratio") == now("gflow_gpu_utilization_ratio") == 0.5
    assert now("gflow_gpu_jobs", gpu="0", uuid="GPU-simulated-0") == 1
    assert now("gflow_memory_available_bytes") == now("gflow_memory_available_mb") * 2**20
    assert now("gflow_memory_utilization_ratio") == 0
    assert now("gflow_memory_bytes") == now("gflow_memory_total_mb") * 2**20
    turns = families(box.api("GET", "/metrics")[1])["gflow_scheduler_latency_seconds"].samples
    assert {one.labels["operation"] for one in turns if one.value} == {"step", "commit"}
    assert now("gflow_jobs_finished", user=user) >= 1
    box.ok("gcancel", "--all")
    wait_until(lambda: now("gflow_jobs_running") == 0)
    assert now("gflow_jobs_cancelled", user=user) >= 4
    assert now("gflow_jobs_held") == now("gflow_jobs_queued") == 0


def test_metrics_of_private_machine_name_no_user() -> None:
    with system() as machine:
        machine.box.env["GFLOW_PEOPLE__PRIVACY"] = "private"
        machine.up()
        body = {"token": "metrics-1", "jobs": [{"command": ["true"], "cwd": "/", "options": {"hold": True}}]}
        assert machine.ask(machine.ann, "POST", "/jobs", body)[0] == 201
        seen = families(machine.ask(machine.bob, "GET", "/metrics")[1])
        assert [sample.labels for sample in seen["gflow_jobs_submitted"].samples] == [{}]
        seen = families(machine.ask(machine.opal, "GET", "/metrics")[1])
        assert [*seen["gflow_jobs_submitted"].samples[0].labels] == ["user"]
