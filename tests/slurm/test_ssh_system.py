"""A cluster over SSH in system mode: each user's jobs use that user's keys, connection and files."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness import Box, wait_until
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import PRUNING_PROGRAM
from tests.sshd import LoginNode, login_node
from tests.system import System, system

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("rsync"), reason="no rsync here: scripts/ssh-packages installs it"),
]
# ssh runs this line whenever it reads the configuration: it tells as whom, and with which variables.
WITNESS = 'Match exec "(id -u; echo groups $(id -G); env) >> {0}/witness"\n HostName 127.0.0.1\n'


class Lab(NamedTuple):
    """A machine with users, and a login node of its own for Ann and for Bob. Opal has no key."""

    system: System
    anns: LoginNode
    bobs: LoginNode

    @property
    def ann(self) -> Box:
        return self.system.ann

    @property
    def bob(self) -> Box:
        return self.system.bob

    @property
    def opal(self) -> Box:
        return self.system.opal


@pytest.fixture(scope="module")
def lab(cluster: Cluster) -> Iterator[Lab]:
    cluster.forget_jobs()
    variables = {"SLURM_CONF": str(cluster.conf)}
    with login_node(variables) as anns, login_node(variables) as bobs, system() as machine:
        config = machine.root / "etc/gflow/gflow.toml"
        config.parent.mkdir(parents=True)
        config.write_text('[targets.far]\ntype = "slurm"\nhost = "login"\n')
        made = Lab(machine, anns, bobs)
        for box, node in ((made.ann, anns), (made.bob, bobs)):
            node.install(box)
            ssh = box.home / ".ssh"
            (ssh / "config").write_text(WITNESS.format(box.home) + (ssh / "config").read_text())
            give(ssh, box)
        machine.box.env["SSH_AUTH_SOCK"] = "/nowhere/agent"
        machine.box.program = [*PRUNING_PROGRAM]
        machine.up()
        yield made


def give(folder: Path, box: Box) -> None:
    """Make a folder and all in it a user's own."""
    assert box.person is not None
    for path in (folder, *folder.rglob("*")):
        os.chown(path, box.person.pw_uid, box.person.pw_gid, follow_symlinks=False)


def submit(box: Box, *words: str, **more: object) -> int:
    return box.submit("--on", "far", "--time", "10", *words, **more)


def job(lab: Lab, number: int) -> dict[str, object]:
    """A job as root sees it."""
    return lab.system.ask(lab.system.box, "GET", f"/jobs/{number}")[1]["jobs"][0]


def finished(lab: Lab, number: int) -> dict[str, object]:
    return wait_until(
        lambda: (found := job(lab, number))["state"] not in ("Queued", "Running") and found,
        90,
        f"the end of {number}: {job(lab, number)}",
    )


def test_each_user_logs_in_with_their_own_key(lab: Lab) -> None:
    numbers = {name: submit(getattr(lab, name), "id -un; exit 3") for name in ("ann", "bob")}
    for name, node in (("ann", lab.anns), ("bob", lab.bobs)):
        box: Box = getattr(lab, name)
        assert finished(lab, numbers[name])["exit_code"] == 3
        assert box.ok("gjob", "log", str(numbers[name])) == f"{node.person.pw_name}\n"
        log = box.home / f".local/share/gflow/logs/system/{numbers[name]}.log"
        assert log.stat().st_uid == box.person.pw_uid and log.stat().st_mode & 0o077 == 0
        witness = (box.home / "witness").read_text()
        lines = witness.splitlines()
        assert {line for line in lines if line.isdecimal()} == {str(box.person.pw_uid)}
        assert {line for line in lines if line.startswith("groups")} == {f"groups {box.person.pw_gid}"}
        assert not [line for line in lines if line.startswith(("SSH_AUTH_SOCK", "GFLOW"))]
        assert f"HOME={box.home}" in lines
        assert node.log().count("Accepted publickey") == 1
    assert lab.bob.run("gjob", "log", str(numbers["ann"])).returncode != 0


def test_user_without_a_key_waits_and_no_other_user_notices(lab: Lab) -> None:
    number = submit(lab.opal, "true")
    wait_until(lambda: "unreachable" in str(job(lab, number)["reason"]), 60, str(job(lab, number)))
    assert "far unreachable since" in lab.opal.ok("gjob", "why", str(number))
    assert "Could not resolve" not in lab.opal.ok("gjob", "why", str(number))
    again = submit(lab.ann, "exit 4")
    assert finished(lab, again)["exit_code"] == 4
    states = {}
    for name in ("ann", "opal"):
        (row,) = [row for row in rows_of(lab, getattr(lab, name)) if row["name"] == "far"]
        states[name] = row["state"]
    assert states == {"ann": "answers", "opal": "down"}
    lab.opal.ok("gcancel", str(number))
    assert finished(lab, number)["state"] == "Cancelled"


def rows_of(lab: Lab, box: Box) -> list[dict[str, object]]:
    return lab.system.ask(box, "GET", "/targets")[1]["targets"]


