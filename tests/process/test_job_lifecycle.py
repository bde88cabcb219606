"""One job through every layer, with real processes."""

from __future__ import annotations

import json
import re

import pytest

from tests.harness import Box, wait_until

pytestmark = pytest.mark.both_shims


def test_a_command_runs_and_finishes(daemon: Box) -> None:
    assert daemon.ok("gbatch", "echo", "hello  world") == "Submitted batch job 1\n"
    job = daemon.finished(1)
    assert (job["state"], job["exit_code"], job["reason"]) == ("Finished", 0, None)
    assert daemon.text_of(1) == "hello  world\n"


def test_exit_codes_and_signals_are_reported(daemon: Box) -> None:
    code = daemon.finished(daemon.submit("exit 7"))
    assert (code["state"], code["exit_code"], code["reason"]) == ("Failed", 7, "ExitCode:7")
    killed = daemon.finished(daemon.submit("kill -9 $$"))
    assert (killed["state"], killed["exit_code"], killed["signal"]) == ("Failed", None, 9)


def test_gjob_wait_gives_up_after_its_timeout(daemon: Box) -> None:
    job = daemon.submit("sleep", "60")
    done = daemon.run("gjob", "wait", "--timeout", "1", str(job))
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        124,
        f"gjob: job {job} has not ended yet, after 1 s",
    )
    assert daemon.run("gjob", "wait", "--timeout", "soon", str(job)).returncode == 2
    daemon.ok("gcancel", "--now", str(job))
    assert daemon.run("gjob", "wait", "--timeout", "1m", str(job)).returncode == 130


def test_a_task_of_an_earlier_array_is_named_and_redone(daemon: Box) -> None:
    array = daemon.submit("--array", "1-3", "echo $GFLOW_ARRAY_TASK_ID")
    daemon.finished(array)
    daemon.submit("true")
    assert daemon.ok("gjob", "log", "@~1_3") == "3\n"
    redone = daemon.run("gjob", "redo", "@~1_3")
    assert (redone.returncode, redone.stdout) == (0, "Submitted batch job 3\n")
    assert daemon.ok("gbatch", "--depends-on", "@~2_2", "true") == "Submitted batch job 4\n"


