"""How long a step takes, roughly: arithmetic, traffic to memory and the launching of kernels, from the tape.

Only the order of plans is made from it. The constants are usual figures of GPUs at work, not fitted to cases.
"""

from __future__ import annotations

from typing import NamedTuple

from gflow.ml.fit.catalogue import Gpu, named
from gflow.ml.fit.cuda.allocation_trace import AllocationTrace

# Of the dense peak, in products of the usual sizes.
ARITHMETIC = 0.6
# Of the bandwidth; and each result is written once and read about twice.
TRAFFIC = 0.8
TOUCHED = 3
# Seconds that PyTorch takes to launch a kernel, in eager mode.
LAUNCH = 7e-6
# GB/s between host and GPU, and parameters a second that a host updates.
HOST_LINK = 20e9
HOST_UPDATES = 1e9
# The card that one without figures is taken for: only the proportions count.
USUAL = "A100-80GB"


class Work(NamedTuple):
    """What one micro-batch is to a GPU; and, at the end, one update."""

    flops: float
    written: float
    kernels: float
    # Weights, gradients and states, in bytes, and how many numbers learn.
    updated: float
    learned: float


def work_of(tape: AllocationTrace) -> Work:
    """The second step of the run, which is like all that follow."""
    state = sum(
        request.size
        for request in {id(one): one for one in tape.requests}.values()
        if request.kind in ("parameters", "gradients", "optimizer")
    )
    return Work(tape.flops, _written(tape), tape.kernels, state, tape.learned)


def _written(tape: AllocationTrace) -> int:
    return sum(
        request.size
        for request in {id(one): one for one in tape.requests}.values()
        if request.step == 1 and request.phase in ("forward", "backward") and request.kind != "workspace"
    )


def seconds(work: Work, gpu: Gpu, precision: str, accumulate: int, *, gpus: int, offload: bool) -> float:
    """One step of the optimizer with `accumulate` micro-batches before it."""
    card = gpu if gpu.bf16 and gpu.bandwidth else named(USUAL)
    peak = (card.fp32 if precision == "fp32" else card.bf16) * 1e12 * ARITHMETIC
    bandwidth = card.bandwidth * 1e9 * TRAFFIC
    batch = max(work.kernels * LAUNCH, work.flops / peak + TOUCHED * work.written / bandwidth)
    if offload:
        update = work.learned / gpus * (8 / HOST_LINK + 1 / HOST_UPDATES)
    else:
        update = TOUCHED * work.updated / bandwidth
    return accumulate * batch + update
