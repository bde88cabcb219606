"""Efficiency of ended jobs, parsed from the output of sacct, and its page."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.targets.slurm.commands.efficiency import FORMAT, parse_efficiency
from gflow.text.usage import cluster_usage_csv, cluster_usage_page
from gflow.wire.answers.job_details import UsageAnswer

# JobID, ElapsedRaw, AllocCPUS, AllocTRES, TotalCPU, MaxRSS, TRESUsageInAve.
TWO_STEPS = """\
17|600|8|billing=8,cpu=8,gres/gpu=2,mem=16000M,node=2|01:00:00||
17.batch|600|4|cpu=4,gres/gpu=1,mem=8000M,node=1|00:00.500|12.50M|cpu=00:00:00,mem=12M
17.0|590|8|cpu=8,gres/gpu=2,mem=16000M,node=2|00:59:59|3000M|cpu=01:00:00,gres/gpuutil=87,mem=2900M
"""


def test_usage_of_all_steps_is_compared_with_the_allocation() -> None:
    found = parse_efficiency(TWO_STEPS)
    assert found is not None
    assert msgspec.structs.asdict(found) == {
        "elapsed_s": 600,
        "nodes": 2,
        "cpus": 8,
        "cpu_time_s": 3600.0,
        "cpu_percent": 75.0,
        "peak_task_mib": 3000,
        "memory_mib": 16000,
        "gpus": 2,
        "gpu_percent": 87.0,
    }
    answer = UsageAnswer(job=17, predicted_mib=None, samples=[], totals=[], nodes=None, ended=found)
    page = cluster_usage_page(answer)
    assert page.splitlines()[1].split() == "00:10:00 2 8 01:00:00 75% 3000 of 16000 MiB 2 (87% busy)".split()
    heads, row = cluster_usage_csv(answer).splitlines()
    assert heads.startswith("elapsed_s,nodes,cpus,") and row == "600,2,8,3600.0,75.0,3000,16000,2,87.0"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("00:01.250", 1.25), ("02:03", 123), ("01:02:03", 3723), ("2-01:00:00", 176400), ("", 0), ("x", 0)],
)
def test_cpu_time_is_read_in_every_form(text: str, seconds: float) -> None:
    found = parse_efficiency(f"17|10|1|cpu=1|{text}||")
    assert found is not None and found.cpu_time_s == seconds


def test_unrecorded_figures_are_null() -> None:
    found = parse_efficiency("17_3|0|1||00:00:00||\n17_3.batch|0|1||00:00:00||")
    assert found is not None
    assert (found.cpu_percent, found.peak_task_mib, found.memory_mib, found.gpu_percent) == (None,) * 4
    assert (found.nodes, found.gpus) == (0, 0)
    found = parse_efficiency("17|10|1|node=inf,gres/gpu=x|00:01||\n17.0|10|1||00:01|nanM|")
    assert found is not None and (found.nodes, found.gpus, found.peak_task_mib) == (0, 0, None)


@given(st.one_of(st.text(), st.lists(st.text("0|:-.,=MG\n"), min_size=7, max_size=7).map("|".join)))
def test_any_output_is_parsed_without_an_error(text: str) -> None:
    parse_efficiency(text)


def test_number_of_fields_is_that_of_the_format() -> None:
    assert FORMAT.count(",") == TWO_STEPS.splitlines()[0].count("|")
