"""A daemon and its configuration."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess

import pytest

from gflow.config.table import SETTINGS
from tests.harness import BIN, Box, wait_until


def config(box: Box, text: str) -> None:
    path = box.home / ".config/gflow/gflow.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_init_writes_readable_file_never_overwrites(box: Box) -> None:
    assert "wrote " in box.ok("gflowd", "init", "--yes", "--gpus", "0,2", "--timezone", "Asia/Tokyo")
    path = box.home / ".config/gflow/gflow.toml"
    before = path.read_text()
    again = box.run("gflowd", "init", "--yes")
    assert (again.returncode, path.read_text()) == (1, before)
    assert again.stderr == f"gflowd: {path} already exists\ngflowd init --force overwrites it\n"
    box.up("--simulate-gpus", "4x80G")
    status = json.loads(box.ok("gflowd", "status", "--json"))
    assert status["settings"]["daemon.gpus"] == {"value": [0, 2], "origin": str(path)}
    assert box.job(box.submit("--gpus", "2", "sleep", "60"))["gpu_ids"] == [0, 2]
    box.ok("gflowd", "init", "--yes", "--force")
    assert "daemon.gpus" in box.ok("gflowd", "config").splitlines()[-1], "the running daemon has other values"


def test_init_asks_on_a_terminal_and_asks_again_after_nonsense(box: Box) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [BIN / "gflowd", "init"], env=box.env, stdin=theirs, stdout=subprocess.PIPE, text=True
    )
    os.close(theirs)
    os.write(ours, b"Mars\nEurope/Berlin\n1-2\nrandom\n\nyes\n")
    said, _ = process.communicate(timeout=30)
    os.close(ours)
    assert process.returncode == 0, said
    assert "timezone takes the name of a time zone" in said
    found = {row["key"]: row["value"] for row in json.loads(box.ok("gflowd", "config", "--json"))["settings"]}
    assert found["timezone"] == "Europe/Berlin"
    assert found["daemon.gpus"] == [1, 2]
    assert found["daemon.gpu_allocation_strategy"] == "random"
    assert found["projects.known_projects"] == []
    assert found["projects.require_project"] is True


def test_init_without_a_terminal_says_what_to_type(box: Box) -> None:
    done = box.run("gflowd", "init")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert not (box.home / ".config").exists()


def test_config_says_where_each_value_comes_from(box: Box) -> None:
    config(box, "[daemon]\ncpus = 3\n")
    rows = [
        line.split() for line in box.ok("gflowd", "config", env={"GFLOW_LOGS__CAP_MIB": "5"}).splitlines()
    ]
    assert ["daemon.cpus", "3", str(box.home / ".config/gflow/gflow.toml")] in rows
    assert ["logs.cap_mib", "5", "GFLOW_LOGS__CAP_MIB"] in rows
    assert ["jobs.grace_secs", "30", "default"] in rows


@pytest.mark.parametrize("verb", ["up", "run", "config"])
def test_typing_error_is_reported_before_the_start(box: Box, verb: str) -> None:
    config(box, "[daemon]\ngpuss = [0]\n")
    done = box.run("gflowd", verb)
    path = box.home / ".config/gflow/gflow.toml"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gflowd: {path}: there is no setting 'daemon.gpuss'\ndid you mean daemon.gpus?\n"
    assert not box.data.exists()


def test_a_restart_that_would_fail_leaves_the_daemon_alone(box: Box) -> None:
    box.ok("gflowd", "up", "--simulate-gpus", "2x80G")
    before = json.loads(box.ok("gflowd", "status", "--json"))["pid"]
    for words in (("--gpus", "9"), ("--gpu-allocation-strategy", "best"), ("--simulate-gpus", "x")):
        assert box.run("gflowd", "restart", *words).returncode == 2
    assert json.loads(box.ok("gflowd", "status", "--json"))["pid"] == before


def test_gpus_flag_lasts_one_daemon_gctl_lasts_longer(box: Box) -> None:
    def allowed() -> list[int] | None:
        found: list[int] | None = json.loads(box.ok("ginfo", "--json"))["allowed_gpu_indices"]
        return found

    config(box, "[daemon]\ngpus = [0, 1, 2]\n")
    box.ok("gflowd", "up", "--simulate-gpus", "4x80G")
    assert allowed() == [0, 1, 2]
    box.api("POST", "/gpus", {"allowed_indices": [2, 3]})
    assert allowed() == [2, 3]
    box.ok("gflowd", "restart", "--gpus", "0-1")
    assert allowed() == [0, 1]
    box.ok("gflowd", "restart")
    assert allowed() == [2, 3], "what a person set is kept, what the flag said is not"
    box.ok("gflowd", "restart", "--gpus", "0")
    box.api("POST", "/gpus", {"allowed_indices": None})
    assert allowed() is None, "what is said later holds"
    box.ok("gflowd", "restart", "--gpus", "all")
    assert allowed() is None


def test_a_gpu_that_is_not_there_is_a_note_not_an_end(box: Box) -> None:
    config(box, "[daemon]\ngpus = [0, 7]\n[executor]\ntype = 'tmux'\n")
    said = box.ok("gflowd", "up", "--simulate-gpus", "2x80G")
    assert "daemon.gpus names GPU 7, which is not here" in said
    assert "executor.type is ignored" in said
    assert "Note: " in box.ok("gflowd", "status")


def test_projects_are_demanded_and_checked(box: Box) -> None:
    config(box, "[projects]\nknown_projects = ['vision', 'speech']\nrequire_project = true\n")
    box.up()
    none = box.run("gbatch", "true")
    assert (none.returncode, none.stderr) == (
        1,
        "gbatch: every job needs a project here\nknown projects: vision, speech\n",
    )
    wrong = box.run("gbatch", "--project", "vison", "true")
    assert (wrong.returncode, wrong.stderr.splitlines()[0]) == (1, "gbatch: there is no project 'vison' here")
    assert box.jobs() == {}
    job = box.submit("--project", "vision", "true")
    assert box.job(job)["project"] == "vision"


def test_the_default_grace_is_for_jobs_that_do_not_say(box: Box) -> None:
    box.up(env={"GFLOW_JOBS__GRACE_SECS": "1"})
    stubborn = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    job = box.submit(stubborn)
    wait_until(lambda: "ready" in box.text_of(job))
    box.ok("gcancel", str(job))
    assert box.finished(job, timeout_s=15)["signal"] == 9  # the usual grace would be 30 seconds


def test_times_are_read_and_shown_in_the_configured_zone(box: Box) -> None:
    config(box, "timezone = 'Asia/Tokyo'\n")
    box.up(env={"TZ": "UTC"})
    job = box.submit("--begin", "2030-01-01T09:00", "true", env={"TZ": "UTC"})
    assert box.job(job)["begin_at"] == "2030-01-01T00:00:00.000Z"
    assert "Not before: 2030-01-01 09:00:00" in box.ok("gjob", "show", str(job))
    go = box.submit("--venv", str(BIN.parent), "echo zone=$TZ", env={"TZ": "UTC"})
    box.finished(go)
    assert box.text_of(go) == "zone=UTC\n", "the zone is for gflow's times, not for jobs"


def test_init_with_advanced_asks_for_every_setting(box: Box) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [BIN / "gflowd", "init", "--advanced", "--gpus", "0"],
        env=box.env,
        stdin=theirs,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    os.write(ours, b"\n" * len(SETTINGS))
    said, _ = process.communicate(timeout=30)
    os.close(ours)
    asked = {setting.key for setting in SETTINGS if f"{setting.key}: " in said}
    assert asked == {setting.key for setting in SETTINGS} - {"daemon.gpus"}, "the flag has answered that"


def test_a_named_file_is_read_too(box: Box) -> None:
    config(box, "[daemon]\ncpus = 1\ngpus = [0]\n")
    (box.work / "other.toml").write_text("[daemon]\ncpus = 7\n")
    for flag in ("--config", "-c"):
        box.ok("gflowd", "up", "--simulate-gpus", "4x80G", flag, "other.toml")
        status = json.loads(box.ok("gflowd", "status", "--json"))
        assert (status["cpu_total"], status["settings"]["daemon.gpus"]["value"]) == (7, [0])
        box.ok("gflowd", "down")


def test_gflowd_alone_is_the_daemon_in_the_foreground(box: Box) -> None:
    box.program = [str(BIN / "gflowd")]
    box.up()
    assert box.finished(box.submit("true"))["state"] == "Finished"
    box.daemon.send_signal(signal.SIGINT)
    assert box.daemon.wait(20) == 0


def test_folders_follow_the_xdg_variables(box: Box, tmp_path) -> None:
    folders = {name: str(tmp_path / name) for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")}
    for folder in folders.values():
        os.mkdir(folder, 0o700)
    box.env |= folders
    box.ok("gflowd", "init", "--yes")
    box.ok("gflowd", "up")
    try:
        status = json.loads(box.ok("gflowd", "status", "--json"))
        assert status["socket"] == f"{folders['XDG_RUNTIME_DIR']}/gflow/gflowd.sock"
        assert status["data"] == f"{folders['XDG_DATA_HOME']}/gflow"
        assert status["config_files"] == [f"{folders['XDG_CONFIG_HOME']}/gflow/gflow.toml"]
        box.submit("--wait", "echo hello")
        assert os.path.exists(f"{folders['XDG_DATA_HOME']}/gflow/logs/1.log")
        assert os.path.exists(f"{folders['XDG_DATA_HOME']}/gflow/logs/daemon.log")
        assert not box.data.exists()
    finally:
        box.ok("gflowd", "down")
