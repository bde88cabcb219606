"""Rough step time from arithmetic, memory traffic and kernel launches of the allocation trace.

It is used only to order plans. The constants are typical figures of GPUs, not fitted to cases.
"""

from __future__ import annotations

from typing import NamedTuple

from gflow.ml.fit.catalogue import Gpu, find_gpu
from gflow.ml.fit.cuda.allocation_trace import AllocationTrace

# Achieved fraction of the dense peak, for matrix products of typical sizes.
ARITHMETIC = 0.6
# Achieved fraction of the bandwidth. Each result is written once and read about twice.
TRAFFIC = 0.8
TOUCHED = 3
# Seconds per kernel launch of PyTorch in eager mode.
LAUNCH = 7e-6
# Bytes per second between host and GPU, and parameters per second that the host updates.
HOST_LINK = 20e9
HOST_UPDATES = 1e9
# Substitute for a GPU without figures: only the ratios matter.
USUAL = "A100-80GB"


class Work(NamedTuple):
    """The work of one micro-batch, and of one optimizer update."""

    flops: float
    written: float
    kernels: float
    # Bytes of weights, gradients and optimizer states; number of trainable parameters.
    updated: float
    learned: float


def work_of(trace: AllocationTrace) -> Work:
    """Return the work of the second step, which all later steps repeat."""
    state = sum(
        request.size
        for request in {id(one): one for one in trace.requests}.values()
        if request.kind in ("parameters", "gradients", "optimizer")
    )
    return Work(trace.flops, _written(trace), trace.kernels, state, trace.learned)


def _written(trace: AllocationTrace) -> int:
    return sum(
        request.size
        for request in {id(one): one for one in trace.requests}.values()
        if request.step == 1 and request.phase in ("forward", "backward") and request.kind != "workspace"
    )


def seconds(work: Work, gpu: Gpu, precision: str, accumulate: int, *, gpus: int, offload: bool) -> float:
    """Return the time of one optimizer step with `accumulate` micro-batches."""
    card = gpu if gpu.bf16 and gpu.bandwidth else find_gpu(USUAL)
    peak = (card.fp32 if precision == "fp32" else card.bf16) * 1e12 * ARITHMETIC
    bandwidth = card.bandwidth * 1e9 * TRAFFIC
    batch = max(work.kernels * LAUNCH, work.flops / peak + TOUCHED * work.written / bandwidth)
    if offload:
        update = work.learned / gpus * (8 / HOST_LINK + 1 / HOST_UPDATES)
    else:
        update = TOUCHED * work.updated / bandwidth
    return accumulate * batch + update
