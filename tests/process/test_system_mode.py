"""One daemon for all users: each job runs as its submitter, and users cannot disturb each other."""

from __future__ import annotations

import json
import os
import pty
import pwd
import shutil
import signal
import subprocess
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness import BIN, Box, wait_until
from tests.process.test_process_identity import traced
from tests.system import System, system

# What the plain shim cannot do is left to the other one.
SHIMS = {"plain": (), "python": ("--memory", "200M")}
STATUS = "Uid Gid Groups CapInh CapPrm CapEff CapAmb NoNewPrivs".split()
SLEEP = ("sleep", "60")


@pytest.fixture(scope="module")
def machine() -> Iterator[System]:
    with system() as made:
        yield made.up()


def status_of(pid: int) -> dict[str, str]:
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: " ".join(value.split()) for name, _, value in lines}


def process_of(machine: System, job: int) -> tuple[int, int]:
    """The pids of a running job's shim and of the job."""
    record = machine.box.data / f"run/{job}.1"
    wait_until(lambda: record.exists() and b"\njob " in record.read_bytes(), what=f"job {job} to run")
    words = record.read_text().split()
    return int(words[3]), int(words[8])


def open_files(pid: int) -> set[str]:
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # it is loading its libraries
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def became(pid: int, name: str) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == name


@pytest.mark.parametrize("shim", SHIMS)
def test_job_runs_as_its_submitter_only(machine: System, shim: str) -> None:
    for box in machine.persons:
        person: pwd.struct_passwd = box.person
        job = box.submit(*SHIMS[shim], *SLEEP)
        keeper, pid = process_of(machine, job)
        wait_until(lambda pid=pid: became(pid, "sleep"))
        status = status_of(pid)
        uid, gid = person.pw_uid, person.pw_gid
        groups = sorted(os.getgrouplist(person.pw_name, gid))
        assert status["Uid"] == f"{uid} {uid} {uid} {uid}"
        assert status["Gid"] == f"{gid} {gid} {gid} {gid}"
        assert sorted(map(int, status["Groups"].split())) == groups
        assert {status[name] for name in STATUS if name.startswith("Cap")} == {"0" * 16}
        assert status["CapBnd"] == status_of(os.getpid())["CapBnd"]
        assert status["NoNewPrivs"] == "0"
        shim_status = status_of(keeper)
        assert shim_status["Uid"] == "0 0 0 0"
        assert b"USER=" not in Path(f"/proc/{keeper}/environ").read_bytes()
        assert "gflow-shim" in shim_status["Name"] if shim == "plain" else True
        log = str(box.home / f".local/share/gflow/logs/system/{job}.log")
        wait_until(lambda pid=pid, log=log: open_files(pid) == {"/dev/null", log}, what="only its own files")
        box.ok("gcancel", "--now", str(job))
        assert machine.box.finished(job)["state"] == "Cancelled"


@pytest.mark.skipif(not os.path.exists("/proc/self/loginuid"), reason="this kernel keeps no login uids")
@pytest.mark.parametrize("shim", SHIMS)
def test_the_login_uid_of_a_job_is_its_submitters(machine: System, shim: str) -> None:
    """By it the kernel's audit says whose doing something is, whatever became of the process since."""
    for box in (machine.ann, machine.bob):
        job = box.submit(*SHIMS[shim], *SLEEP)
        _, pid = process_of(machine, job)
        wait_until(lambda pid=pid: became(pid, "sleep"))
        uid = box.person.pw_uid
        assert Path(f"/proc/{pid}/loginuid").read_text() == str(uid)
        box.ok("gcancel", "--now", str(job))


@pytest.mark.parametrize("shim", SHIMS)
def test_a_log_belongs_to_its_person(machine: System, shim: str) -> None:
    job = machine.ann.submit(*SHIMS[shim], "id -un; umask; pwd")
    assert machine.box.finished(job)["state"] == "Finished"
    log = machine.ann.home / f".local/share/gflow/logs/system/{job}.log"
    name = machine.ann.person.pw_name
    assert log.read_text() == f"{name}\n0022\n{machine.ann.work}\n"
    for path in (log, log.parent, machine.ann.home / ".local"):
        assert path.owner() == name
        assert not path.stat().st_mode & 0o077
    assert machine.ann.ok("gjob", "log", str(job)) == log.read_text()
    # Root reads it as its owner.
    assert machine.box.ok("gjob", "log", str(job)) == log.read_text()


