"""Signals by pidfd: what was verified gets them, and what has been reaped gets none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gflow.targets.local import run_record
from gflow.targets.local.orphans import kill_orphans, ticks
from gflow.targets.local.shim import process_tree

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def group():
    """The leader of a group and another member, both asleep."""
    leader = subprocess.Popen(SLEEPER, start_new_session=True, stdout=subprocess.PIPE)
    leader.stdout.readline()
    member = subprocess.Popen(
        SLEEPER, stdout=subprocess.PIPE, preexec_fn=lambda: os.setpgid(0, 0), env={"GFLOW_RUN": "x"}
    )
    member.stdout.readline()
    yield leader, member
    for process in (leader, member):
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("kernel", ["of today", "before 6.9"])
def test_signal_reaches_only_group_of_living_process(group, kernel, monkeypatch):
    leader, other = group
    if kernel == "before 6.9":
        usual = process_tree.send
        monkeypatch.setattr(process_tree, "send", lambda fd, n, flags=0: not flags and usual(fd, n))
    pidfd = os.pidfd_open(leader.pid)
    process_tree.send_group_of(pidfd, signal.SIGUSR1)
    os.close(pidfd)
    assert leader.wait(20) == -signal.SIGUSR1
    assert other.poll() is None


def test_group_of_a_process_that_was_reaped_gets_none(group, monkeypatch):
    leader, _ = group
    pidfd = os.pidfd_open(leader.pid)
    leader.kill()
    leader.wait()
    sent = []
    monkeypatch.setattr(process_tree, "send_members", lambda *about: sent.append(about))
    process_tree.send_group_of(pidfd, signal.SIGUSR1)
    assert not sent and not process_tree.is_unreaped(pidfd)
    os.close(pidfd)


def test_session_leftovers_are_older_than_shim_death(group):
    """Its first process is gone, so the number says less: a session that began later is another's."""
    leader, other = group
    gone = run_record.identity_of(os.getpid())._replace(pid=leader.pid, started=1)
    assert kill_orphans(gone, "nowhere", lived_until=None)
    assert leader.poll() is None and other.poll() is None


def test_leftovers_are_found_by_their_tag(group):
    leader, other = group
    assert not kill_orphans(None, "x", lived_until=ticks())
    assert other.wait(20) == -signal.SIGKILL
    assert leader.poll() is None
    assert kill_orphans(None, "x", lived_until=ticks())


@pytest.mark.parametrize("later", [True, False])
def test_leaderless_leftovers_began_before_shim_death(later):
    program = (
        f"import os, subprocess; p = subprocess.Popen({SLEEPER!r}); print(p.pid, flush=True); os._exit(0)"
    )
    leader = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE)
    member = int(leader.stdout.readline())
    leader.stdout.readline()  # it is up
    leader.wait()
    gone = run_record.identity_of(os.getpid())._replace(pid=leader.pid, started=1)
    born = run_record.start_time(member)
    pidfd = os.pidfd_open(member)
    try:
        assert kill_orphans(gone, "nowhere", lived_until=born + 1 if later else born) is not later
    finally:
        process_tree.send(pidfd, signal.SIGKILL)
        os.close(pidfd)
        leader.stdout.close()
