"""Which folder of a job is sent to its cluster, and its snapshot at submission."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gflow.core.model import Spec
from gflow.daemon.execution.project_files import SnapshotTaker, with_files
from gflow.errors import Refused, UsageError
from gflow.targets.slurm.settings import Cluster, clusters_of, limit_mib


def settings_of(folder: Path, **keys: Any) -> Any:
    return SimpleNamespace(
        clusters={"hpc": Cluster(**keys), "plain": Cluster()}, snapshots=folder / "snapshots"
    )


def spec(cwd: str, **fields: Any) -> Spec:
    return Spec(command=("true",), cwd=cwd, **fields)


@pytest.mark.parametrize(
    ("setting", "fields", "sent"),
    [
        (".", {"on": "hpc"}, "/a/b"),
        (".", {"overflow": "hpc"}, "/a/b"),
        ("..", {"on": "hpc"}, "/a"),
        ("/a", {"on": "hpc"}, "/a"),
        ("/", {"on": "hpc"}, "/"),
        ("", {"on": "hpc"}, ""),
        (".", {"on": "hpc", "no_sync": True}, ""),
        (".", {"on": "hpc", "sync": "../"}, "/a"),
        (".", {"on": "plain"}, ""),
        (".", {}, ""),
    ],
)
def test_folder_that_is_sent(tmp_path: Path, setting: str, fields: dict[str, Any], sent: str) -> None:
    assert with_files(settings_of(tmp_path, sync=setting), spec("/a/b", **fields)).sync == sent


def test_folder_that_does_not_have_the_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="'/a/b' is not in the folder that is sent, '/a/b/src'"):
        with_files(settings_of(tmp_path), spec("/a/b", on="hpc", sync="src"))


def test_outputs_of_a_job_replace_those_of_its_target(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, outputs=("runs/**",))
    assert with_files(settings, spec("/a", on="hpc")).outputs == ("runs/**",)
    assert with_files(settings, spec("/a", on="hpc", outputs=("*.csv",))).outputs == ("*.csv",)


def test_jobs_of_one_submission_share_a_snapshot_for_each_target(tmp_path: Path) -> None:
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj/a").write_text("a")
    folder = str(tmp_path / "proj")
    takes = SnapshotTaker(settings_of(tmp_path))
    first = asyncio.run(takes.attach(spec(folder, on="hpc", sync=folder)))
    second = asyncio.run(takes.attach(spec(folder, on="hpc", sync=folder)))
    other = asyncio.run(takes.attach(spec(folder, on="plain", sync=folder)))
    assert first.snapshot == second.snapshot != other.snapshot
    for fields in ({}, {"on": "gone"}):
        assert asyncio.run(takes.attach(spec(folder, sync=folder, **fields))).snapshot == ""
    assert takes.known(spec(folder, on="hpc", sync=folder)).snapshot == first.snapshot


def test_settings_of_a_target_are_checked() -> None:
    assert limit_mib(Cluster()) == 200
    table = {"type": "slurm", "sync": ".", "sync_limit": "2G", "outputs": ["runs/**"], "sync_links": True}
    assert limit_mib(clusters_of({"hpc": table}, "gflow.toml")["hpc"]) == 2048
    for key, value in {"sync_limit": "much", "outputs": ["/etc/*"]}.items():
        with pytest.raises(UsageError, match=rf"gflow.toml: targets.hpc.{key}: "):
            clusters_of({"hpc": table | {key: value}}, "gflow.toml")