@pytest.mark.parametrize("shim", SHIMS)
def test_a_script_that_changed_is_run_as_it_was(machine: System, shim: str) -> None:
    script = machine.ann.work / "train.sh"
    script.write_text("#!/bin/sh\n[ $1 ] || { echo first; ls -l $0; exec $0 again; }; echo $1\n")
    job = machine.ann.submit(*SHIMS[shim], "--hold", str(script))
    script.write_text("echo second\n")
    machine.ann.ok("gjob", "release", str(job))
    assert machine.box.finished(job)["state"] == "Finished", machine.log_of(machine.ann, job)
    text = machine.log_of(machine.ann, job)
    assert "changed since it was submitted" in text
    assert "\nfirst\n-r-xr-x---+ 1 root root" in text and text.endswith("\nagain\n")
    wait_until(lambda: not os.listdir(machine.root / "run/gflow/jobs"))


@pytest.mark.parametrize("shim", SHIMS)
def test_a_job_sees_its_stop_file(machine: System, shim: str) -> None:
    line = "trap '' TERM; until [ -e $GFLOW_STOP_FILE ]; do sleep 0.02; done; echo seen; exit 3"
    job = machine.ann.submit(*SHIMS[shim], "--grace", "30", line)
    process_of(machine, job)
    machine.ann.ok("gcancel", str(job))
    assert machine.box.finished(job)["state"] == "Cancelled"
    seen, last = machine.log_of(machine.ann, job).splitlines()
    assert seen == "seen"
    assert last.startswith(f"gflow: job {job} was cancelled by {machine.ann.person.pw_name} after ")
    wait_until(lambda: not os.listdir(machine.root / "run/gflow/jobs"))


@pytest.mark.parametrize("shim", SHIMS)
def test_failed_start_is_reported_in_the_owners_log(machine: System, shim: str) -> None:
    job = machine.ann.submit(*SHIMS[shim], "--chdir", str(machine.bob.work), "--", "/no/such/program", "x")
    final = machine.box.finished(job)
    assert final["reason"].startswith("StartFailed: No such file or directory")
    path = machine.ann.home / f".local/share/gflow/logs/system/{job}.log"
    assert path.owner() == machine.ann.person.pw_name
    assert "could not start" in path.read_text()


@pytest.mark.parametrize("shim", SHIMS)
def test_a_log_that_its_owner_may_not_write_is_not_written(machine: System, shim: str) -> None:
    """Root could write it; so no process with root's rights may try."""
    place = machine.root / "closed"
    place.mkdir(mode=0o755, exist_ok=True)
    job = machine.ann.submit(*SHIMS[shim], "--output", f"{place}/out.log", "true")
    assert machine.box.finished(job)["reason"].startswith(f"StartFailed: no log at {place}/out.log")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("shim", SHIMS)
def test_processes_of_a_job_end_when_its_shim_is_killed(machine: System, shim: str) -> None:
    mark = machine.root / f"ann-{shim}"
    line = f"setsid sh -c 'echo $$ > {machine.ann.work}/{mark.name}; exec sleep 77' & sleep 77"
    job = machine.ann.submit(*SHIMS[shim], line)
    keeper, pid = process_of(machine, job)
    told = machine.ann.work / mark.name
    child = int(wait_until(lambda: told.exists() and told.read_text()))
    os.kill(keeper, 9)
    assert machine.box.finished(job)["reason"] == "Lost"
    for gone in (pid, child):
        wait_until(lambda gone=gone: not alive(gone), what=f"the end of {gone}")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_replaced_daemon_keeps_jobs_of_all_users(machine: System) -> None:
    jobs = [box.submit("sleep 1; exit 4") for box in (machine.ann, machine.bob)]
    for job in jobs:
        process_of(machine, job)
    machine.box.kill9()
    machine.up()
    for job in jobs:
        assert machine.box.finished(job)["exit_code"] == 4


