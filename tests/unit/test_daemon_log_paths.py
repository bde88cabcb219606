"""Paths of the output files of jobs: patterns of Slurm."""

from __future__ import annotations

import pytest

from gflow.daemon.execution.log_paths import expand
from tests.unit.builders import job


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("%A_%a", "80_7"),
        ("%05A_%03a_%j", "00080_007_80_7"),
        ("%%03a-%3x-%99a", "%03a-n-0000000007"),
    ],
)
def test_numbers_are_padded(pattern, path):
    assert expand(pattern, job(80, task=7, cwd="/w", name="n")) == f"/w/{path}"
