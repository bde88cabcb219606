"""benchmarks.page: figures of runs become the page of the documentation."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from benchmarks import page


def figure(value: float, unit: str = "ms", least: float | None = None) -> dict[str, Any]:
    return {
        "n": 2,
        "unit": unit,
        "min": value if least is None else least,
        "med": value,
        "p99": value,
        "max": value,
    }


def run(results: dict[str, Any], load: list[float], **others: Any) -> dict[str, Any]:
    machine = {"system": "Linux 6 x86_64", "cores": 2, "python": "3.11.7", "load": load}
    return {"at": "2026-11-19T02:00:00+0000", "machine": machine, "quick": False, "rounds": 2, "chosen": {},
            "versions": dict.fromkeys(results, "1"), "results": results} | others  # fmt: skip


SCALE = {
    "0: memory": figure(40, "MB"),
    "1000: submit": figure(0.1, "s"), "1000000: submit": figure(100, "s"),
    "1000: memory": figure(41, "MB"), "1000000: memory": figure(1040, "MB"),
    "1000: CPU of one more": figure(2.0), "1000000: CPU of one more": figure(4.0),
    "1000: queue of 20": figure(5.0), "1000000: queue of 20": figure(5.0),
    "1000: queue": figure(10.0), "1000000: queue": figure(10_000.0),
    "1000: idle CPU": figure(0.1, "%"),
}  # fmt: skip


def test_exponent_of_a_power_law_is_found() -> None:
    assert math.isclose(page.exponent([(n, 3 * n**0.5) for n in (10, 100, 1000)]), 0.5)
    assert abs(page.exponent([(10, 7.0), (1000, 7.0)])) < 1e-12
    assert math.isnan(page.exponent([(10, 7.0)]))


def test_growth_is_of_one_event_and_without_the_empty_daemon() -> None:
    curves = page.growth_curves(SCALE)
    assert curves["submit, per job"] == [(1000, 0.1), (1_000_000, 0.1)]
    assert curves["memory above the empty daemon, per job"] == [(1000, 1.0), (1_000_000, 1.0)]
    assert math.isclose(page.exponent(curves["gqueue, which lists all of them"]), 1.0)
    rows = list(page.growth_table(curves))
    assert "| CPU of one more job, daemon, ms | 2 | 4 | 0.10 | 2.0 |" in rows


def test_growth_by_gpus_is_a_table_of_its_own() -> None:
    by_gpus = {"1: info": figure(5.0), "1000: info": figure(20.0), "1: memory": figure(40, "MB")}
    results = {"ours": {"scale": SCALE, "gpus": by_gpus}}
    text = "\n".join(page.page(run(results, [0.2]), run(results, [0.2]), page.growth_curves(SCALE), None))
    assert "By the number of (simulated) GPUs:" in text and "| ginfo, ms | 5 | 20 | 0.20 | 4.0 |" in text


def test_page_has_circumstances_figures_and_commands() -> None:
    results = {"ours": {"gap": {"idle": figure(5.0, least=4.0)}}, "tsp": {"gap": {"idle": "n/a: no"}}}
    text = "\n".join(page.page(run(results, [0.2, 0.4]), None, {}, None))
    assert (
        "| | gflow |\n|---|---|\n| idle, ms | 5 (4) |" in text
        and "2026-11-19, Linux 6 x86_64, 2 cores" in text
    )
    assert "Repeat: `benchmarks/run -s ours,tsp -t gap --rounds 2`" in text
    assert "busy" not in text and "## Growth" not in text


def test_figures_of_a_busy_machine_are_marked() -> None:
    assert any("busy" in line for line in page.circumstances(run({}, [0.2, 13.0])))
    assert any("--quick" in line for line in page.circumstances(run({}, [0.2], quick=True)))


def test_curves_are_a_drawing_with_a_line_for_each() -> None:
    curves = page.growth_curves(SCALE)
    drawing = ElementTree.fromstring(page.draw(curves))
    lines = [one for one in drawing.iter("{http://www.w3.org/2000/svg}polyline") if one.get("fill") == "none"]
    assert len(lines) == len(curves) == 5


def test_a_system_has_a_column_where_it_has_a_figure() -> None:
    results = {
        "ours": {"gap": {"idle": figure(5.0), "never ended": "n/a: no"}, "limit": {"all": "n/a: no"}},
        "slurm": {"gap": {"idle": "n/a: slow", "never ended": figure(1, "jobs")}, "limit": {}},
        "tsp": {"gap": {"all": "n/a: tsp is not installed"}, "limit": {}},
    }
    rows = list(page.side_by_side(results))
    assert "| | gflow | Slurm |" in rows and "| idle, ms | 5 | - |" in rows
    assert not [row for row in rows if "limit" in row]


def test_waits_of_a_second_client_are_judged() -> None:
    row = {"took": 2000.0, "longest": 30.0, "p99": 10.0, "turn": 8.0}
    bulk = {"jobs": 20_000, "rows": {"array": row, "queue-all": row | {"longest": 70.0}}}
    rows = list(page.bulk_table(bulk))
    assert (
        "| submit an array of 20,000 | 2 | 30 | 10 | 8 |" in rows
        and "| `gqueue -a`, 20,000 rows | 2 | 70 | 10 | 8 |" in rows
    )
    assert (
        rows[-1]
        == "The longest wait of all is 70 ms (`gqueue -a`, 20,000 rows), not within the aim of 50 ms."
    )
    assert rows[1] == "Repeat: `benchmarks/run bulk --jobs 20000 -t array,queue-all`"


def test_copied_tables_are_those_of_the_documents() -> None:
    for one in page.POLICIES + page.MEMORY:
        lines = list(page.copied(one))
        table = [line for line in lines if line.startswith("|")]
        assert len(table) >= 4 and "\n".join(table) in (page.DOCS.parent / one.document).read_text()
        assert any(one.command in line for line in lines)
    (first,) = [one for one in page.POLICIES if one.title == "Other traces"]
    assert any(line.startswith("| HPC2N") for line in page.copied(first))


def test_rows_of_the_readme_have_the_medians_of_the_page() -> None:
    ours = {
        "cli": {"submit true": figure(5.0, least=1.0)}, "start": {"latency": figure(9.0)},
        "gap": {"idle": figure(4.0)}, "durable": {"lost of 200, blocked": figure(0, "jobs")},
        "throughput": {"rate": figure(500, "jobs/s") | {"more_is_better": True}},
        "timelimit": {"run time at 2 s": figure(1.98, "s")},
    }  # fmt: skip
    slurm = {"cli": {"submit true": figure(6.0)}, "durable": {"lost of 200, blocked": figure(200, "jobs")}}
    text = "\n".join(page.page(run({"ours": ours, "slurm": slurm}, [0.2]), None, {}, None))
    rows = list(page.readme_rows(text))
    assert rows[0] == "| submit a job by a command² | 5 ms | | 6 ms | | | |"
    assert "| jobs that do nothing, per second² | 500 | | | | | |" in rows
    assert "| acknowledged jobs lost by kill -9, of 200 waiting² | 0 | | 200 | | | |" in rows
    assert rows[-1] == "| run time of a job with a limit of 2 s² | 1.98 s | | | | | |"


def test_page_of_a_run_with_few_trials_has_no_rows_for_the_readme() -> None:
    text = "\n".join(page.page(run({"ours": {"gap": {"idle": figure(5.0)}}}, [0.2]), None, {}, None))
    with pytest.raises(LookupError, match="submit true"):
        list(page.readme_rows(text))


@pytest.mark.parametrize("one", [*page.POLICIES, *page.MEMORY], ids=lambda one: one.title)
def test_copied_table_equals_its_source(one: page.Copied) -> None:
    assert "\n".join(page.copied(one)) in (page.DOCS / "benchmarks.md").read_text()
