"""Submitting and changing, beyond the first steps: sweeps, redo, update, selections, retries, scripts."""

from __future__ import annotations

import json
import os
import pty
import pwd
import select
import signal
import time

import pytest

from tests.harness import BIN, Box, wait_until

# ---------------------------------------------------------------- scripts and options


def test_a_new_script_is_a_start_and_is_never_overwritten(daemon: Box) -> None:
    assert daemon.ok("gbatch", "new", "my run").startswith("Created my run.sh;")
    path = daemon.work / "my run.sh"
    assert path.stat().st_mode & 0o777 == 0o755
    job = daemon.submit("my run.sh")
    final = daemon.finished(job)
    assert (final["state"], final["name"], final["gpus"]) == ("Finished", "my run", 1)
    path.write_text("mine")
    assert daemon.run("gbatch", "new", "my run").returncode == 1
    assert path.read_text() == "mine"


def test_directives_are_quoted_like_shell_words_and_can_be_off(daemon: Box) -> None:
    script = (
        "#!/bin/bash\n# GFLOW --name 'two words' --gpus=2  # why\n## GFLOW --gpus 4\n"
        "# GFLOW --nice 3\n"
        '# GFLOW --depends-on 1 --comment "a \\"b\\""\necho $GFLOW_JOB_NAME\n'
    )
    daemon.submit("true")
    job = daemon.submit(input=script)
    final = daemon.finished(job)
    assert (final["name"], final["gpus"], final["depends_on"]) == ("two words", 2, [1])
    assert (final["comment"], final["priority"]) == ('a "b"', 7)
    assert daemon.text_of(job) == "two words\n"


def test_slurm_script_runs_with_one_warning(daemon: Box) -> None:
    (daemon.work / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH -J cluster -t 1-0 -c 2 -p gpu # not for us\n"
        "#SBATCH --gres=gpu:a100:2 --mem=0 --qos=high\n#SBATCH --output=out_%j.txt\n"
        "# GFLOW --time 0:10\necho hello\n#SBATCH --time=99\n"
    )
    done = daemon.run("gbatch", "job.sh")
    assert (done.returncode, done.stdout) == (1, "")  # the simulated cards are no A100
    done = daemon.run("gbatch", "--gpu-type", "simulated", "job.sh")
    assert done.stdout == "Submitted batch job 1\n"
    assert done.stderr == "gbatch: ignored: --partition, --qos (this is one machine)\n"
    page = daemon.ok("gjob", "show", "1")
    assert "Partition" not in page and "QoS" not in page
    final = daemon.finished(1)
    assert (final["name"], final["gpus"], final["cpus"]) == ("cluster", 2, 2)
    assert (final["time_limit_s"], final["memory_mib"]) == (10, None)
    assert (daemon.work / "out_1.txt").read_text() == "hello\n"


def test_only_slurm_scripts_get_slurm_variables(daemon: Box) -> None:
    show = "env | grep ^SLURM_ | sort\n"
    (daemon.work / "cluster.sh").write_text(f"#!/bin/bash\n#SBATCH -J mine -a 3 -c 2\n{show}")
    (daemon.work / "plain.sh").write_text(f"{show}")
    daemon.submit("cluster.sh")
    daemon.finished("1_3")
    host = os.uname().nodename
    user = pwd.getpwuid(os.getuid()).pw_name
    assert daemon.text_of("1_3").splitlines() == [
        "SLURM_ARRAY_JOB_ID=1",
        "SLURM_ARRAY_TASK_COUNT=1",
        "SLURM_ARRAY_TASK_ID=3",
        "SLURM_ARRAY_TASK_MAX=3",
        "SLURM_ARRAY_TASK_MIN=3",
        "SLURM_ARRAY_TASK_STEP=1",
        "SLURM_CPUS_ON_NODE=2",
        "SLURM_CPUS_PER_TASK=2",
        "SLURM_JOBID=1048580",
        "SLURM_JOB_CPUS_PER_NODE=2",
        "SLURM_JOB_ID=1048580",
        "SLURM_JOB_NAME=mine",
        f"SLURM_JOB_NODELIST={host}",
        "SLURM_JOB_NUM_NODES=1",
        f"SLURM_JOB_UID={os.getuid()}",
        f"SLURM_JOB_USER={user}",
        "SLURM_LOCALID=0",
        "SLURM_NNODES=1",
        "SLURM_NODEID=0",
        f"SLURM_NODELIST={host}",
        "SLURM_PROCID=0",
        f"SLURM_SUBMIT_DIR={daemon.work}",
        f"SLURM_SUBMIT_HOST={host}",
        "SLURM_TASKS_PER_NODE=1",
    ]
    daemon.submit("plain.sh")
    daemon.finished(2)
    assert daemon.text_of(2) == ""


