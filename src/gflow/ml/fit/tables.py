"""Reference tables: sizes of models, and memory saved by sharding and by other techniques."""

from __future__ import annotations

from typing import Any

from gflow.ml.fit import formula
from gflow.ml.fit.recipe import Recipe

SIZES = ("125M", "350M", "774M", "1.3B", "7B", "13B", "70B")
PRECISIONS = {"FP32": 4.0, "FP16/BF16": 2.0, "8-BIT": 1.06, "4-BIT": 0.53}
Table = tuple[list[str], list[list[str]]]


def sizes() -> Table:
    """Size of the weights, in GB (10^9 bytes)."""
    rows = []
    for name in SIZES:
        count = formula.count(name)
        rows.append([name, *(f"{count * bytes_each / 1e9:.2f} GB" for bytes_each in PRECISIONS.values())])
    return ["MODEL", *PRECISIONS], rows


def sharding(parameters: int = 7 * 10**9, gpus: int = 8) -> Table:
    """Weights, gradients and Adam's state on each GPU, in mixed precision."""
    states = {"weights": 4, "gradients": 4, "optimizer": 8}
    rows = []
    for name, spread in SHARDED.items():
        size = sum(parameters * each / (gpus if kind in spread else 1) for kind, each in states.items())
        rows.append([name, " + ".join(spread) or "nothing", f"{size / 1e9:.1f} GB"])
    return ["STAGE", "SPREAD OVER THE GPUS", f"EACH OF {gpus}, {parameters / 1e9:g}B"], rows


SHARDED: dict[str, tuple[str, ...]] = {
    "DDP": (),
    "ZeRO-1": ("optimizer",),
    "ZeRO-2": ("optimizer", "gradients"),
    "ZeRO-3, FSDP": ("optimizer", "gradients", "weights"),
}


KINDS = {"weights": "parameters", "gradients": "gradients", "optimizer": "optimizer"}


def techniques(parameters: int = 7 * 10**9) -> Table:
    """Memory that each technique saves on one GPU, against fp32 with AdamW and 4 samples of 2048 tokens."""
    plain: dict[str, Any] = {"batch": 4, "sequence": 2048}
    base = formula.estimate(parameters, Recipe(**plain)).peak_allocated_bytes
    tried: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("bf16 autocast", {"precision": "bf16"}, "faster"),
        ("gradient checkpointing", {"checkpointing": True}, "20-30 % slower"),
        ("8-bit optimizer", {"optimizer": "AdamW8bit"}, "about the same"),
        ("batch 1, accumulate 4", {"batch": 1, "accumulate": 4}, "about the same"),
        ("Adafactor", {"optimizer": "Adafactor"}, "about the same"),
        ("weights in bf16", {"precision": "bf16-pure"}, "faster; less exact"),
        ("LoRA, rank 16", {"lora": 16}, "faster; learns less"),
    )
    rows = []
    for name, settings, speed in tried:
        size = formula.estimate(parameters, Recipe(**{**plain, **settings})).peak_allocated_bytes
        rows.append([name, _less(size, base), speed])
    states = formula.estimate(parameters, Recipe(**plain)).breakdown
    for name, kinds in SHARDED.items():
        if kinds:
            saved = sum(states[KINDS[kind]] for kind in kinds) * (1 - 1 / 8)
            speed = "10 % slower" if "weights" in kinds else "about the same"
            rows.append([f"{name}, 8 GPUs", _less(base - saved, base), speed])
    rows.append(["optimizer offloaded to the host", _less(base - states["optimizer"], base), "much slower"])
    return [f"TECHNIQUE ({parameters / 1e9:g}B, FP32, ADAMW, 4 X 2048 TOKENS)", "LESS MEMORY", "SPEED"], rows


def _less(size: float, base: int) -> str:
    return f"{100 * (1 - size / base):.0f} %"
