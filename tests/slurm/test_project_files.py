"""Files of a project on a real Slurm: sent at the submission, results fetched at the end."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from gflow.wire.answers.job_details import JobFilesAnswer
from tests.docs.test_docs import ROOT, play
from tests.harness import Box, wait_until
from tests.slurm.conftest import on

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("rsync"), reason="no rsync here: scripts/ssh-packages installs it"),
]


@pytest.fixture
def project(cluster, box: Box) -> Path:
    """A repository, and a daemon whose cluster gets its files."""
    folder = box.home / ".config/gflow"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gflow.toml").write_text(
        '[targets.there]\ntype = "slurm"\nsync = "."\nsync_limit = "1M"\noutputs = ["runs/**"]\n'
    )
    on(cluster, box)
    root = box.work / "proj"
    (root / "src").mkdir(parents=True)
    (root / "src/model.py").write_text("before\n")
    (root / "data.bin").write_text("ignored")
    (root / ".gitignore").write_text("data.bin\nruns/\n")
    subprocess.run(["git", "-C", str(root), "init", "-q"], check=True)
    return root


def test_job_sees_the_files_as_they_were_at_the_submission(project: Path, box: Box) -> None:
    script = project / "go.sh"
    script.write_text("pwd; cat model.py; ls -A ..; echo $0\n")
    number = box.submit("--on", "there", "--sync", "..", "--hold", "../go.sh", cwd=project / "src")
    (project / "src/model.py").write_text("after\n")
    script.write_text("echo changed\n")
    box.ok("gjob", "release", str(number))
    assert box.finished(number, 30)["state"] == "Finished"
    lines = box.text_of(number).splitlines()
    assert lines[0].endswith("/src") and "/snapshots/proj-" in lines[0]
    assert lines[1:-1] == ["before", ".gitignore", "go.sh", "src"]
    assert lines[-1] == lines[0].removesuffix("/src") + "/go.sh"


def test_further_attempts_and_tasks_run_in_the_same_folder(project: Path, box: Box) -> None:
    retries = ["--max-retries", "1", "--retry-delay", "0"]
    command = "pwd >>pwd; [ $GFLOW_ATTEMPT = 2 ] || exit 3; cat pwd"
    number = box.submit("--on", "there", *retries, command, cwd=project)
    box.finished(number, 60)
    first, second = [line for line in box.text_of(number).splitlines() if line.startswith("/")]
    assert first == second
    array = box.submit("--on", "there", "--array", "1-2", "pwd", cwd=project)
    box.finished(array, 60)
    folders = {box.text_of(f"{array}_{task}") for task in (1, 2)}
    assert len(folders) == 1 and first not in folders.pop()


def test_large_folder_is_refused_and_names_the_option(project: Path, box: Box) -> None:
    (project / "weights").write_bytes(b"x" * 3_000_000)
    done = box.run("gbatch", "--on", "there", "true", cwd=project)
    assert done.returncode != 0
    assert "to send, more than 1.0 MiB; the largest: weights 2.9 MiB" in done.stderr
    assert "--sync-size 3M" in done.stderr
    assert (
        box.finished(box.submit("--on", "there", "--sync-size", "3M", "ls weights", cwd=project))["exit_code"]
        == 0
    )
    assert box.finished(box.submit("--on", "there", "ls weights", cwd=project))["exit_code"] == 0
    here = box.submit("--on", "there", "--no-sync", "pwd; ls data.bin", cwd=project)
    assert box.finished(here)["exit_code"] == 0 and box.text_of(here).startswith(f"{project}\n")
    done = box.run("gbatch", "--on", "there", "--sync", "src", "true", cwd=project)
    assert "is not in the folder that is sent" in done.stderr
    assert "chdir=" in box.ok("gbatch", "--dry-run", "--on", "there", "true", cwd=project)


def test_redo_sends_the_files_as_they_are_now(project: Path, box: Box) -> None:
    first = box.submit("--on", "there", "cat src/model.py", cwd=project)
    box.finished(first, 30)
    (project / "src/model.py").write_text("fixed\n")
    box.ok("gjob", "redo", str(first))
    box.finished(first + 1, 30)
    assert (box.text_of(first), box.text_of(first + 1)) == ("before\n", "fixed\n")
    box.ok("gjob", "redo", "--no-sync", str(first))
    assert box.finished(first + 2, 30)["exit_code"] == 0


def break_rsync(box: Box) -> Path:
    """Let rsync fail for the daemon while the file that is returned exists."""
    programs, broken = box.root / "programs", box.root / "broken"
    programs.mkdir()
    (programs / "rsync").write_text(
        f"#!/bin/sh\n[ ! -e {broken} ] || {{ echo 'rsync: Disk quota exceeded (122)' >&2; exit 11; }}\n"
        'exec /usr/bin/rsync "$@"\n'
    )
    (programs / "rsync").chmod(0o755)
    box.down()
    box.env["PATH"] = f"{programs}:{box.env['PATH']}"
    box.up("--simulate-gpus", "4x80G", "--cpus", "4")
    return broken


def test_files_that_cannot_be_sent_keep_the_job_waiting_with_the_reason(project: Path, box: Box) -> None:
    broken = break_rsync(box)
    broken.touch()
    number = box.submit("--on", "there", "cat src/model.py", cwd=project)
    wait_until(lambda: "quota" in box.job(number)["reason"], 30, "the reason")
    assert box.job(number)["reason"].startswith("FilesNotSent: your disk quota on this machine is used up")
    broken.unlink()
    assert box.finished(number, 30)["exit_code"] == 0


def test_outputs_are_here_when_the_job_has_ended(project: Path, box: Box) -> None:
    command = "mkdir -p runs/1; echo 0.5 >runs/1/loss; echo x >other; echo more >>src/model.py"
    number = box.submit("--on", "there", command, cwd=project)
    box.ok("gjob", "wait", str(number))
    assert (project / "runs/1/loss").read_text() == "0.5\n"
    assert not (project / "other").exists()
    wait_until(lambda: "outputs" in box.ok("gjob", "history", str(number)), 10, "the line of the history")
    assert f"1 file (4 B) fetched into {project}" in box.ok("gjob", "history", str(number))
    status, answer = box.api("GET", f"/jobs/{number}/files")
    assert (status, answer.keys()) == (200, set(JobFilesAnswer.__struct_fields__))
    assert (answer["target"], answer["host"], answer["here"]) == ("there", None, str(project))
    (project / "src/model.py").write_text("edited here meanwhile\n")
    page = box.ok("gjob", "fetch", str(number))
    assert page.startswith(f"Fetched 1 file (2 B) into {project}.\nKept, as newer here: src/model.py (--over")
    assert (project / "other").read_text() == "x\n"
    done = box.ok("gjob", "fetch", str(number), "src", "runs/**", "--to", "all", "--json", cwd=project)
    assert json.loads(done)["files"] == 2
    assert (project / "all/src/model.py").read_text() == "before\nmore\n"
    box.ok("gjob", "fetch", "--overwrite", str(number))
    assert (project / "src/model.py").read_text() == "before\nmore\n"


def test_fetch_without_files_elsewhere_is_refused_in_one_sentence(project: Path, box: Box) -> None:
    done = box.run("gbatch", "--sync", ".", "true", cwd=project)
    assert done.stderr == "gbatch: ignored: --sync (this is one machine)\n" and done.returncode == 0
    here = box.submit("true", cwd=project)
    assert "is not on a cluster: its files are in" in box.run("gjob", "fetch", str(here)).stderr
    number = box.submit("--on", "there", "--no-sync", "true", cwd=project)
    assert "there is nothing to fetch" in box.run("gjob", "fetch", str(number)).stderr
    assert "below the job's folder" in box.run("gjob", "fetch", str(number), "../x").stderr


def test_outputs_that_cannot_be_fetched_are_fetched_later(project: Path, box: Box) -> None:
    broken = break_rsync(box)
    command = f"mkdir -p runs/1; echo 0.5 >runs/1/loss; touch {broken}"
    number = box.submit("--on", "there", command, cwd=project)
    assert box.finished(number, 30)["state"] == "Finished"
    wait_until(lambda: "not fetched: " in box.ok("gjob", "history", str(number)), 10, "the failure")
    assert "gflow goes on trying" in box.ok("gjob", "history", str(number))
    box.down()
    broken.unlink()
    box.up("--simulate-gpus", "4x80G", "--cpus", "4")
    wait_until(lambda: (project / "runs/1/loss").exists(), 20, "the outputs")
    wait_until(lambda: "1 file (4 B) fetched" in box.ok("gjob", "history", str(number)), 10, "the success")


def test_document_about_files_does_what_it_says(login, cluster, box: Box) -> None:
    cluster.forget_jobs()
    login.install(box)
    document = (ROOT / "docs/slurm-files.md").read_text()
    folder = box.home / ".config/gflow"
    folder.mkdir(parents=True)
    (folder / "gflow.toml").write_text(document.partition("```toml\n")[2].partition("```")[0])
    play(box, ROOT / "docs/slurm-files.md")


def test_project_travels_over_ssh_and_its_results_come_back(login, cluster, box: Box) -> None:
    from tests.slurm.conftest import at_a_distance

    at_a_distance(login, cluster, box, settings='sync = "."\noutputs = ["runs/**"]\npoll_secs = 1\n')
    root = box.work / "it's a proj"
    (root / "src").mkdir(parents=True)
    (root / "src/model.py").write_text("code\n")
    (root / "go.sh").write_text(
        "mkdir runs; id -un >runs/who; pwd; cat src/model.py; echo $0; echo o >other\n"
    )
    number = box.submit("--on", "far", "--output", "logs/%j.txt", "go.sh", cwd=root)
    box.ok("gjob", "wait", str(number))
    assert (root / "runs/who").read_text() == f"{login.person.pw_name}\n"
    assert box.ok("gjob", "fetch", str(number)).startswith("Fetched 2 files")
    log = (root / f"logs/{number}.txt").read_text().splitlines()
    assert log[0].startswith(f"{login.home}/.gflow/runs/") and log[1] == "code"
    assert log[2] == f"{log[0]}/go.sh" and (root / "other").read_text() == "o\n"
    assert not next(login.home.rglob("go.sh")).stat().st_mode & 0o077