def test_queue_is_public_commands_are_private(machine: System) -> None:
    job = machine.ann.submit("--name", "secretive", "--comment", "hush", "sleep", "60.125")
    listing = machine.bob.ok("gqueue", "-f", "JOBID,NAME,USER,ST,COMMAND,WORKDIR")
    row = next(line.split() for line in listing.splitlines() if line.startswith(f"{job} "))
    assert row[:4] == [str(job), "secretive", machine.ann.person.pw_name, "R"]
    assert "60.125" in machine.ann.ok("gqueue", "-f", "COMMAND")
    for words in (["gqueue", "--json"], ["gjob", "show", str(job)], ["gjob", "show", "--json", str(job)]):
        for box in (machine.bob, machine.opal):
            text = box.ok(*words)
            assert "secretive" in text
            assert "60.125" not in text
            assert "hush" not in text
            assert str(machine.ann.work) not in text
    machine.ann.ok("gcancel", "--now", str(job))


def test_gjob_why_hides_paths_of_others(machine: System) -> None:
    job = machine.ann.submit("--output", "/nowhere/secret-project/log", "true")
    assert "secret-project" in machine.box.finished(job)["reason"]
    for path in (f"/jobs/{job}/why", f"/jobs/{job}", f"/jobs?jobs={job}"):
        assert "secret-project" not in str(machine.ask(machine.bob, "GET", path)[1]), path
    assert "secret-project" in str(machine.ask(machine.ann, "GET", f"/jobs/{job}/why")[1])


def test_running_job_is_observed_with_the_rights_of_its_owner_only(machine: System) -> None:
    ann, bob = machine.ann, machine.bob
    job = ann.submit(*SLEEP)
    _, pid = process_of(machine, job)
    wait_until(lambda: became(pid, "sleep"), what="the command to run")  # before that, it has no environment
    os.kill(pid, signal.SIGSTOP)
    hidden = "Its processes cannot be read: they belong to another user, or have ended."
    answer = json.loads(ann.ok("gjob", "why", str(job), "--json"))
    assert (answer["verdict"], answer["cause"]) == ("stuck", "stopped") and hidden not in answer["notes"]
    answer = json.loads(bob.ok("gjob", "why", str(job), "--json"))
    assert answer["findings"] == [] and hidden in answer["notes"] and answer["verdict"] != "fine"
    # Root becomes the owner.
    assert json.loads(machine.box.ok("gjob", "why", str(job), "--json"))["cause"] == "stopped"
    ann.ok("gcancel", "--now", str(job))


def test_preview_of_a_cancel_names_jobs_and_users_on_a_terminal(machine: System) -> None:
    job = machine.ann.submit("--hold", "--job-name", "train", "true")
    assert machine.ann.person is not None
    user = machine.ann.person.pw_name
    assert machine.ann.ok("gcancel", "--dry-run", str(job)) == f"{job}\tHold\tok\n"
    head, row = _on_terminal(machine.ann, "gcancel", "--dry-run", str(job)).split("\r\n")[:2]
    assert head.split() == ["JOBID", "NAME", "USER", "STATE", "RESULT", "PARENTS"]
    assert row.split() == [str(job), "train", user, "Hold", "cancelled"]
    machine.ann.ok("gcancel", str(job))


def _on_terminal(box: Box, program: str, *rest: str) -> str:
    """What a program prints on a terminal."""
    ours, theirs = pty.openpty()
    words = [*box.prefix, str(BIN / program), *rest]
    subprocess.run(words, env=box.env, cwd=box.work, stdout=theirs, stderr=theirs, timeout=60)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    return shown


