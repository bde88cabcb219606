"""Route x role: permissions on a shared machine, with real users; and attacks on other users."""

from __future__ import annotations

import base64
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gflow.daemon.api.permissions import Permission
from gflow.daemon.api.routes import ROUTES
from gflow.daemon.process import scheduler_account
from tests.harness import Box, UnixConnection, wait_until
from tests.system import System, acting_as, system
from tests.user_accounts import become

OWNER, OTHER, OPERATOR, ROOT = "owner", "other", "operator", "root"
PERMISSIONS = {(route.method, route.path): route.permission for route in ROUTES}
ROLES = (OWNER, OTHER, OPERATOR, ROOT)
ALLOWED = {
    Permission.ANYONE: {OWNER, OTHER, OPERATOR, ROOT},
    Permission.OWNER: {OWNER, ROOT},
    Permission.OWNER_ONLY: {OWNER},
    Permission.OWNER_OR_OPERATOR: {OWNER, OPERATOR, ROOT},
    Permission.OPERATOR: {OPERATOR, ROOT},
    Permission.NOT_ROOT: {OWNER, OTHER, OPERATOR},
    Permission.SELF: {OWNER, OTHER, OPERATOR, ROOT},
}
# What is sent to each route, for a job of Ann's. Those that wait for a job get one that is over.
BODIES: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("POST", "/jobs"): lambda job: {"token": os.urandom(8).hex(), "jobs": [request("true")]},
    ("POST", "/command"): lambda job: b"gjob\0\0/\x000\x00-1\x00-1\x000\0\x002\0show\0%d\0" % job,
    ("POST", "/jobs/redo"): lambda job: {"token": os.urandom(8).hex(), "job": str(job), "options": {}},
    ("POST", "/jobs/{job}/exec"): lambda job: {"command": ["true"]},
    ("POST", "/jobs/cancel"): lambda job: {"jobs": [str(job)]},
    ("POST", "/jobs/hold"): lambda job: {"jobs": [str(job)]},
    ("POST", "/jobs/signal"): lambda job: {"jobs": [str(job)], "signal": "CONT"},
    ("POST", "/jobs/release"): lambda job: {"jobs": [str(job)], "at": "+1h"},
    ("POST", "/jobs/update"): lambda job: {"jobs": [str(job)], "options": {"priority": 9}},
    ("POST", "/limits"): lambda job: {"job": str(job), "max_concurrent": 2},
    ("POST", "/drain"): lambda job: {"on": False},
    ("POST", "/gpus"): lambda job: {"allowed_indices": None},
    ("PUT", "/quotas"): lambda job: {"scope": "user", "name": "zoe", "max_running_jobs": 1, "force": True},
    ("POST", "/reservations"): lambda job: {
        "user": "zoe",
        "gpu_count": 1,
        "duration_secs": 0.01,
        "force": True,
    },
    ("PATCH", "/reservations/{id}"): lambda job: {"duration_secs": 120},
    ("POST", "/gpu-processes/ignore"): lambda job: {"gpu_index": 0, "pid": 1},
    ("POST", "/gpu-processes/unignore"): lambda job: {"gpu_index": 0, "pid": 1},
    ("POST", "/backup"): lambda job: {},
    ("POST", "/notifications/test"): lambda job: {},
    ("POST", "/tokens"): lambda job: {},
    ("POST", "/tokens/revoke"): lambda job: {},  # see below
    ("POST", "/web/links"): lambda job: {},
    ("POST", "/web/logout"): lambda job: {},
}
# Simulated GPUs have no processes, there are no notifications and no clusters, and the job does not run:
# these refusals come from behind the door.
BEHIND = {
    "/gpu-processes/ignore": 404,
    "/notifications/test": 409,
    "/jobs/{job}/exec": 409,
    "/jobs/{job}/files": 409,
    "/jobs/{job}/profile": 409,
    "/jobs/signal": 409,
    "/targets/{target}/jobs": 400,
    "/targets/{target}/partitions": 400,
}
# These need a job that has ended, and that is no array.
ENDED_JOB = {
    "/jobs/{job}/diagnosis",
    "/jobs/{job}/log",
    "/jobs/{job}/output",
    "/jobs/{job}/output/search",
    "/jobs/{job}/output/stream",
    "/jobs/{job}/wait",
    "/jobs/redo",
}
QUERIES = {"/events": "?after=0&follow=0"}
SECRET = "opensesame"