@pytest.mark.parametrize(
    ("line", "sentence", "hint"),
    [
        ("nosuch --lr 1", "nosuch is neither a file nor a program on your PATH", ""),
        ("./nosuch.sh --lr 1", "there is no file ./nosuch.sh", ""),
        ("./folder --lr 1", "./folder is a folder, not a script", ""),
        (
            "cd folder '&&' ls",
            "cd is a shell builtin or shell syntax",
            "quote the whole line: gbatch 'cd folder && ls'",
        ),
        ("A=1 nosuch", "A=1 is a shell builtin or shell syntax", "quote the whole line: gbatch 'A=1 nosuch'"),
        (
            "'python3 train.py' --gpus 1 --name 'my run'",
            "python3 train.py is a shell builtin or shell syntax",
            "options stand before the command: gbatch --gpus 1 --name 'my run' 'python3 train.py'",
        ),
        (
            "'python3 train.py' --lr 1",
            "python3 train.py is a shell builtin or shell syntax",
            "quote the whole line: gbatch 'python3 train.py --lr 1'",
        ),
        (
            "train.py",
            "train.py has no #! line",
            "gbatch python3 train.py, or #!/usr/bin/env python3",
        ),
        (
            "train.py --gpus 1 --time 2h",
            "train.py has no #! line",
            "gbatch --gpus 1 --time 2h python3 train.py, or",
        ),
        ("./train.py --lr 1", "./train.py has no #! line", "gbatch python3 ./train.py --lr 1, or"),
    ],
)
def test_command_that_cannot_run_is_refused(daemon: Box, line: str, sentence: str, hint: str) -> None:
    (daemon.work / "train.py").write_text("print('trained')\n")
    (daemon.work / "folder").mkdir()
    done = daemon.run_shell(f"gbatch {line}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gbatch: {sentence}") and hint in done.stderr
    assert daemon.jobs() == {}


def test_python_without_such_a_program_names_python3(daemon: Box) -> None:
    (daemon.work / "python3").symlink_to("/bin/true")
    done = daemon.run("gbatch", "python", "train.py", env={"PATH": str(daemon.work)})
    assert done.stderr.endswith(
        "python is neither a file nor a program on your PATH\ndid you mean python3?\n"
    )


def test_slurms_words_on_the_command_line(daemon: Box) -> None:
    first = daemon.submit("--hold", "--nice", "5", "--gres", "gpu:1", "-J", "x", "--exclusive", "true")
    second = daemon.submit(
        "--dependency", f"afterok:{first}", "--mail-user", "a@b.org", "--mail-type", "END", "true"
    )
    job = daemon.job(first)
    assert (job["priority"], job["gpus"], job["name"]) == (5, 1, "x")
    assert daemon.job(second)["depends_on"] == [first]
    assert daemon.job(second)["notify"]["emails"] == ["a@b.org"]
    assert "job_completed" in daemon.job(second)["notify"]["events"]


# ---------------------------------------------------------------- sweeps


def test_a_sweep_is_taken_whole_or_not_at_all(daemon: Box) -> None:
    words = ("--param", "gpus=1,2", "--param", "word=a b,c", "--name-template", "n{gpus}{word}")
    answer = json.loads(daemon.ok("gbatch", "--json", *words, "echo {gpus} {word} {{word}}"))
    assert [job["name"] for job in answer["jobs"]] == ["n1a b", "n1c", "n2a b", "n2c"]
    assert {job["group_id"] for job in answer["jobs"]} == {1}
    assert daemon.finished(1)["parameters"] == {"gpus": "1", "word": "a b"}
    assert daemon.text_of(1) == "1 a b {word}\n"
    refused = daemon.run("gbatch", "--param", "x=1,2", "--depends-on", "99", "true")
    assert (refused.returncode, len(daemon.jobs())) == (1, 4)


