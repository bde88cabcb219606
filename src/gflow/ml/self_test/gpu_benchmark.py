"""Measure GPUs with PyTorch and print a line of JSON for each step: the program of `gflow doctor --gpu`.

Runs in the user's Python environment, which need not have gflow: the standard library and torch only. Each
visible GPU is measured alone, then the copies between pairs, then NCCL with all of them. Results are compared
with known ones, because a broken GPU may calculate fast and wrong.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
# Seconds that each measurement takes after its warm-up.
SPAN_S = 0.6
# Matrices of this many rows; fewer on GPUs with little free memory.
ROWS, FEW_ROWS, LITTLE_MIB = 8192, 4096, 3000
BUFFER_MIB = 256
torch: Any = None


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def step(name: str, gpus: list[int], measure: Callable[..., float], *arguments: Any) -> None:
    """One measurement: announce it, then print its value or its error."""
    say(begin=name, gpus=gpus)
    try:
        say(name=name, gpus=gpus, value=measure(*arguments))
    except Exception as error:  # the next step may still work
        say(name=name, gpus=gpus, error=f"{type(error).__name__}: {error}"[:500])
    torch.cuda.empty_cache()


def rate(work: Callable[[], Any], amount: float, gpu: int) -> float:
    """How much of `amount` is done per second: the best of short series, for about SPAN_S."""
    for _ in range(2):
        work()
    torch.cuda.synchronize(gpu)
    best, until = 0.0, time.perf_counter() + SPAN_S
    count = 1
    while time.perf_counter() < until:
        start = time.perf_counter()
        for _ in range(count):
            work()
        torch.cuda.synchronize(gpu)
        took = time.perf_counter() - start
        best = max(best, amount * count / took)
        if took < 0.05:
            count *= 2
    return best


# ------------------------------------------------------------ one GPU


def has_bf16(gpu: int) -> bool:
    """GPUs before Ampere have fp16 only."""
    return bool(torch.cuda.get_device_capability(gpu) >= (8, 0))


def matmul(gpu: int, dtype: Any) -> float:
    """TFLOPS of a matrix product, after a product whose result is known."""
    device, free = torch.device("cuda", gpu), torch.cuda.mem_get_info(gpu)[0]
    rows = ROWS if free > LITTLE_MIB * MIB else FEW_ROWS
    ones = torch.ones(rows, rows, device=device, dtype=dtype)
    if not bool((ones @ ones == rows).all()):
        raise ArithmeticError(f"wrong results in {dtype}")
    left = torch.randn(rows, rows, device=device, dtype=dtype)
    return rate(lambda: torch.mm(left, left, out=ones), 2.0 * rows**3, gpu) / 1e12


def device_copy(gpu: int) -> float:
    """GB/s of the GPU's memory: a copy reads and writes."""
    free = torch.cuda.mem_get_info(gpu)[0]
    size = min(1 << 30, free // 4)
    source = torch.ones(size, dtype=torch.uint8, device=torch.device("cuda", gpu))
    target = torch.empty_like(source)
    return rate(lambda: target.copy_(source), 2.0 * size, gpu) / 1e9


def upload(gpu: int) -> float:
    return host_copy(gpu, is_upload=True)


def download(gpu: int) -> float:
    return host_copy(gpu, is_upload=False)


def host_copy(gpu: int, *, is_upload: bool) -> float:
    """GB/s between pinned host memory and the GPU."""
    host = torch.full((BUFFER_MIB * MIB,), 7, dtype=torch.uint8).pin_memory()
    there = torch.zeros(BUFFER_MIB * MIB, dtype=torch.uint8, device=torch.device("cuda", gpu))
    target, source = (there, host) if is_upload else (host, there.fill_(9))
    found = rate(lambda: target.copy_(source, non_blocking=True), float(BUFFER_MIB * MIB), gpu) / 1e9
    if int(there[-1]) != int(host[-1]):
        raise ArithmeticError("the copy differs")
    return found


# ------------------------------------------------------------ several GPUs


def peer_copy(first: int, second: int) -> float:
    """GB/s of a copy from one GPU to another."""
    source = torch.full((BUFFER_MIB * MIB,), 5, dtype=torch.uint8, device=torch.device("cuda", first))
    target = torch.zeros(BUFFER_MIB * MIB, dtype=torch.uint8, device=torch.device("cuda", second))

    def copy() -> None:
        target.copy_(source, non_blocking=True)

    found = rate(copy, float(BUFFER_MIB * MIB), first) / 1e9
    torch.cuda.synchronize(second)
    if not bool((target == 5).all()):
        raise ArithmeticError("the copy differs")
    return found


def all_reduce(count: int) -> float:
    """Bus bandwidth of NCCL's all-reduce in GB/s, as nccl-tests define it."""
    from torch.cuda import nccl

    numbers = BUFFER_MIB * MIB // 4
    tensors = [torch.ones(numbers, device=torch.device("cuda", gpu)) for gpu in range(count)]
    nccl.all_reduce(tensors)
    if any(int(tensor[-1]) != count for tensor in tensors):
        raise ArithmeticError("the sum is wrong")
    found = rate(lambda: nccl.all_reduce(tensors), 4.0 * numbers, 0) / 1e9
    return found * 2 * (count - 1) / count


def start_torch() -> str:
    """Import torch and open CUDA; why that fails, or nothing."""
    global torch
    say(begin="import torch", gpus=[])
    try:
        import torch as found
    except Exception as error:
        return f"torch cannot be imported: {type(error).__name__}: {error}"
    torch = found
    try:
        torch.cuda.init()
    except Exception as error:
        return f"torch {torch.__version__} cannot use CUDA: {error}"
    torch.backends.cuda.matmul.allow_tf32 = False
    return ""


def nccl_version() -> str:
    """The version of NCCL; empty: this build has none."""
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError, TypeError):
        return ""


def main() -> int:
    if trouble := start_torch():
        say(fatal=trouble[:500])
        return 1
    count = torch.cuda.device_count()
    cudnn = torch.backends.cudnn.version()
    say(torch=torch.__version__, cuda=torch.version.cuda, nccl=nccl_version(), cudnn=cudnn)
    for gpu in range(count):
        name, half = ("bf16", torch.bfloat16) if has_bf16(gpu) else ("fp16", torch.float16)
        step(name, [gpu], matmul, gpu, half)
        step("fp32", [gpu], matmul, gpu, torch.float32)
        step("memory", [gpu], device_copy, gpu)
        step("upload", [gpu], upload, gpu)
        step("download", [gpu], download, gpu)
    for first, second in itertools.combinations(range(count), 2):
        step("peer", [first, second], peer_copy, first, second)
    if count > 1:
        step("all_reduce", list(range(count)), all_reduce, count)
    say(end=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
