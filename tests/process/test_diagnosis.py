"""`gjob why` of jobs that fail for real: memory, disks, ranks, limits, ports; what the daemon adds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from tests.gpu_mock import MockGpus
from tests.harness import Box, wait_until

MAY_MOUNT = (
    os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0
)


def why(box: Box, number: int) -> dict:
    found: dict = json.loads(box.ok("gjob", "why", "--json", str(number)))
    return found


def program(box: Box, name: str, text: str) -> str:
    path = box.work / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def in_small_disk(folder: str, *command: str) -> tuple[str, ...]:
    """The command with a file system of 1 MiB at this folder, which no other process sees."""
    words = " ".join(command)
    return ("unshare", "-m", "sh", "-c", f"mount -t tmpfs -o size=1m tmpfs {folder} && exec {words}")


CRASHES = {
    "nan": """
        weight, step = 2.0, 0
        while weight == weight:
            weight, step = weight - 300.0 * (weight * weight * weight - weight), step + 1
            if abs(weight) > 1e100:
                weight = float("inf") - float("inf")
        raise ValueError(f"step {step}: loss is nan")
        """,
    "file-descriptors": """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        kept = [open(__file__) for _ in range(100)]
        """,
    "port-in-use": """
        import socket
        first = socket.create_server(("127.0.0.1", 0))
        socket.create_server(first.getsockname())
        """,
    "segfault": """
        import ctypes
        ctypes.string_at(0)
        """,
    "host-oom": """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
        bytearray(1 << 30)
        """,
}

RANK = """
    import os, sys, time
    if os.environ["RANK"] == "2":
        {act}
    time.sleep(60)
    """
RANK_ENDS = {
    "raises": ("samples = dict()\n        samples['label']", "exception"),
    "killed": ("os.kill(os.getpid(), 9)", "host-oom"),
}


def test_ended_array_names_its_failed_tasks_and_success_needs_no_explanation(daemon: Box) -> None:
    mixed = daemon.submit("--array", "1-4", "sh", "-c", 'test "$GFLOW_ARRAY_TASK_ID" -lt 3')
    good, one = daemon.submit("--array", "1-2", "true"), daemon.submit("true")
    daemon.run("gjob", "wait", str(mixed), str(good), str(one))
    page = daemon.ok("gjob", "why", str(mixed))
    assert "Its tasks: 2 finished, 2 failed.\n" in page, page
    assert f"Failed: {mixed}_3 (ExitCode:1), {mixed}_4 (ExitCode:1).\n" in page
    assert page.endswith(f"The cause of one: gjob why {mixed}_3\n") and "not started" not in page
    page = daemon.ok("gjob", "why", str(good))
    assert "Its tasks: 2 finished.\nThere is nothing to explain: all tasks finished" in page, page
    page = daemon.ok("gjob", "why", str(one))
    assert page.endswith("Finished.\nThere is nothing to explain: it finished without an error.\n"), page
    assert daemon.api("GET", f"/jobs/{mixed}/diagnosis")[1]["log_error"] == (
        "each task of the array has its own log"
    )


def test_real_failures_are_explained(daemon: Box) -> None:
    jobs = {
        cause: daemon.submit(sys.executable, program(daemon, f"{cause}.py", text))
        for cause, text in CRASHES.items()
    }
    launched = {
        name: daemon.submit(
            "gflow", "launch", "--processes", "4", program(daemon, f"{name}.py", RANK.format(act=act))
        )
        for name, (act, _) in RANK_ENDS.items()
    }
    for cause, number in jobs.items():
        daemon.finished(number, 60)
        found = why(daemon, number)
        assert found["cause"] == cause, found
    for name, number in launched.items():
        daemon.finished(number, 60)
        first = why(daemon, number)["findings"][0]
        assert (first["cause"], first["evidence"]["rank"]) == (RANK_ENDS[name][1], 2), first
    raised = why(daemon, launched["raises"])["findings"][0]
    assert raised["frame"]["code"] == "samples['label']"


@pytest.mark.skipif(not MAY_MOUNT, reason="only root may mount a small file system")
def test_full_file_systems_are_explained(daemon: Box) -> None:
    text = "import sys; open(sys.argv[1], 'wb').write(bytes(8 << 20))"
    script = program(daemon, "write.py", text)
    disk = daemon.submit(*in_small_disk("/mnt", sys.executable, script, "/mnt/out.bin"))
    text = """
        from multiprocessing.shared_memory import SharedMemory
        memory = SharedMemory(create=True, size=8 << 20)
        memory.buf[:] = bytes(8 << 20)
        """
    script = program(daemon, "share.py", text)
    shared = daemon.submit(*in_small_disk("/dev/shm", sys.executable, script))
    daemon.finished(disk)
    assert why(daemon, disk)["cause"] == "disk-full"
    daemon.finished(shared)
    assert why(daemon, shared)["cause"] == "bus-error"


def test_memory_limit_is_explained_with_peak(daemon: Box) -> None:
    """In a control group where there is one, else by the shim's own measurements."""
    number = daemon.submit(
        "--memory", "64M", sys.executable, "-c", "x = bytearray(512 << 20); input(); print(len(x))"
    )
    daemon.finished(number, 60)
    first = why(daemon, number)["findings"][0]
    assert (first["cause"], first["confidence"]) == ("host-oom", "certain")
    assert first["evidence"]["source"] == "record"
    assert first["support"][0]["source"] == "memory" and "of 64 MiB" in first["support"][0]["text"]