def test_connection_belongs_to_its_user_and_is_lost_for_this_user_alone(lab: Lab) -> None:
    for box in (lab.ann, lab.bob):
        assert finished(lab, submit(box, "true"))["exit_code"] == 0
    (path,) = {row["control_path"] for row in rows_of(lab, lab.ann) if row["host"]}
    folder = Path(path).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and folder.stat().st_uid == lab.ann.person.pw_uid
    assert Path(path).stat().st_uid == lab.ann.person.pw_uid
    (others,) = {row["control_path"] for row in rows_of(lab, lab.bob) if row["host"]}
    assert Path(others).parent != folder
    stolen = [*lab.bob.prefix, "ssh", "-o", f"ControlPath={path}", "-O", "check", "login"]
    assert subprocess.run(stolen, env=lab.bob.env, cwd="/", capture_output=True).returncode != 0
    assert "connected already" in lab.ann.ok("gflow", "target", "connect", "far")
    page = lab.ann.ok("gflow", "target", "test", "far", timeout_s=120)
    assert page.count("ok  ") == 5 and f"as {lab.anns.person.pw_name}" in page, page
    assert "answers" in lab.ann.ok("gflow", "target", "list")
    lab.bobs.stop()
    try:
        waiting = submit(lab.bob, "exit 5")
        wait_until(lambda: "unreachable since" in str(job(lab, waiting)["reason"]), 60, "the reason")
        assert finished(lab, submit(lab.ann, "exit 6"))["exit_code"] == 6
    finally:
        lab.bobs.start()
    assert finished(lab, waiting)["exit_code"] == 5
    refused = lab.bob.run("gbatch", "--on", "slurm", "true")
    assert refused.returncode == 1 and "over SSH only" in refused.stderr, refused


def test_files_travel_with_the_rights_of_their_owner(lab: Lab) -> None:
    project = lab.ann.work / "proj"
    project.mkdir()
    (project / "a.txt").write_text("of ann\n")
    subprocess.run(["git", "-C", str(project), "init", "-q"], check=True)
    give(project, lab.ann)
    options = ["--sync", ".", "--outputs", "out"]
    number = submit(lab.ann, *options, "cat a.txt > out; pwd", cwd=project)
    assert finished(lab, number)["exit_code"] == 0, job(lab, number)
    assert (project / "out").read_text() == "of ann\n"
    assert (project / "out").stat().st_uid == lab.ann.person.pw_uid
    kept = lab.ann.home / ".local/share/gflow/system/snapshots"
    assert {path.lstat().st_uid for path in (kept, *kept.rglob("*"))} == {lab.ann.person.pw_uid}
    assert not (lab.system.box.data / "snapshots").exists()
    fetched = lab.ann.ok("gjob", "fetch", str(number), "a.txt", "--to", str(lab.ann.work / "copy"))
    assert "Fetched 1 file" in fetched and (lab.ann.work / "copy/a.txt").read_text() == "of ann\n"
    # Of another user's folder nothing is taken, whatever the path.
    project.chmod(0o700)
    stolen = lab.bob.run("gbatch", "--on", "far", "--sync", str(project), "--chdir", str(project), "true")
    assert stolen.returncode == 1 and "could not be copied: Permission denied: '" in stolen.stderr, stolen
    link = lab.bob.work / "link"
    link.symlink_to(project)
    stolen = lab.bob.run("gbatch", "--on", "far", "--sync", ".", "true", cwd=link)
    assert stolen.returncode != 0, stolen
    assert lab.bob.run("gjob", "fetch", str(number)).returncode != 0


def test_links_of_a_user_are_followed_with_that_users_rights_alone(lab: Lab) -> None:
    secret = lab.ann.home / "mine.txt"
    secret.write_text("untouched")
    os.chown(secret, lab.ann.person.pw_uid, -1)
    secret.chmod(0o666)
    lab.ann.home.chmod(0o755)
    logs = lab.bob.home / ".local/share/gflow/logs/system"
    assert finished(lab, submit(lab.bob, "echo"))["exit_code"] == 0
    wait_until(logs.exists, 30, "the folder of logs")
    held = submit(lab.bob, "--hold", "echo overwritten")
    (logs / f"{held}.log").symlink_to(secret)
    roots = lab.system.root / "roots"
    roots.mkdir(exist_ok=True)
    second = submit(lab.bob, "--hold", "--outputs", "out", "echo x > out", cwd=roots)
    lab.bob.ok("gjob", "release", str(held), str(second))
    assert finished(lab, held)["exit_code"] == 0
    assert finished(lab, second)["exit_code"] == 0
    assert secret.read_text() == "untouched"
    assert not list(roots.iterdir())
    wait_until(lambda: "not fetched" in lab.bob.ok("gjob", "history", str(second)), 30, "the note")


def test_jobs_of_all_users_survive_the_daemon(lab: Lab) -> None:
    numbers = {
        box: submit(box, "mkdir -p once; echo x >> once/$GFLOW_JOB_ID; sleep 3; exit 7")
        for box in (lab.ann, lab.bob)
    }
    for number in numbers.values():
        wait_until(lambda n=number: job(lab, n)["state"] == "Running", 60, "the start")
    lab.system.box.kill9()
    lab.system.up()
    for number in numbers.values():
        assert finished(lab, number)["exit_code"] == 7
    for node, number in ((lab.anns, numbers[lab.ann]), (lab.bobs, numbers[lab.bob])):
        assert (node.home / f"once/{number}").read_text() == "x\n"
    # Each second the snapshots of all users were looked at, here and there. A login node was down once.
    log = lab.system.box.log()
    lines = [line for line in log.splitlines() if "Connection refused" not in line]
    assert not [line for line in lines if "could not be pruned" in line or "Traceback" in line], log