@pytest.fixture(scope="module")
def machine() -> Iterator[System]:
    with system() as made:
        yield made.up()


def request(*command: str, cwd: str = "/", **options: Any) -> dict[str, Any]:
    return {"command": list(command), "cwd": cwd, "environ": "", "options": options}


def submitted(machine: System, box: Box, *command: str, **options: Any) -> int | str:
    body = {"token": os.urandom(8).hex(), "jobs": [request(*command, cwd=str(box.work), **options)]}
    status, answer = machine.ask(box, "POST", "/jobs", body)
    assert status == 201, answer
    return answer["jobs"][0]["id"]


def who_is(machine: System, role: str) -> Box:
    return {OWNER: machine.ann, OTHER: machine.bob, OPERATOR: machine.opal, ROOT: machine.box}[role]


@pytest.mark.parametrize("route", sorted(PERMISSIONS), ids=" ".join)
def test_route_serves_exactly_the_roles_of_its_row(machine: System, route: tuple[str, str]) -> None:
    method, path = route
    for role in ROLES:
        job = submitted(machine, machine.ann, "echo", SECRET, hold=True, array="1-3%2")
        if path in ENDED_JOB:
            job = submitted(machine, machine.ann, "echo", SECRET)
            machine.box.finished(job)
        body = BODIES[route](job) if method in ("POST", "PUT", "PATCH") else None
        asked = path.replace("{job}", str(job)).replace("{group}", str(job)) + QUERIES.get(path, "")
        if path == "/tokens/revoke":  # Ann's is out of Bob's reach, but all users may revoke their own
            box = who_is(machine, OWNER if role == ROOT else role)
            body = {"id": machine.ask(box, "POST", "/tokens", {})[1]["id"]}
        if "{id}" in path:
            later = {"user": "zoe", "gpu_count": 1, "start_time": 4e9, "duration_secs": 60, "force": True}
            kept = machine.ask(machine.box, "POST", "/reservations", later)[1]["id"]
            asked = asked.replace("{id}", str(kept))
        status, answer = machine.ask(who_is(machine, role), method, asked, body)
        allowed = role in ALLOWED[PERMISSIONS[route]] and (role, route) != (ROOT, ("POST", "/jobs"))
        is_served = status < 300 or BEHIND.get(path) == status
        assert is_served is allowed, (role, status, answer)
        if not allowed:
            assert (status, answer["code"]) == (403, "forbidden")
        if "{id}" in path:
            machine.ask(machine.box, "DELETE", f"/reservations/{kept}")
        if role not in (OWNER, ROOT):
            assert SECRET not in json.dumps(answer, default=str)


@pytest.mark.parametrize("role", [OTHER, OPERATOR])
def test_a_refusal_changes_nothing(machine: System, role: str) -> None:
    job = submitted(machine, machine.ann, "echo", SECRET, hold=True)
    before = machine.box.job(job)
    box = who_is(machine, role)
    for change in (
        {"command": ["id"]},
        {"script": base64.b64encode(b"id\n").decode()},
        {"options": {"output": "/tmp/x"}},
        {"options": {"name": "mine"}},
        {"options": {"priority": 50, "venv": "/tmp"}},
    ):
        status, answer = machine.ask(box, "POST", "/jobs/update", {"jobs": [str(job)], **change})
        assert (status, answer["code"]) == (403, "forbidden"), change
    assert machine.box.job(job) == before


@pytest.mark.parametrize(
    ("words", "route", "allowed"),
    [
        (["gcancel"], "/jobs/cancel", "cancelled"),
        (["gcancel", "--signal", "CONT"], "/jobs/signal", "is not running"),
        (["gjob", "hold"], "/jobs/hold", "held"),
        (["gjob", "release"], "/jobs/release", "released"),
    ],
)
def test_command_line_has_the_permission_of_its_route(
    machine: System, words: list[str], route: str, allowed: str
) -> None:
    for role in ROLES:
        job = submitted(machine, machine.ann, "true", hold=True, array="1-3%2")
        before = machine.box.job(job)
        program, *rest = [*words, str(job)]
        fields = [program, "", "/", "0", "-1", "-1", "0", "", str(len(rest)), *rest, ""]
        status, text = machine.ask(who_is(machine, role), "POST", "/command", "\0".join(fields).encode())
        if role in ALLOWED[PERMISSIONS["POST", route]]:
            assert (status, allowed in text.decode()) == (200, True), (role, text)
        else:
            assert (status, f"job {job} belongs to" in text.decode()) == (200, True), (role, text)
            assert machine.box.job(job) == before