def test_gpus_are_exclusive_and_visible_to_the_job_alone(daemon: Box) -> None:
    first = daemon.submit("--gpus", "3", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER; sleep 60")
    second = daemon.submit("--gpus", "2", "true")
    third = daemon.submit("--gpus", "1", "echo $CUDA_VISIBLE_DEVICES; sleep 60")
    wait_until(lambda: daemon.job(first)["state"] == daemon.job(third)["state"] == "Running")
    assert daemon.job(first)["gpu_ids"] == [0, 1, 2]
    assert daemon.job(third)["gpu_ids"] == [3]
    assert daemon.job(second)["reason"] == "Resources"
    wait_until(lambda: daemon.text_of(first) == "0,1,2 PCI_BUS_ID\n")
    daemon.ok("gcancel", str(third))
    assert daemon.finished(third)["state"] == "Cancelled"
    assert daemon.job(second)["reason"] == "Resources: Need 2 GPUs, only 1 available"
    daemon.ok("gcancel", str(first))
    assert daemon.finished(second)["state"] == "Finished"


def test_a_job_without_gpus_sees_none(daemon: Box) -> None:
    job = daemon.submit('echo "[$CUDA_VISIBLE_DEVICES]"', env={"CUDA_VISIBLE_DEVICES": "0,1"})
    daemon.finished(job)
    assert daemon.text_of(job) == "[]\n"


def test_more_gpus_than_there_are_is_refused_at_once(daemon: Box) -> None:
    done = daemon.run("gbatch", "--gpus", "5", "true")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "gbatch: the job asks for 5 GPUs, and this machine has 4"
    assert daemon.jobs() == {}


def test_without_gpus_a_gpu_request_is_answered_with_a_reason(box: Box) -> None:
    box.up("--cpus", "2")
    done = box.run("gbatch", "--gpus", "1", "true")
    assert (done.returncode, done.stdout) == (1, "")
    assert "this machine has none that gflow can see" in done.stderr
    assert box.finished(box.submit("true"))["state"] == "Finished"


def test_cpu_slots_are_counted(daemon: Box) -> None:
    for _ in range(6):
        daemon.submit("sleep", "60")
    states = [job["state"] for job in daemon.jobs().values()]
    assert states.count("Running") == 4
    assert states.count("Queued") == 2


def test_the_submitters_world_reaches_the_job(daemon: Box) -> None:
    folder = daemon.work / "a b $(touch x)"
    folder.mkdir()
    line = 'umask; pwd; echo "$COLOUR"; echo $GFLOW_JOB_ID $GFLOW_JOB_NAME $GFLOW_ATTEMPT'
    words = ["--name", "my job", line]
    job = daemon.submit(*words, cwd=folder, env={"COLOUR": "réd $(id) ${HOME} {}"})
    daemon.finished(job)
    expected = ["0022", str(folder), "réd $(id) ${HOME} {}", f"{job} my job 1"]
    assert daemon.text_of(job).splitlines() == expected


def test_bytes_that_are_not_text_survive_in_the_environment(daemon: Box) -> None:
    job = daemon.submit('printf %s "$RAW" | od -An -tx1', env={"RAW": "a\udcffb"})
    daemon.finished(job)
    assert daemon.text_of(job).split() == ["61", "ff", "62"]


def test_a_job_inherits_no_descriptor_but_its_own_three(daemon: Box) -> None:
    job = daemon.submit("ls -l /proc/self/fd | grep -v '/proc/' | grep -c -- '->'")
    daemon.finished(job)
    assert daemon.text_of(job) == "3\n"


def test_dependencies_hold_and_failures_cascade(daemon: Box) -> None:
    go = daemon.work / "go"
    first = daemon.submit("--gpus", "1", f"while [ ! -e {go} ]; do sleep 0.02; done; exit 3")
    second = daemon.submit("--depends-on", "@", "true")
    third = daemon.submit("--depends-on", str(second), "true")
    assert daemon.job(second)["reason"] == "Dependency"
    go.touch()
    assert daemon.finished(third)["reason"] == f"DependencyFailed:{second}"
    assert daemon.job(second)["reason"] == f"DependencyFailed:{first}"
    assert daemon.job(first)["state"] == "Failed"


def test_a_chain_of_dependencies_runs_in_order(daemon: Box) -> None:
    order = daemon.work / "order"
    daemon.submit(f"sleep 0.2; echo a >> {order}")
    daemon.submit("-d", "@", f"echo b >> {order}")
    last = daemon.submit("-d", "1,2", f"echo c >> {order}")
    daemon.finished(last)
    assert order.read_text().split() == ["a", "b", "c"]


def test_priority_goes_first(daemon: Box) -> None:
    blocker = daemon.submit("--gpus", "4", "sleep", "60")
    low = daemon.submit("--gpus", "4", "--priority", "1", "sleep", "60")
    high = daemon.submit("--gpus", "4", "--priority", "200", "sleep", "60")
    daemon.ok("gcancel", "--now", str(blocker))
    wait_until(lambda: daemon.job(high)["state"] == "Running")
    assert daemon.job(low)["state"] == "Queued"


def test_scripts_run_with_directives_and_own_interpreter(daemon: Box) -> None:
    script = daemon.work / "train.sh"
    script.write_text('#!/usr/bin/env python3\n# GFLOW --gpus 2 --name "big run"\nprint("from", __file__)\n')
    job = daemon.submit("--name", "mine", str(script))
    final = daemon.finished(job)
    assert (final["gpus"], final["name"]) == (2, "mine")
    assert daemon.text_of(job) == f"from {script}\n"


def test_a_script_edited_while_queued_runs_as_submitted(daemon: Box) -> None:
    script = daemon.work / "job.sh"
    script.write_text("echo old\n")
    blocker = daemon.submit("--gpus", "4", "sleep", "60")
    job = daemon.submit("--gpus", "1", "job.sh")
    script.write_text("echo new\n")
    daemon.ok("gcancel", "--now", str(blocker))
    daemon.finished(job)
    notice, output = daemon.text_of(job).splitlines()
    assert "changed since it was submitted" in notice
    assert output == "old"


def test_a_script_on_standard_input(daemon: Box) -> None:
    job = int(daemon.ok("gbatch", "--parsable", input="# GFLOW --gpus 1\necho $GFLOW_GPUS\n"))
    assert daemon.finished(job)["gpus"] == 1
    assert daemon.text_of(job) == "1\n"


def test_a_job_that_cannot_start_says_why(daemon: Box) -> None:
    folder = daemon.work / "gone"
    folder.mkdir()
    blocker = daemon.submit("--gpus", "4", "sleep", "60")
    job = daemon.submit("--gpus", "1", "true", cwd=folder)
    folder.rmdir()
    daemon.ok("gcancel", "--now", str(blocker))
    final = daemon.finished(job)
    assert final["state"] == "Failed"
    assert final["reason"] == f"StartFailed: No such file or directory: {folder}"
    assert "could not start" in daemon.text_of(job)


def test_wait_passes_the_exit_code_on(daemon: Box) -> None:
    assert daemon.run("gbatch", "--wait", "exit 9").returncode == 9
    assert daemon.run("gbatch", "--wait", "kill -TERM $$").returncode == 128 + 15
    assert daemon.run("gbatch", "--wait", "--time", "0:01", "sleep", "60").returncode == 124
    answer = json.loads(daemon.run("gbatch", "--wait", "--json", "exit 2").stdout)
    assert answer["jobs"][0]["exit_code"] == 2


def test_a_time_limit_stops_the_job_and_all_it_started(daemon: Box) -> None:
    mark = daemon.work / "pids"
    line = f"setsid sleep 61 & (setsid sh -c 'echo $$ > {mark}; sleep 62' &) ; trap '' TERM; sleep 63"
    job = daemon.submit("--time", "0:01", line)
    wait_until(lambda: mark.exists() and mark.read_text().strip())
    daemon.ok("gcancel", "--now", str(job))
    final = daemon.finished(job)
    assert final["state"] == "Cancelled"
    left = [pid for pid in daemon.processes() if re.match(rb"sleep\x006[123]", _cmdline(pid))]
    assert left == []


def _cmdline(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def test_leftovers_are_killed_before_gpu_is_reused(daemon: Box) -> None:
    job = daemon.submit("--gpus", "4", "setsid nohup sleep 64 >/dev/null 2>&1 & disown; exit 0")
    after = daemon.submit("--gpus", "4", "pgrep -f 'sleep 6''4'; true")
    daemon.finished(after)
    assert daemon.job(job)["state"] == "Finished"
    assert daemon.text_of(after) == ""


def test_a_shim_that_had_to_kill_serves_the_next_jobs_too(daemon: Box) -> None:
    """A control group in which everything was killed once must not kill what is born in it later."""
    for _ in range(4):
        left = [daemon.submit("setsid sleep 65 >/dev/null 2>&1 & exit 0") for _ in range(4)]
        assert {daemon.finished(job)["state"] for job in left} == {"Finished"}
        after = [daemon.finished(daemon.submit("true")) for _ in range(4)]
        assert {(job["state"], job["reason"]) for job in after} == {("Finished", None)}


def test_time_out_sends_term_first(daemon: Box) -> None:
    job = daemon.submit("--time", "0:01", "trap 'echo saved; exit 5' TERM; sleep 60 & wait")
    final = daemon.finished(job)
    assert (final["state"], final["reason"], final["exit_code"]) == ("Timeout", "TimeLimit", 5)
    assert daemon.output_of(job) == "saved\n"


def test_children_may_use_the_grace_time_after_their_parent_died(daemon: Box) -> None:
    script = daemon.work / "child.py"
    script.write_text(
        "import signal, time, sys\n"
        "signal.signal(15, lambda *a: (time.sleep(0.4), print('saved'), sys.exit()))\n"
        "print('up', flush=True)\ntime.sleep(60)\n"
    )
    job = daemon.submit(f"python3 {script}; true")
    wait_until(lambda: "up" in daemon.text_of(job))
    daemon.ok("gcancel", str(job))
    daemon.finished(job)
    assert daemon.output_of(job) == "up\nsaved\n"


def test_follow_prints_all_and_ends_with_the_job(daemon: Box) -> None:
    job = daemon.submit("for i in 1 2 3; do echo $i; sleep 0.2; done")
    assert daemon.ok("gjob", "log", "-f", str(job)) == "1\n2\n3\n"
    assert daemon.ok("gjob", "log", "--last", "1", str(job)) == "3\n"
    assert daemon.ok("gjob", "log", "--first", "2", str(job)) == "1\n2\n"


@pytest.mark.parametrize("size", [100_000, 900_000])
def test_huge_commands_arrive_whole(daemon: Box, size: int) -> None:
    status, answer = daemon.api(
        "POST",
        "/jobs",
        {
            "token": f"huge-{size}",
            "jobs": [daemon.job_request(["sh", "-c", "echo ${#1}", "x", *_words(size)])],
        },
    )
    assert status == 201
    job = answer["jobs"][0]["id"]
    daemon.finished(job)
    assert daemon.text_of(job) == "100000\n"


def _words(size: int) -> list[str]:
    return ["y" * 100_000] * (size // 100_000)
