"""Sharding and offloading: rules that turn the allocation trace of one GPU into the sizes on each of several.

Each technique is a rule for the parts that shrink and the parts that are added:

* DDP: adds permanent buckets with the total size of the gradients.
* ZeRO-1: each GPU keeps and updates its share of the optimizer's states.
* ZeRO-2: gradients are sharded as well; two blocks of them are complete during the reduction.
* FSDP, ZeRO-3: weights are sharded as well. Complete on each GPU are the weights outside of blocks
  (embeddings, head), the current block and the next one, and two blocks of gradients during the reduction.
* Offloading: optimizer states and update are on the host.

The rules are those of torch.distributed and DeepSpeed with blocks as the unit; they were not measured.
"""

from __future__ import annotations

from typing import NamedTuple

from gflow.ml.fit.cuda.allocation_trace import AllocationTrace, Request

SHARDING = ("none", "zero1", "zero2", "fsdp")
DOUBT = "several GPUs and offloading are modelled by rules, which were not measured"


class Sharing(NamedTuple):
    """How the memory of a run is divided among GPUs and host."""

    gpus: int = 1
    sharding: str = "none"
    offload: bool = False

    @property
    def is_plain(self) -> bool:
        return self.gpus == 1 and not self.offload


class Shaping(NamedTuple):
    """Techniques that change the memory of a run, besides the batch."""

    sharing: Sharing = Sharing()
    eight_bit: bool = False
    # Whether gradients are accumulated over several batches.
    accumulates: bool = False


class Blocks(NamedTuple):
    """Bytes of weights: in the largest block, and outside of blocks."""

    largest: int
    others: int


def per_gpu_bytes(request: Request, size: int, sharing: Sharing) -> int:
    """Return the bytes on each GPU of a request of this size."""
    is_update = request.kind == "optimizer" or (request.phase == "optimizer" and not request.kind)
    if is_update and sharing.offload:
        return 0
    is_shared = (
        (is_update and sharing.sharding != "none")
        or (request.kind == "gradients" and sharing.sharding in ("zero2", "fsdp"))
        or (request.kind == "parameters" and sharing.sharding == "fsdp")
    )
    return -(-size // sharing.gpus) if is_shared else size


def extras(trace: AllocationTrace, sharing: Sharing) -> list[int]:
    """Return the sizes of the permanent allocations that sharding adds."""
    if sharing.gpus == 1:
        return []
    learned = trace.learned / max(1, trace.parameters)
    blocks = blocks_of(trace)
    if sharing.sharding in ("none", "zero1"):
        return [int(_weights(trace) * learned)]
    travelling = 2 * int(blocks.largest * learned)
    if sharing.sharding == "zero2":
        return [travelling]
    return [size for size in (2 * blocks.largest, blocks.others, travelling) if size]


def blocks_of(trace: AllocationTrace) -> Blocks:
    """Sum the weights by block. A block is a numbered module: `model.layers.3`."""
    sizes: dict[str, int] = {}
    others = 0
    for request in trace.requests:
        if request.kind != "parameters":
            continue
        words = request.module.split(".")
        number = next((index for index, word in enumerate(words) if word.isdigit()), None)
        if number is None:
            others += request.size
        else:
            name = ".".join(words[: number + 1])
            sizes[name] = sizes.get(name, 0) + request.size
    return Blocks(max(sizes.values(), default=0), others)


def _weights(trace: AllocationTrace) -> int:
    return sum(request.size for request in trace.requests if request.kind == "parameters")