def test_selection_with_foreign_job_is_refused_whole(machine: System) -> None:
    mine = submitted(machine, machine.bob, "true", hold=True)
    theirs = submitted(machine, machine.ann, "true", hold=True)
    done = machine.bob.run("gcancel", f"{mine}-{theirs}")
    assert done.returncode == 1
    assert f"job {theirs} belongs to {machine.ann.person.pw_name}" in done.stderr
    assert machine.box.job(mine)["state"] == "Hold"
    machine.bob.ok("gcancel", "--all")
    assert machine.box.job(mine)["state"] == "Cancelled"
    assert machine.box.job(theirs)["state"] == "Hold"


def test_redoing_takes_no_job_of_others_along(machine: System) -> None:
    """Bob's job waited for Ann's: doing hers again must not run his with her rights."""
    mine = submitted(machine, machine.ann, "false", hold=True)
    theirs = submitted(machine, machine.bob, "echo", SECRET, **{"depends-on": str(mine)})
    machine.ann.ok("gjob", "release", str(mine))
    machine.box.finished(theirs)
    body = {"token": os.urandom(8).hex(), "job": str(mine), "options": {}, "cascade": True}
    status, answer = machine.ask(machine.ann, "POST", "/jobs/redo", body)
    assert status == 201
    assert [job["user"] for job in answer["jobs"]] == [machine.ann.person.pw_name]


def test_other_users_see_the_counts_of_a_sweep_but_no_parameters(machine: System) -> None:
    first = submitted(machine, machine.ann, "false", name="{x}", param={"x": [SECRET, "b"]})
    machine.box.finished(int(first) + 1)
    machine.box.finished(first)
    for path in (f"/groups/g{first}", f"/jobs/g{first}"):
        mine, theirs = (machine.ask(box, "GET", path)[1] for box in (machine.ann, machine.bob))
        group = theirs.get("group", theirs)
        assert group["counts"]["failed"] == 2 and group["user"] == machine.ann.person.pw_name
        assert mine.get("group", mine)["parameters"] == {"x": [SECRET, "b"]}
        assert (group["parameters"], group["failed_jobs"][0]["parameters"]) == ({}, {})
        assert mine.get("group", mine)["name"] == "{x}" and group["name"] == f"{SECRET}, …", (
            "names are public"
        )


def test_private_machine_hides_jobs_of_other_users() -> None:
    with system(env={"GFLOW_PEOPLE__PRIVACY": "private"}) as machine:
        machine.up()
        job = submitted(machine, machine.ann, "sleep", "60", gpus=1, name=SECRET)
        name = machine.ann.person.pw_name
        for path in (
            "/jobs",
            "/jobs?all=1",
            f"/jobs?users={name}",
            "/info",
            "/info?long=1",
            "/gpus",
            "/stats",
            "/events?after=0&follow=0",
        ):
            status, answer = machine.ask(machine.bob, "GET", path)
            assert status == 200
            assert SECRET not in json.dumps(answer, default=str), path
            assert name not in json.dumps(answer, default=str), path
        for path in (f"/jobs/{job}", f"/jobs/{job}/wait"):
            assert machine.ask(machine.bob, "GET", path)[0] == 404
        for path in ("/stats?all=1", f"/stats?user={name}"):
            assert machine.ask(machine.bob, "GET", path)[0] == 403
        status, answer = machine.ask(machine.bob, "POST", "/jobs/cancel", {"jobs": [str(job)]})
        assert status == 404 and name not in answer["title"]
        for box in (machine.ann, machine.opal, machine.box):
            assert SECRET in json.dumps(machine.ask(box, "GET", "/jobs")[1])


# ---------------------------------------------------------------- attacks


def test_user_is_the_uid_not_the_environment(machine: System) -> None:
    """`USER=root` is in the environment of every user here; the uid decides."""
    job = machine.bob.submit("id -un; echo $USER")
    assert machine.box.finished(job)["user"] == machine.bob.person.pw_name
    assert machine.log_of(machine.bob, job) == f"{machine.bob.person.pw_name}\nroot\n"
    body = {"token": "a" * 16, "jobs": [request("true")], "user": "root", "uid": 0}
    status, answer = machine.ask(machine.bob, "POST", "/jobs", body)
    assert status >= 400 or answer["jobs"][0]["user"] == machine.bob.person.pw_name


