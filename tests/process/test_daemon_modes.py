"""The system daemon and root's own daemon are kept apart. Needs root."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gflow
from gflow.daemon.process.directories import TRUST
from tests.harness import BIN, Box
from tests.system import System, system


@pytest.fixture
def made() -> Iterator[System]:
    """A machine whose daemon is not up yet."""
    with system() as machine:
        yield machine


def back_up_with_a_waiting_job(made: System) -> Path:
    """A backup of the machine's daemon, in which a job of Ann's waits; the daemon is down again."""
    made.up()
    made.box.ok("gctl", "drain", "--reason", "maintenance")
    made.ann.submit(f"id -u > {made.ann.work}/who")
    backup = Path(made.box.ok("gflowd", "backup").strip().splitlines()[-1].split()[-1])
    assert backup.is_file()
    made.box.down()
    return backup


def test_a_backup_of_the_machine_never_runs_in_roots_own_daemon(made: System) -> None:
    backup = back_up_with_a_waiting_job(made)
    for words in (["restore", str(backup)], ["up"], ["run"]):
        done = made.box.run("gflowd", *words)
        assert done.returncode == 1, words
        assert "the machine's gflow daemon is down" in done.stderr, done.stderr
        assert "--system" in done.stderr, done.stderr
    done = made.box.run("gflowd", "restore", "--private", str(backup))
    assert done.returncode == 1 and "system daemon" in done.stderr, done.stderr
    own = made.box.home / ".local/share/gflow"
    own.mkdir(parents=True, mode=0o700, exist_ok=True)
    shutil.copy(backup, own / "gflow.db")
    done = made.box.run("gflowd", "up", "--private")
    assert done.returncode == 1 and "system daemon" in done.stderr, done.stderr
    assert not (made.ann.work / "who").exists()


def test_a_restored_machine_starts_nothing_until_root_resumes(made: System) -> None:
    backup = back_up_with_a_waiting_job(made)
    assert "gctl resume" in made.box.ok("gflowd", "restore", "--system", str(backup))
    made.up()
    assert "restored from" in made.ann.ok("gqueue")
    made.box.ok("gctl", "resume")
    assert made.box.finished(1)["state"] == "Finished"
    assert (made.ann.work / "who").read_text().strip() == str(os.stat(made.ann.work).st_uid)


@pytest.mark.parametrize("how", ["theirs", "writable", "folder"])
def test_a_backup_that_others_could_have_made_is_refused(made: System, how: str) -> None:
    backup = back_up_with_a_waiting_job(made)
    folder = made.root / "handed"
    folder.mkdir(mode=0o755)
    copied = Path(shutil.copy(backup, folder / "backup.db"))
    copied.chmod(0o666 if how == "writable" else 0o644)
    uid = made.bob.person.pw_uid if made.bob.person else 0
    if how == "theirs":
        os.chown(copied, uid, uid)
    if how == "folder":
        os.chown(folder, uid, uid)
    done = made.box.run("gflowd", "restore", "--system", str(copied))
    assert done.returncode == 1 and "a user other than root" in done.stderr, done.stderr


def _answer_yes(box: Box, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command on a terminal, with `y` as the answer to a question; its output is in `stdout`."""
    ours, theirs = pty.openpty()
    os.write(ours, b"y\n")
    command = [*box.prefix, str(BIN / words[0]), *words[1:]]
    done = subprocess.run(
        command, env=box.env, cwd=box.work, stdin=theirs, stdout=theirs, stderr=theirs, timeout=60
    )
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    return subprocess.CompletedProcess(command, done.returncode, shown, "")


def test_a_machine_whose_daemon_is_down_is_named_as_such(made: System) -> None:
    made.up()
    done = made.box.run("gflowd", "restore", "--system", str(made.box.data / "gflow.db"))
    assert done.returncode == 1 and "stop it first: gflowd down --system" in done.stderr, done.stderr
    assert "as root" in made.ann.run("gflowd", "config", "--system").stderr
    assert made.ann.ok("gctl", "quota", "list") == "There are no quotas.\n"
    assert "gctl quota set" in made.box.ok("gctl", "quota", "list")
    made.box.kill9()  # its socket stays
    (made.root / "var").chmod(0o700)  # users may not see the daemon's data
    for done in (
        made.ann.run("gqueue"),
        made.ann.run("gflowd", "up"),
        _answer_yes(made.ann, "gbatch", "true"),
    ):
        assert done.returncode == (1 if "up" in done.args else 3)
        said = done.stderr or done.stdout
        assert "the machine's gflow daemon is down" in said and "ask root" in said, said
        assert "private" not in said and "[Y/n]" not in said and "Traceback" not in said, said
    (made.root / "var").chmod(0o755)
    Path(made.box.socket).unlink()
    assert "gflowd up --system" in made.ann.run("gflowd", "status").stdout
    assert "gflowd up --system" in made.box.run("gqueue").stderr
    made.ann.ok("gflowd", "up", "--private", "--simulate-gpus", "1x80G")
    try:
        made.ann.ok("gflowd", "restart")
        assert made.ann.submit("true") == 1
    finally:
        made.ann.ok("gflowd", "down", "--private")


