"""Rough estimates by formula from a parameter count alone; needs no PyTorch.

A decoder of N parameters is assumed to have a width of 128 times its depth, as is typical, and
N = 12 · depth · width².
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gflow.errors import UsageError
from gflow.ml.fit.cuda.architectures import HOPPER
from gflow.ml.fit.recipe import Recipe
from gflow.ml.fit.report import KINDS, Estimate
from gflow.ml.fit.sharding import Shaping
from gflow.ml.fit.speed import Work

UNITS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
MOST = 10**12
ASPECT = 128
# Ratio of reserved to allocated memory: the median of measurements.
RESERVED = 1.09
# Kernels launched per layer in the forward and backward pass.
KERNELS = 90
VOCABULARY = 32000
# Bytes of optimizer state per parameter, with 4-byte states.
STATES = {"Adafactor": 0.1, "SGD": 0.0, "Adagrad": 4.0, "RMSprop": 4.0, "Lion": 4.0, "Muon": 4.0}
ADAM = 8.0
# Bytes per parameter: two 1-byte states, each with a 4-byte scale per 256.
EIGHT_BIT = 2 * (1 + 4 / 256)
# Quantised weights with their scales: one byte per 64.
SCALED = 1 + 1 / 64


DOUBT = "only the number of parameters is known: the shape of the model is guessed"


class Shape(NamedTuple):
    width: int
    depth: int


def count(text: str) -> int:
    """`7B`, `350M`, `1.3b` or a plain number."""
    unit = UNITS.get(text[-1:].upper(), 1)
    digits = text[:-1] if text[-1:].upper() in UNITS else text
    try:
        number = int(float(digits) * unit)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text!a} is no number of parameters", hint="--params 7B, 350M or 7000000000"
        ) from None
    if not 1000 <= number <= MOST:
        raise UsageError(f"a model of {text} parameters is out of range", hint="from 1K to 1T")
    return number


def shape(parameters: int) -> Shape:
    width = (parameters * ASPECT / 12) ** (1 / 3)
    return Shape(max(1, round(width)), max(1, round(width / ASPECT)))


def estimate(parameters: int, recipe: Recipe) -> Estimate:
    """Estimate memory by the usual formula, with the activations of a decoder with fused attention."""
    is_pure = recipe.precision.endswith("-pure")
    learned = parameters
    if recipe.lora:
        width, depth = shape(parameters)
        learned = 4 * recipe.lora * width * depth
    weight = 2 if is_pure else 4
    state = STATES.get(recipe.optimizer, ADAM) * (0.5 if is_pure else 1)
    if recipe.optimizer.endswith("8bit"):
        state = EIGHT_BIT
    if recipe.optimizer == "SGD" and recipe.optimizer_options.get("momentum"):
        state = weight
    parts = dict.fromkeys(KINDS, 0)
    parts["parameters"] = parameters * weight
    if recipe.quantize:
        parts["parameters"] = int(parameters * recipe.quantize / 8 * SCALED)
    parts["gradients"] = learned * weight
    parts["optimizer"] = int(learned * state)
    parts["activations"] = activations(parameters, recipe)
    parts["workspace"] = 2 * HOPPER.blas
    whole = sum(parts.values())
    return Estimate(
        peak_allocated_bytes=whole,
        peak_reserved_bytes=int(whole * RESERVED),
        process_bytes=int(whole * RESERVED) + HOPPER.context,
        confidence="rough",
        confidence_allocated="rough",
        confidence_reserved="rough",
        doubts=[DOUBT],
        breakdown=parts,
        peak_phase="backward",
        peak_step=2,
        largest=[],
        total_params=parameters,
        trainable_params=learned,
    )


def activations(parameters: int, recipe: Recipe) -> int:
    """34 bytes per token, width and layer in 16 bit (Korthikanti et al. 2022, without the attention matrix,
    which fused kernels do not keep), and the logits with their gradient."""
    tokens = recipe.batch * recipe.sequence
    return layer_activations(shape(parameters), tokens, recipe) + tokens * VOCABULARY * 3 * 4


def layer_activations(shape: Shape, tokens: int, recipe: Recipe) -> int:
    size = 4 if recipe.precision == "fp32" else 2
    layer = 17 * size * tokens * shape.width
    if recipe.checkpointing:
        return size * tokens * shape.width * shape.depth + layer
    return layer * shape.depth


class FormulaRun:
    """A `plan.Run` for a model of which only the parameter count is known."""

    confidence = "rough"

    def __init__(self, parameters: int, recipe: Recipe) -> None:
        self._parameters = parameters
        self._recipe = recipe
        self.doubts = [DOUBT]

    def needed(self, batch: int, way: Shaping, cap: int | None = None) -> int | None:
        parts, sharing = dict(self._parts(batch)), way.sharing
        if way.eight_bit:
            parts["optimizer"] = min(parts["optimizer"], int(EIGHT_BIT * self._trainable(batch)))
        block = parts["parameters"] // shape(self._parameters).depth
        for kind, among in SHARED.items():
            if sharing.sharding in among:
                parts[kind] //= sharing.gpus
        if sharing.offload:
            parts["optimizer"] = 0
        size = sum(parts.values())
        if sharing.gpus > 1:
            size += parts["gradients"] if sharing.sharding in ("none", "zero1") else 4 * block
        size = int(size * RESERVED)
        return None if cap is not None and size > cap else size

    def work(self, batch: int) -> Work:
        parts, tokens = self._parts(batch), batch * self._recipe.sequence
        passes = 8 if self._recipe.checkpointing else 6
        state = parts["parameters"] + parts["gradients"] + parts["optimizer"]
        return Work(
            passes * self._parameters * tokens,
            2 * activations(self._parameters, self._at(batch, checkpointing=False)),
            KERNELS * shape(self._parameters).depth * passes / 6,
            state,
            self._trainable(batch),
        )

    def _at(self, batch: int, **more: bool) -> Recipe:
        return msgspec.structs.replace(self._recipe, batch=batch, **more)

    def _parts(self, batch: int) -> dict[str, int]:
        return estimate(self._parameters, self._at(batch)).breakdown

    def _trainable(self, batch: int) -> int:
        return estimate(self._parameters, self._at(batch)).trainable_params


# The sharding techniques that divide each kind of memory among the GPUs.
SHARED = {
    "parameters": ("fsdp",),
    "gradients": ("zero2", "fsdp"),
    "optimizer": ("zero1", "zero2", "fsdp"),
}
