"""Arrays, holds, begin times, sharing, retries, history: through every layer, with real processes."""

from __future__ import annotations

import json

import pytest

from tests.harness import Box, wait_until


def test_an_array_is_one_record_and_each_task_a_job(daemon: Box) -> None:
    line = (
        'echo "$GFLOW_ARRAY_JOB_ID/$GFLOW_ARRAY_TASK_ID of $GFLOW_JOB_ID"; exit $((GFLOW_ARRAY_TASK_ID % 2))'
    )
    job = daemon.submit("--array", "1-9:2,4", "--max-concurrent", "2", line)
    final = daemon.finished(job)
    assert (final["state"], final["reason"], final["exit_code"]) == ("Failed", "TasksFailed:5", 1)
    assert final["tasks"]["finished"] == 1
    assert daemon.text_of(f"{job}_4") == f"{job}/4 of {job}_4\n"
    assert daemon.job(f"{job}_9")["exit_code"] == 1
    assert daemon.job(f"{job}_4")["state"] == "Finished"


def test_waiting_tasks_are_shown_as_one_line(daemon: Box) -> None:
    job = daemon.submit("--array", "1-50%1", "--gpus", "1", "sleep", "60")
    wait_until(lambda: daemon.job(f"{job}_1")["state"] == "Running")
    text = daemon.ok("gqueue", "-f", "JOBID,ST,NODELIST(REASON)")
    assert text == (
        f"JOBID       ST  NODELIST(REASON)\n{job}_[2-50%1]  PD  (JobArrayTaskLimit)\n{job}_1         R   0\n"
    )
    assert daemon.job(f"{job}_30")["state"] == "Queued"
    daemon.ok("gcancel", f"{job}_30")
    assert daemon.job(f"{job}_30")["state"] == "Cancelled"
    daemon.ok("gcancel", "--now", str(job))
    assert daemon.finished(job)["state"] == "Cancelled"
    assert daemon.job(f"{job}_50")["state"] == "Cancelled"


def test_a_job_after_an_array_waits_for_all_tasks(daemon: Box) -> None:
    order = daemon.work / "order"
    daemon.submit("--array", "1-3", f"sleep 0.1; echo task >> {order}")
    after = daemon.submit("-d", "@", f"echo after >> {order}")
    daemon.finished(after)
    assert order.read_text().split() == ["task"] * 3 + ["after"]


