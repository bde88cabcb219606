"""Keyword arguments of `gflow.fit`: names, types and defaults are those of the options of the commands."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypedDict, TypeVar, get_type_hints

from gflow.ml.fit.recipe import DEFAULTS, RENAMED, Recipe

Function = TypeVar("Function", bound=Callable[..., Any])
Path = str | os.PathLike[str]
Names = str | Iterable[str]
Precision = Literal["fp32", "bf16", "fp16", "bf16-pure", "fp16-pure"]
Attention = Literal["sdpa", "eager"]
# Defaults of options that are not part of a recipe.
EFFECTIVE_BATCH, TAKE = 32, 1


class ModelKeywords(TypedDict, total=False):
    """The model: one of `hf`, `tv`, `py`, `params`, or `model` with an `example` of its batches."""

    hf: Path | dict[str, Any]
    tv: str
    py: str | Callable[..., Any]
    params: str | int
    task: str
    model: Any
    example: Any
    step: Callable[..., Any]


class SettingKeywords(TypedDict, total=False):
    """How it is trained, as far as a plan does not choose it."""

    seq: int
    target_seq: int
    image: int
    precision: Precision
    optimizer: str
    clip: float
    attn: Attention
    lora: int
    quantize: int
    channels_last: bool
    expandable_segments: bool


class TrainingKeywords(SettingKeywords, total=False):
    batch: int
    accumulate: int
    checkpointing: bool


class LargestKeywords(ModelKeywords, TrainingKeywords, total=False):
    gpu: str
    cap: str | int


class EstimateKeywords(LargestKeywords, total=False):
    largest: bool
    chart: bool
    plot: Path
    recipe: Recipe


class PlanKeywords(ModelKeywords, SettingKeywords, total=False):
    on: str
    gpu: str
    effective_batch: int
    cap: str | int
    without: Names
    take: int
    out: Path


class PickKeywords(ModelKeywords, TrainingKeywords, total=False):
    workload: str
    gpu: Names
    spot: bool


class ServingKeywords(TypedDict, total=False):
    hf: Path | dict[str, Any]
    params: str | int
    gpu: str
    bits: int
    quantize: int
    context: int
    concurrency: int
    tensor_parallel: int


def default(name: str) -> Any:
    """The value of a keyword that is not given."""
    others = {"effective_batch": EFFECTIVE_BATCH, "take": TAKE, "optimizer": DEFAULTS.optimizer.lower()}
    found = others.get(name, getattr(DEFAULTS, RENAMED.get(name, name), None))
    # In a recipe 0 stands for a length, size or rank that is not given.
    return found or None


def with_keywords(keywords: type, defaults: Callable[[str], Any] = default) -> Callable[[Function], Function]:
    """Show the keywords of a TypedDict in the signature of a function, for `help` and editors."""

    def add(function: Function) -> Function:
        found = inspect.signature(function)
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if kind is bool else defaults(name),
                annotation=kind,
            )
            for name, kind in get_type_hints(keywords).items()
        ]
        function.__signature__ = found.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return add
