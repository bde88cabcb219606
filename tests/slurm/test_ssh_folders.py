"""The working folder of a job on a cluster over SSH, and what the queue says while the cluster is away."""

from __future__ import annotations

import pytest

from tests.harness import Box, wait_until
from tests.slurm.test_ssh_target import running, submit
from tests.sshd import LoginNode

pytestmark = pytest.mark.slow


def test_job_runs_in_the_folder_there_that_chdir_names(elsewhere: Box, login: LoginNode) -> None:
    login.call("mkdir", "-p", f"{login.home}/proj/sub")
    folders = {
        f"{login.home}/proj": f"{login.home}/proj",
        "~/proj": f"{login.home}/proj",
        "proj/sub": f"{login.home}/proj/sub",
    }
    numbers = {submit(elsewhere, "--chdir", given, "pwd"): there for given, there in folders.items()}
    for number, there in numbers.items():
        assert elsewhere.finished(number, 60)["exit_code"] == 0, elsewhere.job(number)
        assert elsewhere.ok("gjob", "log", str(number)) == f"{there}\n"
        page = elsewhere.ok("gjob", "show", str(number))
        assert f"Folder there: login:{there}\n" in page, page
    plain = submit(elsewhere, "pwd")
    elsewhere.finished(plain, 60)
    assert f"Folder there: login:{login.home}\n" in elsewhere.ok("gjob", "show", str(plain))
    for words in (["--chdir", "/nowhere", "true"], ["--on", "slurm", "--chdir", "/nowhere", "true"]):
        refused = elsewhere.run("gbatch", *words)
        assert refused.returncode == 2 and "there is no folder /nowhere" in refused.stderr
    missing = submit(elsewhere, "--chdir", "/nowhere", "true")
    assert elsewhere.finished(missing, 60)["state"] == "Failed"
    assert "cannot be run in /nowhere" in elsewhere.ok("gjob", "show", str(missing))


def test_running_jobs_show_that_their_cluster_is_away(elsewhere: Box, login: LoginNode) -> None:
    number = submit(elsewhere, "sleep 8; exit 4")
    running(elsewhere, number)
    login.stop()
    try:
        for words in (("gqueue",), ("ginfo", "--long"), ("gjob", "show", str(number))):
            wait_until(
                lambda w=words: "far unreachable since" in elsewhere.ok(*w).replace("\n", " "),
                40,
                f"{words}: {elsewhere.ok(*words)}",
            )
    finally:
        login.start()
    assert elsewhere.finished(number, 60)["exit_code"] == 4
    assert "unreachable" not in elsewhere.ok("ginfo", "--long")


NAMES = (
    "it's",
    "$(touch bad)",
    "`touch bad`",
    "a;touch bad;b",
    "# x",
    "-n",
    "~",
    "%j %a",
    "é",
    '"',
    "!x",
    "*",
    "x&y|z>w",
)


def test_hostile_names_are_only_names(elsewhere: Box, login: LoginNode) -> None:
    """Of jobs, folders, files and variables, and words of the command."""
    line = 'printf "<%s>" "$GFLOW_JOB_NAME" "$PWD" "$MINE" "$1"'
    numbers = {}
    for name in NAMES:
        folder, file = f"{login.home}/hostile/{name}", f"{name.replace('%', '%%')}.out"
        login.call("mkdir", "-p", folder)
        words = [f"--name={name}", "--chdir", folder, f"--output={file}", "--export", "MINE"]
        word = f"{name}\\\n"
        numbers[name] = submit(elsewhere, *words, "bash", "-c", line, "x", word, env={"MINE": word})
    for name, number in numbers.items():
        job = elsewhere.finished(number, 90)
        assert job["exit_code"] == 0, (name, job["reason"])
        folder = f"{login.home}/hostile/{name}"
        said = f"<{name}><{folder}><{name}\\\n><{name}\\\n>"
        assert elsewhere.ok("gjob", "log", str(number)) == said
        assert login.call("cat", f"{folder}/{name}.out") == said
    assert not list(login.home.rglob("bad"))
    # What it left there is in folders that are closed to others.
    folders = [login.home / ".gflow", *(login.home / ".gflow/runs").iterdir()]
    assert [path for path in folders if path.stat().st_mode & 0o077] == []
