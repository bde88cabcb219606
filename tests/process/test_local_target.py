"""How jobs are started, limited, logged and ended on this machine."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from gflow.targets.local.cgroups import find_layers, remove_layers
from tests.harness import BIN, Box, wait_until

pytestmark = pytest.mark.both_shims

HOG = """import time
x = bytearray({size} << 20)
for i in range(0, len(x), 4096): x[i] = 1
time.sleep({rest})
"""


def hog(box: Box, size: int, rest: int) -> list[str]:
    script = box.work / f"hog{size}.py"
    script.write_text(HOG.format(size=size, rest=rest))
    return ["python3", str(script)]


def memory_version() -> int:
    """Of the control groups that hold memory limits here; 0: there are none."""
    layers = find_layers(f"test-{os.getpid()}")
    remove_layers(layers)
    return layers.memory_version


@pytest.fixture(params=["version 1", "version 2", "watchdog"])
def limiting(request: pytest.FixtureRequest, box: Box) -> Box:
    """A daemon whose memory limits are held in one of the three ways."""
    found = memory_version()
    if request.param != "watchdog" and request.param != f"version {found}":
        pytest.skip(f"memory limits are held by control groups of version {found} here (0: none)")
    return box.up("--cpus", "4", env={"GFLOW_NO_CGROUPS": "1"} if request.param == "watchdog" else {})


def test_a_memory_limit_is_held_and_neighbours_live(limiting: Box) -> None:
    neighbours = [
        limiting.submit("--memory", "100M", *hog(limiting, 20, 60)),
        limiting.submit(*hog(limiting, 200, 60)),
    ]
    job = limiting.submit("--memory", "100M", *hog(limiting, 600, 60))
    final = limiting.finished(job)
    assert (final["state"], final["signal"]) == ("Failed", 9)
    used = re.fullmatch(r"OutOfMemory: used (\d+) MiB of 100 MiB", final["reason"])
    assert used, final["reason"]
    # A group stops it at the limit, a watchdog when it looks.
    assert 99 <= int(used[1]) < 700
    # The kernel's own figure of the end may be a little above what the watchdog saw.
    assert 0 <= int(final["peak_memory_mib"]) - int(used[1]) < 50
    assert {limiting.job(neighbour)["state"] for neighbour in neighbours} == {"Running"}


def test_all_processes_of_a_job_share_its_limit_and_its_end(limiting: Box) -> None:
    """Three times 50 MB are too much, and those that the kernel left go too."""
    one = " ".join(hog(limiting, 50, 60))
    job = limiting.submit("--memory", "100M", f"{one} & {one} & {one} & sleep 60; wait")
    final = limiting.finished(job, 30)
    assert final["reason"].startswith("OutOfMemory: used ")
    assert final["peak_memory_mib"] >= 99
    fits = limiting.submit("--memory", "200M", *hog(limiting, 50, 0))
    final = limiting.finished(fits)
    assert (final["state"], final["reason"]) == ("Finished", None)
    assert 50 <= final["peak_memory_mib"] < 100


def test_limits_of_the_submitter_reach_the_job(daemon: Box) -> None:
    def lowered() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (123, 456))

    done = subprocess.run(
        [BIN / "gbatch", "--parsable", "ulimit -Sn; ulimit -Hn"],
        env=daemon.env, cwd=daemon.work, preexec_fn=lowered, capture_output=True, text=True,
    )  # fmt: skip
    job = int(done.stdout)
    daemon.finished(job)
    assert daemon.text_of(job).split() == ["123", "456"]


def test_a_warning_comes_before_the_limit(daemon: Box) -> None:
    line = "trap 'echo warned' USR1; trap 'echo stopped; exit' TERM; for i in $(seq 100); do sleep 0.05; done"
    job = daemon.submit("--time", "0:02", "--signal", "B:USR1@1", line)
    assert daemon.finished(job)["state"] == "Timeout"
    said = [word for word in daemon.text_of(job).split() if word in ("warned", "stopped")]
    assert said == ["warned", "stopped"]  # between them bash tells how its sleeping children died


SAVING = """import signal, sys, time
def save(*_):
    print("saving", flush=True)
    time.sleep(0.2)
    sys.exit(print("saved"))
