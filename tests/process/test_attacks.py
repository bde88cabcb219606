"""Attacks on other users: reading files as root, learning names, squatting sockets and folders."""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.harness import Box, UnixConnection, wait_until
from tests.process.test_multi_user import SECRET, request, submitted
from tests.system import System, acting_as, system
from tests.user_accounts import become, box_of, people, shared_folder


@pytest.fixture(scope="module")
def machine() -> Iterator[System]:
    with system() as made:
        yield made.up()


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("words", [(), ("--json",), ("--last", "3"), ("--json", "--first", "3")], ids=str)
def test_root_reads_a_log_as_its_owner(machine: System, words: tuple[str, ...]) -> None:
    """The path is Bob's: a link there would have root read what Bob may not."""
    treasure = machine.root / "treasure"
    treasure.write_text(SECRET)
    treasure.chmod(0o600)
    job = submitted(machine, machine.bob, "true", output="log")
    machine.box.finished(job)
    (machine.bob.work / "log").unlink()
    (machine.bob.work / "log").symlink_to(treasure)
    done = machine.box.run("gjob", "log", *words, str(job))
    assert SECRET not in done.stdout
    assert done.returncode != 0
    code = f"import gflow; gflow.Job({job}).log()"
    done = subprocess.run([sys.executable, "-c", code], env=machine.box.env, capture_output=True, text=True)
    assert "Forbidden" in done.stderr


SHIMS = {"plain": {}, "python": {"memory": "200M"}}


@pytest.mark.parametrize("shim", SHIMS)
def test_open_descriptor_of_shim_is_refused_as_log(machine: System, shim: str) -> None:
    """The child that becomes the job has root's descriptors until it does."""
    paths = [f"/proc/self/fd/{number}" for number in range(1, 24)] + ["/dev/stdout", "/dev/fd/5"]
    for path in paths:
        job = submitted(machine, machine.bob, "echo", "x", output=path, **SHIMS[shim])
        assert str(machine.box.finished(job)["reason"]).startswith("StartFailed: no log at"), path
    job = submitted(machine, machine.bob, "true", **SHIMS[shim])
    assert machine.box.finished(job)["state"] == "Finished"


