"""Choice of a GPU for a workload: the cheapest with enough memory, the fastest, and the best value."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from gflow.ml.fit import formula, serving
from gflow.ml.fit.catalogue import Gpu
from gflow.ml.fit.cuda.architectures import HOPPER
from gflow.ml.fit.fits import TIGHT
from gflow.ml.fit.recipe import Recipe

COUNTS = (1, 2, 4, 8)
# From dollars an hour per TFLOP/s to dollars per EFLOP, and from GB/s to PB.
WORK_SECONDS = 1e6 / 3600


class Workload(NamedTuple):
    """A named workload. `needs(n)`: bytes on each of `n` GPUs."""

    about: str
    needs: Callable[[int], int]
    # Whether its speed is limited by arithmetic; otherwise by memory bandwidth.
    is_arithmetic: bool = True
    needs_bf16: bool = False


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    gpu: str
    count: int
    # Fraction of the memory of one GPU.
    share: float
    # Dollars per hour for all GPUs together; None if no price is known.
    hourly: float | None
    # spot or on demand, and whether the price was compared with its source.
    offer: str
    is_compared: bool
    # Dense TFLOP/s, or GB/s if bandwidth is the limit, of all GPUs together.
    speed: float
    # Dollars for 10^18 operations, or for 10^15 bytes, at that speed; None if no price is known.
    work_cost: float | None


def _tuned(parameters: int) -> Callable[[int], int]:
    """Memory of LoRA fine-tuning with checkpointing; bf16 weights are sharded over the GPUs."""

    def needs(gpus: int) -> int:
        recipe = Recipe(batch=1, sequence=2048, precision="bf16-pure", checkpointing=True, lora=16)
        found = formula.estimate(parameters, recipe)
        parts = dict(found.breakdown)
        parts["parameters"] //= gpus
        return sum(parts.values()) + found.process_bytes - found.peak_allocated_bytes

    return needs


def _served(parameters: int, bits: int) -> Callable[[int], int]:
    return lambda gpus: (
        serving.by_count(
            parameters, bits=bits, context=4096, concurrency=8, tensor_parallel=gpus
        ).process_bytes
    )


def _trained(parameters: int, batch: int, sequence: int) -> Callable[[int], int]:
    recipe = Recipe(batch=batch, sequence=sequence, precision="bf16")
    return lambda _: formula.estimate(parameters, recipe).process_bytes


def _trained_vision(gpus: int) -> int:
    """A vision transformer (ViT-B/16) with 64 pictures. A ResNet-50 needs less: `gflow fit --tv resnet50`."""
    recipe = Recipe(batch=64, sequence=(224 // 16) ** 2 + 1, precision="bf16")
    tokens = recipe.batch * recipe.sequence
    kept = formula.layer_activations(formula.Shape(768, 12), tokens, recipe)
    states = 16 * 86_567_656
    return int((kept + states + 2 * HOPPER.blas) * formula.RESERVED) + HOPPER.context


WORKLOADS = {
    "finetune-7b": Workload(
        "LLM fine-tuning, 7B: adapters, checkpointing", _tuned(7 * 10**9), needs_bf16=True
    ),
    "finetune-70b": Workload(
        "LLM fine-tuning, 70B: adapters, weights spread over GPUs", _tuned(70 * 10**9), needs_bf16=True
    ),
    "inference-7b": Workload("LLM serving, 7B in 16 bit, 8 requests", _served(7 * 10**9, 16), False),
    "inference-70b": Workload("LLM serving, 70B in 16 bit, 8 requests", _served(70 * 10**9, 16), False),
    "embedding": Workload("batch embedding with a small encoder", _served(335 * 10**6, 16)),
    "vision": Workload("training ResNet or ViT, 64 pictures a step, mixed precision", _trained_vision),
    "research": Workload(
        "as fast as possible, 1B trained in mixed precision, 8 x 1024 tokens",
        _trained(10**9, 8, 1024),
        needs_bf16=True,
    ),
}


def good_for(gpu: Gpu) -> list[str]:
    """The named workloads for which one such GPU is enough."""
    return [
        name for name, work in WORKLOADS.items() if any(one.count == 1 for one in choices(work, {"": gpu}))
    ]


def choices(work: Workload, gpus: dict[str, Gpu], *, is_spot: bool = False) -> list[Choice]:
    """Return for each GPU model the smallest count with enough memory, with its price on demand or spot."""
    found = []
    needs = {count: work.needs(count) for count in COUNTS}
    for gpu in gpus.values():
        if work.needs_bf16 and not gpu.has_bf16:
            continue
        for count in COUNTS:
            needed = needs[count] - gpu.card.context
            if needed > TIGHT * gpu.room:
                continue
            price = gpu.spot if is_spot else gpu.hourly
            speed = gpu.bf16 if work.is_arithmetic else gpu.bandwidth
            found.append(
                Choice(
                    gpu=gpu.name,
                    count=count,
                    share=round(needed / gpu.room, 3),
                    hourly=round(price.price * count, 3) if price else None,
                    offer="spot" if is_spot else "on demand",
                    is_compared=price is None or price.is_compared,
                    speed=speed * count,
                    work_cost=round(price.price / speed * WORK_SECONDS, 4) if price and speed else None,
                )
            )
            break
    return found


class BestChoices(msgspec.Struct, frozen=True):
    cheapest: Choice | None
    fastest: Choice | None
    # Speed per dollar.
    value: Choice | None


def pick(found: list[Choice]) -> BestChoices:
    priced = [choice for choice in found if choice.hourly]
    return BestChoices(
        min(priced, key=lambda choice: choice.hourly or 0, default=None),
        max(found, key=lambda choice: choice.speed / choice.count, default=None),
        max(priced, key=lambda choice: choice.speed / (choice.hourly or 1), default=None),
    )