signal.signal(signal.SIGUSR1, save)
print("ready", flush=True)
time.sleep(60)
"""


def test_a_signal_spares_the_batch_shell_or_reaches_only_it(daemon: Box) -> None:
    (daemon.work / "saving.py").write_text(SAVING)
    gate = daemon.work / "gate"
    for path in (gate, daemon.work / "fifo"):
        os.mkfifo(path)
    programs = daemon.submit(f"{sys.executable} saving.py; echo shell")
    alone = daemon.submit(f"exec {sys.executable} saving.py")
    shell = daemon.submit("trap 'echo trapped' USR1; (echo ready; exec cat gate); echo $?")
    plain = daemon.submit("bash", "-c", "echo ready; read < fifo")
    jobs = [str(job) for job in (programs, alone, shell, plain)]
    wait_until(lambda: all("ready" in daemon.text_of(int(job)) for job in jobs))
    daemon.ok("gcancel", "--signal", "USR1", "--batch", str(shell))
    daemon.ok("gcancel", "--signal", "USR1", str(programs), str(alone), str(plain))
    assert [daemon.finished(job)["signal"] for job in (programs, alone, plain)] == [None, None, 10]
    os.close(os.open(gate, os.O_RDWR))  # its signal was sent before those of the others
    assert daemon.finished(shell)["signal"] is None
    assert [daemon.text_of(int(job)).split() for job in jobs[:3]] == [
        ["ready", "saving", "saved", "shell"],
        ["ready", "saving", "saved"],
        ["ready", "trapped", "0"],
    ]


def test_a_stop_file_appears(daemon: Box) -> None:
    line = "trap '' TERM; echo up; while [ ! -e $GFLOW_STOP_FILE ]; do sleep 0.02; done; echo seen"
    job = daemon.submit(line)
    wait_until(lambda: daemon.text_of(job) == "up\n")
    daemon.ok("gcancel", str(job))
    assert daemon.finished(job)["state"] == "Cancelled"
    assert daemon.output_of(job) == "up\nseen\n"
    wait_until(lambda: not list((daemon.data / "run").iterdir()))


def test_output_and_error_go_where_they_are_sent(daemon: Box) -> None:
    job = daemon.submit(
        "--name", "my/run", "--output", "out/%x-%j.txt", "--error", "err-%u.txt", "echo a; echo b >&2"
    )
    daemon.finished(job)
    assert (daemon.work / f"out/my_run-{job}.txt").read_text() == "a\n"
    assert [path.read_text() for path in daemon.work.glob("err-*.txt")] == ["b\n"]
    assert daemon.ok("gjob", "log", str(job)) == "a\n"


def test_environment_and_folder_are_chosen(daemon: Box) -> None:
    venv = daemon.work / "env"
    (venv / "bin").mkdir(parents=True)
    line = 'echo "$KEEP/$DROP/$NEW/$VIRTUAL_ENV/${PATH%%:*}"; pwd'
    words = ["--export", "KEEP,NEW=n", "--venv", "env", "--chdir", "env", line]
    job = daemon.submit(*words, env={"KEEP": "k", "DROP": "d"})
    daemon.finished(job)
    assert daemon.text_of(job).splitlines() == [f"k//n/{venv}/{venv}/bin", str(venv)]
    assert daemon.run("gbatch", "--venv", "nowhere", "true").returncode == 2
    assert daemon.run("gbatch", "--conda-env", "x; touch y", "true").returncode == 2


def test_siblings_of_a_script_can_be_sourced_and_imported(daemon: Box) -> None:
    (daemon.work / "lib.sh").write_text("greet() { echo hello; }\n")
    (daemon.work / "run.sh").write_text('. "$(dirname "$0")/lib.sh"; greet\n')
    (daemon.work / "helper.py").write_text("NAME = 'world'\n")
    (daemon.work / "main.py").write_text("#!/usr/bin/env python3\nimport helper; print(helper.NAME)\n")
    first, second = daemon.submit("run.sh"), daemon.submit("main.py")
    daemon.finished(first), daemon.finished(second)
    assert daemon.text_of(first) + daemon.text_of(second) == "hello\nworld\n"


STUBBORN = {
    "setsid": "setsid sh -c 'trap \"\" TERM HUP; sleep 81' & wait",
    "double fork": "(setsid sh -c 'sleep 82 & sleep 83 &' &) ; sleep 84",
    "nohup": "nohup sleep 85 >/dev/null 2>&1 & disown; sleep 86",
    "term ignored": "trap '' TERM; while :; do sleep 87; done",
    "stopped": "kill -STOP $$",
    "forks": "for i in $(seq 300); do setsid sleep 88 & done; sleep 89",
}


@pytest.mark.parametrize("groups", ["with control groups", "without"])
@pytest.mark.parametrize("how", ["cancel", "limit"])
def test_no_process_lives_when_the_job_state_changes(box: Box, how: str, groups: str) -> None:
    box.up("--cpus", "8", env={"GFLOW_NO_CGROUPS": "1"} if groups == "without" else {})
    limit = ["--time", "0:03"] if how == "limit" else []
    jobs = [box.submit("--grace", "1", *limit, line) for line in STUBBORN.values()]
    wait_until(lambda: len(box.processes()) > 300)
    if how == "cancel":
        box.ok("gcancel", ",".join(map(str, jobs)))
    for job in jobs:
        assert box.finished(job, 30)["state"] == ("Cancelled" if how == "cancel" else "Timeout")
        tags = f"GFLOW_RUN={box.data}/run/{job}.1".encode()
        assert [pid for pid in box.processes() if tags in _environ(pid)] == []


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_a_log_is_cut_at_its_cap_and_the_job_writes_on(box: Box) -> None:
    box.up("--cpus", "2", env={"GFLOW_LOGS__CAP_MIB": "2"})
    log, old = box.data / "logs/1.log", box.data / "logs/1.log.1"
    job = box.submit(f"seq 400000; while [ ! -e {old} ]; do sleep 0.05; done; echo end")
    assert box.finished(job)["exit_code"] == 0
    assert log.stat().st_size < 1 << 20
    assert (old.read_text() + log.read_text()).split() == [*map(str, range(1, 400_001)), "end"]


WRITER = """import os, time
for _ in range(200):
    os.write(1, bytes(1 << 20))
    if os.path.exists({old!r}): break
    time.sleep(0.025)