def test_a_job_depends_on_all_jobs_of_a_group(daemon: Box) -> None:
    daemon.ok("gbatch", "--hold", "--param", "x=1,2,3", "true")
    after = daemon.submit("--depends-on", "g1", "true")
    slurm = daemon.submit("--dependency", f"afterok:g1:{after}", "true")
    either = daemon.submit("--depends-on-any", "g1", "true")
    updated = daemon.submit("--hold", "true")
    daemon.ok("gjob", "update", str(updated), "--depends-on", "g1,1")
    assert [daemon.job(job)["depends_on"] for job in (after, slurm, updated)] == [
        [1, 2, 3], [1, 2, 3, after], [1, 2, 3],
    ]  # fmt: skip
    assert daemon.job(either)["depends_any"] == [1, 2, 3]
    assert "\nDepends on: 1-4\n" in daemon.ok("gjob", "show", str(slurm))
    assert daemon.ok("gjob", "redo", str(after), "--depends-on", "g1,4", "--parsable") == "8\n"
    assert daemon.job(8)["depends_on"] == [1, 2, 3, 4]
    planned = json.loads(daemon.ok("gbatch", "--dry-run", "--json", "--depends-on", "g1", "true"))
    assert planned["jobs"][0]["depends_on"] == [1, 2, 3]
    refused = daemon.run("gbatch", "--depends-on", "g4", "true")
    assert refused.returncode == 1 and "there is no group g4" in refused.stderr
    daemon.ok("gjob", "release", "g1")
    assert daemon.finished(after)["state"] == "Finished"


def test_a_sweep_from_a_file_times_a_parameter(daemon: Box) -> None:
    (daemon.work / "p.csv").write_text('lr,name\n0.1,"a, b"\n0.2,c\n')
    lines = daemon.ok(
        "gbatch", "--dry-run", "--param-file", "p.csv", "--param", "s=1:2", "echo", "{lr}", "{name}{s}"
    )
    assert lines.splitlines() == [
        "Would submit 4 batch job(s):",
        "  [1] echo 0.1 'a, b1' (GPUs: 0)",
        "  [2] echo 0.1 'a, b2' (GPUs: 0)",
        "  [3] echo 0.2 c1 (GPUs: 0)",
        "  [4] echo 0.2 c2 (GPUs: 0)",
    ]
    assert daemon.jobs() == {}


def test_a_reader_that_leaves_early_gets_no_complaint(daemon: Box) -> None:
    done = daemon.run_shell("gbatch --json --hold --param i=1:50 true | head -c 10")
    assert (done.stdout, done.stderr) == ('{"jobs": [', "")


def test_a_script_on_standard_input_has_no_name_in_a_dry_run(daemon: Box) -> None:
    lines = daemon.ok("gbatch", "--dry-run", "--gpus", "1", input="echo hi\n").splitlines()
    assert lines[1] == "  [1] (script on standard input) (GPUs: 1)"


def test_scripts_of_a_sweep_get_variables(daemon: Box) -> None:
    (daemon.work / "s.sh").write_text("echo {lr} $GFLOW_PARAM_LR\n")
    daemon.ok("gbatch", "--param", "lr=0:1:0.5", "s.sh")
    for number in (1, 2, 3):
        daemon.finished(number)
    assert [daemon.text_of(n) for n in (1, 2, 3)] == ["{lr} 0\n", "{lr} 0.5\n", "{lr} 1\n"]


def test_a_group_runs_no_more_at_once_than_its_cap(daemon: Box) -> None:
    daemon.ok("gbatch", "--max-concurrent", "1", "--param", "i=1:3", "sleep", "1000")
    wait_until(lambda: [job["state"] for job in daemon.jobs().values()] == ["Running", "Queued", "Queued"])
    daemon.ok("gctl", "set-limit", "1", "2")
    wait_until(lambda: [job["state"] for job in daemon.jobs().values()] == ["Running", "Running", "Queued"])


# ---------------------------------------------------------------- retries


