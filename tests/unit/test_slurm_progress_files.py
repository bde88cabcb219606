"""Progress reports of jobs on a cluster, from the file of a run."""

from __future__ import annotations

import json

from gflow.ml.train import progress
from gflow.ml.train.progress import Reporter
from gflow.targets.slurm.progress_files import EVERY_S, ProgressFiles


def test_lines_are_read_once_and_when_they_are_complete(tmp_path):
    files, path = ProgressFiles(tmp_path), tmp_path / "42.1.progress"
    assert files.read("42.1") == []
    path.write_bytes(b"a\nb\nc")
    assert files.read("42.1") == [b"a", b"b"]
    path.write_bytes(b"a\nb\nc\n")
    assert files.read("42.1") == [b"c"]
    path.write_bytes(b"d\n")
    assert files.read("42.1") == [b"d"], "it was emptied"


def test_files_are_read_every_few_seconds(tmp_path):
    clock = [100.0]
    files, path = ProgressFiles(tmp_path, lambda: clock[0]), tmp_path / "42_3.1.progress"
    path.write_bytes(b"a\n")
    assert files.read_due(["42_3.1", "43.1"]) == [b"a"]
    path.write_bytes(b"a\nb\n")
    assert files.read_due(["42_3.1"]) == []
    clock[0] += EVERY_S
    assert files.read_due(["42_3.1"]) == [b"b"]


def test_a_reporter_appends_to_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "MOST_BYTES", 300)
    told = {"GFLOW_PROGRESS": str(tmp_path / "42.1.progress"), "GFLOW_JOB_ID": "42", "GFLOW_ATTEMPT": "1"}
    files, reporter, found = ProgressFiles(tmp_path), Reporter(told), []
    for step in range(1, 9):
        reporter.note(step, final=True)
        found += [json.loads(line) for line in files.read("42.1")]
    assert [(one["job"], one["attempt"], one["step"]) for one in found] == [("42", 1, n) for n in range(1, 9)]
    assert (tmp_path / "42.1.progress").stat().st_size < 400
