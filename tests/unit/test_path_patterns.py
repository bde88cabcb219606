"""Patterns of result files."""

from __future__ import annotations

import pytest

from gflow.targets.slurm.files.path_patterns import matcher
from gflow.targets.slurm.files.result_fetch import is_plain


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("runs/**", ["runs/a", "runs/a/b c"], ["runs", "x/runs/a", "runsy/a"]),
        ("runs", ["runs", "runs/a/b", "x/runs/a"], ["runsy", "my-runs"]),
        ("runs/", ["runs/a/b", "x/runs/a"], ["runsy"]),
        ("./out/x", ["out/x", "out/x/y"], ["a/out/x"]),
        ("*.csv", ["a.csv", "d/e/a.csv", "new\nline.csv"], ["a.csvx"]),
        ("out/*.pt", ["out/a.pt"], ["out/d/a.pt", "a.pt"]),
        ("out/**/*.pt", ["out/a.pt", "out/d/e/a.pt"], ["x/out/a.pt"]),
        ("**/best.pt", ["best.pt", "a/b/best.pt"], ["a/rest.pt"]),
        ("e?och[0-2].pt", ["epoch1.pt", "d/exoch0.pt"], ["epoch3.pt", "e/och1.pt"]),
        ("x[!a-c]", ["xd", "x]"], ["xa", "x/"]),
        ("a+(b).{1}", ["a+(b).{1}"], ["aab.1"]),
        ("[", ["["], ["x"]),
    ],
)
def test_patterns(pattern: str, matching: list[str], others: list[str]) -> None:
    matches = matcher([pattern])
    assert [path for path in matching if not matches(path.encode())] == []
    assert [path for path in others if matches(path.encode())] == []


def test_several_patterns_and_names_that_are_not_text() -> None:
    matches = matcher(["*.csv", "runs/**"])
    assert matches(b"a.csv") and matches(b"runs/\xff\n") and not matches(b"a.txt")


@pytest.mark.parametrize(
    "path", [b"", b"/etc/x", b"../x", b"a/../x", b"a//b", b".gflow-part/x", b"a/.gflow-part/b"]
)
def test_paths_that_leave_the_folder_are_refused(path: bytes) -> None:
    assert not is_plain(path)
    assert is_plain(b"a/..b/c")
