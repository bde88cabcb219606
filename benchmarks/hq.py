"""The adapter of HyperQueue, through its Python binding: the wheel has no `hq` command.

Server and worker live in one Python process. Interpreter with the package: $HQ_PYTHON.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from benchmarks.measure import NotOffered
from benchmarks.systems import System, register

SERVER = """
import sys, time
from hyperqueue.cluster import LocalCluster, WorkerConfig
cluster = LocalCluster(sys.argv[1], WorkerConfig(cores=int(sys.argv[2])))
print("up", flush=True)
while True:
    time.sleep(60)
"""
SUBMIT = """
import sys
from hyperqueue import Client, Job
job = Job()
job.program(["sh", "-c", sys.argv[2]], stdout=None, stderr=None)
Client(sys.argv[1]).submit(job)
"""
BULK = """
import sys, time
from hyperqueue import Client, Job
from hyperqueue.ffi.protocol import ResourceRequest
folder, count, script, cpus, wait = sys.argv[1:]
client, job = Client(folder), Job()
for _ in range(int(count)):
    job.program(["sh", "-c", script], stdout=None, stderr=None, resources=ResourceRequest(cpus=float(cpus)))
begin = time.perf_counter()
submitted = client.submit(job)
accepted = time.perf_counter()
if wait == "wait":
    client.connection.wait_for_jobs([submitted.id], lambda state: None)
print(accepted - begin, time.perf_counter() - begin, flush=True)
"""
MORE_THAN_THERE_ARE = 1000


@register
class HyperQueue(System):
    """HyperQueue; no journal, so nothing survives its end."""

    name = "hyperqueue"
    many = 64
    at_most = {"cli": 5, "submit": 20, "start": 10}  # each submission starts an interpreter

    def __init__(self) -> None:
        super().__init__()
        # Not resolved: a virtual environment's interpreter is a link, and its place is its meaning.
        self.python = str(Path(os.environ.get("HQ_PYTHON", ".bench/hq-venv/bin/python")).absolute())
        self.process: subprocess.Popen[str] | None = None

    def version(self) -> str:
        show = "import importlib.metadata as m; print('hyperqueue', m.version('hyperqueue'))"
        try:
            done = subprocess.run([self.python, "-c", show], capture_output=True, text=True)
        except OSError:
            raise NotOffered("hyperqueue is not installed") from None
        if done.returncode:
            raise NotOffered("hyperqueue is not installed")
        return done.stdout.strip()

    def start(self, slots: int | None = None, hold: bool = False) -> None:
        self.stop()
        self.fresh()
        for name, text in (("server", SERVER), ("submit", SUBMIT), ("bulk", BULK)):
            (self.dir / f"{name}.py").write_text(text)
        with open(self.dir / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                [*self.script("server"), str(slots or self.many)],
                env=self.env,
                cwd=self.work,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout
        if not any(line.strip() == "up" for line in self.process.stdout):  # after its banner
            raise RuntimeError("hyperqueue did not come up")

    def script(self, name: str) -> list[str]:
        return [self.python, f"{self.dir}/{name}.py", f"{self.dir}/hq"]

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None
            self.sweep()

    def pids(self) -> list[int]:
        return [self.process.pid] if self.process else []

    def state_files(self) -> list[Path]:
        return [path for path in (self.dir / "hq").rglob("*") if path.is_file()]

    def cmd_submit(self, script: str) -> list[str]:
        return [*self.script("submit"), script]

    def bulk(self, count: int, script: str, kind: str = "run") -> float:
        cpus = MORE_THAN_THERE_ARE if kind == "blocked" else 1
        return self.submit_many(count, script, cpus, "leave")[0]

    def run_all(self, count: int, script: str) -> tuple[float, int]:
        return self.submit_many(count, script, 1, "wait")[1], count

    def submit_many(self, count: int, script: str, cpus: int, wait: str) -> tuple[float, float]:
        """Seconds until the submission was accepted, and until everything was done."""
        accepted, done = self.call([*self.script("bulk"), str(count), script, str(cpus), wait]).split()
        return float(accepted), float(done)