def test_user_daemon_beside_system_daemon_needs_a_flag(machine: System) -> None:
    done = machine.ann.run("gflowd", "up")
    assert done.returncode == 1
    assert "system-wide" in done.stderr and "--private" in done.stderr
    said = machine.ann.ok("gflowd", "up", "--private", "--simulate-gpus", "1x24G")
    socket = said.split("GFLOW_SOCKET=")[1].split()[0]
    try:
        job = machine.ann.ok("gbatch", "--parsable", "true", env={"GFLOW_SOCKET": socket})
        assert int(job) == 1
        assert machine.bob.run("gqueue", env={"GFLOW_SOCKET": socket}).returncode == 1
        assert "1 (1 free)" in machine.ann.ok("gflowd", "status", "--private")
        own = {"GFLOW_SOCKET": socket}
        running = machine.ann.submit("sleep", "60", env=own)
        note = "(your private daemon has 1 running and 0 waiting jobs: gflowd status --private)"
        wait_until(lambda: note in machine.ann.ok("gflowd", "status"))
        assert note not in machine.ann.ok("gflowd", "status", "--private")
        assert note in _on_terminal(machine.ann, "gqueue") and note not in machine.ann.ok("gqueue")
        machine.ann.ok("gcancel", "--now", str(running), env=own)
        wait_until(lambda: note not in machine.ann.ok("gflowd", "status"))
        assert "2 (2 free)" in machine.ann.ok("gflowd", "status")
    finally:
        assert machine.ann.run("gflowd", "down", "--private").returncode == 0


@pytest.mark.parametrize("words", [["down"], ["restart"], ["up", "--system"]])
def test_the_machines_daemon_is_roots(machine: System, words: list[str]) -> None:
    done = machine.ann.run("gflowd", *words)
    assert done.returncode == 1, done.stdout
    assert "root" in done.stderr
    assert machine.box.serves()


def test_up_down_and_restart_of_the_machines_daemon() -> None:
    with system() as made:
        box: Box = made.box
        box.ok("gflowd", "up", "--system", "--simulate-gpus", "1x80G")
        try:
            assert os.stat(box.socket).st_mode & 0o777 == 0o666
            job = made.ann.submit("sleep 0.5; echo on")
            box.ok("gflowd", "restart")
            assert "--system" in str(box.api("GET", "/status")[1]["flags"])
            assert box.finished(job)["state"] == "Finished"
        finally:
            box.ok("gflowd", "down")
        assert not os.path.exists(box.socket)
        assert made.ann.run("gqueue").returncode == 3


# ---------------------------------------------------------------- what root sees on a terminal

TRICKS = "a\x9bb\u202ec\u200bd\u2028e\U000e0041f\x7fé"


def test_json_for_root_has_no_control_characters(machine: System) -> None:
    """A path or a command may hold any character; its JSON holds the same value, escaped."""
    job = machine.ann.submit("--hold", "echo", TRICKS)
    root = machine.box
    for words in (
        ("gqueue", "--json", "-j", str(job)),
        ("gjob", "show", "--json", str(job)),
        ("gcancel", "--json", "--dry-run", str(job)),
        ("gjob", "hold", "--json", str(job)),
        ("gjob", "history", "--json", str(job)),
        ("gflow", "events", "--json", "--past", str(job)),
    ):
        text = root.ok(*words)
        raw = {hex(ord(char)) for char in text if not char.isprintable() and char != "\n"}
        assert not raw, (words, raw)
        if words[:2] in (("gqueue", "--json"), ("gjob", "show")):
            assert json.loads(text)["jobs"][0]["command"] == ["echo", TRICKS]