"""


def test_a_log_that_grows_fast_is_cut_soon(box: Box) -> None:
    """One that writes 40 MiB a second was seen after two seconds, and so on to gigabytes."""
    box.up("--cpus", "2", env={"GFLOW_LOGS__CAP_MIB": "8"})
    log, old = box.data / "logs/1.log", box.data / "logs/1.log.1"
    job = box.submit("python3", "-c", WRITER.format(old=str(old)))
    assert box.finished(job)["exit_code"] == 0
    assert 8 << 20 < log.stat().st_size + old.stat().st_size < 50 << 20


def control_groups(box: Box) -> list[Path]:
    """The base folders of this box's daemon."""
    tag = hashlib.blake2b(str(box.data / "run").encode(), digest_size=6).hexdigest()
    # os.walk, as folders of other daemons may vanish meanwhile.
    return [Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup") if folder.endswith(f"/gflow-{tag}")]


def test_no_control_group_outlives_its_job(daemon: Box) -> None:
    job = daemon.submit("--memory", "50M", "sleep", "60")
    wait_until(lambda: daemon.job(job)["state"] == "Running")
    if memory_version():
        wait_until(lambda: [path for path in daemon.control_groups() if path.name == f"{job}.1"])
    daemon.ok("gcancel", "--now", str(job))
    for _ in range(5):
        assert daemon.finished(daemon.submit("--memory", "50M", "true"))["state"] == "Finished"
    wait_until(lambda: not [path for path in daemon.control_groups() if path.name.endswith(".1")])


@pytest.mark.parametrize("how", ["told to", "killed"])
def test_a_daemon_that_goes_takes_its_control_groups_along(daemon: Box, how: str) -> None:
    daemon.finished(daemon.submit("--memory", "50M", "true"))
    running = daemon.submit("sleep", "60")
    shim = daemon.data / f"run/{running}.1"
    wait_until(lambda: shim.exists() and b"\njob " in shim.read_bytes())
    daemon.down() if how == "told to" else daemon.kill9()
    os.kill(int(shim.read_text().split()[8]), 9)
    wait_until(lambda: not control_groups(daemon), what="the end of the control groups")


def test_leftovers_of_killed_daemon_are_removed_by_next(daemon: Box, tmp_path: Path) -> None:
    if not control_groups(daemon):
        pytest.skip("no control groups can be made here")
    stale = [path.with_name("gflow-left") for path in control_groups(daemon)]
    for path in stale:
        path.mkdir(exist_ok=True)
    other = Box(tmp_path / "other")
    try:
        other.up("--cpus", "1")
        assert not any(path.exists() for path in stale)
        assert control_groups(daemon), "but nothing that is in use"
        assert control_groups(other)
        assert daemon.finished(daemon.submit("--memory", "50M", "true"))["state"] == "Finished"
    finally:
        other.clean_up()


def test_a_job_lives_where_another_was_killed(daemon: Box) -> None:
    """Whatever a kill did to the shim and its control group must not touch the next job."""
    for _ in range(4):
        jobs = [daemon.submit("echo ready; sleep 60") for _ in range(3)]
        for job in jobs:
            wait_until(lambda job=job: "ready" in daemon.text_of(job), what=f"job {job} to live")
        daemon.ok("gcancel", "--now", *map(str, jobs))
        assert {daemon.finished(job)["state"] for job in jobs} == {"Cancelled"}
