"""jobs.private_tmp: each job of the system-wide daemon has a /tmp and a /dev/shm of its own."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gflow.targets.local.target import PRIVATE_TMP
from tests.harness import BIN, Box, wait_until
from tests.system import System, system

SHIMS = {"native": (), "python": ("--memory", "200M")}
SETTINGS = {"GFLOW_JOBS__PRIVATE_TMP": "true"}
LIST = "ls -A /tmp /dev/shm; stat -c '%a %U' /tmp /dev/shm"
# What a job sees that is the first to look.
EMPTY = "/dev/shm:\n\n/tmp:\n1777 root\n1777 root\n"


@pytest.fixture(scope="module")
def machine() -> Iterator[System]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", "/var/tmp")  # jobs keep the shared /tmp if they work in it
        with system() as made:
            yield made.up(env=SETTINGS)
        shutil.rmtree(base_of(made), ignore_errors=True)


def base_of(machine: System) -> Path:
    """The folder with those of the jobs."""
    tag = hashlib.blake2b(str(machine.box.data / "run").encode(), digest_size=6).hexdigest()
    return Path(PRIVATE_TMP.format(tag=tag))


def run(machine: System, box: Box, *words: str) -> str:
    job = box.submit(*words)
    assert machine.box.finished(job)["state"] == "Finished", machine.log_of(box, job)
    return machine.log_of(box, job)


@pytest.mark.parametrize("shim", SHIMS)
def test_files_of_a_job_are_its_own_and_go_with_it(machine: System, shim: str) -> None:
    hold = machine.ann.submit(*SHIMS[shim], f"touch /tmp/mine /dev/shm/mine; {LIST}; sleep 60")
    wait_until(lambda: "1777" in machine.log_of(machine.ann, hold))
    assert machine.log_of(machine.ann, hold) == EMPTY.replace(":\n", ":\nmine\n")
    assert run(machine, machine.bob, *SHIMS[shim], LIST) == EMPTY
    assert run(machine, machine.ann, *SHIMS[shim], LIST) == EMPTY
    assert not Path("/tmp/mine").exists() and not Path("/dev/shm/mine").exists()
    folder = base_of(machine) / f"{hold}.1"
    assert (folder / "mine").owner() == machine.ann.person.pw_name
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    machine.ann.ok("gcancel", "--now", str(hold))
    wait_until(lambda: not folder.exists())


def test_executed_command_sees_the_tmp_of_its_job(machine: System) -> None:
    for options in SHIMS.values():
        job = machine.ann.submit(*options, "echo text >/tmp/mine; echo ready; sleep 60")
        wait_until(lambda job=job: "ready" in machine.log_of(machine.ann, job))
        assert machine.ann.ok("gjob", "exec", str(job), "--", "cat", "/tmp/mine") == "text\n"
        machine.ann.ok("gcancel", "--now", str(job))


def test_job_that_works_in_the_shared_tmp_keeps_it(machine: System) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as work:
        os.chmod(work, 0o777)
        job = machine.ann.submit("--chdir", work, "sh", "-c", "echo done > result")
        assert machine.box.finished(job)["state"] == "Finished"
        assert Path(work, "result").read_text() == "done\n"


def test_daemon_deletes_what_was_left_while_it_was_down(machine: System) -> None:
    job = machine.ann.submit("touch /tmp/mine; sleep 1")
    folder = base_of(machine) / f"{job}.1"
    wait_until((folder / "mine").exists)
    machine.box.kill9()
    machine.up(env=SETTINGS)
    assert machine.box.finished(job)["state"] == "Finished"
    wait_until(lambda: not folder.exists())


def test_folder_that_a_user_prepared_is_not_used(machine: System) -> None:
    folder = base_of(machine)
    wait_until(lambda: not os.listdir(folder))
    folder.rmdir()
    folder.mkdir()
    os.chown(folder, machine.bob.person.pw_uid, -1)
    job = machine.ann.submit(f"{LIST}; sleep 60")
    wait_until(lambda: machine.log_of(machine.ann, job) == EMPTY)
    assert folder.owner() == "root"
    machine.ann.ok("gcancel", "--now", str(job))
    for path in Path("/tmp").glob(f"{folder.name}.removed-*"):
        path.rmdir()


def test_mounts_of_the_machine_are_not_changed(machine: System) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    run(machine, machine.ann, "true")
    assert Path("/proc/self/mountinfo").read_text() == before


# Runs a daemon below a root folder that is not a mount, as in a chroot.
CHROOT = 'mount -t tmpfs none "$0" && mkdir "$0/root" && cd / && \
for one in bin etc lib lib64 usr var proc dev tmp run root {tops}; do \
[ -e /$one ] && mkdir -p "$0/root/$one" && mount --rbind /$one "$0/root/$one"; done; exec \
/usr/sbin/chroot "$0/root" "$@"'


def test_daemon_refuses_to_start_where_jobs_can_have_none(machine: System) -> None:
    machine.box.down()
    place = machine.root / "chroot"
    place.mkdir()
    tops = {path.parts[1] for path in (BIN, Path(sys.prefix), Path(sys.executable).resolve())}
    script = CHROOT.format(tops=" ".join(sorted(tops)))
    machine.box.prefix = ["unshare", "--mount", "sh", "-c", script, str(place)]
    try:
        done = machine.box.run("gflowd", "run", "--system", env=SETTINGS)
    finally:
        machine.box.prefix = []
    assert done.returncode == 1
    assert "jobs.private_tmp cannot be used here: no /tmp of its own: Invalid argument" in done.stderr
    machine.up(env=SETTINGS)
    run(machine, machine.ann, "true")
