"""Flags, commands and spellings of the other gflow, and their meaning here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness import Box, wait_until


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory):
    """A daemon on which nothing starts, so that what was asked for can be looked at and changed."""
    box = Box(tmp_path_factory.mktemp("words")).up("--simulate-gpus", "4x80G", "--cpus", "4")
    box.ok("gctl", "drain")
    (box.home / "miniconda3/envs/vision/bin").mkdir(parents=True)
    for _ in range(3):
        box.submit("true")
    yield box
    box.clean_up()


def seen(job: dict[str, Any], name: str) -> Any:
    """A field of a job; an environment by its name instead of its folder."""
    value = job[name]
    return value.rpartition("/")[2] if name == "conda_env" and value else value


def submitted(box: Box, *words: str) -> dict[str, Any]:
    (job,) = json.loads(box.ok("gbatch", "--json", *words, "true"))["jobs"]
    found: dict[str, Any] = job
    return found


GBATCH = [
    (["--begin", "2030-01-01T00:00Z"], {"begin_at": "2030-01-01T00:00:00.000Z"}),
    (["--conda-env", "vision"], {"conda_env": "vision"}),
    (["-c", "vision"], {"conda_env": "vision"}),
    (["--gpus", "2"], {"gpus": 2}),
    (["-g", "2"], {"gpus": 2}),
    (["--gres", "2"], {"gpus": 2}),
    (["--gres=gpu:2"], {"gpus": 2}),
    (["-g1", "--shared", "--gpu-memory", "20G"], {"shared": True, "gpu_memory_mib": 20480}),
    (["-g1", "--shared", "--max-gpu-mem", "20G"], {"shared": True, "gpu_memory_mib": 20480}),
    (["-g1", "--shared", "--max-gpu-memory", "20480"], {"shared": True, "gpu_memory_mib": 20480}),
    (["--priority", "20"], {"priority": 20}),
    (["-p", "20"], {"priority": 20}),
    (["--depends-on", "1"], {"depends_on": [1]}),
    (["-d", "@"], {"depends_on": ["the latest"]}),
    (["--dependency", "1"], {"depends_on": [1]}),
    (["--depends-on-all", "1,2"], {"depends_on": [1, 2]}),
    (["--depends-on-any", "1,2"], {"depends_any": [1, 2]}),
    (["--time", "90"], {"time_limit_s": 5400}),
    (["-t", "1:30"], {"time_limit_s": 90}),
    (["--time-limit", "1:00:00"], {"time_limit_s": 3600}),
    (["--timelimit", "1:00:00"], {"time_limit_s": 3600}),
    (["--memory", "512"], {"memory_mib": 512}),
    (["-m", "1G"], {"memory_mib": 1024}),
    (["--max-mem", "1G"], {"memory_mib": 1024}),
    (["--max-memory", "1.5G"], {"memory_mib": 1536}),
    (["--name", "a"], {"name": "a"}),
    (["-n", "a"], {"name": "a"}),
    (["-J", "a"], {"name": "a"}),
    (["--job-name", "a"], {"name": "a"}),
    (["--auto-close"], {"state": "Queued"}),
    (["--max-concurrent", "2"], {"max_concurrent": 2}),
    (["--max-retries", "3"], {"max_retries": 3}),
    (["--project", "vision"], {"project": "vision"}),
    (["-P", "vision"], {"project": "vision"}),
    (["--array", "1-3"], {"array_id": "its own"}),
    (
        ["--notify-email", "a@b.org", "--notify-email", "c@d.org", "--notify-on", "job_failed"],
        {"notify": {"emails": ["a@b.org", "c@d.org"], "events": ["job_failed"]}},
    ),
]


@pytest.mark.parametrize(("words", "fields"), GBATCH, ids=lambda value: str(value)[:40])
def test_flags_of_gbatch(queue: Box, words: list[str], fields: dict[str, Any]) -> None:
    latest = max(number for number in queue.jobs() if isinstance(number, int))
    job = submitted(queue, *words)
    named = {"the latest": latest, "its own": job["id"]}
    for name, value in fields.items():
        meant = [named.get(part, part) for part in value] if isinstance(value, list) else value
        assert seen(job, name) == (named.get(meant, meant) if isinstance(meant, str) else meant)


def test_nice_means_what_slurm_means(queue: Box) -> None:
    """There it is another name of --priority; users of Slurm expect the opposite."""
    assert submitted(queue, "--nice", "5")["priority"] == 5
    assert submitted(queue, "--nice", "2")["priority"] == 8


def test_a_job_may_outlive_its_failed_parent(daemon: Box) -> None:
    parent = daemon.submit("--hold", "true")
    child = daemon.submit("-d", str(parent), "--no-auto-cancel", "true")
    daemon.ok("gcancel", str(parent))
    assert daemon.job(child)["reason"].startswith("Dependency")


def test_sweeps_and_dry_runs(queue: Box) -> None:
    before = len(queue.jobs())
    sweep = ("--param", "lr=0.1,0.01", "--param", "seed=1:2", "--name-template", "run_{lr}_{seed}")
    said = queue.ok("gbatch", "--dry-run", *sweep, "-g", "1", "echo", "{lr}", "{seed}")
    assert said.splitlines()[:2] == ["Would submit 4 batch job(s):", "  [1] echo 0.1 1 (GPUs: 1)"]
    assert len(queue.jobs()) == before
    jobs = json.loads(queue.ok("gbatch", "--json", *sweep, "echo", "{lr}", "{seed}"))["jobs"]
    assert [job["name"] for job in jobs] == ["run_0.1_1", "run_0.1_2", "run_0.01_1", "run_0.01_2"]
    assert jobs[3]["command"] == ["echo", "0.01", "2"]
    assert jobs[3]["parameters"] == {"lr": "0.01", "seed": "2"}
    (queue.work / "sweep.csv").write_text("a,b\n1,2\n3,4\n")
    jobs = json.loads(queue.ok("gbatch", "--json", "--param-file", "sweep.csv", "echo", "{a}{b}"))["jobs"]
    assert [job["command"] for job in jobs] == [["echo", "12"], ["echo", "34"]]


def test_a_group_is_named_and_limited(queue: Box) -> None:
    said = queue.ok("gbatch", "--max-concurrent", "1", "--param", "x=1,2", "echo", "{x}").splitlines()
    number = said[0].split()[-1]
    assert said[2] == f"Submitted 2 batch jobs with group_id: {number}"
    assert f"gctl set-limit {number}" in said[3]
    assert "of these 2 jobs" in queue.ok("gctl", "set-limit", number, "2")


def test_a_script_to_start_from(box: Box) -> None:
    box.ok("gbatch", "new", "train")
    path = box.work / "train.sh"
    assert path.stat().st_mode & 0o777 == 0o755
    assert "## GFLOW" in path.read_text()
    again = box.run("gbatch", "new", "train")
    assert again.returncode == 1


def test_sbatch_lines_are_understood(queue: Box) -> None:
    script = queue.work / "cluster.sh"
    script.write_text("#!/bin/bash\n#SBATCH -J big --gres=gpu:2 -t 1:00:00\n#SBATCH -p gpuq\ntrue\n")
    job = json.loads(queue.ok("gbatch", "--json", str(script)))["jobs"][0]
    assert (job["name"], job["gpus"], job["time_limit_s"]) == ("big", 2, 3600)


def test_notifications_of_directives_and_flags_add_up(queue: Box) -> None:
    script = queue.work / "mail.sh"
    script.write_text("#!/bin/bash\n# GFLOW --notify-email=a@b.org --notify-on job_failed\ntrue\n")
    job = json.loads(queue.ok("gbatch", "--json", "--notify-email", "c@d.org", str(script)))["jobs"][0]
    assert set(job["notify"]["emails"]) == {"a@b.org", "c@d.org"}
    assert job["notify"]["events"] == ["job_failed"]


# ---------------------------------------------------------------- gjob

UPDATE = [
    (["--command", "echo changed"], {"command": ["bash", "-c", "echo changed"]}),
    (["-c", "echo changed"], {"command": ["bash", "-c", "echo changed"]}),
    (["--gpus", "2"], {"gpus": 2}),
    (["-g", "2"], {"gpus": 2}),
    (["--conda-env", "vision"], {"conda_env": "vision"}),
    (["-e", "vision"], {"conda_env": "vision"}),
    (["--clear-conda-env"], {"conda_env": None}),
    (["--priority", "9"], {"priority": 9}),
    (["-p", "9"], {"priority": 9}),
    (["--time-limit", "2:00:00"], {"time_limit_s": 7200}),
    (["-t", "2:00:00"], {"time_limit_s": 7200}),
    (["--clear-time-limit"], {"time_limit_s": None}),
    (["--memory-limit", "1G"], {"memory_mib": 1024}),
    (["-m", "1G"], {"memory_mib": 1024}),
    (["--clear-memory-limit"], {"memory_mib": None}),
    (["--gpu-memory", "40G"], {"gpu_memory_mib": 40960}),
    (["--max-gpu-mem", "40G"], {"gpu_memory_mib": 40960}),
    (["--clear-gpu-memory-limit"], {"gpu_memory_mib": None}),
    (["--depends-on", "2"], {"depends_on": [2]}),
    (["-d", "2"], {"depends_on": [2]}),
    (["--depends-on-all", "1,2"], {"depends_on": [1, 2]}),
    (["--depends-on-any", "1,2"], {"depends_any": [1, 2]}),
    (["--max-concurrent", "2"], {"max_concurrent": 2}),
    (["--clear-max-concurrent"], {"max_concurrent": None}),
    (["--max-retries", "2"], {"max_retries": 2}),
    (["--clear-max-retries"], {"max_retries": 0}),
    (["--no-auto-cancel-on-dep-failure"], {"state": "Queued"}),
    (["--auto-cancel-on-dep-failure"], {"state": "Queued"}),
]


@pytest.mark.parametrize(("words", "fields"), UPDATE, ids=lambda value: str(value)[:40])
def test_flags_of_gjob_update(queue: Box, words: list[str], fields: dict[str, Any]) -> None:
    asked = ("-g", "1", "-t", "10", "-m", "512", "--gpu-memory", "10G", "--max-retries", "1", "-c", "vision")
    job = submitted(queue, *asked, "--max-concurrent", "1")["id"]
    queue.ok("gjob", "u", str(job), *words)
    found = queue.job(job)
    assert {name: seen(found, name) for name in fields} == fields


def test_update_of_a_script_and_of_parameters(queue: Box) -> None:
    one, two = queue.work / "one.sh", queue.work / "two.sh"
    for path in (one, two):
        path.write_text("#!/bin/bash\necho $0\n")
    job = queue.submit(str(one))
    queue.ok("gjob", "update", str(job), "-s", str(two))
    assert queue.job(job)["script"] == str(two)
    queue.ok("gjob", "update", str(job), "--script", str(one))
    assert queue.job(job)["script"] == str(one)
    swept = json.loads(queue.ok("gbatch", "--json", "--param", "lr=1", "echo", "{lr}"))["jobs"][0]["id"]
    queue.ok("gjob", "update", str(swept), "--param", "lr=7")
    assert queue.job(swept)["command"] == ["echo", "7"]
    assert "\nParameters: lr=7\n" in queue.ok("gjob", "show", str(swept))


def test_update_changes_auto_cancel(daemon: Box) -> None:
    parent = daemon.submit("--hold", "true")
    kept, gone = (daemon.submit("-d", str(parent), "true") for _ in range(2))
    daemon.ok("gjob", "update", str(kept), "--no-auto-cancel-on-dep-failure")
    daemon.ok("gjob", "update", str(gone), "--no-auto-cancel-on-dep-failure")
    daemon.ok("gjob", "update", str(gone), "--auto-cancel-on-dep-failure")
    daemon.ok("gcancel", str(parent))
    assert (daemon.job(kept)["state"], daemon.job(gone)["state"]) == ("Queued", "Cancelled")


REDO = [
    (["-g", "2"], {"gpus": 2}),
    (["-p", "9"], {"priority": 9}),
    (["-d", "1"], {"depends_on": [1]}),
    (["--time", "5"], {"time_limit_s": 300}),
    (["-t", "5"], {"time_limit_s": 300}),
    (["--memory", "1G"], {"memory_mib": 1024}),
    (["-m", "1G"], {"memory_mib": 1024}),
    (["--gpu-memory", "40G"], {"gpu_memory_mib": 40960}),
    (["-e", "vision"], {"conda_env": "vision"}),
    (["--clear-deps"], {"depends_on": []}),
]


@pytest.mark.parametrize(("words", "fields"), REDO, ids=lambda value: str(value)[:40])
def test_flags_of_gjob_redo(queue: Box, words: list[str], fields: dict[str, Any]) -> None:
    job = submitted(queue, "-g", "1", "-d", "2")["id"]
    queue.ok("gcancel", str(job))
    again = int(queue.ok("gjob", "redo", str(job), "--parsable", *words))
    found = queue.job(again)
    assert {name: seen(found, name) for name in fields} == fields
    assert found["redone_from"] == job


def test_redo_includes_cancelled_children(daemon: Box) -> None:
    parent = daemon.submit("--hold", "false")
    child = daemon.submit("-d", str(parent), "true")
    daemon.ok("gjob", "release", str(parent))
    assert daemon.finished(child)["reason"] == f"DependencyFailed:{parent}"
    daemon.ok("gjob", "redo", str(parent), "--cascade")
    new = [job for job in daemon.jobs().values() if job["redone_from"] in (parent, child)]
    assert {job["redone_from"] for job in new} == {parent, child}


def test_commands_of_gjob_and_their_short_names(daemon: Box) -> None:
    job = daemon.submit("--project", "vision", "for i in 1 2 3; do echo line $i; done")
    daemon.finished(job)
    number = str(job)
    assert daemon.ok("gjob", "l", number) == daemon.ok("gjob", "log", "@") == "line 1\nline 2\nline 3\n"
    assert daemon.ok("gjob", "log", number, "--first", "1") == "line 1\n"
    assert daemon.ok("gjob", "log", number, "--last", "1") == "line 3\n"
    assert daemon.ok("gjob", "log", number, "-l", "1") == "line 3\n"
    assert daemon.ok("gjob", "a", number) == daemon.ok("gjob", "attach", number) == "line 1\nline 2\nline 3\n"
    page = daemon.ok("gjob", "s", number)
    assert page == daemon.ok("gjob", "show", number)
    assert "\nProject: vision\n" in page
    assert json.loads(daemon.ok("gjob", "show", "--json", number))["jobs"][0]["id"] == job
    waiting = [str(daemon.submit("--gpus", "4", "sleep", "60")) for _ in range(3)]
    wait_until(lambda: daemon.job(waiting[0])["state"] == "Running")
    span = f"{waiting[1]}-{waiting[2]}"
    daemon.ok("gjob", "h", span)
    assert daemon.job(waiting[2])["state"] == "Hold"
    daemon.ok("gjob", "r", span)
    assert daemon.job(waiting[2])["state"] == "Queued"
    daemon.ok("gjob", "h", waiting[1])
    daemon.ok("gjob", "release", waiting[1], "--at", "2030-01-01")
    assert daemon.job(waiting[1])["reason"] == "BeginTime"


def test_closing_sessions_is_harmless(daemon: Box) -> None:
    job = daemon.submit("sleep", "60")
    for words in (["-j", "1"], ["-s", "Running"], ["-p", "job"], ["-a"], ["--all"]):
        assert "Nothing to close" in daemon.ok("gjob", "close-sessions", *words)
    assert "Nothing to close" in daemon.ok("gjob", "close")
    assert daemon.job(job)["state"] == "Running"


# ---------------------------------------------------------------- gcancel


def test_gcancel_dry_run_shows_all_affected_jobs(daemon: Box) -> None:
    first, second = (daemon.submit("--hold", "true") for _ in range(2))
    child = daemon.submit("--depends-on", f"{first},{second}", "true")
    grandchild = daemon.submit("--depends-on", str(child), "true")
    rows = [line.split("\t") for line in daemon.ok("gcancel", "--dry-run", str(first)).splitlines()]
    assert [row[0] for row in rows] == [str(first), str(child), str(grandchild)]
    assert rows[0][1:] == ["Hold", "ok"]
    assert rows[1][2] == "blocked"
    assert {job["state"] for job in daemon.jobs().values()} == {"Hold", "Queued"}


def test_gcancel_by_filter_names_an_array_without_its_tasks(daemon: Box) -> None:
    array = daemon.submit("--array", "1-3%1", "--name", "swept", "sleep", "1000")
    wait_until(lambda: daemon.job(f"{array}_1")["state"] == "Running")
    held = daemon.submit("--hold", "--name", "swept", "true")

    def shown(*words: str) -> list[str]:
        return [line.split("\t")[0] for line in daemon.ok("gcancel", "--dry-run", *words).splitlines()]

    assert shown("--name", "swept") == [str(array), str(held)]
    assert shown("--name", "swept", f"{array}", f"{array}_1") == [str(array), f"{array}_1"]


def test_gcancel_selects_jobs_by_filter(daemon: Box) -> None:
    a = daemon.submit("--hold", "--name", "exp-1", "--project", "vision", "true")
    b = daemon.submit("--hold", "--name", "other", "true")
    c = daemon.submit("--name", "runs", "sleep", "60")
    daemon.ok("gcancel", "--name", "exp-*")
    assert daemon.job(a)["state"] == "Cancelled"
    daemon.ok("gcancel", "--state", "Hold")
    assert daemon.job(b)["state"] == "Cancelled"
    assert "cancelled" in daemon.ok("gcancel", "--kill", "--cancel", str(daemon.submit("--hold", "true")))
    d = daemon.submit("--hold", "--project", "vision", "true")
    daemon.ok("gcancel", "--project", "vision")
    assert daemon.job(d)["state"] == "Cancelled"
    daemon.ok("gcancel", "--now", "--user", daemon.job(c)["user"])
    assert daemon.finished(c)["state"] == "Cancelled"


def test_job_environment_variables(daemon: Box) -> None:
    job = daemon.submit("-g", "2", "-n", "train", "env | grep -E '^(GFLOW|CUDA)_' | sort")
    daemon.finished(job)
    told = dict(line.split("=", 1) for line in daemon.text_of(job).splitlines())
    assert (told["GFLOW_JOB_ID"], told["GFLOW_JOB_NAME"], told["GFLOW_GPUS"]) == (str(job), "train", "2")
    assert (told["CUDA_VISIBLE_DEVICES"], told["CUDA_DEVICE_ORDER"]) == ("0,1", "PCI_BUS_ID")
    assert "GFLOW_ARRAY_TASK_ID" not in told


def test_gqueue_accepts_and_ignores_tmux(daemon: Box) -> None:
    assert daemon.ok("gqueue", "--tmux") == daemon.ok("gqueue", "-T") == daemon.ok("gqueue")
