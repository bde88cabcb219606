"""What sharding and offloading make of a run: the same tape, with the sizes that are left on each GPU.

The run was followed on one GPU. Each technique is a rule about what shrinks and what comes on top:

* DDP: gradients travel in buckets that together are as large as they are, and stay.
* ZeRO-1: each GPU keeps its share of the optimizer's states, and updates its share alone.
* ZeRO-2: of the gradients as well; two blocks of them are whole while they travel.
* FSDP, ZeRO-3: of the weights as well. Whole are: what belongs to no block (embeddings, head), the block at
  work and the next one, and as many gradients on their way out.
* Offloading: states and update are the host's.

The rules are those of torch.distributed and DeepSpeed with blocks as the unit; they were not measured.
"""

from __future__ import annotations

from typing import NamedTuple

from gflow.ml.fit.cuda.allocation_trace import AllocationTrace, Request

SHARDING = ("none", "zero1", "zero2", "fsdp")
DOUBT = "several GPUs and offloading are rules on top of a run of one GPU; they were not measured"


class Sharing(NamedTuple):
    """How the memory of a run is spread."""

    gpus: int = 1
    sharding: str = "none"
    offload: bool = False

    @property
    def is_plain(self) -> bool:
        return self.gpus == 1 and not self.offload


class Shaping(NamedTuple):
    """What makes the memory of a run another one, besides the batch."""

    sharing: Sharing = Sharing()
    eight_bit: bool = False
    # Whether several batches make one update.
    accumulates: bool = False


class Blocks(NamedTuple):
    """Bytes of the weights: of the largest block, and of all that belongs to none."""

    largest: int
    others: int


def kept(request: Request, size: int, sharing: Sharing) -> int:
    """What is left on each GPU of a request of this size."""
    is_update = request.kind == "optimizer" or (request.phase == "optimizer" and not request.kind)
    if is_update and sharing.offload:
        return 0
    is_shared = (
        (is_update and sharing.sharding != "none")
        or (request.kind == "gradients" and sharing.sharding in ("zero2", "fsdp"))
        or (request.kind == "parameters" and sharing.sharding == "fsdp")
    )
    return -(-size // sharing.gpus) if is_shared else size


def extras(tape: AllocationTrace, sharing: Sharing) -> list[int]:
    """What comes on top, and stays."""
    if sharing.gpus == 1:
        return []
    learned = tape.learned / max(1, tape.parameters)
    blocks = blocks_of(tape)
    if sharing.sharding in ("none", "zero1"):
        return [int(_weights(tape) * learned)]
    travelling = 2 * int(blocks.largest * learned)
    if sharing.sharding == "zero2":
        return [travelling]
    return [size for size in (2 * blocks.largest, blocks.others, travelling) if size]


def blocks_of(tape: AllocationTrace) -> Blocks:
    """A block is what is below a numbered module: `model.layers.3`."""
    sizes: dict[str, int] = {}
    others = 0
    for request in tape.requests:
        if request.kind != "parameters":
            continue
        words = request.module.split(".")
        number = next((place for place, word in enumerate(words) if word.isdigit()), None)
        if number is None:
            others += request.size
        else:
            name = ".".join(words[: number + 1])
            sizes[name] = sizes.get(name, 0) + request.size
    return Blocks(max(sizes.values(), default=0), others)


def _weights(tape: AllocationTrace) -> int:
    return sum(request.size for request in tape.requests if request.kind == "parameters")
