"""Measure the cost of `run.log` and of progress reports, in microseconds: python benchmarks/train_log.py

A listener receives the reports, as the daemon does. Printed: the median and the 99th percentile of single calls.
"""

import os
import socket
import statistics
import tempfile
import threading
import time

import torch

from gflow.train import Run
from gflow.ml.train.progress import Reporter

folder = tempfile.mkdtemp()
ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
ear.bind(f"{folder}/progress")
os.environ |= {"GFLOW_PROGRESS": f"{folder}/progress", "GFLOW_JOB_ID": "1", "GFLOW_ATTEMPT": "1"}
heard = []
threading.Thread(target=lambda: [heard.append(ear.recv(4096)) for _ in iter(int, 1)], daemon=True).start()

CALLS = 100_000


def measure(name: str, call) -> None:
    times = []
    for at in range(CALLS):
        began = time.perf_counter_ns()
        call(at)
        times.append(time.perf_counter_ns() - began)
    times.sort()
    print(
        f"{name:42} median {statistics.median(times) / 1000:7.2f} us   p99 {times[CALLS * 99 // 100] / 1000:7.2f} us"
    )


run = Run(device="cpu")
loss = torch.tensor(1.5)
measure("run.log(tensor)", lambda at: run.log(loss))
measure("run.log(number)", lambda at: run.log(1.5))
run._steps, run._samples, run._epochs = CALLS, 1000, 1


def step(at: int) -> None:
    run.log(loss)
    run.place.step = at
    run._report()


measure("a step: run.log(tensor) and its report", step)
often = Reporter(every_s=0.0)
measure("a report that is sent, every time", lambda at: often.note(at, steps=CALLS, samples=at, loss=loss))
run.close()
print(f"heard {len(heard)} times")
