"""Two daemons on one machine never give out the same GPU."""

from __future__ import annotations

from pathlib import Path

from tests.harness import Box, wait_until

FLAGS = ("--simulate-gpus", "2x80G", "--cpus", "8")


def test_two_daemons_never_overlap_on_a_gpu(tmp_path: Path) -> None:
    shared = tmp_path / "leases"
    usage = tmp_path / "usage"
    boxes = [Box(tmp_path / name) for name in ("ann", "bob")]
    line = f"echo + $CUDA_VISIBLE_DEVICES >> {usage}; sleep 0.05; echo - $CUDA_VISIBLE_DEVICES >> {usage}"
    try:
        for box in boxes:
            box.up(*FLAGS, env={"GFLOW_LEASE_DIR": str(shared)})
        jobs = [(box, box.submit("--gpus", "1", line)) for _ in range(12) for box in boxes]
        for box, job in jobs:
            assert box.finished(job, 60)["state"] == "Finished"
    finally:
        for box in boxes:
            box.clean_up()
    busy: set[str] = set()
    lines = usage.read_text().splitlines()
    assert len(lines) == 48
    for line in lines:
        what, gpu = line.split()
        if what == "+":
            assert gpu not in busy, f"GPU {gpu} was given out twice"
            busy.add(gpu)
        else:
            busy.discard(gpu)


def test_a_gpu_of_another_daemon_is_shown_and_waited_for(tmp_path: Path) -> None:
    boxes = [Box(tmp_path / name) for name in ("ann", "bob")]
    ann, bob = boxes
    try:
        for box in boxes:
            box.up(*FLAGS, env={"GFLOW_LEASE_DIR": str(tmp_path / "leases")})
        first = ann.submit("--gpus", "2", "sleep", "60")
        wait_until(lambda: ann.job(first)["state"] == "Running")
        wait_until(lambda: len(list((tmp_path / "leases").iterdir())) == 2)
        waiting = bob.submit("--gpus", "1", "true")
        wait_until(lambda: "Unmanaged: gflow of" in bob.ok("ginfo"))
        assert bob.job(waiting)["reason"].startswith("Resources: GPU 0 is Unmanaged: gflow of ")
        ann.kill9()
        ann.up()
        assert bob.job(waiting)["state"] == "Queued"
        ann.ok("gcancel", "--now", str(first))
        assert bob.finished(waiting)["state"] == "Finished"
    finally:
        for box in boxes:
            box.clean_up()


def test_shared_jobs_of_one_daemon_share_and_others_stay_away(tmp_path: Path) -> None:
    boxes = [Box(tmp_path / name) for name in ("ann", "bob")]
    ann, bob = boxes
    words = ["--gpus", "1", "--shared", "--gpu-memory", "10G", "sleep", "60"]
    try:
        for box in boxes:
            box.up(
                "--simulate-gpus", "1x80G", "--cpus", "8", env={"GFLOW_LEASE_DIR": str(tmp_path / "leases")}
            )
        jobs = [ann.submit(*words) for _ in range(3)]
        wait_until(lambda: all((ann.data / f"run/{job}.1").exists() for job in jobs))
        wait_until(lambda: all(b"\njob " in (ann.data / f"run/{job}.1").read_bytes() for job in jobs))
        assert [ann.job(job)["attempt"] for job in jobs] == [1, 1, 1]
        other, alone = bob.submit(*words), bob.submit("--gpus", "1", "true")
        wait_until(lambda: "Unmanaged: gflow of" in bob.ok("ginfo"))
        wait_until(lambda: bob.job(other)["state"] == bob.job(alone)["state"] == "Queued")
        ann.ok("gcancel", "--now", ",".join(map(str, jobs)))
        wait_until(lambda: bob.job(other)["state"] == "Running")
    finally:
        for box in boxes:
            box.clean_up()
