"""gctl quota and gctl reserve, on a daemon with four simulated GPUs."""

from __future__ import annotations

import getpass
import json
from datetime import datetime

from tests.harness import Box, wait_until

ME = getpass.getuser()


def test_a_quota_holds_starts_back_and_survives_a_restart(daemon: Box) -> None:
    said = daemon.ok("gctl", "quota", "set", "--user", ME, "--max-running-gpus", "2")
    assert said == f"User {ME} may have at most 2 GPUs at once; running jobs continue.\n"
    refused = daemon.run("gbatch", "--gpus", "3", "true")
    assert (refused.returncode, refused.stderr) == (
        1,
        f"gbatch: the job asks for 3 GPUs, and the quota of {ME} is 2\n"
        "see gctl quota list; --allow-unsatisfiable queues it anyway\n",
    )
    first = daemon.submit("--gpus", "2", "sleep", "60")
    second = daemon.submit("--gpus", "1", "sleep", "60")
    wait_until(lambda: daemon.job(first)["state"] == "Running")
    assert daemon.job(second)["reason"] == f"Quota: {ME} has 2 of 2 GPUs, and this needs 1"
    assert daemon.ok("gctl", "quota", "list").splitlines()[1].split() == ["user", ME, "1/-", "2/2", "1/-"]
    said = daemon.ok("gctl", "quota", "set", "--default-user", "--max-running-gpus", "4")
    assert said.startswith("Each user without their own quota may have at most 4 GPUs")
    said = daemon.ok("gctl", "quota", "remove", "--default-user")
    assert said == "There is no default quota for users any more.\n"
    daemon.down()
    daemon.up()
    assert daemon.job(second)["reason"].startswith("Quota")
    daemon.ok("gctl", "quota", "set", "--user", ME, "--max-running-gpus", "3", "--max-queued-jobs", "1")
    assert daemon.job(second)["state"] == "Running"
    daemon.submit("--gpus", "1", "sleep", "60")
    refused = daemon.run("gbatch", "--gpus", "1", "true")
    assert refused.returncode == 1
    assert "you have 1 waiting jobs, and the quota is 1" in refused.stderr
    assert json.loads(daemon.ok("gctl", "quota", "list", "--json"))["quotas"][0]["max_running_gpus"] == 3
    daemon.ok("gctl", "quota", "remove", "--user", ME)
    assert "no quotas" in daemon.ok("gctl", "quota", "list")


def test_configured_quotas_hold_until_overridden(box: Box) -> None:
    path = box.home / ".config/gflow/gflow.toml"
    path.parent.mkdir(parents=True)
    path.write_text(
        f"[quota]\ndefault_user = {{max_queued_jobs = 5}}\n"
        f"[quota.users]\n{ME} = {{max_running_gpus = 2}}\n"
        f"[quota.projects]\nvision = {{max_running_jobs = 1}}\n"
    )
    box.up("--simulate-gpus", "4x80G")
    lines = {tuple(line.split()) for line in box.ok("gctl", "quota", "list").splitlines()[1:]}
    assert ("user", ME, "0/-", "0/2", "0/5") in lines
    assert ("project", "vision", "0/1", "0/-", "0/-") in lines
    box.submit("--gpus", "2", "sleep", "60")
    second = box.submit("--gpus", "1", "sleep", "60")
    assert box.job(second)["reason"] == f"Quota: {ME} has 2 of 2 GPUs, and this needs 1"
    refused = box.run("gctl", "quota", "remove", "--user", ME)
    assert (refused.returncode, "is in gflow.toml" in refused.stderr) == (1, True)
    box.ok("gctl", "quota", "set", "--user", ME, "--max-running-gpus", "3")
    assert box.job(second)["state"] == "Running"
    box.down()
    box.up()
    third = box.submit("--gpus", "1", "sleep", "60")
    assert box.job(third)["reason"].startswith("Quota")
    box.ok("gctl", "quota", "remove", "--user", ME)
    assert ("user", ME, "2/-", "3/2", "1/5") in {
        tuple(line.split()) for line in box.ok("gctl", "quota", "list").splitlines()[1:]
    }


def test_a_preemptible_job_makes_way_and_comes_again(daemon: Box) -> None:
    polite = "trap 'echo saved; exit 0' TERM; echo attempt $GFLOW_ATTEMPT; sleep 60 & wait"
    first = daemon.submit("--gpus", "3", "--preemptible", "bash", "-c", polite)
    wait_until(lambda: "attempt 1" in daemon.ok("gjob", "log", str(first)))
    second = daemon.submit("--gpus", "4", "sleep", "1")
    wait_until(lambda: daemon.job(second)["state"] == "Finished")
    wait_until(lambda: daemon.job(first)["attempt"] == 2)
    assert "saved" in daemon.ok("gjob", "log", str(first))
    assert f"makes way for job {second}" in daemon.ok("gjob", "history", str(first))
    assert daemon.job(first)["preemptible"] is True
    refused = daemon.run("gbatch", "--preemptible", "true")
    assert (refused.returncode, "--preemptible needs --gpus" in refused.stderr) == (2, True)


