"""The dashboard and the alert rules of contrib/monitoring fit /metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_mock import MockGpus
from tests.harness import Box, free_port, wait_until

FOLDER = Path(__file__).parents[2] / "contrib/monitoring"
RULES, RULE_TESTS = FOLDER / "gflow-alerts.yml", FOLDER / "gflow-alerts-test.yml"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text())
# Made by Prometheus when it scrapes, or by its alerts.
ADDED = {"job", "instance", "severity", "alertname", "alertstate"}
METRIC = re.compile(r"\b(?:gflow|process)_[a-z_]+\b")
# In braces, in `by (…)`, and in the texts of alerts and legends.
LABELS = (
    re.compile(r"[{,]\s*([a-z_]+)\s*(?:=~|!=|=)"),
    re.compile(r"\bby \(([a-z_, ]+)\)"),
    re.compile(r"\{\{ *(?:\$labels\.)?([a-z]+) *\}\}"),
)


def queries() -> list[str]:
    """Every query of the dashboard."""
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def labels_in(text: str) -> set[str]:
    return {
        name.strip() for pattern in LABELS for match in pattern.findall(text) for name in match.split(",")
    }


def make_ends(box: Box) -> None:
    """A job for each way to end: counters have no sample before the first."""
    jobs = [box.submit("--gpus", "1", "true"), box.submit("false"), box.submit("--hold", "true")]
    jobs.append(box.submit("--time", "0:00:01", "--grace", "0", "sleep", "60"))
    box.ok("gcancel", str(jobs[2]))
    for job in jobs:
        box.finished(job)


def test_every_metric_and_label_is_exported(box: Box) -> None:
    gpus = MockGpus(box.root, 1)
    box.up("--cpus", "4", env=gpus.env | {"GFLOW_LEASE_DIR": str(box.root / "leases")})
    make_ends(box)
    text = box.api("GET", "/metrics")[1].decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    exported = {
        name + end
        for name, kind in types.items()
        for end in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
    }
    known = set(re.findall(r'[{,]([a-z_]+)="', text)) | {"gpu", "uuid"}
    rules = RULES.read_text()
    for query in [*queries(), "gflow_build_info", rules]:
        assert set(METRIC.findall(query)) <= exported, query
    legends = [target["legendFormat"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    used = labels_in(rules) | set().union(*map(labels_in, [*queries(), *legends]))
    assert used - ADDED <= known


def test_the_dashboard_is_complete_and_its_panels_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["title"] and panel["fieldConfig"]["defaults"]["unit"]
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells


@pytest.fixture
def watched(box: Box) -> Iterator[tuple[Box, str]]:
    """A daemon with GPUs, and the address of a Prometheus that scrapes it every second."""
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        pytest.skip("Prometheus is not installed")
    gpus, port, own_port = MockGpus(box.root, 2), free_port(), free_port()
    more = {"GFLOW_DAEMON__PORT": str(port), "GFLOW_LEASE_DIR": str(box.root / "leases")}
    box.up("--cpus", "4", env=gpus.env | more)
    token = box.ok("gctl", "token", "create").split("\n")[0]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": "gflow",
                "authorization": {"credentials": token},
                "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
            }
        ],
    }
    (box.root / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    process = subprocess.Popen(
        [
            "prometheus", f"--config.file={box.root / 'prometheus.yml'}",
            f"--storage.tsdb.path={box.root / 'tsdb'}", f"--web.listen-address=127.0.0.1:{own_port}",
        ],
        stderr=(box.root / "prometheus.log").open("wb"),
    )  # fmt: skip
    try:
        yield box, f"http://127.0.0.1:{own_port}/api/v1"
    finally:
        process.kill()
        process.wait()


def ask(address: str, **query: str) -> Any:
    try:
        with urllib.request.urlopen(f"{address}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def _await_scrape(address: str, since: float) -> None:
    """Wait until Prometheus has scraped the daemon after this time."""

    def is_newer() -> bool:
        found = ask(f"{address}/query", query='timestamp(up{job="gflow"} == 1)')
        return bool(found and found["result"] and float(found["result"][0]["value"][1]) > since)

    wait_until(is_newer, what="a scrape")


@pytest.mark.slow
def test_prometheus_accepts_the_rules_and_answers_every_query(watched: tuple[Box, str]) -> None:
    for words in (["check", "rules", str(RULES)], ["test", "rules", str(RULE_TESTS)]):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    box, address = watched
    for _ in range(2):  # rates need two scrapes with a change between them
        make_ends(box)
        _await_scrape(address, time.time())
    box.submit("--gpus", "1", "sleep", "60")
    for query in queries():
        plain = query.replace("$instance", ".*").replace("$__rate_interval", "1m")
        wait_until(
            lambda plain=plain: (ask(f"{address}/query", query=plain) or {}).get("result"),
            what=f"an answer to {plain}",
        )
    groups = wait_until(lambda: (ask(f"{address}/rules") or {}).get("groups"))
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == RULES.read_text().count("- alert:")
    assert not [rule for rule in rules if rule.get("lastError")]