def test_attempts_stops_and_other_jobs_are_evidence(daemon: Box) -> None:
    for _ in range(2):
        daemon.finished(daemon.submit("--gpus", "1", "false"))
    number = daemon.submit("--gpus", "1", "--max-retries", "1", "--retry-delay", "0", "sh", "-c", "exit 3")
    daemon.finished(number)
    answer = why(daemon, number)
    assert answer["end"]["attempts"] == [{"attempt": 1, "reason": "ExitCode:3"}]
    assert answer["end"]["runs"][0] | {"jobs": []} == {"gpu": 0, "ended": 2, "failed": 2, "jobs": []}
    stopped = daemon.submit("sleep", "600")
    daemon.ok("gcancel", str(stopped))
    daemon.finished(stopped)
    first = why(daemon, stopped)["findings"][0]
    assert first["cause"] == "cancelled" and first["support"][0]["text"].startswith("cancelled by ")


def test_allocator_settings_are_evidence(daemon: Box) -> None:
    line = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity "
        "of 9.00 GiB of which 0.50 GiB is free. Of the allocated memory 5.00 GiB is allocated by PyTorch, "
        "and 3.00 GiB is reserved by PyTorch but unallocated."
    )
    setting = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    number = daemon.submit("sh", "-c", f"echo '{line}'; exit 1", env=setting)
    daemon.finished(number)
    answer = why(daemon, number)
    assert answer["end"]["allocator"] == "expandable_segments:True"
    assert "although expandable_segments is set" in answer["findings"][0]["advice"][0]


def test_late_xid_is_evidence_of_the_job_that_failed(box: Box) -> None:
    gpus = MockGpus(box.root, 1)
    box.up("--cpus", "4", env={**gpus.env, "GFLOW_LEASE_DIR": str(box.root / "leases")})
    gates = [box.work / "go1", box.work / "go2"]
    crashed, after = (
        box.submit("--gpus", "1", "sh", "-c", f"until [ -e {gate} ]; do sleep 0.02; done; exit 1")
        for gate in gates
    )
    wait_until(lambda: box.job(crashed)["state"] == "Running")
    gates[0].touch()
    wait_until(lambda: box.job(after)["state"] == "Running")
    gpus[0].xid = 31
    wait_until(lambda: gpus[0].xid == 0, what="the daemon to hear of it")
    gates[1].touch()
    box.finished(after)
    wait_until(lambda: why(box, crashed)["end"]["gpu_faults"], what="the event to be written")
    assert why(box, after)["end"]["gpu_faults"] == []


def test_xid_during_a_job_is_evidence(box: Box) -> None:
    gpus = MockGpus(box.root, 1)
    box.up("--cpus", "4", env={**gpus.env, "GFLOW_LEASE_DIR": str(box.root / "leases")})
    gate = box.work / "go"
    number = box.submit("--gpus", "1", "sh", "-c", f"until [ -e {gate} ]; do sleep 0.02; done; exit 1")
    wait_until(lambda: box.job(number)["state"] == "Running")
    gpus[0].xid = 79
    wait_until(lambda: gpus[0].xid == 0, what="the daemon to hear of it")
    gate.touch()
    box.finished(number)
    wait_until(lambda: why(box, number)["end"]["gpu_faults"], what="the event to be written")
    first = why(box, number)["findings"][0]
    assert (first["cause"], first["evidence"]["source"]) == ("gpu-hardware", "gpu")
    assert "Xid 79" in first["evidence"]["text"]
