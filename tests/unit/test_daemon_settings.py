"""From a configuration to the settings of the daemon."""

from __future__ import annotations

import asyncio

import pytest

from gflow.core.state.state import State
from gflow.daemon.monitors.gpu_monitor import GpuWatch, WatchedRuns, watch_of
from gflow.daemon.settings import settings_for
from gflow.errors import UsageError
from gflow.gpu.owners import Owners


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("asked", "look_s", "patience_s"), [("", 1, 10), ("3", 3, 10), ("60", 60, 120)])
def test_the_gpus_are_looked_at_as_often_as_asked(asked, look_s, patience_s):
    settings = settings_for({"gpu-poll-interval-secs": asked} if asked else {})

    async def made() -> GpuWatch:
        state = State(cpus=1, memory_mib=1)
        return watch_of(
            settings,
            state,
            Owners(str(settings.run_dir)),
            lambda report: None,
            lambda one, used: None,
            lambda: WatchedRuns({}, ()),
            lambda report, watched: None,
        )

    watch = asyncio.run(made())
    assert (watch._look_s, watch._patience_s) == (look_s, patience_s)


def test_flags_reach_the_policy():
    settings = settings_for(
        {"simulate-gpus": "4x80G", "gpus": "1-2", "gpu-allocation-strategy": "pack", "cpus": "3"}
    )
    assert (settings.policy.gpus, settings.policy.gpus_win) == (frozenset({1, 2}), True)
    assert (settings.policy.strategy, settings.cpus) == ("pack", 3)


def test_a_gpu_that_was_typed_must_be_there():
    with pytest.raises(UsageError, match="there is no GPU 4 here"):
        settings_for({"simulate-gpus": "4x80G", "gpus": "0-4"})
