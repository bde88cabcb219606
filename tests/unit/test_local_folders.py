"""Folders of the local target that are removed while the daemon runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gflow.targets.local.target import LocalTarget


@pytest.fixture
def target(tmp_path: Path) -> LocalTarget:
    for name in ("run", "jobs"):
        (tmp_path / name).mkdir()
    return LocalTarget(tmp_path / "run", lambda ended: None, tmp_path / "jobs")


@pytest.mark.parametrize(("name", "mode"), [("run", 0o700), ("jobs", 0o711)])
def test_removed_folder_is_recreated_before_a_start(
    target: LocalTarget, tmp_path: Path, name: str, mode: int
) -> None:
    (tmp_path / name).rmdir()
    target._make_folders()
    assert (tmp_path / name).stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("name", ["run", "jobs"])
def test_file_in_the_place_of_a_folder_refuses_a_start(
    target: LocalTarget, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).rmdir()
    (tmp_path / name).touch()
    with pytest.raises(FileExistsError):
        target._make_folders()
