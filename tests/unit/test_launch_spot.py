"""Spot notices of three clouds, from a metadata server of our own; a notice is a stop request."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from gflow.cloud import Aws, Azure, Gcp, ServiceSilent, responding_clouds, watch


@pytest.mark.parametrize("cloud", [Aws, Gcp, Azure])
def test_a_notice_is_heard(metadata, cloud):
    asked = cloud(metadata.base)
    assert asked.look() is None and asked.look() is None
    metadata.take(100)
    notice = asked.look()
    assert notice.cloud == asked.name and notice.left_s is not None
    assert 20 < notice.left_s <= 101
    assert metadata.tokens == (1 if cloud is Aws else 0), "a token is good for hours"


def test_silent_metadata_service():
    with pytest.raises(ServiceSilent):
        Aws("http://127.0.0.1:9").look()
    assert responding_clouds({"aws": "http://127.0.0.1:9"}) == []


def test_a_service_that_fails_for_a_while_is_asked_again(metadata):
    cloud = Gcp(metadata.base)
    answers = iter([ServiceSilent("slow"), ValueError("odd"), None])
    real = cloud.look

    def look():
        answer = next(answers, None)
        if answer is not None:
            raise answer
        return real()

    cloud.look = look
    metadata.take(0)
    assert watch([cloud], lambda seconds: False, 0).cloud == "gcp"
    assert watch([Gcp("http://127.0.0.1:9")], lambda seconds: True, 0) is None


SCRIPT = """
import os, signal, sys, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
print("ready", flush=True)
while not heard: time.sleep(0.01)
print("stop file" if os.path.exists(os.environ["GFLOW_STOP_FILE"]) else "none", flush=True)
sys.exit(75)
"""


def spot(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gflow", "spot", "watch", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_gets_the_stop_contract(metadata):
    process = spot(
        "--cloud", f"aws={metadata.base}", "--every", "1", "--", sys.executable, "-S", "-c", SCRIPT
    )
    assert process.stdout.readline() == "ready\n"
    metadata.take()
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (75, "stop file\n")
    assert "aws will reclaim this machine in 1" in err


def test_without_a_cloud_the_command_just_runs():
    process = spot("--cloud", "aws=http://127.0.0.1:9", "--", "bash", "-c", "exit 3")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 3 and "no metadata service answers" in err


def test_term_goes_to_the_command():
    process = spot("--cloud", "gcp=http://127.0.0.1:9", "--", sys.executable, "-S", "-c", SCRIPT)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 75


@pytest.mark.parametrize("words", [["--cloud", "awz", "--", "true"], ["--"], ["--", "no-such-program"]])
def test_bad_spot_options_are_refused(words):
    process = spot(*words)
    process.communicate(timeout=20)
    assert process.returncode == 2