def test_a_retry_waits_and_says_so(daemon: Box) -> None:
    job = daemon.submit("--max-retries", "1", "--retry-on", "exit:3", "--retry-delay", "1000", "exit 3")
    wait_until(lambda: daemon.job(job)["reason"] == "RetryDelay")
    daemon.kill9()
    daemon.up()
    assert daemon.job(job)["reason"] == "RetryDelay"
    assert "next in 1000 s" in daemon.ok("gjob", "history", str(job))
    daemon.ok("gjob", "release", str(job), "--at", "now")
    assert (daemon.finished(job)["state"], daemon.job(job)["attempt"]) == ("Failed", 2)
    other = daemon.submit("--max-retries", "5", "--retry-on", "exit:3", "exit 4")
    assert daemon.finished(other)["attempt"] == 1


# ---------------------------------------------------------------- update


def test_a_waiting_job_becomes_another(daemon: Box) -> None:
    job = str(daemon.submit("--hold", "--time", "10", "--memory", "1G", "--max-retries", "2", "false"))
    (daemon.work / "new.sh").write_text("echo from a script\n")
    daemon.ok("gjob", "update", job, "-s", "new.sh", "--clear-time-limit", "--clear-memory-limit", "-p", "99")
    shown = daemon.job(job)
    assert (shown["time_limit_s"], shown["memory_mib"], shown["priority"]) == (None, None, 99)
    daemon.ok("gjob", "release", job)
    assert daemon.finished(job)["state"] == "Finished"
    assert daemon.text_of(job) == "from a script\n"
    other = str(daemon.submit("--hold", "-d", "1", "false"))
    daemon.ok("gjob", "u", other, "--command", "echo $GFLOW_GPUS; exit 0", "-g", "2", "--clear-deps")
    daemon.ok("gjob", "r", other)
    assert (daemon.finished(other)["depends_on"], daemon.text_of(other)) == ([], "2\n")


def test_a_parameter_of_one_job_changes_its_command(daemon: Box) -> None:
    daemon.ok("gbatch", "--hold", "--param", "lr=1,2", "echo", "lr={lr}")
    daemon.ok("gjob", "update", "2", "--param", "lr=7")
    daemon.ok("gjob", "release", "1-2")
    daemon.finished(2)
    assert (daemon.text_of(1), daemon.text_of(2)) == ("lr=1\n", "lr=7\n")
    assert "Template: echo 'lr={lr}'" in daemon.ok("gjob", "show", "2")


def test_a_running_job_gets_more_time(daemon: Box) -> None:
    job = str(daemon.submit("--time", "30", "sleep", "1000"))
    wait_until(lambda: daemon.job(job)["state"] == "Running")
    daemon.ok("gjob", "update", job, "--time", "+2h", "--priority", "3", "--comment", "nearly there")
    shown = daemon.job(job)
    assert (shown["time_limit_s"], shown["priority"], shown["comment"]) == (9000, 3, "nearly there")
    daemon.ok("gjob", "update", job, "--time", "4:00:00")
    assert daemon.job(job)["time_limit_s"] == 4 * 3600


def test_an_array_that_runs_gets_more_time_too(daemon: Box) -> None:
    array = daemon.submit("--array", "1-3", "--cpus", "2", "--time", "30", "sleep", "1000")
    wait_until(lambda: daemon.job(f"{array}_2")["state"] == "Running")
    daemon.ok("gjob", "update", str(array), "--time", "+30")
    assert [daemon.job(f"{array}_{task}")["time_limit_s"] for task in (1, 2, 3)] == [3600] * 3


# ---------------------------------------------------------------- redo


def test_redo_includes_jobs_cut_off_by_it(daemon: Box) -> None:
    flag = daemon.work / "fixed"
    first = daemon.submit("--hold", f"test -e {flag}")
    second = daemon.submit("-d", str(first), "--name", "second", "true")
    daemon.submit("-d", f"{first},{second}", "true")
    daemon.submit("-d", str(first), "--no-auto-cancel", "true")
    daemon.ok("gjob", "release", str(first))
    daemon.finished(3)
    flag.touch()
    assert (
        daemon.ok("gjob", "redo", str(first), "--cascade", "--priority", "77").count("Submitted batch job")
        == 3
    )
    final = daemon.finished(7)
    jobs = daemon.jobs()
    assert (final["state"], final["depends_on"], final["redone_from"]) == ("Finished", [5, 6], 3)
    assert (jobs[5]["priority"], jobs[5]["redone_from"], jobs[6]["name"]) == (77, 1, "second")
    assert jobs[6]["depends_on"] == [5]
    assert "Redone from: 1\n" in daemon.ok("gjob", "show", "5")