def test_gqueue_tells_when_a_job_will_probably_start(daemon: Box) -> None:
    first = daemon.submit("--gpus", "4", "--time", "60", "sleep", "60")
    second = daemon.submit("--gpus", "4", "sleep", "60")
    lines = daemon.ok("gqueue", "-f", "JOBID,START").splitlines()
    started, expected = (dict(line.split() for line in lines)[str(job)] for job in (first, second))
    began, begins = (datetime.fromisoformat(text) for text in (started, expected.removeprefix("~")))
    assert expected.startswith("~")
    assert abs((begins - began).total_seconds() - 3600) < 5


def test_project_quota_and_default_project_quota_hold(daemon: Box) -> None:
    daemon.ok("gctl", "quota", "set", "--default-project", "--max-running-jobs", "1")
    jobs = [daemon.submit("--project", project, "sleep", "60") for project in ("a", "a", "b")]
    plain = daemon.submit("sleep", "60")
    wait_until(lambda: daemon.job(jobs[2])["state"] == "Running")
    assert [daemon.job(job)["state"] for job in (*jobs, plain)] == ["Running", "Queued", "Running", "Running"]
    assert daemon.job(jobs[1])["reason"] == "Quota: project a runs 1 of 1 jobs"


def test_reserved_gpus_are_kept_for_their_owner(daemon: Box) -> None:
    said = daemon.ok(
        "gctl", "reserve", "create", "--user", "zoe", "--force", "--gpu-spec", "0-2", "--duration", "2h30m"
    )
    assert said.startswith("Reservation 1: GPUs 0,1,2 for zoe, from ")
    assert said.endswith("for 02:30:00.\n")
    alone = daemon.submit("--gpus", "1", "sleep", "60")
    wide = daemon.submit("--gpus", "2", "sleep", "60")
    wait_until(lambda: daemon.job(alone)["state"] == "Running")
    assert daemon.job(alone)["gpu_ids"] == [3]
    daemon.down()
    daemon.up()
    assert daemon.job(wide)["reason"] == "Reservation: GPU 0,1,2 reserved for zoe"
    assert (
        "GPU 0 is reserved for zoe then"
        in daemon.run("gctl", "reserve", "create", "-u", ME, "--gpu-spec", "0", "-d", "1h").stderr
    )
    assert "active" in daemon.ok("gctl", "reserve", "get", "1")
    assert "#" * 3 in daemon.ok("gctl", "reserve", "list", "--timeline", "--range", "24h")
    assert daemon.ok("gctl", "reserve", "cancel", "1") == "Reservation 1 is cancelled.\n"
    assert daemon.job(wide)["state"] == "Running"
    listed = json.loads(daemon.ok("gctl", "reserve", "list", "--json"))["reservations"]
    assert [one["status"] for one in listed] == ["cancelled"]
    assert "no reservations" in daemon.ok("gctl", "reserve", "list", "--active")


def test_a_job_that_would_run_into_a_reservation_does_not_start(daemon: Box) -> None:
    daemon.ok("gctl", "reserve", "create", "-u", "zoe", "--force", "-g", "4", "--start", "now+1h", "-d", "1h")
    long = daemon.submit("--gpus", "1", "--time", "2:00:00", "sleep", "60")
    short = daemon.submit("--gpus", "1", "--time", "10", "sleep", "60")
    wait_until(lambda: daemon.job(short)["state"] == "Running")
    assert daemon.job(long)["reason"].startswith("Reservation")


def test_a_reservation_that_ends_lets_others_start(daemon: Box) -> None:
    daemon.ok("gctl", "reserve", "create", "-u", "zoe", "--force", "-g", "4", "-d", "2s")
    job = daemon.submit("--gpus", "1", "true")
    assert daemon.finished(job)["state"] == "Finished"