@pytest.mark.parametrize("spec", ["5-1", "abc", "1-10:0", "1-10000000", "1,1", "1-5%0", ""])
def test_a_bad_array_is_refused_at_once(daemon: Box, spec: str) -> None:
    done = daemon.run("gbatch", "--array", spec, "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--array" in done.stderr


def test_times_are_in_the_time_zone_of_the_client(daemon: Box) -> None:
    """The daemon lives in another zone, perhaps. `gjob release --at` was read there once."""
    tokyo = {"TZ": "Asia/Tokyo"}
    jobs = [daemon.submit("--hold", "true") for _ in range(2)]
    daemon.ok("gjob", "update", str(jobs[0]), "--begin", "2030-01-01T09:00", env=tokyo)
    daemon.ok("gjob", "release", str(jobs[1]), "--at", "2030-01-01T09:00", env=tokyo)
    assert [daemon.job(job)["begin_at"] for job in jobs] == ["2030-01-01T00:00:00.000Z"] * 2


def test_hold_release_and_begin(daemon: Box) -> None:
    held = daemon.submit("--hold", "true")
    assert daemon.job(held)["reason"] == "JobHeldUser"
    later = daemon.submit("--begin", "now+1h", "true")
    assert daemon.job(later)["reason"] == "BeginTime"
    assert daemon.ok("gjob", "release", str(held)) == f"Job {held} released.\n"
    waiting = daemon.submit("-d", str(daemon.submit("--hold", "true")), "true")
    assert daemon.ok("gjob", "release", str(waiting)) == f"Job {waiting} was not held.\n"
    assert daemon.ok("gjob", "release", str(waiting), "--at", "now") == f"Job {waiting} released.\n"
    assert daemon.finished(held)["state"] == "Finished"
    daemon.ok("gjob", "hold", str(later))
    assert daemon.job(later)["state"] == "Hold"
    daemon.ok("gjob", "release", "--at", "now+1s", str(later))
    assert daemon.job(later)["reason"] == "BeginTime"
    assert daemon.finished(later)["state"] == "Finished"


def test_shared_jobs_share_and_exclusive_ones_do_not(daemon: Box) -> None:
    words = ["--gpus", "1", "--shared", "--gpu-memory", "30G", "sleep", "60"]
    first, second, third = (daemon.submit(*words) for _ in range(3))
    wait_until(lambda: daemon.job(third)["state"] == "Running")
    ids = [daemon.job(job)["gpu_ids"] for job in (first, second, third)]
    assert ids == [[0], [0], [1]]
    alone = daemon.submit("--gpus", "3", "sleep", "60")
    assert daemon.job(alone)["reason"] == "Resources: Need 3 GPUs, only 2 available"
    daemon.kill9()
    daemon.up()
    assert daemon.job(second)["gpu_ids"] == [0]
    assert daemon.run("gbatch", "--shared", "--gpus", "1", "true").returncode == 2


def test_host_memory_and_cpus_are_counted(daemon: Box) -> None:
    big = daemon.submit("--cpus", "3", "sleep", "60")
    other = daemon.submit("--cpus", "2", "sleep", "60")
    wait_until(lambda: daemon.job(big)["state"] == "Running")
    assert daemon.job(other)["reason"] == "Resources: Need 2 CPUs, only 1 free"
    refused = daemon.run("gbatch", "--memory", "1000T", "true")
    assert refused.returncode == 1
    assert "this machine has" in refused.stderr
    waiting = daemon.submit("--memory", "1000T", "--allow-unsatisfiable", "true")
    assert daemon.job(waiting)["state"] == "Queued"


def test_retries_are_attempts_of_the_same_job(daemon: Box) -> None:
    mark = daemon.work / "tries"
    job = daemon.submit(
        "--max-retries", "3", "--retry-delay", "0", f"echo x >> {mark}; [ $(wc -l < {mark}) -ge 3 ]"
    )
    final = daemon.finished(job)
    assert (final["state"], final["attempt"]) == ("Finished", 3)
    assert daemon.text_of(job) == "gflow: attempt 2\ngflow: attempt 3\n"


def test_code_75_means_again_only_with_requeue(daemon: Box) -> None:
    assert daemon.finished(daemon.submit("exit 75"))["state"] == "Failed"
    again = daemon.submit("--requeue", "[ $GFLOW_RESTART_COUNT = 2 ] || exit 75")
    final = daemon.finished(again)
    assert (final["state"], final["attempt"]) == ("Finished", 3)
    loop = daemon.submit("--requeue", "exit 75")
    wait_until(lambda: daemon.job(loop)["state"] == "Hold")
    assert (daemon.job(loop)["reason"], daemon.job(loop)["attempt"]) == ("RequeueLoop", 5)


def test_update_changes_what_waits(daemon: Box) -> None:
    blocker = daemon.submit("--gpus", "3", "sleep", "60")
    job = daemon.submit("--gpus", "4", "true")
    wait_until(lambda: daemon.job(blocker)["state"] == "Running")
    assert daemon.ok("gjob", "update", str(job), "--gpus", "1") == f"Job {job} updated.\n"
    assert daemon.finished(job)["gpus"] == 1
    daemon.ok("gjob", "update", str(blocker), "--time", "0:01")
    assert daemon.finished(blocker)["state"] == "Timeout"
    first = daemon.submit("--hold", "true")
    second = daemon.submit("-d", str(first), "true")
    cycle = daemon.run("gjob", "update", str(first), "--depends-on", str(second))
    assert (cycle.returncode, cycle.stderr) == (1, f"gjob: job {first} would wait for itself\n")


def test_history_lists_all_audit_entries(daemon: Box) -> None:
    job = daemon.submit("--hold", "--max-retries", "1", "--retry-delay", "0", "exit 3")
    daemon.ok("gjob", "release", str(job))
    daemon.finished(job)
    events = json.loads(daemon.ok("gjob", "history", "--json", str(job)))["events"]
    assert [event["event"] for event in events] == [
        "submitted",
        "released",
        "started",
        "retry",
        "started",
        "failed",
    ]
    assert events[0]["by"] is not None
    assert events[2]["by"] is None
    assert "attempt 1: ExitCode:3" in events[3]["detail"]
    assert daemon.ok("gjob", "history", str(job)).splitlines()[0].split() == ["WHEN", "EVENT", "DETAIL", "BY"]


def test_backup_and_restore(daemon: Box) -> None:
    daemon.finished(daemon.submit("true"))
    path = daemon.ok("gflowd", "backup").strip()
    daemon.finished(daemon.submit("true"))
    refused = daemon.run("gflowd", "restore", path)
    assert refused.returncode == 1
    assert "already runs" in refused.stderr
    daemon.down()
    assert daemon.ok("gflowd", "restore", path).startswith(f"restored {path}; the previous database is now ")
    daemon.up()
    assert list(daemon.jobs()) == [1]
    assert daemon.submit("true") == 3, "a number that was given out is not given out again"


def test_dependencies_survive_a_restart(daemon: Box) -> None:
    mark = daemon.work / "go"
    first = daemon.submit(f"while [ ! -e {mark} ]; do sleep 0.02; done; exit 4")
    second = daemon.submit("-d", str(first), "true")
    either = daemon.submit("--depends-on-any", f"{first},{daemon.submit('true')}", "true")
    kept = daemon.submit("-d", str(first), "--no-auto-cancel", "true")
    assert daemon.finished(either)["state"] == "Finished"
    daemon.kill9()
    daemon.up()
    assert daemon.job(second)["reason"] == "Dependency"
    mark.touch()
    assert daemon.finished(second)["reason"] == f"DependencyFailed:{first}"
    daemon.kill9()
    daemon.up()
    assert daemon.job(kept)["reason"] == f"Dependency: job {first} did not succeed"