@pytest.mark.parametrize("shim", SHIMS)
def test_a_job_inherits_nothing_of_roots(machine: System, shim: str) -> None:
    line = "readlink /proc/$$/fd/*; grep -E '^(NoNewPrivs|Cap)' /proc/$$/status"
    job = submitted(machine, machine.bob, "bash", "-c", line, output=f"fds-{shim}", **SHIMS[shim])
    assert machine.box.finished(job)["state"] == "Finished"
    log = machine.bob.work / f"fds-{shim}"
    told = log.read_text().splitlines()
    assert told[:3] == ["/dev/null", str(log), str(log)]
    rights = dict(line.split(":\t") for line in told[3:])
    none = "0" * 16
    assert {rights[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {none}
    assert rights["NoNewPrivs"] == "0"


@pytest.mark.parametrize("shim", SHIMS)
def test_a_pipe_or_a_second_name_in_place_of_a_log(machine: System, shim: str) -> None:
    """A pipe without a reader blocks its own job only; a second name of Ann's file is Ann's file."""
    os.mkfifo(machine.bob.work / f"pipe-{shim}")
    os.chown(machine.bob.work / f"pipe-{shim}", machine.bob.person.pw_uid, -1)
    stuck = submitted(machine, machine.bob, "true", output=f"pipe-{shim}", **SHIMS[shim])
    victim = machine.ann.work / f"victim-{shim}"
    victim.write_text("ann's\n")
    os.chown(victim, machine.ann.person.pw_uid, -1)
    victim.chmod(0o644)
    os.link(victim, machine.bob.work / f"second-{shim}")
    job = submitted(machine, machine.bob, "echo", "x", output=f"second-{shim}", **SHIMS[shim])
    assert str(machine.box.finished(job)["reason"]).startswith("StartFailed: no log at")
    assert victim.read_text() == "ann's\n"
    assert machine.box.job(stuck)["state"] == "Running"
    second = submitted(machine, machine.bob, "touch", "went-on", output=f"pipe-{shim}", **SHIMS[shim])
    wait_until(lambda: machine.box.job(second)["state"] == "Running")
    for job in (stuck, second):
        machine.ask(machine.bob, "POST", "/jobs/cancel", {"jobs": [str(job)], "now": True})
        assert machine.box.finished(job)["state"] == "Cancelled"
        machine.box.finished(submitted(machine, machine.bob, "true"))
    assert not (machine.bob.work / "went-on").exists(), "the end of one job opened the pipe for the other"


@pytest.mark.parametrize("field", ["cwd", "script_path"])
def test_a_path_that_no_file_can_have_is_refused(machine: System, field: str) -> None:
    """A shim would quote it in the log, and had room for so many characters only."""
    job = request("true") | {"script": "dHJ1ZQo=", field: "/" + "x" * 20_000}
    status, answer = machine.ask(machine.bob, "POST", "/jobs", {"token": "a" * 16, "jobs": [job]})
    assert (status, "path" in answer["title"]) == (400, True)


@pytest.mark.parametrize(("field", "mib"), [("environ", 6), ("script", 16)])
def test_stored_text_of_a_job_is_limited(machine: System, field: str, mib: int) -> None:
    """It is on root's disk, where no quota of theirs holds."""
    job = request("true") | {field: "eHh4" * ((mib << 20) // 3 + 2)}
    status, answer = machine.ask(machine.bob, "POST", "/jobs", {"token": os.urandom(8).hex(), "jobs": [job]})
    assert (status, answer["title"]) == (400, f"the {field} is larger than {mib} MiB")


def test_data_folder_of_another_user_is_refused() -> None:
    """`sudo gflowd up` in Bob's home: Bob could have prepared jobs in there, which root would run."""
    with shared_folder() as root, people("bob", homes=root) as (bob,):
        theirs = box_of(bob, root)
        ours = Box(root / "root")
        theirs.data.mkdir(parents=True)
        os.chown(theirs.data, bob.pw_uid, bob.pw_gid)
        done = ours.run("gflowd", "run", "--simulate-gpus", "1x80G", env={"HOME": str(theirs.home)})
        assert (done.returncode, "belongs to another user" in done.stderr) == (1, True)
        assert list(theirs.data.iterdir()) == []


# ---------------------------------------------------------------- who is who


def test_socket_of_another_user_gets_no_data() -> None:
    """A client tells its daemon its whole environment."""
    with shared_folder() as root, people("ann", "bob", homes=root) as (ann, bob):
        box = box_of(ann, root)
        place = root / "runtime/gflow"
        place.mkdir(parents=True)
        os.chown(place, bob.pw_uid, bob.pw_gid)
        code = (
            "import os, socket; s = socket.socket(socket.AF_UNIX); s.bind('gflowd.sock'); "
            "os.chmod('gflowd.sock', 0o666); s.listen(); print(1, flush=True)\n"
            "while 1: c = s.accept()[0]; print(len(c.recv(100)), flush=True); c.close()"
        )
        squatter = subprocess.Popen(
            [*become(bob), sys.executable, "-c", code], cwd=place, stdout=subprocess.PIPE
        )
        try:
            assert squatter.stdout is not None and squatter.stdout.readline() == b"1\n"
            for words in (["gbatch", "true"], ["gqueue"]):
                done = box.run(*words, env={"XDG_RUNTIME_DIR": str(root / "runtime"), "KEY": SECRET})
                assert done.returncode == 1
                assert "belongs to another user" in done.stderr
                assert squatter.stdout.readline() == b"0\n"
        finally:
            squatter.kill()
            squatter.wait()


def test_resource_limits_hold_when_submitter_exited(machine: System) -> None:
    """A connection can be handed on: the limits of the process that made it would be forgotten."""
    body = json.dumps({"token": os.urandom(8).hex(), "jobs": [request("true")]})
    end, size = "\r\n", f"Content-Length: {len(body)}"
    code = f"""
import os, socket
sock = socket.socket(socket.AF_UNIX)
child = os.fork()
if not child:
    sock.connect({machine.box.socket!r})
    os._exit(0)
os.waitpid(child, 0)
sock.sendall({f"POST /jobs HTTP/1.1{end}Host: x{end}Connection: close{end}{size}{end}{end}{body}".encode()!r})
print(sock.makefile().read())
"""
    done = subprocess.run(
        [*become(machine.bob.person), sys.executable, "-c", code], capture_output=True, text=True, cwd="/"
    )
    assert "409 Conflict" in done.stdout, done


# ---------------------------------------------------------------- private data


def test_private_machine_names_no_user() -> None:
    """Not by what they may have, nor by what is kept for them, nor by who else is on a GPU."""
    with system(env={"GFLOW_PEOPLE__PRIVACY": "private"}) as machine:
        leases = machine.root / "leases"
        leases.mkdir()
        machine.box.env["GFLOW_LEASE_DIR"] = str(leases)
        machine.up()
        name, own = machine.ann.person.pw_name, machine.bob.person.pw_name
        for user in (name, own):
            quota = {"scope": "user", "name": user, "max_running_jobs": 5}
            assert machine.ask(machine.box, "PUT", "/quotas", quota)[0] == 200
        kept = {"user": name, "gpu_count": 1, "duration_secs": 600}
        status, made = machine.ask(machine.box, "POST", "/reservations", kept)
        assert status == 201
        (other,) = {0, 1} - set(made["gpu_indices"])
        uuid = machine.ask(machine.box, "GET", "/info")[1]["gpus"][other]["uuid"]
        take = f"fcntl.flock(os.open('{leases}/{uuid}', 64, 0o600), 2)"
        code = f"import fcntl, os, time; {take}; print(1, flush=True); time.sleep(60)"
        leases.chmod(0o1777)
        # Another daemon of root's: locks of others are not believed.
        holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd="/")
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"1\n"
            job = submitted(machine, machine.bob, "true", gpus=1)
            wait_until(lambda: "another user" in str(machine.ask(machine.bob, "GET", "/info")[1]))
            for path in (
                "/quotas",
                "/reservations",
                "/reservations?timeline",
                "/metrics",
                f"/reservations/{made['id']}",
                "/jobs",
                f"/jobs/{job}",
                f"/jobs/{job}/why",
                "/gpus",
                "/gpus/memory",
                "/info?long=1",
                "/events?after=0&follow=0",
            ):
                status, answer = machine.ask(machine.bob, "GET", path)
                assert status == 200, path
                assert name not in str(answer), path
            assert machine.ask(machine.bob, "GET", f"/reservations?user={name}")[1]["reservations"] == []
            quotas = machine.ask(machine.bob, "GET", "/quotas")[1]["quotas"]
            assert [line["name"] for line in quotas] == [own]
            for path in ("/quotas", "/reservations"):
                assert name in str(machine.ask(machine.opal, "GET", path)[1])
        finally:
            holder.kill()
            holder.wait()


def test_webhook_and_mail_addresses_are_for_operators() -> None:
    """The path of many a webhook is its password."""
    with system() as machine:
        listener = socket.create_server(("127.0.0.1", 0))

        def refuse() -> None:
            while True:
                try:
                    caller, _ = listener.accept()
                except OSError:
                    return
                caller.recv(65536)
                caller.sendall(b"HTTP/1.1 400 no\r\nContent-Length: 0\r\n\r\n")
                caller.close()

        threading.Thread(target=refuse, daemon=True).start()
        config = machine.root / "etc/gflow/gflow.toml"
        config.parent.mkdir(parents=True)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/services/{SECRET}"
        config.write_text(
            "[notifications]\nenabled = true\n"
            f'[[notifications.webhooks]]\nurl = "{url}"\nevents = ["job_completed"]\n'
        )
        machine.up()
        machine.box.finished(submitted(machine, machine.ann, "true"))
        path = "/events?after=0&follow=0&events=notification_failed"
        told = wait_until(
            lambda: b"HTTP 400" in (found := machine.ask(machine.opal, "GET", path)[1]) and found
        )
        assert SECRET.encode() not in told
        assert b"notification_failed" not in machine.ask(machine.bob, "GET", path)[1]
        listener.close()


# ---------------------------------------------------------------- one user cannot starve others


def test_unread_listings_do_not_fill_memory(machine: System) -> None:
    jobs = [request("true", hold=True) for _ in range(5000)]
    body = {"token": os.urandom(8).hex(), "jobs": jobs}
    assert machine.ask(machine.bob, "POST", "/jobs", body)[0] == 201
    connections = [UnixConnection(machine.box.socket) for _ in range(5)]
    with acting_as(machine.bob.person):
        for connection in connections:
            connection.connect()
    for connection in connections[:4]:
        connection.request("GET", "/jobs")
        wait_until(lambda connection=connection: select.select([connection.sock], [], [], 0)[0])  # type: ignore[misc]
    connections[4].request("GET", "/jobs")
    assert machine.ask(machine.ann, "GET", "/jobs")[0] == 200
    assert not select.select([connections[4].sock], [], [], 0)[0]
    connections[0].close()
    assert connections[4].getresponse().status == 200
    for connection in connections[1:]:
        connection.close()


def test_event_listeners_of_one_user_are_limited(machine: System) -> None:
    """Every event wakes all listeners."""
    head = b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n"
    connections = [UnixConnection(machine.box.socket) for _ in range(33)]
    with acting_as(machine.bob.person):
        for connection in connections:
            connection.connect()
    first = []
    for connection in connections:
        connection.sock.sendall(head)
        first.append(connection.sock.recv(12))
    assert first == [b"HTTP/1.1 200"] * 32 + [b"HTTP/1.1 429"]
    connections[0].close()
    asked = "/events?follow=0"
    wait_until(lambda: machine.ask(machine.bob, "GET", asked)[0] == 200)
    assert machine.ask(machine.ann, "GET", asked)[0] == 200
    for connection in connections[1:]:
        connection.close()


def test_running_jobs_without_resources_are_limited() -> None:
    """Each has a shim, which is root's: no limit of theirs would hold."""
    with system(env={"GFLOW_PEOPLE__MAX_RUNNING": "3"}) as machine:
        machine.up()
        submitted(machine, machine.bob, "sleep", "60", array="0-19", cpus=0)
        submitted(machine, machine.bob, "sleep", "60", gpus=1, shared=True, **{"gpu-memory": "1M"})

        def running() -> list[str]:
            return [job["user"] for job in machine.box.jobs().values() if job["state"] == "Running"]

        wait_until(lambda: len(running()) >= 3)
        assert machine.box.finished(submitted(machine, machine.ann, "true", cpus=0))["state"] == "Finished"
        assert running() == [machine.bob.person.pw_name] * 3
        more = {"scope": "user", "name": machine.bob.person.pw_name, "max_running_jobs": 5}
        assert machine.ask(machine.opal, "PUT", "/quotas", more)[0] == 200
        wait_until(lambda: len(running()) == 5)


# ---------------------------------------------------------------- terminals


def test_job_text_is_escaped_on_roots_terminal(machine: System) -> None:
    """A title that is set, a screen that is wiped, text that runs backwards: root reads what is."""
    evil = "\x1b]0;pwned\x07\x1b[2J\u202e\x9b31m"
    jobs = [
        request("true", evil),
        request("/nothing" + evil),
        request("true", cwd="/x" + evil),
        request("true", output="/proc/x" + evil),
        request() | {"script": "dHJ1ZQo=", "script_path": "/s" + evil},
    ]
    body = {"token": os.urandom(8).hex(), "jobs": jobs}
    status, answer = machine.ask(machine.bob, "POST", "/jobs", body)
    assert status == 201, answer
    ids = [str(job["id"]) for job in answer["jobs"]]
    for job in ids:
        machine.box.finished(int(job))
    for words in (
        ["gjob", "show", ",".join(ids)],
        *(["gjob", verb, job] for verb in ("why", "history") for job in ids),
        *(["gqueue", "-a", "-o", form] for form in ("table", "csv", "yaml", "tree", "group")),
        ["gqueue", "-a", "-f", "JOBID,COMMAND,WORKDIR,REASON"],
        ["gflow", "events", "--past"],
        ["gbatch", "--depends-on", ids[1], "true"],
    ):
        done = machine.box.run(*words)
        assert not {char for char in evil if not char.isprintable()} & set(done.stdout + done.stderr), words


# ---------------------------------------------------------------- clusters


def test_root_runs_no_user_program_for_a_cluster(machine: System) -> None:
    """sbatch would be root's, with variables of Bob's."""
    mark = machine.root / "ran"
    (machine.bob.work / "sbatch").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (machine.bob.work / "sbatch").chmod(0o755)
    done = submitted(machine, machine.bob, "true")
    machine.box.finished(done)
    token = os.urandom(8).hex()
    one = request("true", on="slurm") | {
        "environ": base64.b64encode(f"PATH={machine.bob.work}".encode()).decode()
    }
    for path, body in (
        ("/jobs", {"token": token, "jobs": [one]}),
        ("/jobs?dry-run", {"token": token, "jobs": [one]}),
        ("/jobs/redo", {"token": token, "job": str(done), "options": {"on": "slurm"}}),
        ("/jobs/update", {"jobs": [str(done)], "options": {"on": "slurm"}}),
    ):
        status, answer = machine.ask(machine.bob, "POST", path, body)
        assert status in (400, 409), (path, answer)
    assert not mark.exists()
