"""gctl: which GPUs, whether anything starts, how many at once."""

from __future__ import annotations

import json

from tests.harness import Box, wait_until


def running(box: Box) -> list[int | str]:
    return [number for number, job in box.jobs().items() if job["state"] == "Running"]


def test_set_gpus_and_show_gpus(daemon: Box) -> None:
    first = daemon.submit("--gpus", "1", "--name", "train", "sleep", "60")
    wait_until(lambda: daemon.job(first)["state"] == "Running")
    said = daemon.ok("gctl", "set-gpus", "0,2")
    assert said == "New jobs may use only GPUs 0,2; running jobs keep theirs.\n"
    assert daemon.ok("gctl", "show-gpus") == (
        "0\tallocated\tjob 1 (train); simulated\n"
        "1\tunavailable\trestricted; simulated\n"
        "2\tidle\tsimulated\n"
        "3\tunavailable\trestricted; simulated\n"
    )
    second = daemon.submit("--gpus", "2", "sleep", "60")
    assert daemon.job(second)["state"] == "Queued"
    assert daemon.ok("gctl", "set-gpus", "all") == "New jobs may use all GPUs.\n"
    assert daemon.job(second)["gpu_ids"] == [1, 2]
    assert json.loads(daemon.ok("gctl", "--json", "set-gpus", "1-2")) == {"allowed_gpu_indices": [1, 2]}
    assert json.loads(daemon.ok("gctl", "show-gpus", "--json"))["gpus"][3]["notes"] == [
        "restricted",
        "simulated",
    ]


def test_restart_says_whether_gpus_or_set_gpus_holds(daemon: Box) -> None:
    daemon.ok("gctl", "set-gpus", "0,2")
    kept = "(new jobs may use only GPUs 0,2; gctl set-gpus all lifts this)\n"
    assert kept in daemon.ok("gflowd", "restart")
    said = daemon.ok("gflowd", "restart", "--gpus", "0-3")
    assert "(until this daemon stops, --gpus 0,1,2,3 overrides gctl set-gpus 0,2)\n" in said
    assert "(gctl set-gpus 0,1,2,3 keeps it)\n" in said
    daemon.ok("gctl", "set-gpus", "0-3")
    assert "overrides" not in daemon.ok("gflowd", "status")
    daemon.ok("gctl", "set-gpus", "all")
    assert "set-gpus" not in daemon.ok("gflowd", "restart")
    assert "gflowd restart --gpus=0" in daemon.ok("gflowd", "up", "--gpus", "0")


def test_drain_and_resume_survive_a_restart(daemon: Box) -> None:
    said = daemon.ok("gctl", "drain", "--reason", "new disk")
    assert said == "No new jobs start (new disk); running jobs continue.\n"
    daemon.ok("gctl", "drain", "--gpu", "1", "--reason", "loud fan")
    job = daemon.submit("--gpus", "4", "sleep", "60")
    assert daemon.job(job)["reason"] == "Drained: new disk"
    daemon.down()
    daemon.up()
    assert daemon.job(job)["reason"] == "Drained: new disk"
    assert "1\tunavailable\tdrained: loud fan; simulated\n" in daemon.ok("gctl", "show-gpus")
    assert "(drained: new disk; gctl resume" in daemon.ok("gctl", "show-gpus")
    assert daemon.ok("gflowd", "status").startswith("Status: Running, drained: new disk (gctl resume")
    assert json.loads(daemon.ok("gflowd", "status", "--json"))["drained_reason"] == "new disk"
    said = daemon.ok("gctl", "resume")
    assert said == "Jobs start again. GPU 1 stays drained (gctl resume --gpu 1).\n"
    assert daemon.job(job)["state"] == "Queued"
    assert daemon.ok("gctl", "resume", "--gpu", "1") == "GPU 1 gets jobs again.\n"
    assert daemon.ok("gctl", "resume") == "Jobs start again.\n"
    assert daemon.job(job)["gpu_ids"] == [0, 1, 2, 3]


def test_down_with_kill_jobs_leaves_no_drain(daemon: Box) -> None:
    daemon.submit("sleep", "60")
    daemon.ok("gflowd", "down", "--kill-jobs")
    daemon.daemon.wait(20)
    daemon.up()
    assert daemon.finished(daemon.submit("true"))["state"] == "Finished"


