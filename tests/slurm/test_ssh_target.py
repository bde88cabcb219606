"""Jobs on a cluster behind an SSH login: a real sshd, a real Slurm, and no file in common."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cutting_proxy import CuttingProxy
from tests.harness import BIN, Box, wait_until
from tests.slurm.cluster import UNTIL_TRAPPED, Cluster
from tests.slurm.conftest import at_a_distance
from tests.sshd import LoginNode

pytestmark = pytest.mark.slow
# What a job leaves on the cluster: one line for each time that it ran.
RAN = "mkdir -p ran; echo x >> ran/$GFLOW_JOB_ID"


def submit(box: Box, *words: str, **more: object) -> int:
    return box.submit("--on", "far", "--time", "10", *words, **more)


def ran(login: LoginNode, tag: str) -> dict[str, int]:
    """How often each job ran, by what it left in the folder `tag`."""
    folder = login.home / tag
    return {path.name: path.read_text().count("x") for path in folder.glob("*")} if folder.exists() else {}


def running(box: Box, number: int) -> None:
    wait_until(lambda: box.job(number)["state"] == "Running", 60, f"the start of {number}: {box.job(number)}")


def run_files(login: LoginNode) -> set[Path]:
    """Files of runs there, of the daemons of all tests."""
    return set((login.home / ".gflow/runs").glob("*/[0-9]*"))


def test_job_runs_as_the_user_of_the_login_node(elsewhere: Box, login: LoginNode):
    of_others = run_files(login)
    number = submit(
        elsewhere, "--gpus", "2", "--export", "MINE", "echo $(id -un) $MINE ${SECRET:-none} $PWD; exit 3",
        env={"MINE": "it's $(x)", "SECRET": "s3cret"},
    )  # fmt: skip
    job = elsewhere.finished(number, 60)
    assert (job["state"], job["exit_code"], job["target"]) == ("Failed", 3, "far"), job
    expected = f"{login.person.pw_name} it's $(x) none {login.home}\n"
    assert elsewhere.ok("gjob", "log", str(number)) == expected
    logs = (login.home / ".gflow/runs").glob(f"*/logs/{number}.log")  # of the daemons of all tests
    assert expected in {log.read_text() for log in logs}
    assert (login.home / ".gflow").stat().st_mode & 0o777 == 0o700
    # Without --export no variable of the submitter is sent, to whichever process.
    plain = submit(elsewhere, "env", env={"WANDB_API_KEY": "s3cret", "SBATCH_ACCOUNT": "s3cret"})
    assert elsewhere.finished(plain, 60)["exit_code"] == 0
    variables = elsewhere.ok("gjob", "log", str(plain))
    assert "GFLOW_JOB_ID" in variables and "s3cret" not in variables, variables
    assert str(elsewhere.home) not in variables, variables
    # A script with hostile text, its arguments, an output file of its own, and another name.
    script = elsewhere.work / "go.sh"
    script.write_bytes(
        b"#!/bin/bash\n#SBATCH --mem=100\nprintf '<%s>' \"$@\" 'a\\b' \xff \"$GFLOW_JOB_NAME\"\n"
    )
    second = submit(elsewhere, "--name", "it's $(id)", "-o", "out $x.txt", str(script), "$(touch x)", "a\nb")
    assert elsewhere.finished(second, 60)["exit_code"] == 0, elsewhere.job(second)
    wanted = b"<$(touch x)><a\nb><a\\b><\xff><it's $(id)>"
    assert (login.home / "out $x.txt").read_bytes() == wanted
    assert Path(_log_path(elsewhere, second)).read_bytes() == wanted
    assert not (login.home / "x").exists()
    wait_until(lambda: run_files(login) <= of_others, 20, "no file of a run is left")


def _log_path(box: Box, number: int) -> str:
    return box.api("GET", f"/jobs/{number}/log")[1]["path"]


def test_log_is_followed_and_resumed_after_a_cut(elsewhere: Box, login: LoginNode):
    number = submit(elsewhere, "for i in $(seq 40); do echo line $i; sleep 0.1; done")
    running(elsewhere, number)
    with ThreadPoolExecutor() as pool:
        shown = pool.submit(elsewhere.ok, "gjob", "log", "-f", str(number))
        copy = Path(_log_path(elsewhere, number))
        wait_until(lambda: copy.exists() and b"line 3\n" in copy.read_bytes(), 30, "the first lines")
        assert elsewhere.job(number)["state"] == "Running"
        login.cut()
        assert shown.result(60) == "".join(f"line {i}\n" for i in range(1, 41))


def test_cancel_array_requeue_and_usage(elsewhere: Box, login: LoginNode):
    long = submit(elsewhere, "--gpus", "1", f"trap 'echo stopped; exit 0' TERM; {UNTIL_TRAPPED}")
    array = submit(elsewhere, "--array", "1-3", f"{RAN.replace('ran', 'array')}; exit $GFLOW_ARRAY_TASK_ID")
    again = submit(elsewhere, "--requeue", "test $GFLOW_ATTEMPT = 2 || exit 75")
    waiting = submit(elsewhere, "--nodes", "4", "--exclusive", "true")
    running(elsewhere, long)
    assert "NODE" in elsewhere.ok("gjob", "usage", str(long))
    elsewhere.ok("gcancel", str(waiting), str(long))
    assert elsewhere.finished(waiting, 60)["state"] == "Cancelled"
    assert elsewhere.finished(long, 60)["state"] == "Cancelled"
    assert "stopped" in elsewhere.ok("gjob", "log", str(long))
    codes = [elsewhere.finished(f"{array}_{task}", 60)["exit_code"] for task in (1, 2, 3)]
    assert codes == [1, 2, 3]
    assert sorted(ran(login, "array").values()) == [1, 1, 1]
    assert elsewhere.finished(again, 90)["exit_code"] == 0


def test_array_above_the_largest_index_is_adopted_by_the_next_daemon(elsewhere: Box, login: LoginNode):
    line = (
        RAN.replace("ran", "parts") + "; echo $SLURM_ARRAY_TASK_ID; sleep 4; exit ${GFLOW_ARRAY_TASK_ID#250}"
    )
    number = submit(elsewhere, "--array", "1-2,2501-2502%1", line)
    wait_until(lambda: elsewhere.job(f"{number}_1")["state"] == "Running", 60, "the first task")
    elsewhere.kill9()
    elsewhere.up()
    tasks = (1, 2, 2501, 2502)
    assert [elsewhere.finished(f"{number}_{task}", 90)["exit_code"] for task in tasks] == [1, 2, 1, 2]
    assert ran(login, "parts") == {f"{number}_{task}": 1 for task in tasks}
    assert elsewhere.ok("gjob", "log", f"{number}_2502") == "2502\n"


# Words that a shell, csh or fish would change if one of them were not quoted.
HOSTILE = ("it's", "$(touch bad)", "`touch bad`", "a\nb", "!x", '"\\', "", "-n", "A=1", "*", "~", "é;|&<>#%s")


def test_command_is_executed_in_a_running_job(elsewhere: Box, login: LoginNode):
    array = submit(
        elsewhere, "--array", "1-2", "--export", "MINE", "cd /tmp; sleep 100", env={"MINE": "a\nb"}
    )
    wide = submit(elsewhere, "--nodes", "2", "--gpus", "2", "sleep 100")
    wait_until(lambda: elsewhere.job(f"{array}_2")["state"] == "Running", 60, "the start of a task")
    running(elsewhere, wide)
    task = f"{array}_2"
    line = 'echo "$(id -un)|$PWD|$MINE|$GFLOW_JOB_ID|$SLURM_ARRAY_TASK_ID|$TERM"; exit 7'
    done = elsewhere.run("gjob", "exec", task, "--", "sh", "-c", line, env={"SECRET": "no"})
    assert done.stdout == f"{login.person.pw_name}|{login.home}|a\nb|{task}|2|\n", done
    assert done.returncode == 7
    done = elsewhere.run("gjob", "exec", task, "printf", "<%s>", *HOSTILE)
    assert done.stdout == "".join(f"<{word}>" for word in HOSTILE), done
    assert not (login.home / "bad").exists()
    assert elsewhere.ok("gjob", "exec", str(wide), "cat", input="once\n") == "once\n"  # on one of its nodes
    gpus = elsewhere.ok(
        "gjob", "exec", str(wide), "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $SLURM_JOB_NUM_NODES"
    )
    assert re.fullmatch(r"\d,\d 2\n", gpus), gpus
    assert elsewhere.run("gjob", "exec", task, "no-such-program").returncode == 127
    assert elsewhere.run("gjob", "exec", task, "sh", "-c", "kill -9 $$").returncode == 137
    # With a terminal, as a user types it.
    words = shlex.join([str(BIN / "gjob"), "exec", task, "sh", "-c", "tty; echo $TERM; exit 4"])
    typed = elsewhere.run_shell(f"TERM=xterm script -qec {shlex.quote(words)} /dev/null")
    assert typed.returncode == 4 and "/dev/pts/" in typed.stdout and "xterm" in typed.stdout, typed
    assert "is an array" in elsewhere.run("gjob", "exec", str(array), "true").stderr
    elsewhere.ok("gcancel", str(array), str(wide))
    elsewhere.finished(wide, 60)
    assert "does not run" in elsewhere.run("gjob", "exec", str(wide), "true").stderr


def test_other_slurm_jobs_of_the_account_are_listed(elsewhere: Box, login: LoginNode, cluster: Cluster):
    mine = submit(elsewhere, "--name", "of-gflow", "sleep 100")
    other = login.call(
        "sbatch", "--parsable", "--job-name=by-hand", "--output=/dev/null", "--wrap", "sleep 100"
    )
    cluster.call("sbatch", "--job-name=of-root", "--output=/dev/null", "--wrap", "sleep 100")
    running(elsewhere, mine)
    wait_until(lambda: "RUNNING" in login.call("squeue", "-h", "-n", "by-hand", "-o", "%T"), 30, "the start")
    section = elsewhere.ok("gqueue", "--target", "far").partition("\n\n")[2].splitlines()
    assert section[0].startswith(f"Other Slurm jobs of {login.person.pw_name} on far")
    assert [line.split()[:3] for line in section[2:]] == [[other.strip(), "by-hand", "RUNNING"]]
    (row,) = json.loads(elsewhere.ok("gqueue", "--target", "far", "--json"))["others"]
    assert (row["id"], row["submitted_by"]) == (other.strip(), "slurm") and row["node_list"]
    login.stop()
    try:
        away = elsewhere.run("gqueue", "--target", "far")
        assert away.returncode == 1 and "of-gflow" in away.stdout, away
        assert away.stderr.startswith("gqueue: far does not answer: ") and away.stderr.count("\n") == 1
    finally:
        login.start()


def test_cluster_that_is_away_keeps_its_jobs_and_local_work_goes_on(elsewhere: Box, login: LoginNode):
    first = submit(elsewhere, f"sleep 6; {RAN.replace('ran', 'away')}; exit 4")
    running(elsewhere, first)
    login.stop()
    second = submit(elsewhere, RAN.replace("ran", "away"))
    local = elsewhere.submit("echo here")
    assert elsewhere.finished(local, 30)["exit_code"] == 0
    wait_until(lambda: "unreachable since" in (elsewhere.job(second)["reason"] or ""), 30, "the reason")
    assert elsewhere.job(first)["state"] == "Running"
    assert "far unreachable since" in elsewhere.ok("gqueue", "-f", "JOBID,REASON")
    assert "unreachable since" in elsewhere.ok("gjob", "why", str(second))
    assert "unreachable" in submit_note(elsewhere)
    login.start()
    assert elsewhere.finished(first, 90)["exit_code"] == 4
    assert elsewhere.finished(second, 90)["exit_code"] == 0
    assert set(ran(login, "away").values()) == {1}


def submit_note(box: Box) -> str:
    return box.run("gbatch", "--on", "far", "true").stderr


def test_changed_host_key_is_refused(elsewhere: Box, login: LoginNode):
    keys = [(login.root / name).read_bytes() for name in ("host", "host.pub")]
    assert elsewhere.finished(submit(elsewhere, "true"), 60)["exit_code"] == 0
    login.stop()
    login.change_host_key()
    login.start()
    try:
        number = submit(elsewhere, "true")
        wait_until(lambda: "has changed" in (elsewhere.job(number)["reason"] or ""), 60, "the refusal")
        assert "the key of login has changed" in elsewhere.job(number)["reason"]
        assert "Accepted" not in login.log()
    finally:
        login.stop()
        for name, key in zip(("host", "host.pub"), keys, strict=True):
            (login.root / name).write_bytes(key)
        login.start()
    assert elsewhere.finished(number, 60)["exit_code"] == 0


def test_two_hundred_jobs_are_handed_over_in_seconds(elsewhere: Box, cluster: Cluster):
    elsewhere.finished(submit(elsewhere, "true"), 60)  # the connection is open
    begin = time.monotonic()
    values = ",".join(map(str, range(200)))
    elsewhere.ok("gbatch", "--on", "far", "--time", "10", "--nodes", "4", "--param", f"i={values}", "sleep 0")
    assert time.monotonic() - begin < 3
    wait_until(lambda: len(listed(cluster)) >= 201, 60, "the jobs in Slurm's queue")
    took = time.monotonic() - begin
    print(f"200 jobs in {took:.1f} s")
    assert took < 10  # 5 s on an idle machine
    elsewhere.ok("gcancel", "--all")
    wait_until(lambda: not listed(cluster, "PD,R,CG"), 60, "an empty queue")


def listed(cluster: Cluster, states: str = "all") -> list[str]:
    return cluster.call("squeue", "-h", "-t", states, "-o", "%i").split()


def test_daemon_killed_among_submissions_runs_each_job_once(elsewhere: Box, login: LoginNode):
    accepted: list[int] = []
    with ThreadPoolExecutor(2) as pool:

        def one(_: int) -> None:
            with suppress(AssertionError):
                accepted.append(submit(elsewhere, f"{RAN.replace('ran', 'killed')}; exit 5"))

        done = [pool.submit(one, index) for index in range(100)]
        for _ in range(3):
            time.sleep(1.5)
            elsewhere.kill9()
            elsewhere.up()
        for each in done:
            each.result()
    assert len(accepted) > 50
    for number in accepted:
        job = elsewhere.finished(number, 120)
        assert (job["state"], job["exit_code"]) == ("Failed", 5), job
    counts = ran(login, "killed")
    assert set(counts.values()) == {1}
    assert {str(number) for number in accepted} <= counts.keys()


def test_connection_that_is_cut_at_any_byte_loses_and_doubles_nothing(
    login: LoginNode, cluster: Cluster, box: Box
):
    # The first connections end within the handshake, the others within the calls after it.
    later = itertools.cycle(range(5000, 5000 + 200 * 61, 61))
    proxy = CuttingProxy(login.port, itertools.chain(range(200, 5000, 600), later))
    # Without pauses between the attempts.
    at_a_distance(login, cluster, box, proxy.port, "poll_secs = 0\npoll_most_secs = 0\n")
    line, numbers, cancelled = RAN.replace("ran", "cut"), {}, []
    begin = time.monotonic()
    for code in itertools.cycle((0, 3, 7)):
        if proxy.cuts >= 200 or time.monotonic() - begin > 200:
            break
        numbers[submit(box, f"echo begins; {line}; sleep 0.5; echo ends; exit {code}")] = code
        cancelled.append(submit(box, "sleep 200"))
        box.ok("gcancel", str(cancelled[-1]))
        wait_until(lambda: proxy.cuts >= 5 * len(numbers), 60, "further cuts")
    proxy.relax()
    print(f"{proxy.cuts} cuts in {time.monotonic() - begin:.0f} s, {len(numbers)} jobs")
    assert proxy.cuts >= 200
    for number, code in numbers.items():
        job = box.finished(number, 120)
        assert job["exit_code"] == code, job
        wait_until(lambda n=number: box.ok("gjob", "log", str(n)) == "begins\nends\n", 60, f"log {number}")
    for number in cancelled:
        assert box.finished(number, 60)["state"] == "Cancelled"
    assert ran(login, "cut") == {str(number): 1 for number in numbers}
    proxy.close()


def test_target_is_added_listed_connected_and_tested(elsewhere: Box, login: LoginNode):
    page = elsewhere.ok("gflow", "target", "add", "second", "--host", "login", "--partition", "main")
    assert "ok    partition main (default): 4 nodes, each with 8 CPUs" in page and "GPUs (a100)" in page, page
    config = (elsewhere.home / ".config/gflow/gflow.toml").read_text()
    assert config.endswith('\n\n[targets.second]\ntype = "slurm"\nhost = "login"\npartition = "main"\n')
    # On a terminal it asks; a name that is not there is asked for again.
    line = "printf 'man\\nlow\\n' | script -qec 'gflow target add asked --host login' /dev/null"
    page = elsewhere.run_shell(line).stdout
    assert "one of " in page and 'partition = "low"' in page and "asked" in page, page
    again = elsewhere.run("gflow", "target", "add", "second", "--host", "login")
    assert again.returncode == 2 and "has a target second already" in again.stderr
    assert elsewhere.run("gflow", "target", "add", "third", "--host", "-oX=y").returncode == 2
    assert elsewhere.run("gflow", "target", "add", "third", "--host", "nowhere.invalid").returncode == 1
    page = elsewhere.ok("gflow", "target", "test", "far", timeout_s=120)
    assert page.count("ok  ") == 5 and "FAIL" not in page, page
    assert f"as {login.person.pw_name}" in page
    (far,) = [row for row in elsewhere.ok("gflow", "target").splitlines() if row.startswith("far")]
    assert "answers" in far
    assert "connected already" in elsewhere.ok("gflow", "target", "connect", "far")
    assert elsewhere.run("gflow", "target", "connect", "slurm").returncode == 2
    assert elsewhere.run("gflow", "target", "test", "fra").stderr.count("did you mean far") == 1
    login.stop()
    try:
        failed = elsewhere.run("gflow", "target", "test", "far")
        assert (failed.returncode, failed.stdout[:4]) == (1, "FAIL"), failed
        assert elsewhere.run("gflow", "target", "connect", "far").returncode == 1
    finally:
        login.start()
    done = elsewhere.run("gflow", "target", "connect", "far")
    assert "far is connected" in done.stdout, done
    (path,) = {row["control_path"] for row in elsewhere.api("GET", "/targets")[1]["targets"] if row["host"]}
    assert elsewhere.run_shell(f"ssh -o ControlPath={path} -O exit login").returncode == 0  # it has expired
    assert elsewhere.finished(submit(elsewhere, "true"), 60)["exit_code"] == 0
