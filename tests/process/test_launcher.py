"""The daemon for all users as two processes: root's launcher and a scheduler without rights."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from gflow.daemon.process import scheduler_account
from gflow.privileged import remote
from gflow.privileged.link import Link
from gflow.privileged.port import ProcessFacts
from gflow.privileged.remote import RemoteOwners
from gflow.targets.local.run_record import start_time
from tests.harness import wait_until
from tests.process.test_system_mode import process_of, status_of
from tests.system import System, system
from tests.user_accounts import reaching_us

NO_RIGHTS = "0" * 16


@pytest.fixture
def machine() -> Iterator[System]:
    with system() as made:
        yield made.up()


def test_scheduler_has_no_rights(machine: System) -> None:
    account = scheduler_account.find()
    status = status_of(machine.box.scheduler_pid())
    assert status["Uid"] == " ".join([str(account.pw_uid)] * 4) and account.pw_uid != 0
    assert status["Gid"] == " ".join([str(account.pw_gid)] * 4)
    assert status["Groups"] == str(account.pw_gid)
    assert {status[name] for name in status if name.startswith("Cap")} == {NO_RIGHTS}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_clients_find_root_at_the_socket(machine: System) -> None:
    """Also after a reload: a client trusts a socket of root's only."""
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(machine.box.socket)
            peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            assert struct.unpack("3i", peer)[1] == 0
        machine.box.ok("gflowd", "reload")


@pytest.mark.parametrize("victim", ["scheduler", "launcher", "both"])
def test_jobs_survive_the_kill_of_either_process(machine: System, victim: str) -> None:
    running = machine.ann.submit("sleep 4; exit 3")
    waiting = machine.bob.submit("--dependency", f"afterany:{running}", "exit 5")
    pid = process_of(machine, running)[1]
    launcher, scheduler = machine.box.daemon, machine.box.scheduler_pid()
    assert launcher is not None
    for one in {"scheduler": [scheduler], "launcher": [launcher.pid], "both": [launcher.pid, scheduler]}[
        victim
    ]:
        with suppress(ProcessLookupError):  # it has ended with the other
            os.kill(one, signal.SIGKILL)
    launcher.wait(20)
    wait_until(lambda: start_time(scheduler) is None, what="the end of the scheduler")
    assert start_time(pid) is not None
    machine.up()
    assert machine.box.finished(running)["exit_code"] == 3
    assert machine.box.finished(waiting)["exit_code"] == 5


def test_scheduler_that_is_killed_is_replaced_and_no_client_is_refused() -> None:
    with system() as machine:
        machine.box.program = [sys.executable, str(Path(__file__).with_name("unsteady_daemon.py"))]
        machine.up()
        job = machine.ann.submit("sleep 4; exit 3")
        pid = process_of(machine, job)[1]
        killed = machine.box.scheduler_pid()
        os.kill(killed, signal.SIGKILL)
        assert f"\n{job} " in "\n" + machine.ann.ok("gqueue", "-f", "JOBID,ST"), "it waited for the next one"
        assert machine.box.scheduler_pid() != killed and start_time(pid) is not None
        assert machine.box.finished(job)["exit_code"] == 3


def test_reload_replaces_both_and_keeps_jobs(machine: System) -> None:
    job = machine.ann.submit("sleep 3; exit 4")
    process_of(machine, job)
    before = machine.box.scheduler_pid()
    machine.box.ok("gflowd", "reload")
    assert machine.box.scheduler_pid() != before
    assert (
        machine.box.daemon is not None
        and machine.box.api("GET", "/status")[1]["pid"] == machine.box.daemon.pid
    )
    assert machine.box.finished(job)["exit_code"] == 4
    assert machine.box.finished(machine.ann.submit("true"))["state"] == "Finished"


def test_files_of_a_daemon_that_was_one_process_are_taken_over(machine: System) -> None:
    """As versions before the split left them: all of them root's. Its running jobs are adopted."""
    running, held = machine.ann.submit("sleep 5; exit 3"), machine.bob.submit("--hold", "true")
    process_of(machine, running)
    machine.box.down()
    data = machine.box.data
    subprocess.run(["chown", "-R", "root:root", data], check=True)
    data.chmod(0o700)
    (data / "logs").chmod(0o700)
    machine.up()
    assert machine.box.finished(running)["exit_code"] == 3
    machine.bob.ok("gjob", "release", str(held))
    assert machine.box.finished(held)["state"] == "Finished"


