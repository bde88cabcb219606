"""A job's log: where it is, what is in it, and how it is read."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gflow.targets.local.shim.log_rotation import remove_beginning
from tests.harness import BIN, Box, wait_until

pytestmark = pytest.mark.both_shims


@contextmanager
def follow(box: Box, job: int, into: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    with into.open("wb") as file:
        reader = subprocess.Popen(
            [BIN / "gjob", "log", "-f", *words, str(job)], env=box.env, cwd=box.work, stdout=file
        )
    try:
        yield reader
    finally:
        reader.kill()
        reader.wait()


# ---------------------------------------------------------------- follow


def test_follow_goes_on_across_attempts_and_restarts(daemon: Box) -> None:
    go, seen = daemon.work / "go", daemon.work / "seen"
    job = daemon.submit(
        "--max-retries",
        "2",
        "--retry-delay",
        "0",
        f"echo try $GFLOW_ATTEMPT; while [ ! -e {go}$GFLOW_ATTEMPT ]; do sleep 0.02; done; exit 1",
    )
    with follow(daemon, job, seen) as reader:
        wait_until(lambda: seen.read_text() == "try 1\n")
        (daemon.work / "go1").touch()
        wait_until(lambda: seen.read_text().endswith("try 2\n"))
        daemon.kill9()
        daemon.up()
        (daemon.work / "go2").touch()
        wait_until(lambda: seen.read_text().endswith("try 3\n"))
        assert reader.poll() is None
        (daemon.work / "go3").touch()
        assert reader.wait(20) == 0
    assert seen.read_text() == "try 1\ngflow: attempt 2\ntry 2\ngflow: attempt 3\ntry 3\n"


def test_follow_waits_for_a_job_that_waits(daemon: Box) -> None:
    seen = daemon.work / "seen"
    job = daemon.submit("--hold", "echo here")
    with follow(daemon, job, seen) as reader:
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(0.5)
        daemon.ok("gjob", "release", str(job))
        assert reader.wait(20) == 0
    assert seen.read_text() == "here\n"


WRITER = """import time
for burst in range(30):
    for number in range(10_000):
        print(f"{burst:03}{number:06}")
    time.sleep(0.2)