def test_a_reservation_that_begins_frees_its_gpus(daemon: Box) -> None:
    """One job ignores TERM and is killed after its grace time, one goes back into the queue."""
    ignores = ("bash", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    stubborn = daemon.submit("--gpus", "1", "--grace", "0:01", *ignores)
    back = daemon.submit("--gpus", "1", "--requeue", "sleep", "60")
    wait_until(lambda: daemon.job(stubborn)["state"] == daemon.job(back)["state"] == "Running")
    said = daemon.ok(
        "gctl", "reserve", "create", "-u", "zoe", "--force", "-g", "4", "--start", "now+2s", "-d", "1h"
    )
    assert said.endswith(f"Jobs {stubborn}, {back} have them and will be stopped when it begins.\n")
    ended = daemon.finished(stubborn)
    assert (ended["state"], ended["reason"]) == ("Cancelled", "Reservation: GPU 0 reserved for zoe")
    wait_until(lambda: daemon.job(back)["state"] == "Queued")
    assert daemon.job(back)["reason"].startswith("Reservation: GPU")
    assert "reserved" in daemon.ok("gjob", "history", str(stubborn))


def test_reservation_is_moved_and_its_plan_names_the_jobs_it_stops(daemon: Box) -> None:
    job = daemon.submit("--gpus", "4", "sleep", "60")
    wait_until(lambda: daemon.job(job)["state"] == "Running")
    create = ("gctl", "reserve", "create", "-u", "zoe", "--force", "--gpu-spec", "0-1", "-d", "1h")
    said = daemon.ok(*create, "--dry-run")
    assert said.startswith("Not reserved yet: GPUs 0,1 for zoe") and f"Job {job} has them" in said
    assert "no reservations" in daemon.ok("gctl", "reserve", "list")
    daemon.ok(*create, "--start", "now+2h")
    status, before = daemon.api("GET", "/reservations/1")
    said = daemon.ok("gctl", "reserve", "update", "1", "--start", "now+3h", "--gpu-spec", "2")
    assert said.startswith("Reservation 1: GPU 2 for zoe") and "for 01:00:00" in said
    status, moved = daemon.api("PATCH", "/reservations/1", {"duration_secs": 7200, "dry_run": True})
    assert (status, moved["stops"], moved["end_time"] - moved["start_time"]) == (200, [job], 7200)
    status, kept = daemon.api("GET", "/reservations/1")
    assert (kept["gpu_indices"], kept["end_time"] - kept["start_time"]) == ([2], 3600)
    assert 3500 < kept["start_time"] - before["start_time"] < 3700
    daemon.ok(*create, "--start", "now+3h")
    refused = daemon.run("gctl", "reserve", "update", "1", "--gpu-spec", "1")
    assert "GPU 1 is reserved for zoe then" in refused.stderr
    assert daemon.run("gctl", "reserve", "update", "1").returncode == 2
    assert daemon.api("PATCH", "/reservations/1", {"start_time": 5, "duration_secs": 5})[0] == 409


def test_gjob_why_names_blockers_and_alternatives(daemon: Box) -> None:
    daemon.submit("--gpus", "3", "--time", "60", "--name", "first", "sleep", "60")
    job = daemon.submit("--gpus", "2", "--name", "second", "sleep", "60")
    # A sentence is split into lines where it has to be: near midnight its times have dates.
    said = " ".join(daemon.ok("gjob", "why", str(job)).split())
    assert said.startswith(
        f"Job {job} (second) is waiting. 1. Resources: Need 2 GPUs, only 1 available"
        " 2. Running: job 1 has GPU 0,1,2 It starts at about "
    )
    assert " Backfill may start other jobs first until " in said
    assert said.endswith(
        "If it still waits then, it gets a start reservation."
        f" It would start now with --gpus 1: gjob update {job} …"
    )
    told = json.loads(daemon.ok("gjob", "why", str(job), "--json"))
    assert told["blockers"][0]["code"] == "Resources"
    assert told["start"]["earliest"] <= told["start"]["expected"] <= told["start"]["latest"]
    assert told["instead"] == ["--gpus 1"]
    assert told["promised_at"] > told["start"]["expected"]
    assert daemon.ok("gjob", "why", "1").startswith("Job 1 (first) is running: ")
    daemon.ok("gjob", "hold", str(job))
    assert "  1. JobHeldUser: gjob release" in daemon.ok("gjob", "why", str(job))
    daemon.ok("gcancel", str(job))
    assert daemon.ok("gjob", "why", str(job)).startswith(f"Job {job} (second) has ended: Cancelled")


def test_an_unknown_name_is_accepted_only_by_force(box: Box) -> None:
    (box.home / ".config/gflow").mkdir(parents=True, exist_ok=True)
    (box.home / ".config/gflow/gflow.toml").write_text('[projects]\nknown_projects = ["apollo"]\n')
    box.up("--simulate-gpus", "4x80G", "--cpus", "4")
    words = ("gctl", "quota", "set", "--max-running-gpus", "2")
    for scope, name in (("--user", "nosuch"), ("--project", "appollo")):
        refused = box.run(*words, scope, name)
        assert refused.returncode == 1 and f"there is no {scope[2:]} '{name}' here" in refused.stderr
        assert "--force accepts the name" in refused.stderr
        box.ok(*words, scope, name, "--force")
        box.ok(*words, scope, name)  # it has a quota: it is known
    box.ok(*words, "--project", "apollo")
    box.ok(*words, "--user", "root")
    assert "did you mean apollo?" in box.run(*words, "--project", "appolo").stderr
