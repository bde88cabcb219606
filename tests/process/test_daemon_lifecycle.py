"""Start, stop and restart of a daemon, and access to its socket."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest

from tests.harness import BIN, Box, wait_until


def test_up_status_down(box: Box) -> None:
    assert box.run("gflowd", "status").returncode == 3
    assert "gflowd is running (PID: " in box.ok("gflowd", "up", "--simulate-gpus", "2x24G,1x80G")
    assert "already running" in box.ok("gflowd", "up")
    status = box.ok("gflowd", "status")
    assert "PID: " in status
    assert "GPUs: 3 (3 free), simulated" in status
    job = box.submit("sleep", "60")
    assert box.ok("gflowd", "down") == "gflowd is down; 1 running job continues\n"
    assert box.run("gqueue").returncode == 3
    box.ok("gflowd", "up")
    assert box.job(job)["state"] == "Running"
    assert box.ok("gflowd", "stop") == "gflowd is down; 1 running job continues\n"
    assert "gflowd is running (PID: " in box.ok("gflowd", "start")
    box.ok("gflowd", "down", "--kill-jobs")
    wait_until(lambda: box.processes() == [], what="the last shim to leave")


def test_a_second_daemon_on_the_same_folder_is_refused(daemon: Box) -> None:
    done = daemon.run("gflowd", "run")
    assert done.returncode == 1
    assert "already runs" in done.stderr
    assert f"pid {daemon.daemon.pid} " in done.stderr
    assert daemon.finished(daemon.submit("true"))["state"] == "Finished"


def test_two_daemons_in_two_homes_live_side_by_side(daemon: Box, tmp_path) -> None:
    other = Box(tmp_path / "other").up("--cpus", "1")
    try:
        assert other.submit("true") == 1
        assert daemon.submit("true") == 1
    finally:
        other.clean_up()


def test_jobs_outlive_a_stopped_daemon_and_are_adopted(daemon: Box) -> None:
    mark = daemon.work / "go"
    job = daemon.submit("--gpus", "2", f"while [ ! -e {mark} ]; do sleep 0.02; done; exit 11")
    wait_until(lambda: daemon.job(job)["state"] == "Running")
    daemon.down()
    daemon.up()
    assert daemon.job(job)["gpu_ids"] == [0, 1]
    mark.touch()
    assert daemon.finished(job)["exit_code"] == 11
    assert list((daemon.data / "run").iterdir()) == []


@pytest.mark.both_shims
def test_a_job_that_ended_while_no_daemon_ran_has_its_exit_code_and_end_time(daemon: Box) -> None:
    mark = daemon.work / "go"
    job = daemon.submit(f"while [ ! -e {mark} ]; do sleep 0.02; done; exit 12")
    wait_until(lambda: list((daemon.data / "run").iterdir()))
    daemon.kill9()
    mark.touch()
    record = daemon.data / f"run/{job}.1"
    wait_until(lambda: record.exists() and b"\nend " in record.read_bytes())
    ended_at = record.stat().st_mtime
    wait_until(lambda: time.time() > ended_at + 1)
    daemon.up()
    found = daemon.finished(job)
    assert found["exit_code"] == 12
    started, finished = (datetime.fromisoformat(found[f"{what}_at"]) for what in ("started", "finished"))
    assert finished.timestamp() == pytest.approx(ended_at, abs=0.9)
    assert found["ran_s"] == pytest.approx((finished - started).total_seconds(), abs=0.9)


def test_an_adopted_job_can_be_cancelled_and_times_out(daemon: Box) -> None:
    slow = daemon.submit("sleep", "60")
    limited = daemon.submit("--time", "0:02", "sleep", "60")
    wait_until(lambda: daemon.job(limited)["state"] == "Running")
    daemon.kill9()
    daemon.up()
    daemon.ok("gcancel", str(slow))
    assert daemon.finished(slow)["state"] == "Cancelled"
    assert daemon.finished(limited)["state"] == "Timeout"


def test_a_killed_shim_makes_the_job_lost_and_nothing_lives_on(daemon: Box) -> None:
    job = daemon.submit("--gpus", "1", "setsid sleep 71 & sleep 72")
    record = daemon.data / f"run/{job}.1"
    wait_until(lambda: record.exists() and b"\njob " in record.read_bytes())
    wait_until(lambda: len(daemon.processes()) >= 4)
    os.kill(int(record.read_text().split()[3]), 9)
    final = daemon.finished(job)
    assert (final["state"], final["reason"]) == ("Failed", "Lost")
    sleepers = subprocess.run(["pgrep", "-f", "^sleep 7[12]$"], capture_output=True, text=True).stdout.split()
    assert not {int(pid) for pid in sleepers} & set(daemon.processes())


def test_a_record_of_another_boot_is_a_reboot(daemon: Box) -> None:
    job = daemon.submit("sleep", "60")
    record = daemon.data / f"run/{job}.1"
    wait_until(lambda: record.exists() and b"\njob " in record.read_bytes())
    daemon.kill9()
    os.kill(int(record.read_text().split()[3]), 9)
    daemon._kill_everything()
    wait_until(lambda: not daemon.processes())
    lines = record.read_text().split("\n")
    lines[0] = lines[0].replace(lines[0].split()[1], "00000000-another-boot")
    record.write_text("\n".join(lines))
    daemon.up()
    assert daemon.finished(job)["reason"] == "Reboot"


def test_jobs_start_after_zygote_death(daemon: Box) -> None:
    daemon.finished(daemon.submit("true"))
    children = subprocess.run(
        ["pgrep", "-P", str(daemon.daemon.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    os.kill(int(children[0]), 9)
    ids = [daemon.submit("true") for _ in range(12)]
    assert {daemon.finished(job)["state"] for job in ids} == {"Finished"}


@pytest.mark.both_shims
def test_no_job_is_lost_by_the_death_of_the_zygote(daemon: Box) -> None:
    """Those that were to begin in that moment begin with the next one."""
    daemon.finished(daemon.submit("true"))
    for _ in range(3):
        family = Path(f"/proc/{daemon.daemon.pid}/task/{daemon.daemon.pid}/children")
        zygote = int(family.read_text().split()[0])
        with suppress(ProcessLookupError):  # the one killed before may not have been waited for yet
            os.kill(zygote, signal.SIGSTOP)
        ids = [daemon.submit("--cpus", "0", "sleep", "0.3") for _ in range(6)]
        with suppress(ProcessLookupError):
            os.kill(zygote, signal.SIGKILL)
        assert {daemon.finished(job)["reason"] for job in ids} == {None}


def test_files_are_private(daemon: Box) -> None:
    daemon.finished(daemon.submit("true"))
    for path in (daemon.data, *daemon.data.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
def test_another_user_is_refused(daemon: Box) -> None:
    script = (
        "import os,socket,sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(f'/proc/self/fd/{sys.argv[1]}/gflowd.sock')\n"
        "s.sendall(b'GET /jobs HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')\n"
        "print(s.recv(65536).decode().split()[1])\n"
    )
    # Even with the folder's modes out of the way, the kernel's word on the peer decides.
    (daemon.data / "gflowd.sock").chmod(0o666)
    folder = os.open(daemon.data, os.O_PATH)
    daemon.data.chmod(0o755)
    for parent in list(daemon.data.parents)[:8]:
        if parent.stat().st_uid == os.getuid() and str(parent).startswith("/tmp/pytest"):
            parent.chmod(0o755)
    done = subprocess.run(
        ["python3", "-c", script, str(folder)], pass_fds=[folder], capture_output=True, text=True
    )
    os.close(folder)
    assert done.stdout.strip() == "403", done.stderr


def test_a_daemon_that_was_killed_is_said_and_its_jobs_go_on(daemon: Box) -> None:
    job = daemon.submit("until test -e go; do sleep 0.02; done; touch gone; exit 7")
    wait_until(lambda: daemon.job(job)["state"] == "Running")
    daemon.kill9()
    for words in (["gqueue"], ["gbatch", "true"], ["gjob", "show", str(job)]):
        done = daemon.run(*words)
        assert (done.returncode, "is not running" in done.stderr) == (3, True), words
    (daemon.work / "go").touch()
    wait_until((daemon.work / "gone").exists)
    daemon.up()
    assert daemon.finished(job)["exit_code"] == 7


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has GPUs")
def test_start_without_gpus_names_the_next_commands(box: Box) -> None:
    hint = "gflowd restart --simulate-gpus 4x80G"
    assert hint in box.ok("gflowd", "up")
    assert hint not in box.ok(*hint.split())
    box.ok("gflowd", "down")


def test_clients_live_through_a_restart(box: Box) -> None:
    box.ok("gflowd", "up", "--cpus", "3")
    waiting = subprocess.Popen(
        [BIN / "gbatch", "--wait", "sleep 2; exit 7"], env=box.env, cwd=box.work, stdout=-3
    )
    wait_until(lambda: box.jobs())
    for command in ("restart", "reload"):
        restart = subprocess.Popen([BIN / "gflowd", command], env=box.env, stdout=-3)
        for _ in range(4):
            box.submit("true")
        assert restart.wait(30) == 0
    assert waiting.wait(30) == 7
    assert json.loads(box.ok("gflowd", "status", "--json"))["cpu_total"] == 3
    box.ok("gflowd", "down", "--kill-jobs")


def test_kill_jobs_leaves_what_waits(box: Box) -> None:
    box.ok("gflowd", "up", "--simulate-gpus", "1x8G")
    running = box.submit("--gpus", "1", "sleep", "60")
    waiting = box.submit("--gpus", "1", "true")
    held = box.submit("--hold", "true")
    box.ok("gflowd", "down", "--kill-jobs")
    box.up("--simulate-gpus", "1x8G")
    assert box.job(running)["state"] == "Cancelled"
    assert box.finished(waiting)["state"] == "Finished"
    assert box.job(held)["state"] == "Hold"


def test_the_stop_file_survives_a_restart(daemon: Box) -> None:
    job = daemon.submit("--grace", "60", "trap '' TERM; echo up; while sleep 0.05; do :; done")
    wait_until(lambda: daemon.text_of(job) == "up\n")
    daemon.ok("gcancel", str(job))
    stop = daemon.data / f"run/{job}.1.stop"
    wait_until(stop.exists)
    daemon.kill9()
    daemon.up()
    assert stop.exists()
    daemon.ok("gcancel", "--now", str(job))
    assert daemon.finished(job)["state"] == "Cancelled"


def test_closed_wait_connections_are_freed(daemon: Box) -> None:
    job = daemon.submit("sleep", "60")
    before = len(os.listdir(f"/proc/{daemon.daemon.pid}/fd"))
    for _ in range(5):
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run([BIN / "gjob", "wait", str(job)], env=daemon.env, timeout=0.4)
    wait_until(lambda: len(os.listdir(f"/proc/{daemon.daemon.pid}/fd")) <= before + 1)


def test_job_due_while_daemon_was_down_starts_once(daemon: Box) -> None:
    job = daemon.submit("--begin", "now+1s", "echo x")
    daemon.down()
    daemon.up()
    assert daemon.finished(job)["state"] == "Finished"
    assert daemon.text_of(job) == "x\n"
    assert "taken" not in daemon.log()


def test_up_says_what_the_daemon_found(box: Box) -> None:
    page = box.ok("gflowd", "up", "--simulate-gpus", "2x80G,1x24G", "--cpus", "3")
    assert "3 GPUs (2 Simulated 80 GB, 1 Simulated 24 GB), 3 CPU slots, " in page
    assert page.splitlines()[1].endswith(" GiB memory")


def test_gbatch_wait_says_how_a_job_ended(box: Box) -> None:
    box.up()
    done = box.run("gbatch", "--wait", "exit 3")
    assert (done.returncode, done.stderr) == (3, "gbatch: job 1 ended as Failed: ExitCode:3\n")
    assert box.run("gbatch", "--wait", "true").stderr == ""