@pytest.mark.parametrize("option", ["conda-env", "venv"])
def test_option_values_are_not_executed(machine: System, option: str) -> None:
    mark = machine.root / f"run-{option}"
    words = (f"x; touch {mark}", f"$(touch {mark})", f"`touch {mark}`", f"x\ntouch {mark}")
    for text in (*words, *(f"/{word}" for word in words)):
        body = {"token": os.urandom(8).hex(), "jobs": [request("true", **{option: text})]}
        status, answer = machine.ask(machine.bob, "POST", "/jobs", body)
        if status == 201:
            machine.box.finished(answer["jobs"][0]["id"])
        assert not mark.exists()


def test_paths_are_not_executed(machine: System) -> None:
    mark = machine.bob.work / "ran"
    script = machine.bob.work / f"$(touch {mark.name}).sh"
    script.write_text("true\n")
    job = machine.bob.submit(str(script))
    assert machine.box.finished(job)["state"] == "Finished"
    assert not mark.exists()


def test_state_folder_belongs_to_root_and_the_scheduler(machine: System) -> None:
    """The scheduler can neither rename nor remove what is root's: run records, the lock, the folders."""
    submitted(machine, machine.ann, "sleep", "60")
    data, account = machine.box.data, scheduler_account.find()
    of_root = (str(data), f"{data}/logs", f"{data}/gflowd.lock", f"{data}/run")
    for folder, names, files in os.walk(data):
        for name in (folder, *(f"{folder}/{name}" for name in (*names, *files))):
            is_roots = name in of_root or name.startswith(f"{data}/run/")
            assert os.lstat(name).st_uid == (0 if is_roots else account.pw_uid), name
    for folder in (data, data / "logs"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o1770 and folder.stat().st_gid == account.pw_gid
    assert stat.S_IMODE((data / "run").stat().st_mode) == 0o700
    with acting_as(account):
        for step in (
            lambda: (data / "run").rename(data / "other"),
            lambda: (data / "gflowd.lock").unlink(),
            lambda: (data / "logs").rename(data / "other"),
            lambda: os.listdir(data / "run"),
            lambda: (machine.root / "var/log/gflow/launcher.log").read_text(),
            lambda: (machine.root / "run/gflow/gflowd.sock").unlink(),
        ):
            with pytest.raises(PermissionError):
                step()
    with acting_as(machine.bob.person):
        for place in (machine.box.data, machine.box.data / "gflow.db", machine.root / "run/gflow/jobs"):
            with pytest.raises(PermissionError):
                os.listdir(place) if place.suffix != ".db" else place.read_bytes()
        for place in (machine.root / "run/gflow/x", machine.root / "run/gflow/jobs/x"):
            with pytest.raises(PermissionError):
                place.write_text("")


def as_(box: Box, code: str) -> str:
    """Python code run as this person; what it printed."""
    words = [*become(box.person), sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd="/", timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_shim_is_out_of_reach_of_its_job(machine: System) -> None:
    job = machine.bob.submit("sleep", "60")
    record = machine.box.data / f"run/{job}.1"
    wait_until(lambda: record.exists() and b"\njob " in record.read_bytes())
    words = record.read_text().split()
    shim, pid = int(words[3]), int(words[8])
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    told = as_(
        machine.bob,
        f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def tried(act):
    try:
        act()
    except OSError as error:
        return error.strerror
    return "done"
for pid in ({shim}, os.stat("/proc/{shim}").st_uid or int(open("/proc/{shim}/stat").read().split()[3])):
    print(tried(lambda: os.kill(pid, 9)))
    print(tried(lambda: open(f"/proc/{{pid}}/mem").read(1)))
    print(tried(lambda: open(f"/proc/{{pid}}/environ").read()))
    print(tried(lambda: os.listdir(f"/proc/{{pid}}/fd")))
    print("done" if libc.ptrace(16, pid, 0, 0) == 0 else os.strerror(ctypes.get_errno()))
print(tried(lambda: os.kill({pid}, 0)))
""",
    )
    lines = told.split("\n")[:-1]
    assert set(lines[:-1]) <= {"Operation not permitted", "Permission denied"}, lines
    assert lines[-1] == "done"
    machine.bob.ok("gcancel", "--now", str(job))
    assert machine.box.finished(job)["state"] == "Cancelled"


def test_job_cannot_forge_its_run_record(machine: System) -> None:
    """A forged record would let a job that failed pass for one that did not."""
    run = machine.box.data / "run"
    job = machine.bob.submit(
        f"echo 'end 0 - 0 0 ' >> {run}/$GFLOW_JOB_ID.1; echo 'end 0 - 0 0 ' > $GFLOW_RUN; "
        "rm $GFLOW_RUN; exit 7"
    )
    final = machine.box.finished(job)
    assert (final["state"], final["exit_code"]) == ("Failed", 7)
    assert machine.log_of(machine.bob, job).count("Permission denied") == 3


@pytest.mark.parametrize("how", ["log", "folder", "error"])
def test_a_link_in_place_of_a_log_leads_where_its_owner_may_go(machine: System, how: str) -> None:
    """Root would follow it to Ann's file, or into root's folder."""
    treasure = machine.root / f"treasure-{how}"
    treasure.mkdir(mode=0o755)
    victim = treasure / "x.log"
    victim.write_text("ann's\n")
    os.chmod(victim, 0o644)
    if how == "folder":
        (machine.bob.work / "logs").symlink_to(treasure)
        options = ("--output", "logs/x.log")
    else:
        (machine.bob.work / f"{how}.log").symlink_to(victim)
        options = ("--output", "log.log") if how == "log" else ("--error", "error.log")
    for extra in ((), ("--memory", "200M")):
        job = machine.bob.submit(*extra, *options, "echo", "x", cwd=machine.bob.work)
        assert machine.box.finished(job)["reason"].startswith("StartFailed: no log at")
    assert victim.read_text() == "ann's\n"
    assert os.listdir(treasure) == ["x.log"]


def test_job_variables_reach_no_process_of_others(machine: System) -> None:
    """Preloaded, or a start-up file of Python: it would run in the shim."""
    library = machine.bob.work / "evil.so"
    source = machine.bob.work / "evil.c"
    source.write_text(
        "#include <stdio.h>\n#include <unistd.h>\n"
        "__attribute__((constructor)) static void ran(void) {"
        f' FILE *file = fopen("{machine.bob.work}/uids", "a");'
        ' if (file) { fprintf(file, "%d\\n", (int)getuid()); fclose(file); } }\n'
    )
    if subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], capture_output=True).returncode:
        pytest.skip("there is no compiler here")
    library.chmod(0o755)
    (machine.bob.work / "sitecustomize.py").write_text(
        f"import os; open('{machine.bob.work}/uids', 'a').write(f'{{os.getuid()}}\\n')\n"
    )
    evil = {
        "LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(machine.bob.work), "LD_AUDIT": str(library),
        "PYTHONPATH": str(machine.bob.work), "PYTHONSTARTUP": str(machine.bob.work / "sitecustomize.py"),
        "PYTHONHOME": str(machine.bob.work), "BASH_ENV": str(machine.bob.work / "sitecustomize.py"),
    }  # fmt: skip
    block = "\0".join(f"{name}={value}" for name, value in {"PATH": "/usr/bin:/bin", **evil}.items())
    for options in ({}, {"memory": "200M"}):
        job = request("sleep", "0.1", cwd=str(machine.bob.work), **options)
        job["environ"] = base64.b64encode(block.encode()).decode()
        body = {"token": os.urandom(8).hex(), "jobs": [job]}
        status, answer = machine.ask(machine.bob, "POST", "/jobs", body)
        assert status == 201
        machine.box.finished(answer["jobs"][0]["id"])
    assert set((machine.bob.work / "uids").read_text().split()) == {str(machine.bob.person.pw_uid)}


@pytest.mark.parametrize("options", [(), ("--memory", "200M")], ids=["plain", "python"])
def test_job_data_is_hidden_from_other_users(machine: System, options: tuple[str, ...]) -> None:
    """Not by /proc, and not in what gflow keeps of it while it runs."""
    script = machine.ann.work / "secret.sh"
    script.write_text(f"# {SECRET}\nsleep 60\n")
    job = machine.ann.submit("--hold", *options, str(script))
    script.write_text("sleep 60\n")
    machine.ann.ok("gjob", "release", str(job))
    copy = machine.root / f"run/gflow/jobs/{job}.1.script"
    wait_until(copy.exists)
    with acting_as(machine.ann.person):  # it is on root's disk, and no quota of hers holds there
        assert SECRET in copy.read_text()
        for act in (lambda: copy.open("ab"), lambda: copy.chmod(0o700), lambda: copy.unlink()):
            with pytest.raises(PermissionError):
                act()
    with acting_as(machine.bob.person):
        with pytest.raises(PermissionError):
            copy.read_text()
        with pytest.raises(PermissionError):
            (machine.ann.home / f".local/share/gflow/logs/system/{job}.log").read_text()
    machine.ann.ok("gcancel", "--now", str(job))


@pytest.mark.parametrize("thing", ["folder", "link", "writable", "config"])
def test_folder_prepared_by_another_user_is_refused(thing: str) -> None:
    with system() as machine:
        run, bob = machine.root / "run", machine.bob.person
        run.mkdir()
        place = run / "gflow"
        if thing == "folder":
            place.mkdir()
            os.chown(place, bob.pw_uid, bob.pw_gid)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(place / "gflowd.sock"))
        elif thing == "link":
            (machine.bob.work / "mine").mkdir()
            place.symlink_to(machine.bob.work / "mine")
        elif thing == "writable":
            place.mkdir()
            place.chmod(0o777)
        else:
            place = machine.root / "etc/gflow/gflow.toml"
            place.parent.mkdir(parents=True)
            place.write_text("[people]\noperators = 'users'\n")
            os.chown(place, bob.pw_uid, bob.pw_gid)
        done = machine.box.run("gflowd", "run", "--system")
        assert done.returncode == 1
        assert str(place) in done.stderr


@pytest.mark.parametrize("thing", ["pipe", "link", "file", "held", "folder"])
@pytest.mark.parametrize("shared", [False, True])
def test_lease_of_another_user_blocks_no_job(thing: str, shared: bool) -> None:
    with system() as machine:
        leases = machine.root / "leases"
        leases.mkdir()
        leases.chmod(0o1777)
        machine.box.env["GFLOW_LEASE_DIR"] = str(leases)
        machine.up()
        uuids = [gpu["uuid"] for gpu in machine.ask(machine.bob, "GET", "/info")[1]["gpus"]]
        victim = machine.root / "victim"
        victim.write_text("kept")
        made = {
            "pipe": "os.mkfifo(p)",
            "link": f"os.symlink('{victim}', p)",
            "file": "os.close(os.open(p, 65, 0))",
            "held": "fcntl.flock(os.open(p, 64), 2)",
            "folder": "os.makedirs(p + '/full')",
        }[thing]
        names = [f"{leases}/{uuid}{end}" for uuid in uuids for end in ("", ".gate")]
        code = (
            f"import fcntl, os, time\nfor p in {names!r}:\n    {made}\nprint(1, flush=True)\ntime.sleep(60)"
        )
        mallory = subprocess.Popen(
            [*become(machine.bob.person), sys.executable, "-c", code], stdout=subprocess.PIPE, cwd="/"
        )
        try:
            assert mallory.stdout is not None and mallory.stdout.readline() == b"1\n"
            options = {"gpus": 1} | ({"shared": True, "gpu-memory": "1G"} if shared else {})
            job = submitted(machine, machine.ann, "true", **options)
            assert machine.box.finished(job)["state"] == "Finished"
        finally:
            mallory.kill()
            mallory.wait()
        assert victim.read_text() == "kept"


@pytest.mark.parametrize("shim", ["plain", "python"])
def test_system_daemon_lease_is_root_only(shim: str) -> None:
    """A job could pass a lease on that it inherits, and keep the GPU after its end."""
    with system() as machine:
        leases = machine.root / "leases"
        leases.mkdir()
        leases.chmod(0o1777)
        machine.box.env |= {"GFLOW_LEASE_DIR": str(leases), "GFLOW_SHIM": shim}
        machine.up()
        files = "ls -l /proc/self/fd; until test -e go; do sleep 0.02; done"
        job = submitted(machine, machine.ann, "bash", "-c", files, gpus=1)
        wait_until(lambda: machine.log_of(machine.ann, job).count("->") > 3)
        assert str(leases) not in machine.log_of(machine.ann, job)
        (lease,) = leases.iterdir()
        assert (lease.stat().st_uid, lease.stat().st_mode & 0o777) == (0, 0o600)
        with acting_as(machine.bob.person), pytest.raises(PermissionError):
            os.open(lease, os.O_RDONLY)
        machine.ann.ok("gcancel", "--now", str(job))
        assert machine.box.finished(job)["state"] == "Cancelled"


def test_user_daemon_waits_for_gpu_of_system_daemon() -> None:
    with system() as machine:
        leases = machine.root / "leases"
        leases.mkdir()
        leases.chmod(0o1777)
        env = {"GFLOW_LEASE_DIR": str(leases)}
        machine.box.env |= env
        machine.up()
        machine.box.finished(submitted(machine, machine.ann, "true", gpus=2))
        bob = machine.bob
        del bob.env["GFLOW_SYSTEM_ROOT"]
        bob.up("--simulate-gpus", "2x80G", "--cpus", "4", env=env)
        try:
            waiting = bob.submit("--gpus", "2", "true")
            wait_until(lambda: "Unmanaged: gflow of root" in (bob.job(waiting)["reason"] or ""))
            machine.box.down()
            assert bob.finished(waiting)["state"] == "Finished"
        finally:
            bob.clean_up()


def test_foreign_lease_folder_becomes_roots() -> None:
    """Its owner could throw away root's locks, and a GPU would be given out twice."""
    with system() as machine:
        leases, bob = machine.root / "leases", machine.bob.person
        leases.mkdir()
        leases.chmod(0o1777)
        os.chown(leases, bob.pw_uid, bob.pw_gid)
        machine.box.env["GFLOW_LEASE_DIR"] = str(leases)
        machine.up()
        job = submitted(machine, machine.ann, "sleep", "60", gpus=1)
        lease = wait_until(lambda: next(leases.iterdir(), None))
        assert (leases.stat().st_uid, leases.stat().st_mode & 0o7777) == (0, 0o1777)
        with acting_as(bob), pytest.raises(PermissionError):
            lease.unlink()
        machine.ann.ok("gcancel", "--now", str(job))


# ---------------------------------------------------------------- one user cannot starve others


def test_connections_of_one_user_are_limited() -> None:
    with system(env={"GFLOW_PEOPLE__MAX_CONNECTIONS": "8"}) as machine:
        machine.up()
        held = [UnixConnection(machine.box.socket) for _ in range(8)]
        with acting_as(machine.bob.person):
            for connection in held:
                connection.connect()
        assert machine.ask(machine.bob, "GET", "/health")[0] == 429
        assert machine.ask(machine.ann, "GET", "/health")[0] == 200
        done = machine.bob.run("gqueue")
        assert (done.returncode, "too many" in done.stderr) == (1, True)
        for connection in held:
            connection.close()
        wait_until(lambda: machine.ask(machine.bob, "GET", "/health")[0] == 200)


def test_queued_jobs_of_one_user_are_limited() -> None:
    with system(env={"GFLOW_PEOPLE__MAX_JOBS": "3"}) as machine:
        machine.up()
        for _ in range(3):
            submitted(machine, machine.bob, "true", hold=True)
        for count in (1, 4):
            jobs = [request("true") for _ in range(count)]
            body = {"token": os.urandom(8).hex(), "jobs": jobs}
            status, answer = machine.ask(machine.bob, "POST", "/jobs", body)
            assert (status, "3 jobs" in answer["title"]) == (409, True), answer
        submitted(machine, machine.ann, "true", hold=True, array="1-1000")
        for _ in range(3):
            submitted(machine, machine.opal, "true", hold=True)
        machine.bob.ok("gcancel", "--all")
        submitted(machine, machine.bob, "true", hold=True)


def test_request_memory_of_one_user_is_limited(machine: System) -> None:
    """Many large requests of one person, none of which comes to its end."""
    size, sockets = 30 << 20, []
    with acting_as(machine.bob.person):
        for _ in range(4):
            connection = UnixConnection(machine.box.socket)
            connection.connect()
            sockets.append(connection.sock)
    head = f"POST /jobs HTTP/1.1\r\nHost: gflow\r\nContent-Length: {size + 1}\r\n\r\n".encode()

    def send(sock: socket.socket) -> bytes:
        with suppress(OSError):
            sock.sendall(head)
            for _ in range(size >> 20):
                sock.sendall(b" " * (1 << 20))
        sock.settimeout(1)
        try:
            return sock.recv(12)
        except TimeoutError:
            return b""

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(send, sockets))
    assert answers.count(b"HTTP/1.1 429") == 2, answers
    assert machine.ask(machine.ann, "GET", "/health")[0] == 200
    for sock in sockets:
        sock.close()