def test_change_of_owner_follows_no_link_and_takes_no_file_with_two_names(machine: System) -> None:
    machine.box.down()
    treasure = machine.root / "treasure"
    treasure.write_text("root's")
    folder = machine.box.data / "backups"
    folder.mkdir(exist_ok=True)
    (folder / "link").symlink_to(treasure)
    (folder / "hard").hardlink_to(treasure)
    (folder / "folder").symlink_to(machine.root)
    (folder / "own").write_text("")
    machine.up()
    assert treasure.stat().st_uid == machine.root.stat().st_uid == 0
    assert (folder / "own").stat().st_uid == scheduler_account.find().pw_uid


def test_log_of_the_launcher_names_users_and_commands(machine: System) -> None:
    job = machine.ann.submit("echo traced")
    machine.box.finished(job)
    path = machine.root / "var/log/gflow/launcher.log"
    assert machine.ann.person is not None
    assert f"start {job}.1 uid {machine.ann.person.pw_uid} " in path.read_text()
    assert path.stat().st_uid == 0 and path.stat().st_mode & 0o777 == 0o600


def test_start_that_the_launcher_does_not_accept_fails_and_ends_nothing_else(machine: System) -> None:
    scheduler = machine.box.scheduler_pid()
    job = machine.ann.submit("--name", "n" * 100, "--output", "/tmp/" + "%x" * 60, "true")
    ended = machine.box.finished(job)
    assert ended["state"] == "Failed" and "StartFailed" in ended["reason"], ended
    assert machine.box.finished(machine.bob.submit("true"))["state"] == "Finished"
    assert machine.box.scheduler_pid() == scheduler
    assert f"refused to start {job}.1" in (machine.root / "var/log/gflow/launcher.log").read_text()


def test_account_of_the_scheduler_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_account, "NAME", "gflow-missing")
    with pytest.raises(scheduler_account.Refused, match="no account gflow-missing") as refused:
        scheduler_account.find()
    assert "useradd --system" in refused.value.hint


