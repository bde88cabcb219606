"""Defects of the other gflow, each with a test that this gflow does not have it."""

from __future__ import annotations

import json
import os
import stat
import tempfile
import time
from pathlib import Path

from tests.harness import Box, wait_until


def script(box: Box, text: str, name: str = "job.sh") -> Path:
    path = box.work / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/bash\n" + text)
    return path


def test_directives_keep_what_is_quoted(daemon: Box) -> None:
    """Theirs are split at every space."""
    job = daemon.submit(str(script(daemon, "# GFLOW --name 'two words' --gpus=1\ntrue\n")))
    assert (daemon.job(job)["name"], daemon.job(job)["gpus"]) == ("two words", 1)


def test_a_dependency_in_a_directive_is_waited_for(daemon: Box) -> None:
    """Theirs is read and never used."""
    parent = daemon.submit("sleep", "60")
    child = daemon.submit(str(script(daemon, f"# GFLOW --depends-on={parent}\ntrue\n")))
    assert daemon.job(child)["reason"] == "Dependency"
    daemon.ok("gcancel", "--now", str(parent))
    assert daemon.finished(child)["reason"] == f"DependencyFailed:{parent}"


def test_a_script_may_have_any_path(daemon: Box) -> None:
    """Theirs becomes part of a shell line, unquoted."""
    path = script(daemon, "echo from $GFLOW_SCRIPT\n", "my; touch oops; $(id)'\"/run me.sh")
    job = daemon.submit(str(path))
    assert daemon.finished(job)["state"] == "Finished"
    assert daemon.text_of(job) == f"from {path}\n"
    assert not (daemon.work / "oops").exists()


def test_script_on_stdin_is_unreadable_for_others(daemon: Box) -> None:
    """The other gflow writes to a name in /tmp that other users can guess."""
    before = set(os.listdir(tempfile.gettempdir()))
    job = daemon.submit(input="#!/bin/bash\nreadlink -f $0; stat -c %a $0\n")
    daemon.finished(job)
    place, mode = daemon.text_of(job).split()
    made = set(os.listdir(tempfile.gettempdir())) - before
    assert not [name for name in made if "gflow_stdin" in name]
    assert place.startswith((str(daemon.data), "/memfd", "/proc", "/dev/fd")), place
    assert int(mode, 8) & 0o022 == 0
    assert stat.S_IMODE(daemon.data.stat().st_mode) == 0o700


def test_a_reason_alone_is_a_column(daemon: Box) -> None:
    """Theirs is empty, though their documents use it."""
    daemon.submit("--gpus", "4", "sleep", "60")
    daemon.submit("--gpus", "1", "sleep", "60")
    assert daemon.ok("gqueue", "-s", "Queued", "-f", "JOBID,REASON") == "JOBID  REASON\n2      Resources\n"


def test_an_empty_list_is_still_what_was_asked_for(daemon: Box) -> None:
    """Theirs says `No jobs found.` to a program that waits for JSON."""
    assert json.loads(daemon.ok("gqueue", "-o", "json")) == {"jobs": [], "total": 0}
    assert daemon.ok("gqueue", "-o", "csv").startswith("id,name,state,time,gpus,user,submitted_at,reason")
    assert daemon.ok("gqueue", "-o", "yaml").startswith("jobs:")


def test_held_jobs_have_a_group(daemon: Box) -> None:
    """Theirs forgets them."""
    daemon.submit("--hold", "--name", "later", "true")
    assert "Hold (1)" in daemon.ok("gqueue", "--group")


def test_today_begins_in_the_time_zone_of_the_caller(daemon: Box) -> None:
    """Theirs begins at midnight in Greenwich."""
    job = daemon.submit("true")
    daemon.finished(job)
    # A zone in which the day is a minute to an hour old, and one in which its last hour runs.
    hour = int((time.time() - 60) // 3600) % 24
    for zone in (f"X{hour}", f"X{(hour + 1) % 24}"):
        assert daemon.ok("gqueue", "--since", "today", "-f", "JOBID", env={"TZ": zone}) == "JOBID\n1\n"


def test_since_takes_the_times_its_help_names(daemon: Box) -> None:
    """The other gflow documents ISO times and refuses them."""
    daemon.finished(daemon.submit("true"))
    past = "2026-01-01T00:00"
    assert daemon.ok("gqueue", "--since", past, "-f", "JOBID") == "JOBID\n1\n"
    assert daemon.ok("gqueue", "--since", "2026-01-01", "-f", "JOBID") == "JOBID\n1\n"


def test_a_gpu_is_given_on_only_when_everything_on_it_is_gone(daemon: Box) -> None:
    """Theirs is free as soon as Ctrl-C was sent, whatever still runs."""
    stubborn = "trap '' TERM INT; (trap '' TERM INT; sleep 600) & echo ready; wait; sleep 600"
    job = daemon.submit("--gpus", "4", "--grace", "1", stubborn)
    wait_until(lambda: "ready" in daemon.text_of(job))
    after = daemon.submit("--gpus", "1", "true")
    daemon.ok("gcancel", str(job))
    assert daemon.job(after)["state"] == "Queued"
    assert daemon.job(job)["stopping"]
    assert daemon.finished(after, timeout_s=15)["state"] == "Finished"
    assert daemon.job(job)["state"] == "Cancelled"


def test_the_daemons_end_is_not_the_jobs_end(daemon: Box) -> None:
    """Stopping theirs kills every job of its process executor."""
    job = daemon.submit("sleep", "60")
    wait_until(lambda: daemon.job(job)["state"] == "Running")
    daemon.down()
    daemon.up()
    assert daemon.job(job)["state"] == "Running"


def test_an_answered_submission_survives_a_kill_at_once(daemon: Box) -> None:
    """Theirs is saved up to 30 seconds later, without fsync."""
    numbers = [daemon.submit("sleep", "60") for _ in range(3)]
    daemon.kill9()
    daemon.up()
    assert set(daemon.jobs()) == set(numbers)


def test_environment_and_script_are_those_of_submission(daemon: Box) -> None:
    """Theirs runs with the daemon's environment, and with whatever the script has become."""
    daemon.submit("--gpus", "4", "--name", "first", f"while [ ! -e {daemon.work}/go ]; do sleep 0.02; done")
    path = script(daemon, "echo $FLAVOUR\n")
    job = daemon.submit("--gpus", "1", str(path), env={"FLAVOUR": "vanilla"})
    path.write_text("#!/bin/bash\necho changed\n")
    (daemon.work / "go").touch()
    daemon.finished(job)
    assert "vanilla" in daemon.text_of(job)
    assert "changed\n" not in daemon.text_of(job).splitlines(keepends=True)
