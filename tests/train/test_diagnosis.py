"""`gjob why` of runs in PyTorch that fail for real: gloo, data loaders, shared memory, NaN."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from gflow.diagnosis.circumstances import Circumstances  # noqa: E402
from gflow.diagnosis.cuda_oom import advise, parse_cuda_oom  # noqa: E402
from gflow.ml.train.checkpoint.run_state import RunState  # noqa: E402
from gflow.ml.train.oom_report import fixed_bytes, oom_line, report_oom  # noqa: E402
from tests.harness import Box  # noqa: E402
from tests.process.test_diagnosis import MAY_MOUNT, in_small_disk, program, why  # noqa: E402

LATE_RANK = """
    import datetime, time, torch, torch.distributed as dist
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
    if dist.get_rank() == 1:
        time.sleep(60)
    dist.all_reduce(torch.zeros(1))
    """
DEAD_RANK = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    if dist.get_rank() == 2:
        weights = {}
        weights["head"]
    dist.all_reduce(torch.zeros(1))
    """
LOADER = """
    import os, torch
    from torch.utils.data import DataLoader, Dataset

    class Data(Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, at):
            @ACT@

    if __name__ == "__main__":
        for batch in DataLoader(Data(), batch_size=8, num_workers=2):
            pass
    """
KILLED = LOADER.replace("@ACT@", "os.kill(os.getpid(), 9)")
RAISES = LOADER.replace("@ACT@", "raise KeyError('caption')")
LARGE = LOADER.replace("@ACT@", "return torch.zeros(1 << 20)")
NAN = """
    import torch
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e6)
    data = torch.randn(64, 8)
    for step in range(1000):
        loss = model(data).square().mean()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"step {step}: loss is {loss.item()}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """


def test_real_failures_in_torch_are_explained(daemon: Box) -> None:
    def run(name: str, text: str, *before: str) -> int:
        return daemon.submit(*before, program(daemon, f"{name}.py", text))

    launch = ("gflow", "launch", "--processes")
    jobs = {
        "gloo-timeout": run("late", LATE_RANK, *launch, "2"),
        "exception": run("dead", DEAD_RANK, *launch, "3"),
        "host-oom": run("killed", KILLED, sys.executable),
        "nan": run("nan", NAN, sys.executable),
    }
    raised = run("raises", RAISES, sys.executable)
    for cause, number in jobs.items():
        daemon.finished(number, 120)
        found = why(daemon, number)
        assert found["cause"] == cause, (found, daemon.text_of(number))
    dead = why(daemon, jobs["exception"])["findings"][0]
    assert dead["evidence"]["rank"] == 2 and dead["frame"]["code"] == 'weights["head"]'
    worker = why(daemon, jobs["host-oom"])["findings"][0]
    assert "DataLoader worker" in worker["evidence"]["text"]
    daemon.finished(raised, 120)
    assert why(daemon, raised)["findings"][0]["frame"]["code"] == "raise KeyError('caption')"


@pytest.mark.skipif(not MAY_MOUNT, reason="only root may mount a small file system")
def test_full_shared_memory_is_explained(daemon: Box) -> None:
    script = program(daemon, "large.py", LARGE)
    number = daemon.submit(*in_small_disk("/dev/shm", sys.executable, script))
    daemon.finished(number, 120)
    assert why(daemon, number)["cause"] == "shared-memory", daemon.text_of(number)


def test_oom_report_tells_the_part_without_the_batch(monkeypatch, capsys) -> None:
    state = RunState(torch.device("cpu"))
    state.add_model("model", torch.nn.Linear(1 << 14, 1 << 13, bias=False, device="meta"))  # 512 MiB
    state.optimizers.append(torch.optim.AdamW(state.model.parameters()))
    assert fixed_bytes(state) == 4 * (512 << 20)
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    report_oom(state, lambda: 64)
    sys.excepthook(torch.OutOfMemoryError, torch.OutOfMemoryError("CUDA out of memory"), None)
    line = capsys.readouterr().err
    assert line == oom_line(64, 2 << 30)
    sys.excepthook(ValueError, ValueError("x"), None)
    assert capsys.readouterr().err == ""
    oom = parse_cuda_oom(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 10.00 GiB of which "
        "1.00 GiB is free. Of the allocated memory 9.00 GiB is allocated by PyTorch, and 0 bytes is reserved "
        "by PyTorch but unallocated."
    )
    (advice,) = advise(oom, Circumstances(), line)
    assert advice.startswith("all but 2.0 GiB depends on the batch of 64")