def test_many_jobs_are_redone_at_once(daemon: Box) -> None:
    daemon.ok("gbatch", "--hold", "--param", "x=1:150", "true")
    assert daemon.ok("gjob", "redo", "g1", "--hold", "--comment", "again").count("Submitted batch job") == 150
    new = json.loads(daemon.ok("gqueue", "--json", "g151", "-n", "0"))["jobs"]
    assert [(job["id"], job["redone_from"]) for job in new] == [(150 + at, at) for at in range(1, 151)]
    assert {(job["state"], job["comment"]) for job in new} == {("Hold", "again")}
    assert [job["parameters"]["x"] for job in new] == [str(at) for at in range(1, 151)]
    assert "job 150 again" in daemon.ok("gjob", "history", "300")
    child = daemon.submit("--depends-on", "1", "true")
    for words in (["g1", "--cascade"], ["g1", str(child)]):
        refused = daemon.run("gjob", "redo", *words)
        assert refused.returncode == 1 and "at most 100: name a part" in refused.stderr
    assert len(daemon.jobs()) == 301


def test_redo_of_one_task_and_of_a_job_whose_parent_failed(daemon: Box) -> None:
    array = daemon.submit("--array", "1-2", "echo task $GFLOW_ARRAY_TASK_ID")
    daemon.finished(array)
    again = int(daemon.ok("gjob", "redo", "--parsable", f"{array}_2"))
    daemon.finished(again)
    assert daemon.text_of(f"{again}_2") == "task 2\n"
    bad = daemon.submit("--hold", "false")
    child = daemon.submit("-d", str(bad), "true")
    daemon.ok("gcancel", str(bad))
    refused = daemon.run("gjob", "redo", str(child))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "--clear-deps does it without" in refused.stderr
    assert "--clear-deps" not in daemon.run("gbatch", "-d", str(bad), "true").stderr
    assert (
        daemon.finished(int(daemon.ok("gjob", "redo", str(child), "--clear-deps", "--parsable")))["exit_code"]
        == 0
    )


# ---------------------------------------------------------------- selections and cancelling


def test_jobs_are_named_one_by_one_by_range_and_by_task(daemon: Box) -> None:
    for _ in range(4):
        daemon.submit("--hold", "true")
    array = daemon.submit("--hold", "--array", "1-9", "true")
    pages = daemon.ok("gjob", "show", "1,3-4", "2")
    assert [line for line in pages.splitlines() if line.startswith("Job:")] == [
        "Job: 1",
        "Job: 3",
        "Job: 4",
        "Job: 2",
    ]
    assert pages.count("=" * 80) == 3
    assert daemon.ok("gcancel", "2-3", f"{array}_[1-2,5]", f"{array}_7").splitlines() == [
        "Job 2 cancelled.",
        "Job 3 cancelled.",
        *(f"Job {array}_{task} cancelled." for task in (1, 2, 5, 7)),
    ]
    assert daemon.job(array)["tasks"]["waiting"] == 5


def test_jobs_are_cancelled_by_what_they_are(daemon: Box) -> None:
    for name, more in (("exp-1", ()), ("exp-2", ("--project", "p")), ("other", ("--project", "p"))):
        daemon.submit("--hold", "--name", name, *more, "true")
    running = daemon.submit("sleep", "1000")
    wait_until(lambda: daemon.job(running)["state"] == "Running")
    assert daemon.ok("gcancel", "--project", "p", "--name", "exp-*") == "Job 2 cancelled.\n"
    assert daemon.ok("gcancel", "--state", "Hold", "--dry-run") == "1\tHold\tok\n3\tHold\tok\n"
    assert daemon.ok("gcancel", "--user", "nobody-here") == "No jobs match.\n"
    assert daemon.ok("gcancel", "1,2,3", "--state", "H", "--dry-run") == "1\tHold\tok\n3\tHold\tok\n"
    daemon.ok("gcancel", "--all", "--now")
    assert daemon.finished(running)["state"] == "Cancelled"
    assert daemon.ok("gcancel", "--dry-run", "1") == "1\tCancelled\tinvalid\n"