def on_terminal(box: Box, *words: str) -> bytes:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    settings = termios.tcgetattr(theirs)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    command = [*box.prefix, str(BIN / words[0]), *words[1:]]
    process = subprocess.Popen(command, env=box.env, cwd=box.work, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    found = b""
    with suppress(OSError):  # the last one has closed it
        while chunk := os.read(ours, 1 << 16):
            found += chunk
    os.close(ours)
    assert process.wait(60) == 0, found
    return found


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_log_of_another_user_on_a_terminal_is_escaped_and_piped_is_not(
    machine: System, follow: tuple[str, ...]
) -> None:
    written = b"\x1b[31mred\x1b]0;title\x07 \xc2\x9b\xff\r\xe2\x80\xae\tok \xc3\xa9\n"
    job = machine.ann.submit("printf", "".join(f"\\{byte:03o}" for byte in written))
    assert machine.ann.run("gjob", "wait", str(job)).returncode == 0
    shown = on_terminal(machine.box, "gjob", "log", *follow, str(job))
    end = f"\x1b[2mgflow: job {job} finished after 00:00:00\x1b[0m\n".encode()
    assert shown == rb"\x1b[31mred\x1b]0;title\x07 \x9b\xff\r\u202e" + b"\tok \xc3\xa9\n" + end
    # One's own log, and a log that goes to a file, are the bytes that were written.
    assert on_terminal(machine.ann, "gjob", "log", *follow, str(job)) == written + end
    command = [str(BIN / "gjob"), "log", *follow, str(job)]
    assert subprocess.run(command, env=machine.box.env, capture_output=True, check=True).stdout == written


@pytest.mark.parametrize("shim", SHIMS)
@pytest.mark.parametrize("tracer", ["owner's", "owner's with more rights", "root's"])
def test_tracer_that_holds_a_killed_process_is_killed_where_its_owner_may(
    machine: System, shim: str, tracer: str
) -> None:
    """Root's shim signals with the rights of the job's owner. Last here: plain shims become Python ones."""
    uid = machine.ann.person.pw_uid
    uids = {"owner's": (uid, uid, uid), "owner's with more rights": (uid, 0, 0), "root's": (0, 0, 0)}[tracer]
    job = machine.ann.submit(*SHIMS[shim], "--grace", "0", *SLEEP)
    _, pid = process_of(machine, job)
    wait_until(lambda: became(pid, "sleep"))
    with traced(pid, "--hold", "--uids", ",".join(map(str, uids))) as number:
        machine.ann.ok("gcancel", "--now", str(job))
        if tracer == "root's":
            told = f"its tracer {number} (python3, user 0) keeps it from ending; it is another user's"
            wait_until(lambda: told in machine.log_of(machine.ann, job), what="its name")
            assert status_of(number)["State"] != "Z (zombie)"
            assert machine.box.job(job)["state"] == "Running"
        else:
            assert machine.box.finished(job)["state"] == "Cancelled"
            assert f"its tracer {number} (" in machine.log_of(machine.ann, job)
    assert machine.box.finished(job)["state"] == "Cancelled"


@pytest.mark.parametrize("shim", SHIMS)
def test_job_fails_where_the_folder_of_leases_is_gone(shim: str) -> None:
    with system() as machine:
        leases = machine.root / "leases"
        leases.mkdir(mode=0o755)
        leases.chmod(0o1777)
        machine.box.env["GFLOW_LEASE_DIR"] = str(leases)
        machine.up()
        shutil.rmtree(leases)
        job = machine.ann.submit("--gpus", "1", *SHIMS[shim], "true")
        ended = machine.box.finished(job)
        assert ended["state"] == "Failed" and "No such file" in str(ended["reason"])


def test_account_below_the_lowest_uid_runs_no_job() -> None:
    """It cannot submit, and what it submitted before does not start. Root never may."""
    with system() as machine:
        machine.up()
        held = machine.ann.submit("--hold", "true")
        machine.box.down()
        lowest = 1 + max(box.person.pw_uid for box in machine.persons)
        machine.up(env={"GFLOW_PEOPLE__MIN_UID": str(lowest)})
        refused = machine.ann.run("gbatch", "true")
        assert refused.returncode == 1 and f"below people.min_uid, which is {lowest}" in refused.stderr
        machine.box.ok("gjob", "release", str(held))
        ended = machine.box.finished(held)
        assert ended["state"] == "Failed" and "below people.min_uid" in str(ended["reason"])
        refused = machine.box.run("gbatch", "true")
        assert refused.returncode == 1 and "runs no job as root" in refused.stderr
