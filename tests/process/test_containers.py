"""--container on this machine: a job in a container is stopped, limited and adopted like any other."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Box, wait_until
from tests.system import System, system

# Prints its words, and runs what follows the image on this machine.
FAKE = """#!/bin/bash
printf '<%s>' "$@"; echo
until [ "$1" = image.sif ]; do shift; done
shift; exec "$@"
"""
PROGRAMS = ("sh", "id", "cat", "sleep", "touch", "env", "dd", "head", "tail")
BOTH_SHIMS = pytest.mark.both_shims


@pytest.fixture
def apptainer(box: Box) -> Box:
    """A private daemon that finds a program called apptainer."""
    folder = box.work / "programs"
    folder.mkdir()
    (folder / "apptainer").write_text(FAKE)
    (folder / "apptainer").chmod(0o755)
    box.env["PATH"] = f"{folder}:{box.env['PATH']}"
    box.up("--simulate-gpus", "1x80G", env={"GFLOW_CONTAINERS__OPTIONS": "--bind,/scratch disk"})
    return box


@BOTH_SHIMS
def test_command_runs_by_apptainer(apptainer: Box) -> None:
    job = apptainer.submit("--container", "image.sif", "sh", "-c", "echo ran $0; exit 5", "it's me")
    assert apptainer.finished(job)["exit_code"] == 5
    first, second = apptainer.text_of(job).splitlines()
    assert first.startswith(f"<exec><--pwd><{apptainer.work}><--bind><")
    assert first.endswith("<--bind></scratch disk><image.sif><sh><-c><echo ran $0; exit 5><it's me>")
    assert second == "ran it's me"
    assert "Container: image.sif" in apptainer.ok("gjob", "show", str(job))


@BOTH_SHIMS
def test_script_runs_by_apptainer_as_it_was_submitted(apptainer: Box) -> None:
    script = apptainer.work / "train.sh"
    script.write_text("#!/bin/sh\necho first $1\n")
    plain = apptainer.submit("--container", "image.sif", str(script), "here")
    assert apptainer.finished(plain)["state"] == "Finished"
    assert apptainer.text_of(plain).splitlines()[-1] == "first here"
    job = apptainer.submit("--hold", "--container", "image.sif", str(script), "later")
    script.write_text("#!/bin/sh\necho second\n")
    apptainer.ok("gjob", "release", str(job))
    assert apptainer.finished(job)["state"] == "Finished"
    assert apptainer.text_of(job).splitlines()[-1] == "first later"
    folder = f"<--bind><{apptainer.data}/run>"
    assert folder in apptainer.text_of(job)


def test_resume_args_are_added_outside_the_container(apptainer: Box) -> None:
    (apptainer.work / "checkpoints").mkdir()
    (apptainer.work / "checkpoints/step-7.pt").touch()
    line = "echo got $*; exit 3"
    job = apptainer.submit(
        "--container", "image.sif", "--max-retries", "1", "--retry-delay", "0",
        "--resume-args", "--from {latest}", "sh", "-c", line, "name",
    )  # fmt: skip
    assert apptainer.finished(job)["state"] == "Failed"
    got = [words for words in apptainer.text_of(job).splitlines() if words.startswith("got")]
    assert got == ["got", "got --from checkpoints/step-7.pt"]


def test_container_is_refused_where_nothing_can_run_it(box: Box) -> None:
    box.up(env={"GFLOW_CONTAINERS__RUNTIME": "no-such-program"})
    done = box.run("gbatch", "--container", "image.sif", "true")
    assert done.returncode != 0
    assert "--container cannot be used on this machine: there is no no-such-program" in done.stderr
    assert box.finished(box.submit("--container", "none", "true"))["state"] == "Finished"


# ---------------------------------------------------------------- the real one


def make_image(folder: Path) -> None:
    """An image as a folder, with the programs of busybox."""
    busybox = shutil.which("busybox")
    if busybox is None or b"interpreter" in subprocess.check_output(["file", "-L", busybox]):
        pytest.skip("there is no static busybox here")
    for name in ("bin", "tmp", "var/tmp", "etc", "dev", "proc", "sys", "home", "run"):
        (folder / name).mkdir(parents=True)
    shutil.copy(busybox, folder / "bin/busybox")
    for name in PROGRAMS:
        (folder / "bin" / name).symlink_to("busybox")
    (folder / "etc/image").write_text("inside\n")
    for name in ("passwd", "group"):
        (folder / "etc" / name).touch()


@pytest.fixture(scope="module")
def machine() -> Iterator[System]:
    for program in ("apptainer", "file"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")
    with system() as made:
        make_image(made.root / "image")
        made.box.env["GFLOW_CONTAINERS__RUNTIME"] = shutil.which("apptainer")
        yield made.up()


def submit(machine: System, box: Box, *words: str) -> int:
    return box.submit("--container", str(machine.root / "image"), *words)


def programs_of(box: Box) -> list[str]:
    """The command lines of all processes of this user."""
    words = ["ps", "-o", "args=", "-u", box.person.pw_name]
    return subprocess.run(words, capture_output=True, text=True).stdout.splitlines()


def test_job_runs_in_its_image_as_its_user(machine: System) -> None:
    script = "cat /etc/image; id -u; touch made; echo $GFLOW_JOB_ID $CUDA_VISIBLE_DEVICES"
    job = submit(machine, machine.ann, "--gpus", "1", "sh", "-c", f"{script}; exit 7")
    assert machine.box.finished(job)["exit_code"] == 7, machine.log_of(machine.ann, job)
    uid = machine.ann.person.pw_uid
    assert machine.log_of(machine.ann, job) == f"inside\n{uid}\n{job} 0\n"
    assert (machine.ann.work / "made").owner() == machine.ann.person.pw_name


def test_script_runs_in_its_image(machine: System) -> None:
    script = machine.ann.work / "job.sh"
    script.write_text("#!/bin/sh\ncat /etc/image\n")
    job = submit(machine, machine.ann, str(script))
    assert machine.box.finished(job)["state"] == "Finished", machine.log_of(machine.ann, job)
    assert machine.log_of(machine.ann, job) == "inside\n"


def test_job_in_a_container_may_use_its_grace_time(machine: System) -> None:
    line = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    job = submit(machine, machine.ann, "--grace", "30", "sh", "-c", line)
    wait_until(lambda: "ready" in machine.log_of(machine.ann, job))
    machine.ann.ok("gcancel", str(job))
    assert machine.box.finished(job)["state"] == "Cancelled"
    assert "saved" in machine.log_of(machine.ann, job)


@pytest.mark.parametrize("options", [(), ("--memory", "500M")], ids=["native", "python"])
def test_killed_container_leaves_no_process(machine: System, options: tuple[str, ...]) -> None:
    job = submit(
        machine, machine.bob, *options, "sh", "-c", "trap '' TERM; echo ready; sleep 1000 & sleep 1000"
    )
    wait_until(lambda: "ready" in machine.log_of(machine.bob, job))
    assert any("sleep 1000" in line for line in programs_of(machine.bob))
    machine.bob.ok("gcancel", "--now", str(job))
    assert machine.box.finished(job)["state"] == "Cancelled"
    assert programs_of(machine.bob) == []


def test_memory_limit_holds_in_a_container(machine: System) -> None:
    job = submit(machine, machine.ann, "--memory", "200M", "sh", "-c", "head -c 400000000 /dev/zero | tail")
    ended = machine.box.finished(job)
    assert ended["reason"].startswith("OutOfMemory: used "), machine.log_of(machine.ann, job)


def test_container_is_adopted_by_the_next_daemon(machine: System) -> None:
    mark = machine.ann.work / "go"
    line = f"echo ready; while [ ! -e {mark} ]; do sleep 0.1; done; echo done; exit 9"
    job = submit(machine, machine.ann, "sh", "-c", line)
    wait_until(lambda: "ready" in machine.log_of(machine.ann, job))
    machine.box.kill9()
    machine.up()
    mark.touch()
    assert machine.box.finished(job)["exit_code"] == 9
    assert machine.log_of(machine.ann, job) == "ready\ndone\n"