def test_a_dry_run_names_every_dependent(daemon: Box) -> None:
    a, b = (str(daemon.submit("--hold", "true")) for _ in range(2))
    daemon.submit("--depends-on-all", f"{a},{b}", "true")
    daemon.submit("--depends-on-any", f"{a},{b}", "true")
    daemon.submit("-d", "3", "true")
    assert (
        daemon.ok("gcancel", "--dry-run", a) == "1\tHold\tok\n3\tQueued\tblocked\t1\n5\tQueued\tblocked\t3\n"
    )
    both = json.loads(daemon.ok("gcancel", "--dry-run", "--json", a, b))
    assert [(job["id"], job["verdict"], job["parents"]) for job in both["jobs"]][2:] == [
        (3, "blocked", [1, 2]),
        (4, "blocked", [1, 2]),
        (5, "blocked", [3]),
    ]
    assert daemon.job(a)["state"] == "Hold"


def test_a_kill_at_once_is_remembered(daemon: Box) -> None:
    """The daemon dies when `--now` is written down and not yet done: the next one waits for no grace."""
    job = daemon.submit("--grace", "1000", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    wait_until(lambda: daemon.text_of(job) == "ready\n")
    daemon.ok("gcancel", str(job))
    daemon.kill9()
    daemon.up(env={"GFLOW_FAULT": "turn.after-commit:3"})  # the GPUs, then the note that it started
    daemon.run("gcancel", "--now", str(job))
    assert daemon.daemon is not None
    assert daemon.daemon.wait(20) == -signal.SIGKILL
    daemon.up()
    assert daemon.finished(job)["state"] == "Cancelled"


# ---------------------------------------------------------------- looking and waiting


def test_waiting_for_several_leaves_with_the_worst_code(daemon: Box) -> None:
    daemon.submit("exit 0")
    daemon.submit("exit 3")
    assert daemon.run("gjob", "wait", "1-2").returncode == 3
    assert daemon.run("gjob", "wait", "1").returncode == 0
    assert daemon.run("gbatch", "--wait", "--param", "c=0,4", "exit {c}").returncode == 4


def test_attach_follows_and_closing_sessions_is_harmless(daemon: Box) -> None:
    job = daemon.submit("echo one; sleep 0.2; echo two")
    assert daemon.ok("gjob", "a", str(job)) == "one\ntwo\n"
    assert "Nothing to close" in daemon.ok("gjob", "close", "-a", "-s", "Finished")


# ---------------------------------------------------------------- without a daemon


def test_a_dry_run_without_a_daemon_checks_what_it_can(box: Box) -> None:
    done = box.run("gbatch", "--dry-run", "--array", "1-2", "--gpus", "1", "true")
    assert done.stdout.splitlines()[1:] == [
        "  [1] true (GPUs: 1, task_id: 1)",
        "  [2] true (GPUs: 1, task_id: 2)",
    ]
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
    assert box.run("gbatch", "--dry-run", "--param", "a=1", "echo", "{b}").returncode == 2


def at_a_terminal(box: Box, answer: bytes, *words: str) -> tuple[int, str]:
    """Run one of our programs at a terminal, and type one line."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(box.work)
        os.execve(BIN / words[0], list(words), box.env)
    seen = b""
    end = time.monotonic() + 30
    typed = False
    while time.monotonic() < end:
        if select.select([fd], [], [], 0.1)[0]:
            try:
                chunk = os.read(fd, 4096)
            except OSError:  # the other end is closed
                break
            seen += chunk
        if b"[Y/n]" in seen and not typed:
            os.write(fd, answer)
            typed = True
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    return os.waitstatus_to_exitcode(status), seen.decode()


def test_gbatch_offers_to_start_a_daemon(box: Box) -> None:
    code, seen = at_a_terminal(box, b"n\n", "gbatch", "true")
    assert code == 3
    assert "gflowd up" in seen
    code, seen = at_a_terminal(box, b"\n", "gbatch", "--name", "first", "true")
    assert (code, "Submitted batch job 1 (first)" in seen) == (0, True), seen
    box.ok("gflowd", "down")


def test_a_redone_job_may_be_held(daemon):
    first = daemon.submit("true")
    daemon.finished(first)
    again = int(daemon.ok("gjob", "redo", str(first), "--hold", "--parsable"))
    assert daemon.job(again)["state"] == "Hold"
