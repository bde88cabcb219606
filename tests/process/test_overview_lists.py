"""What the web page shows besides the overview of a user: jobs of all users, targets."""

from __future__ import annotations

from typing import Any

from tests.harness import Box, wait_until


def test_lists_have_the_jobs_of_the_queue_and_their_starts(daemon: Box) -> None:
    done = daemon.submit("true")
    daemon.finished(done)
    runs = daemon.submit("--gpus", "4", "--time", "60", "sleep", "60")
    waits = daemon.submit("--gpus", "1", "sleep", "60")
    held = daemon.submit("--hold", "true")
    wait_until(lambda: daemon.job(runs)["state"] == "Running")
    assert "lists" not in daemon.api("GET", "/overview")[1]
    lists = daemon.api("GET", "/overview?lists=4")[1]["lists"]
    ids = {name: [job["id"] for job in lists[name]] for name in ("running", "waiting", "ended", "starts")}
    assert ids == {"running": [runs], "waiting": [waits, held], "ended": [done], "starts": [waits]}
    assert lists["ended"] and lists["waiting"][0]["reason"].startswith("Resources")


def test_waiting_jobs_of_a_sweep_are_one_line(daemon: Box) -> None:
    daemon.submit("--gpus", "4", "--time", "60", "sleep", "60")
    words = ("--parsable", "--gpus", "1", "--param", "x=1:40", "true")
    first = int(daemon.ok("gbatch", *words).split()[0])
    held = int(daemon.ok("gbatch", "--hold", *words).split()[0])
    single, last = daemon.submit("--gpus", "1", "true"), daemon.submit("--hold", "true")
    lists = daemon.api("GET", "/overview?lists=3")[1]["lists"]
    assert [one["id"] for one in lists["starts"]] == [first, single]
    assert [job["id"] for job in lists["waiting"]] == [first, single, held, last]


def test_held_jobs_and_tasks_are_counted_among_those_that_wait(daemon: Box) -> None:
    daemon.submit("--hold", "true")
    daemon.submit("--hold", "--array", "1-5", "true")
    daemon.submit("--begin", "now+1h", "true")
    found = daemon.api("GET", "/overview")[1]
    assert (found["waiting"], found["held"]) == (7, 6)
    assert "Queue   0 running, 7 waiting (6 held)\n" in daemon.ok("gflow", "status")


def test_targets_are_this_machine_and_clusters_with_their_connection(box: Box) -> None:
    folder = box.root / "slurm"
    folder.mkdir()
    for name in ("sbatch", "squeue", "scancel", "sinfo", "scontrol", "sacct"):
        text = "Unable to contact slurm controller (connect failure)"
        (folder / name).write_text(f"#!/bin/sh\necho '{name}: error: {text}' >&2\nexit 1\n")
        (folder / name).chmod(0o755)
    box.up("--simulate-gpus", "1x80G", env={"PATH": f"{folder}:{box.env['PATH']}"})
    here, cluster = box.api("GET", "/targets")[1]["targets"]
    assert (here["name"], here["state"], cluster["name"], cluster["state"]) == (
        "local", "here", "slurm", "unused",
    )  # fmt: skip
    box.submit("--on", "slurm", "true")
    box.submit("--hold", "true")

    def found() -> dict[str, Any]:
        view: dict[str, Any] = box.api("GET", "/targets")[1]["targets"][1]
        return view

    wait_until(lambda: found()["state"] == "down")
    view = found()
    assert "Unable to contact" in view["error"] and view["answered_at"] is None
    assert (view["waiting"], box.api("GET", "/targets")[1]["targets"][0]["waiting"]) == (1, 1)
    assert b"down" in box.api("GET", "/targets", accept="text/plain")[1]