"""


def _cuts_without_loss(folder: Path) -> bool:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(1 << 16))
        file.flush()
        return remove_beginning(file.fileno(), 1 << 15)


def test_follow_across_rotation_is_complete(box: Box) -> None:
    """Three megabytes under a cap of one."""
    if not _cuts_without_loss(box.root):
        pytest.skip("this file system cannot remove the beginning of a file: lines written then are lost")
    box.up("--cpus", "2", env={"GFLOW_LOGS__CAP_MIB": "1"})
    (box.work / "writer.py").write_text(WRITER)
    seen = box.work / "seen"
    job = box.submit("python3", "writer.py", env={"PYTHONUNBUFFERED": ""})
    with follow(box, job, seen) as reader:
        box.finished(job, 60)
        assert reader.wait(20) == 0
    expected = [f"{burst:03}{number:06}" for burst in range(30) for number in range(10_000)]
    assert (box.data / f"logs/{job}.log.1").exists(), "it was never cut"
    assert seen.read_text().split() == expected


def test_follow_may_begin_near_the_end(daemon: Box) -> None:
    job = daemon.submit("seq 5")
    daemon.finished(job)
    assert daemon.ok("gjob", "log", "-f", "--last", "2", str(job)) == "4\n5\n"
    for words in (["--first", "1", "-f"], ["--first", "1", "--last", "1"]):
        done = daemon.run("gjob", "log", *words, str(job))
        assert (done.returncode, done.stdout) == (2, "")
        assert "do not go together" in done.stderr


def test_a_reader_that_has_seen_enough_ends_quietly(daemon: Box) -> None:
    job = daemon.submit("seq 100000")
    daemon.finished(job)
    done = subprocess.run(
        ["bash", "-c", f"{BIN}/gjob log {job} | head -1; {BIN}/gjob log -f {job} | head -1"],
        env=daemon.env, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("1\n1\n", "")


def test_an_array_has_no_log_of_its_own(daemon: Box) -> None:
    job = daemon.submit("--array", "4-5", "echo $GFLOW_ARRAY_TASK_ID")
    daemon.finished(job)
    done = daemon.run("gjob", "log", str(job))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"gjob log {job}_4" in done.stderr
    assert daemon.ok("gjob", "log", f"{job}_5") == "5\n"


# ---------------------------------------------------------------- huge and odd


def measured(box: Box, *words: str) -> tuple[int, int]:
    """The size of what a command printed, and its peak memory in KiB."""
    out = box.root / "printed"
    with out.open("wb") as file:
        reader = subprocess.Popen([BIN / words[0], *words[1:]], env=box.env, stdout=file)
        _, status, usage = os.wait4(reader.pid, 0)
        reader.returncode = os.waitstatus_to_exitcode(status)
    assert reader.returncode == 0
    return out.stat().st_size, usage.ru_maxrss


def test_a_line_of_100_megabytes_is_harmless(daemon: Box) -> None:
    size = 100_000_000
    job = daemon.submit(f"echo first; head -c {size} /dev/zero; echo; echo last")
    assert daemon.finished(job)["state"] == "Finished"
    usual = measured(daemon, "gjob", "show", str(job))[1]
    for words, expected in (
        ([], size + 12),
        (["-f"], size + 12),
        (["--last", "2"], size + 6),
        (["--first", "2"], size + 7),
        (["--last", "1"], 5),
    ):
        printed, memory = measured(daemon, "gjob", "log", *words, str(job))
        assert printed == expected, words
        assert memory < usual + 20_000, words


def test_bytes_that_are_no_text_come_out_as_they_went_in(daemon: Box) -> None:
    job = daemon.submit(r"printf '\377\0\r\033[2J\200\n'")
    daemon.finished(job)
    done = subprocess.run([BIN / "gjob", "log", str(job)], env=daemon.env, capture_output=True)
    assert done.stdout == b"\xff\0\r\x1b[2J\x80\n"


# ---------------------------------------------------------------- places


def test_folders_of_logs_are_made(daemon: Box) -> None:
    job = daemon.submit("--output", "deep/er/%j.out", "--error", "else/where/%j.err", "echo a; echo b >&2")
    assert daemon.finished(job)["state"] == "Finished"
    assert (daemon.work / f"deep/er/{job}.out").read_text() == "a\n"
    assert (daemon.work / f"else/where/{job}.err").read_text() == "b\n"


@pytest.mark.parametrize("option", ["--output", "--error"])
@pytest.mark.parametrize(
    ("place", "why"),
    [("file/log", "Not a directory"), ("folder", "Is a directory"), ("/proc/nowhere/log", "No such file")],
)
def test_a_log_that_cannot_be_is_the_reason(daemon: Box, option: str, place: str, why: str) -> None:
    (daemon.work / "file").touch()
    (daemon.work / "folder").mkdir()
    final = daemon.finished(daemon.submit(option, place, "touch ran"))
    assert final["state"] == "Failed"
    assert final["reason"].startswith("StartFailed: ")
    assert why in final["reason"] and place in final["reason"]
    assert not (daemon.work / "ran").exists()


def test_a_line_for_each_further_attempt_and_only_one(daemon: Box) -> None:
    """Also when the attempt cannot even start."""
    again = daemon.submit("--max-retries", "1", "--retry-delay", "0", "echo x; exit 1")
    daemon.finished(again)
    assert daemon.text_of(again) == "x\ngflow: attempt 2\nx\n"
    broken = daemon.submit(
        "--max-retries", "1", "--retry-delay", "0", "--chdir", str(daemon.work), "./gone", "now"
    )
    daemon.finished(broken)
    could_not = f"gflow: the job could not start: No such file or directory: {daemon.work}/./gone\n"
    assert daemon.text_of(broken) == could_not + "gflow: attempt 2\n" + could_not


def test_output_is_seen_when_it_is_printed(daemon: Box) -> None:
    line = 'echo "[$PYTHONUNBUFFERED]"'
    for env, expected in (
        ({}, "[1]\n"),
        ({"PYTHONUNBUFFERED": ""}, "[]\n"),
        ({"PYTHONUNBUFFERED": "x"}, "[x]\n"),
    ):
        job = daemon.submit(line, env=env)
        daemon.finished(job)
        assert daemon.text_of(job) == expected
    script = "import time; print('now'); time.sleep(60)"
    job = daemon.submit(sys.executable, "-c", script)
    wait_until(lambda: daemon.text_of(job) == "now\n")


def test_the_log_of_a_job_that_has_not_started_says_so(box: Box) -> None:
    box.up()
    job = box.submit("--hold", "true")
    done = box.run("gjob", "log", str(job))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"gjob: job {job} has not started: JobHeldUser\n"
