"""The forecast of a cluster for a waiting job, and the time limit for a cluster that does not answer."""

import asyncio
from types import SimpleNamespace

import pytest

from gflow.core.forecast.wait_report import WaitReport
from gflow.core.model import RemoteState
from gflow.daemon.execution import cluster_forecast
from gflow.daemon.loop.user_threads import Threads
from gflow.targets.slurm.commands.command_runner import CommandResult

from .builders import job

FOUND = WaitReport([], None, [])


class Mute:
    """A Slurm whose controller hangs; each question would take ten seconds."""

    def __init__(self):
        self.asked = []

    def start_of(self, id):
        self.asked.append("start")

    array_limit = 0

    def submit(self, *_, test):
        self.asked.append("submit")
        return CommandResult(False, "", "sbatch did not answer", True)

    def sizes(self):
        self.asked.append("sizes")
        return []


@pytest.mark.parametrize(("id", "asked"), [("17", ["start"]), ("", ["submit"])])
def test_cluster_is_asked_once(monkeypatch, id, asked):
    slurm = Mute()
    target = SimpleNamespace(
        slurm=slurm, cluster=None, folder=None, shared_folder=None, connection=SimpleNamespace(is_down=False)
    )
    monkeypatch.setattr(cluster_forecast, "slurm_of", lambda *_: target)
    monkeypatch.setattr(cluster_forecast, "remote_launch", lambda *_: None)
    monkeypatch.setattr(cluster_forecast, "preview_submission", lambda *_: SimpleNamespace(candidates=[None]))
    monkeypatch.setattr(cluster_forecast, "build_script", lambda *_: "")
    monkeypatch.setattr(cluster_forecast, "environment_of", lambda _: {})
    monkeypatch.setattr(cluster_forecast, "launch_there", lambda *_: SimpleNamespace(job=waiting))
    context = SimpleNamespace(target=None, settings=None, store=None, threads=Threads())
    waiting = job(1, target="slurm", remote=RemoteState(id=id))
    assert asyncio.run(cluster_forecast.add_cluster_forecast(context, waiting, FOUND)) is FOUND
    assert slurm.asked == asked
