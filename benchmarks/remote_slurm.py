"""Jobs for a Slurm cluster behind an SSH login, beside `ssh host sbatch` in a loop.

    .venv/bin/python -m benchmarks.remote_slurm [--jobs 200] [--trials 40]

Needs root, Slurm and sshd (`make test-slow` installs them). Starts a four-node Slurm and an sshd on loopback.
Prints figures; asserts nothing.
"""

import argparse, statistics, subprocess, tempfile, time
from pathlib import Path

from tests.harness import BIN, Box, wait_until
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import at_a_distance
from tests.sshd import login_node

FILES = 1000
SCRIPT = "#!/bin/sh\nsleep 0\n"


def figure(name, value):
    print(f"{name:<58} {value}", flush=True)


def times_ms(count, action):
    taken = []
    for _ in range(count):
        begin = time.perf_counter()
        action()
        taken.append(1000 * (time.perf_counter() - begin))
    return f"{min(taken):.0f} ms least, {statistics.median(taken):.0f} median"


def caller(box, *words, text=None):
    """Run a command of the box. Without the checks of the test harness: they would count."""

    def call():
        subprocess.run(words, env=box.env, cwd=box.work, input=text, capture_output=True, check=True)

    return call


def queued(cluster):
    return len(cluster.call("squeue", "-h", "-t", "all", "-o", "%i").split())


def submissions(box, trials):
    """One submission at a time: ours, for this machine and for the cluster, and sbatch over SSH."""
    gbatch, path = str(BIN / "gbatch"), box.env["PATH"].split(":")[0]
    figure("gbatch, for this machine", times_ms(trials, caller(box, gbatch, "--hold", "true")))
    far = (gbatch, "--hold", "--on", "far", "--time", "10", "--no-sync", "true")
    figure("gbatch --on far, accepted", times_ms(trials, caller(box, *far)))
    ssh = (f"{path}/ssh", "login", "sbatch --hold -N 4 -t 10")
    figure("ssh login sbatch", times_ms(max(3, trials // 4), caller(box, *ssh, text=SCRIPT.encode())))


def hand_over(box, cluster, jobs):
    cluster.forget_jobs()
    before, begin = queued(cluster), time.perf_counter()
    values = ",".join(map(str, range(jobs)))
    words = ("--on", "far", "--time", "10", "--nodes", "4", "--param", f"i={values}", "sleep 0")
    caller(box, str(BIN / "gbatch"), *words)()
    accepted = time.perf_counter() - begin
    wait_until(lambda: queued(cluster) >= before + jobs, 300, "the jobs in Slurm's queue")
    figure(f"{jobs} jobs in Slurm's queue", f"{time.perf_counter() - begin:.1f} s (accepted after {accepted:.2f} s)")
    caller(box, str(BIN / "gcancel"), "--all")()


def send_project(box, login):
    """A project of many files: sent once, then with one changed file."""
    project = box.work / "project"
    project.mkdir()
    for number in range(FILES):
        (project / f"{number}.py").write_text(f"x = {number}\n" * 40)
    words = [str(BIN / "gbatch"), "--on", "far", "--time", "10", "--sync", ".", "true"]
    for name in (f"a project of {FILES} files, sent for the first time", "the same with one changed file"):
        (project / "0.py").write_text(name)
        present = snapshots(login)
        begin = time.perf_counter()
        subprocess.run(words, env=box.env, cwd=project, capture_output=True, check=True)
        accepted = time.perf_counter() - begin
        wait_until(lambda: snapshots(login) - present, 60, "the snapshot")
        figure(name, f"{time.perf_counter() - begin:.2f} s (accepted after {accepted:.2f} s)")


def snapshots(login):
    """The copies of the project on the cluster, under their last names."""
    return {path.parent for path in login.home.glob(".gflow/runs/*/snapshots/*/*/999.py")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--trials", type=int, default=40)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        Path(folder).chmod(0o755)  # the user of the login node reads slurm.conf
        cluster, box = Cluster(Path(folder) / "slurm"), Box(Path(folder) / "box")
        (Path(folder) / "slurm").mkdir()
        try:
            cluster.start()
            with login_node({"SLURM_CONF": str(cluster.conf)}) as login:
                at_a_distance(login, cluster, box).down()
                box.flags.remove("--paranoid")  # the checks of the tests would count
                box.up()
                box.finished(box.submit("--on", "far", "--time", "10", "true"), 60)  # the connection is open
                submissions(box, chosen.trials)
                hand_over(box, cluster, chosen.jobs)
                send_project(box, login)
                box.down()
        finally:
            box.clean_up()
            cluster.stop()


if __name__ == "__main__":
    main()
