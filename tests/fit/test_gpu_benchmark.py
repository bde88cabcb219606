"""The program of `gflow doctor --gpu` with two GPUs that are the CPU: every step runs and checks results."""

from __future__ import annotations

import json
import runpy
import sys
import types

import pytest

from gflow.client.doctor.gpu_self_test import PROGRAM

torch = pytest.importorskip("torch")


def add_up(tensors: list) -> None:
    total = torch.stack(tensors).sum(0)
    for tensor in tensors:
        tensor.copy_(total)


class TorchOnCpu(types.ModuleType):
    """torch, with a device that is the CPU and a CUDA that does nothing."""

    def __init__(self, sums_wrongly: bool) -> None:
        super().__init__("torch")
        self.cuda = types.ModuleType("torch.cuda")
        self.cuda.nccl = types.ModuleType("torch.cuda.nccl")
        for name in ("synchronize", "empty_cache", "init"):
            setattr(self.cuda, name, lambda *_: None)
        self.cuda.device_count = lambda: 2
        self.cuda.mem_get_info = lambda gpu: (64 << 20, 64 << 20)
        self.cuda.get_device_capability = lambda gpu: (9, 0)
        self.cuda.nccl.version = lambda: (2, 28, 9)
        self.cuda.nccl.all_reduce = lambda tensors: None if sums_wrongly else add_up(tensors)
        self.device = lambda *_: torch.device("cpu")

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)


@pytest.mark.parametrize("sums_wrongly", [False, True])
def test_every_step_prints_a_figure_and_wrong_results_are_errors(monkeypatch, capsys, sums_wrongly) -> None:
    fake = TorchOnCpu(sums_wrongly)
    for name, module in (("torch", fake), ("torch.cuda", fake.cuda), ("torch.cuda.nccl", fake.cuda.nccl)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    program = runpy.run_path(PROGRAM)["main"]
    program.__globals__.update(SPAN_S=0.01, FEW_ROWS=64, BUFFER_MIB=1)
    assert program() == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {line["name"]: line for line in lines if "name" in line}
    assert set(found) == {"bf16", "fp32", "memory", "upload", "download", "peer", "all_reduce"}
    assert all(line.get("value", 0) > 0 for name, line in found.items() if name != "all_reduce")
    assert ("sum is wrong" in found["all_reduce"].get("error", "")) is sums_wrongly
    assert lines[-1] == {"end": True}