def test_account_of_the_scheduler_is_made_for_the_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "useradd").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    (tmp_path / "useradd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(scheduler_account, "NAME", "root")
    assert not scheduler_account.make("/var/lib/gflow"), "there is one"
    monkeypatch.setattr(scheduler_account, "NAME", "gflow-missing")
    assert scheduler_account.make("/var/lib/gflow")
    words = "--system --home-dir /var/lib/gflow --no-create-home --shell /usr/sbin/nologin gflow-missing"
    assert (tmp_path / "asked").read_text().strip() == words


def test_refused_system_calls_are_refused_and_others_are_not() -> None:
    """In a process of its own, with the numbers of this machine."""
    code = (
        "import ctypes, os, sys\n"
        "from gflow.privileged import sandbox\n"
        "sandbox.enter(65534, 65534)\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "column = sandbox.MACHINES[os.uname().machine][1]\n"
        "for name, numbers in sandbox.REFUSED_CALLS.items():\n"
        "    ctypes.set_errno(0)\n"
        "    done = libc.syscall(numbers[column], 0, 0, 0, 0, 0, 0)\n"
        "    assert (done, ctypes.get_errno()) == (-1, 1), (name, done, ctypes.get_errno())\n"
        "os.listdir('/'); os.getpid()\n"
        "try:\n"
        "    os.setuid(0)\n"
        "except PermissionError:\n"
        "    print('confined')\n"
    )
    done = subprocess.run([*reaching_us(), sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "confined\n", done.stderr


NAMESPACES = """
import ctypes, os, signal, subprocess, threading
from gflow.privileged import sandbox
sandbox.enter(65534, 65534)
libc = ctypes.CDLL(None, use_errno=True)
clone, clone3 = {"x86_64": (56, 435), "aarch64": (220, 435)}[os.uname().machine]
new_user = 0x10000000
pid = libc.syscall(clone, new_user | signal.SIGCHLD, 0, 0, 0, 0)
if pid == 0:
    os._exit(0)
assert (pid, ctypes.get_errno()) == (-1, 1), (pid, ctypes.get_errno())
ctypes.set_errno(0)
assert (libc.syscall(clone3, 0, 0), ctypes.get_errno()) == (-1, 38), ctypes.get_errno()
thread = threading.Thread(target=print, args=("thread",), kwargs={"flush": True})
thread.start()
thread.join()
subprocess.run(["echo", "program"], check=True)
"""


def test_scheduler_makes_no_namespace_and_still_makes_threads_and_processes() -> None:
    """In a user namespace it would have all capabilities over that namespace."""
    done = subprocess.run([*reaching_us(), sys.executable, "-c", NAMESPACES], capture_output=True, text=True)
    assert done.stdout == "thread\nprogram\n", done.stderr


def test_sandbox_sets_no_new_privs() -> None:
    """Without the filter of system calls: the kernel refuses that to a process without the flag."""
    code = (
        "from gflow.privileged import sandbox\n"
        "sandbox.MACHINES.clear()\n"
        "sandbox.enter(65534, 65534)\n"
        "print(open('/proc/self/status').read())\n"
    )
    done = subprocess.run([*reaching_us(), sys.executable, "-c", code], capture_output=True, text=True)
    assert "\nNoNewPrivs:\t1\n" in done.stdout, done.stderr
    assert "\nSeccomp:\t0\n" in done.stdout, "the filter is not what is tested here"


@pytest.mark.parametrize("hidepid", [1, 2])
def test_jobs_have_their_submitters_limits_where_proc_is_hidden(hidepid: int) -> None:
    """The scheduler sees none of the clients' processes there, and asks the launcher."""
    mount = f'mount -t proc -o hidepid={hidepid} proc /proc && exec "$@"'
    with system() as machine:
        box, ann = machine.box, machine.ann
        box.daemon_prefix = ("unshare", "--mount", "sh", "-c", mount, "sh", *box.daemon_prefix)
        machine.up()
        assert "hidepid=" in Path(f"/proc/{box.scheduler_pid()}/mounts").read_text()
        words = [*ann.prefix, "sh", "-c", "ulimit -n 77; exec gbatch --parsable 'ulimit -n'"]
        done = subprocess.run(words, env=ann.env, cwd=ann.work, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert box.finished(int(done.stdout))["state"] == "Finished"
        assert machine.log_of(ann, int(done.stdout)) == "77\n"


def test_start_time_of_a_hidden_process_is_asked_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = ProcessFacts(started=7, uid=1000, limits="")
    owners = RemoteOwners(cast(Link, None), False, lambda pid: facts if pid == 5 else None)
    me = os.getpid()
    assert owners.started(me) == start_time(me)

    def refuse(pid: int) -> int | None:
        raise PermissionError

    for hide in (refuse, lambda pid: None):
        monkeypatch.setattr(remote, "start_time", hide)
        assert (owners.started(5), owners.started(6)) == (7, None)


def test_scheduler_has_its_database_on_a_local_disk_if_the_folder_is_on_a_network() -> None:
    with system() as machine:
        local = machine.root / "var-tmp"
        local.mkdir(mode=0o777)
        local.chmod(0o1777)
        machine.box.env["GFLOW_TEST_LOCAL"] = str(local)
        machine.box.program = [sys.executable, str(Path(__file__).with_name("network_daemon.py"))]
        jobs = []
        for _ in range(2):
            jobs.append(machine.up().ann.submit("true"))
            assert [machine.box.finished(job)["state"] for job in jobs] == ["Finished"] * len(jobs)
            machine.box.down()
        (path,) = local.glob("*/*/gflow.db")
        account = scheduler_account.find()
        assert [one.stat().st_uid for one in (path, path.parent)] == [account.pw_uid] * 2
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert (path.parent.parent.stat().st_uid, path.parent.parent.stat().st_mode & 0o777) == (0, 0o711)
        assert not (machine.box.data / "gflow.db").exists()


def test_kills_at_random_moments_lose_nothing(machine: System) -> None:
    """Jobs write that they begin and end: each once, whatever is killed meanwhile (laws 1, 4, 5)."""
    dice = random.Random(5)
    place = machine.ann.work
    jobs = []
    for _ in range(int(os.environ.get("GFLOW_KILLS", "6"))):
        for _ in range(4):
            mark = f">> {place}/j$GFLOW_JOB_ID"
            jobs.append(machine.ann.submit(f"echo b {mark}; sleep 0.{dice.randrange(10)}; echo e {mark}"))
        time.sleep(dice.random() * 0.5)
        launcher = machine.box.daemon
        assert launcher is not None
        for one in dice.choice(([launcher.pid], [machine.box.scheduler_pid()])):
            os.kill(one, signal.SIGKILL)
        launcher.wait(20)
        machine.up()
    for job in jobs:
        ended = machine.box.finished(job)
        assert (ended["state"], ended["exit_code"]) == ("Finished", 0), ended
        assert (place / f"j{job}").read_text() == "b\ne\n"
