"""Changes of many jobs, which are carried out in parts, look atomic to users."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from gflow.core.state.state import PART
from tests.harness import Box, wait_until
from tests.process.test_gqueue import Terminal

# More than one part, and more than one slice of an answer.
MANY = 250


def test_a_sweep_of_many_is_held_updated_released_and_cancelled(daemon: Box) -> None:
    words = ("--hold", "--cpus", "0", "--param", f"seed=1:{MANY}", "echo", "{seed}")
    dry = daemon.ok("gbatch", "--dry-run", *words)
    assert dry.splitlines()[0] == f"Would submit {MANY} batch job(s):" and len(dry.splitlines()) == MANY + 1
    lines = daemon.ok("gbatch", *words).splitlines()
    assert lines[:2] == ["Submitted batch job 1", "Submitted batch job 2"]
    assert lines[MANY:] == [
        f"Submitted {MANY} batch jobs with group_id: 1",
        "Change how many run at once with: gctl set-limit 1 N",
    ]
    every = f"1-{MANY}"
    assert daemon.ok("gjob", "update", every, "--priority", "99").count("updated.\n") == MANY
    assert {job["priority"] for job in daemon.jobs().values()} == {99}
    daemon.ok("gctl", "set-limit", "1", "3")
    daemon.ok("gctl", "drain")
    assert daemon.ok("gjob", "release", every).count("released.\n") == MANY
    assert {job["state"] for job in daemon.jobs().values()} == {"Queued"}
    assert daemon.ok("gjob", "hold", every).count("held.\n") == MANY
    assert {job["state"] for job in daemon.jobs().values()} == {"Hold"}
    told = daemon.ok("gcancel", "--all", "--dry-run").splitlines()
    assert told[-1].split("\t") == [str(MANY), "Hold", "ok"] and len(told) == MANY
    assert daemon.ok("gcancel", "--all").count("cancelled.\n") == MANY
    assert daemon.ok("gqueue", "-n", "5", "-f", "JOBID") == "JOBID\n"
    events = [line["event"] for line in daemon.api("GET", f"/jobs/{MANY}/history")[1]["events"]]
    assert events == [
        "submitted",
        "updated",
        "updated",
        "released",
        "held",
        "cancel",
        "cancelled",
        "group ended",
    ]


def test_bulk_change_is_few_audit_entries_in_each_history(daemon: Box) -> None:
    daemon.ok("gbatch", "--hold", "--param", f"seed=1:{MANY}", "echo", "{seed}")

    def lines() -> int:
        with closing(sqlite3.connect(f"file:{daemon.data}/gflow.db?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT count(*) FROM audit").fetchone()[0])

    before = lines()
    whole = {"jobs": [f"1-{MANY}"], "options": {"comment": "all of them"}}
    assert daemon.api("POST", "/jobs/update", whole)[0] == 200
    odd = [str(job) for job in range(1, MANY, 2)]
    assert daemon.api("POST", "/jobs/update", {"jobs": odd, "options": {"priority": 7}})[0] == 200
    assert lines() - before <= 2 * (MANY // PART + 1)
    for job in (1, 2, MANY):
        told = daemon.api("GET", f"/jobs/{job}/history")[1]["events"]
        assert [line["event"] for line in told] == ["submitted", "updated", "updated"][: 2 + job % 2]
        assert told[1]["detail"] == "comment = all of them"
        assert job % 2 == 0 or told[2]["detail"] == "priority = 7"
    events = daemon.api("GET", "/events?after=0&follow=0&events=job_updated")[1].decode()
    assert events.count("event: job_updated\n") == MANY + MANY // 2
    only = daemon.api("GET", "/events?after=0&follow=0&events=job_updated&job=3")[1].decode()
    assert only.count("event: job_updated\n") == 2 and '"detail":"priority = 7"' in only


def test_the_first_few_of_many_are_listed_with_the_number_of_all(daemon: Box) -> None:
    daemon.ok("gbatch", "--hold", "--param", f"seed=1:{MANY}", "echo", "{seed}")
    _, answer = daemon.api("GET", "/jobs?limit=5&offset=10")
    assert [job["id"] for job in answer["jobs"]] == [11, 12, 13, 14, 15]
    assert answer["total"] == MANY
    _, answer = daemon.api("GET", "/jobs?limit=5&states=Queued")
    assert answer == {"jobs": [], "total": 0}


def test_a_request_of_many_with_one_that_is_wrong_leaves_nothing(daemon: Box) -> None:
    jobs = [daemon.job_request(["true"], hold=True) for _ in range(MANY)]
    for wrong, status in (
        (daemon.job_request(["true"], cpus=9999), 409),
        (daemon.job_request(["true"], priority="high"), 400),
        ({"cwd": 5}, 400),
    ):
        code, answer = daemon.api(
            "POST", "/jobs", {"token": f"token-{status}-{len(str(wrong))}", "jobs": [*jobs, wrong]}
        )
        assert code == status, answer
    assert f"$.jobs[{MANY}].cwd" in str(answer)
    assert daemon.jobs() == {}


def test_more_links_than_allowed_are_refused_at_once(daemon: Box) -> None:
    parents = daemon.submit("--hold", "--array", "1-2000", "true")
    named = ",".join(f"{parents}_{task}" for task in range(1, 2001))
    refused = daemon.run("gbatch", "--depends-on", named, "--param", "s=1:500", "echo", "{s}")
    assert refused.returncode == 1 and "at most 100,000 are allowed" in refused.stderr
    assert "let one job wait for all parents" in refused.stderr
    assert list(daemon.jobs()) == [parents]
    lines = daemon.ok("gbatch", "--depends-on", named, "--param", "s=1:50", "echo", "{s}").splitlines()
    assert len(lines) == 52
    assert daemon.ok("gcancel", str(parents)) == f"Job {parents} cancelled.\n"
    assert {job["state"] for job in daemon.jobs().values()} == {"Cancelled"}


def test_hold_and_release_of_a_sweep_leave_its_running_jobs(tmp_path: Path) -> None:
    box = Box(tmp_path)
    try:
        box.up("--simulate-gpus", "2x80G", "--cpus", "8")
        box.ok("gbatch", "--gpus", "1", "--param", "x=1:24", "sleep", "600")
        wait_until(lambda: box.job(2)["state"] == "Running")
        held = box.ok("gjob", "hold", "g1")
        assert held.startswith("Job 1 is running.\nJob 2 is running.\nJob 3 held.\n")
        assert held.count("held.\n") == 22
        assert {box.job(number)["state"] for number in (3, 24)} == {"Hold"}
        assert "24 jobs: 2 running, 22 held.\r\n" in Terminal(box, "gjob", "hold", "g1").all()
        assert box.ok("gjob", "release", "g1").count("released.\n") == 22
        refused = box.run("gjob", "hold", "1,2")
        assert refused.returncode == 1
        assert "none of these jobs waits: 2 run, 0 have ended" in refused.stderr
        refused = box.run("gjob", "hold", "1")
        assert "job 1 is running, and only a waiting job can be held" in refused.stderr
        assert "24 jobs: 2 being stopped, 22 cancelled.\r\n" in Terminal(box, "gcancel", "--now", "g1").all()
    finally:
        box.clean_up()
