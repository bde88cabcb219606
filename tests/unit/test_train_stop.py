"""Stop requests of a process: TERM, the stop file, the limit; other handlers are left alone."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from gflow.ml.train.stop import Stop, boot_s


@pytest.fixture
def own_term():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_term_requests_a_stop(own_term):
    stop = Stop(environ={}).listen()
    assert not stop.is_asked
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.is_asked and stop.reason == "TERM"


def test_earlier_term_handler_is_called(own_term):
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    stop = Stop(environ={}).listen()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.is_asked and heard == [signal.SIGTERM]
    stop.close()
    os.kill(os.getpid(), signal.SIGTERM)
    assert len(heard) == 2


def test_a_later_handler_is_not_undone(own_term):
    stop = Stop(environ={}).listen()
    later = lambda number, frame: None  # noqa: E731
    signal.signal(signal.SIGTERM, later)
    stop.close()
    assert signal.getsignal(signal.SIGTERM) is later


def test_signals_that_others_use_are_left_alone(own_term):
    before = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)]
    Stop(environ={}).listen()
    assert before == [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)]


def test_elsewhere_than_in_the_main_thread_the_stop_file_must_do(tmp_path):
    stop = Stop(environ={"GFLOW_STOP_FILE": str(tmp_path / "stop")})
    thread = threading.Thread(target=stop.listen)
    thread.start()
    thread.join()
    assert not stop.is_listening and not stop.is_asked
    (tmp_path / "stop").touch()
    assert stop.is_asked and stop.reason == "stop file"


@pytest.mark.parametrize(
    ("left_s", "margin_s", "requeue", "asked"),
    [
        (100, None, "1", False),
        (4, None, "1", True),
        # Without --requeue, stopping early would only waste the time that is left.
        (4, None, "0", False),
        (4, 10, "0", True),
        (4, 1, "1", False),
        (-5, None, "1", True),
    ],
)
def test_the_limit_comes_near(left_s, margin_s, requeue, asked):
    told = {"GFLOW_DEADLINE": str(boot_s() + left_s), "GFLOW_REQUEUE": requeue}
    stop = Stop(margin_s, told)
    assert stop.is_asked is asked
    assert stop.reason == ("time limit" if asked else "")


def test_slow_saves_need_more_time():
    stop = Stop(environ={"GFLOW_DEADLINE": str(boot_s() + 60), "GFLOW_REQUEUE": "1"})
    assert not stop.is_asked
    stop.record_duration(40.0)
    assert stop.is_asked


def test_limit_in_wall_clock_time():
    told = {"GFLOW_END_TIME": str(int(time.time()) + 3), "SLURM_JOB_END_TIME": str(time.time() + 3)}
    assert Stop(environ=told | {"GFLOW_REQUEUE": "1"}).is_asked
    assert Stop(4, told).is_asked
    assert not Stop(environ=told).is_asked, "a job that is not requeued uses its full time"


def test_slurms_limit():
    assert Stop(environ={"SLURM_JOB_END_TIME": str(time.time() + 2)}).is_asked
    assert not Stop(environ={"SLURM_JOB_END_TIME": str(time.time() + 200)}).is_asked
    assert not Stop(environ={"SLURM_JOB_END_TIME": "soon"}).is_asked


def test_the_first_reason_stays(own_term):
    stop = Stop(environ={}).listen()
    stop.ask("diverged")
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.reason == "diverged"