def test_set_limit_of_an_array_and_of_jobs_submitted_together(daemon: Box) -> None:
    array = daemon.submit("--array", "1-4%1", "sleep", "60")
    wait_until(lambda: running(daemon) == [f"{array}_1"])
    assert (
        daemon.ok("gctl", "set-limit", str(array), "2")
        == f"At most 2 of array {array}'s tasks may run at once.\n"
    )
    wait_until(lambda: running(daemon) == [f"{array}_1", f"{array}_2"])
    daemon.ok("gctl", "set-limit", f"{array}_1", "3")
    wait_until(lambda: len(running(daemon)) == 3)
    daemon.ok("gcancel", "--now", str(array))
    daemon.finished(array)
    body = {
        "token": "together-1",
        "jobs": [daemon.job_request(["sleep", "60"], **{"max-concurrent": 1}) for _ in range(3)],
    }
    status, answer = daemon.api("POST", "/jobs", body)
    assert status == 201
    first, *_, last = [job["id"] for job in answer["jobs"]]
    assert running(daemon) == [first]
    assert daemon.ok("gctl", "set-limit", str(last), "0") == "Any number of these 3 jobs may run at once.\n"
    assert len(running(daemon)) == 3
    assert json.loads(daemon.ok("gctl", "set-limit", str(last), "2", "--json")) == {
        "jobs": [first, first + 1, last],
        "max_concurrent": 2,
    }


def test_gctl_refuses_bad_input(daemon: Box) -> None:
    alone = daemon.submit("sleep", "60")
    cases = [
        (("set-gpus", "9"), 1, "there is no GPU 9 here"),
        (("set-gpus", "x"), 2, "'x' is not a list of GPUs"),
        (("set-gpus",), 2, "gctl set-gpus takes LIST"),
        (("set-gpus", "0", "--gpu", "1"), 2, "takes no --gpu"),
        (("drain", "--gpu", "9"), 1, "there is no GPU 9 here"),
        (("drain", "--reason", "a\nb"), 2, "printable"),
        (("set-limit", str(alone), "2"), 1, "was submitted alone"),
        (("set-limit", "99", "2"), 1, "there is no job 99"),
        (("set-limit", "1", "-2"), 2, "unknown option '-2'"),
        (("set-limit", "1", "many"), 2, "whole number"),
        (("set-limit", "1", "9999999"), 2, "not valid"),
        (("quota", "sett"), 2, "did you mean set?"),
        (("quota", "set", "--user", "ann"), 2, "a quota needs a limit"),
        (("quota", "set", "--max-running-gpus", "2"), 2, "whose quota?"),
        (
            ("quota", "set", "--user", "nosuch", "--max-running-gpus", "2"),
            1,
            "there is no user 'nosuch' here",
        ),
        (("quota", "set", "--user", "rooot", "--max-running-gpus", "2"), 1, "did you mean root? --force acc"),
        (("reserve", "create", "--user", "rooot", "-g", "1", "-d", "1h"), 1, "there is no user 'rooot' here"),
        (("quota", "remove", "--user", "ann"), 1, "there is no quota for user 'ann'"),
        (("reserve", "create", "--gpus", "1", "--duration", "1h"), 2, "needs --user"),
        (("reserve", "create", "--user", "ann", "--duration", "1h"), 2, "how many GPUs"),
        (
            ("reserve", "create", "--user", "ann", "--gpus", "1", "--duration", "soon"),
            2,
            "does not understand",
        ),
        (
            ("reserve", "create", "--user", "ann", "--force", "--gpus", "9", "--duration", "1h"),
            1,
            "only 4 of the 4 GPUs",
        ),
        (
            ("reserve", "create", "--user", "ann", "--force", "--gpu-spec", "7", "--duration", "1h"),
            1,
            "there is no GPU 7",
        ),
        (
            ("reserve", "create", "-u", "ann", "--force", "-g", "1", "-d", "1h", "-s", "2020-01-01"),
            1,
            "over already",
        ),
        (("reserve", "cancel", "3"), 1, "there is no reservation"),
        (("sho-gpus",), 2, "did you mean show-gpus?"),
        ((), 2, ""),
    ]
    before = daemon.ok("gctl", "show-gpus")
    for words, code, says in cases:
        done = daemon.run("gctl", *words)
        assert done.returncode == code, words
        assert says in done.stderr, words
    assert daemon.ok("gctl", "show-gpus") == before
