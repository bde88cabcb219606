"""A submission whose answer was lost: how long it is tried again, and what people are told."""

from __future__ import annotations

import pytest

from gflow.client import retry
from gflow.errors import Unreachable

ANSWER = (201, b"", b"Submitted batch job 1\n")


class Daemon:
    """Comes back after some seconds of a clock that advances during a pause."""

    def __init__(self, back_after: float, away: Exception, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self._back_after, self._away = back_after, away
        patch.setattr(retry.time, "monotonic", lambda: self.now)
        patch.setattr(retry.time, "sleep", self._pass)

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    def ask(self) -> retry.Answer:
        if self.now < self._back_after:
            raise self._away
        return ANSWER


@pytest.mark.parametrize("away", [ConnectionRefusedError(), Unreachable(), ConnectionResetError()])
def test_a_daemon_that_went_away_with_the_answer_is_waited_for(
    away: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = Daemon(30.0, away, monkeypatch)
    assert retry.retry(daemon.ask, ConnectionResetError()) == ANSWER
    assert capsys.readouterr().err.count("waiting for the daemon") == 1


def test_daemon_stays_away_client_gives_up_with_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon = Daemon(1e9, ConnectionRefusedError(), monkeypatch)
    with pytest.raises(Unreachable, match="before it answered") as lost:
        retry.retry(daemon.ask, ConnectionResetError())
    assert "gqueue" in lost.value.hint
    assert 60.0 <= daemon.now < 62.0


def test_absent_daemon_is_waited_for_briefly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert retry.retry(Daemon(1.5, ConnectionRefusedError(), monkeypatch).ask, ConnectionRefusedError())
    daemon = Daemon(1e9, ConnectionRefusedError(), monkeypatch)
    with pytest.raises(ConnectionRefusedError):
        retry.retry(daemon.ask, ConnectionRefusedError())
    assert daemon.now < 3.0
    gone = Daemon(1e9, Unreachable(), monkeypatch)
    with pytest.raises(Unreachable):
        retry.retry(gone.ask, ConnectionRefusedError())
    assert not gone.now
    assert not capsys.readouterr().err


def test_waiting_for_several_jobs_counts_them(monkeypatch):
    from gflow.client import wait

    monkeypatch.setattr(
        wait,
        "wait_for",
        lambda job, timeout: {"id": job, "state": "Finished", "signal": None, "exit_code": 0},
    )
    counts = []
    wait.wait_for_all(["1", "2"], lambda done, total: counts.append((done, total)))
    assert counts == [(0, 2), (1, 2), (2, 2)]