def test_init_of_the_machine_advises_its_own_start(made: System) -> None:
    assert "gflowd up --system" in made.box.ok("gflowd", "init", "--system", "--yes")


def test_the_machines_settings_come_from_its_own_file(made: System) -> None:
    del made.box.env["GFLOW_PEOPLE__OPERATORS"]
    made.box.ok("gflowd", "init", "--system", "--yes")
    made.up()
    file = made.root / "etc/gflow/gflow.toml"
    file.write_text('[people]\noperators = "admins"\n')
    text = made.box.ok("gflowd", "config", "--system")
    line = next(line for line in text.splitlines() if line.startswith("people.operators"))
    assert '"admins"' in line and str(file) in line
    assert "gflowd restart --system applies" in text and "there is no" not in text
    made.box.ok("gflowd", "reload", "--system")
    assert "applies" not in made.box.ok("gflowd", "config", "--system")
    assert "gflowd config --system" in made.box.ok("gflowd", "config")


def test_a_reload_of_the_machines_daemon_is_the_same_process(made: System) -> None:
    made.up()
    assert made.box.daemon is not None
    said = json.loads(made.box.ok("gflowd", "reload", "--system", "--json"))
    assert said["pid"] == made.box.daemon.pid
    assert made.box.daemon.poll() is None


def test_root_cannot_submit_to_daemon_of_another_user(made: System) -> None:
    """They would run as that user, and be root's by name."""
    ann = made.ann
    ann.env.pop("GFLOW_SYSTEM_ROOT")
    try:
        ann.up("--simulate-gpus", "1x80G")
        status, answer = ann.api("POST", "/jobs", {"token": "a" * 16, "jobs": [ann.job_request(["true"])]})
        assert status == 409 and "alone" in answer["title"], answer
    finally:
        ann.clean_up()


def test_an_installation_that_others_can_rewrite_is_refused(made: System) -> None:
    theirs = made.root / "theirs"
    theirs.mkdir()
    assert made.bob.person is not None
    os.chown(theirs, made.bob.person.pw_uid, -1)
    made.box.env["PYTHONPATH"] = str(theirs)
    made.box.env.pop(TRUST, None)
    made.up(wait=False)
    assert made.box.daemon is not None
    assert made.box.daemon.wait(20) == 1
    assert f"{theirs} could be changed by a user other than root" in made.box.log()
    words = [sys.executable, "-m", "gflow", "gflowd", "service", "install", "--system"]
    stub = made.root / "bin/systemctl"
    stub.parent.mkdir()
    stub.write_text("#!/bin/sh\n")
    stub.chmod(0o755)
    env = made.box.env | {"PATH": f"{stub.parent}:{made.box.env['PATH']}"}
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "a user other than root" in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["sitecustomize.py", "gflow/ml/fit/tables.py", "gflow/daemon/loop/loop.py"])
def test_a_module_file_of_another_user_is_refused(made: System, name: str) -> None:
    """Also in folders of root's, and of a module that is loaded later."""
    folder = made.root / "installed"
    shutil.copytree(Path(gflow.__file__).parent, folder / "gflow")
    (folder / "sitecustomize.py").touch()
    assert made.bob.person is not None
    os.chown(folder / name, made.bob.person.pw_uid, -1)
    made.box.env["PYTHONPATH"] = str(folder)
    made.box.env.pop(TRUST, None)
    made.up(wait=False)
    assert made.box.daemon is not None
    assert made.box.daemon.wait(20) == 1
    assert f"{folder / name} could be changed by a user other than root" in made.box.log()


# ---------------------------------------------------------------- one's own daemon


def test_a_running_flag_is_shown_by_config(daemon: Box) -> None:
    line = next(line for line in daemon.ok("gflowd", "config").splitlines() if "simulate_gpus" in line)
    assert '"4x80G"' in line and "--simulate-gpus" in line


def test_a_daemon_that_knows_no_reload_is_restarted(box: Box) -> None:
    """A daemon older than `gflowd reload` would be ended by the signal."""
    box.program = [sys.executable, str(Path(__file__).with_name("older_daemon.py"))]
    box.up("--simulate-gpus", "1x80G")
    assert box.daemon is not None
    done = box.run("gflowd", "reload")
    assert done.returncode == 0 and "restart" in done.stderr, done.stdout + done.stderr
    assert box.daemon.wait(20) == 0, "it was not asked to stop but killed"
    assert box.api("GET", "/status")[1]["gpu_total"] == 1
    assert box.submit("true") == 1
    box.ok("gflowd", "down")
