"""gflow fit: will it fit? Memory of a training run, predicted without a GPU."""

from __future__ import annotations

import json
import sys
from typing import Any

from gflow.errors import UsageError
from gflow.options.parse import parse
from gflow.options.table import COMMON, JSON, Option

MODEL = (
    Option("hf", "text", "the config.json of a Hugging Face model, or its folder", metavar="FILE"),
    Option("tv", "text", "a model of torchvision: resnet50", metavar="NAME"),
    Option("py", "text", "a function that returns model and batch (and step)", metavar="MODULE:NAME"),
    Option(
        "task",
        "text",
        "causal, mlm, seq2seq, sequence, image, speech or audio (default: by the model)",
        metavar="NAME",
    ),
)
RECIPE = (
    Option(
        "batch",
        "count",
        "examples in a step on one GPU (default 1)",
        short="b",
        metavar="N",
        low=1,
        high=1 << 20,
    ),
    Option("seq", "count", "length of a sequence (default 512)", short="s", metavar="N", low=1, high=1 << 24),
    Option(
        "target-seq",
        "count",
        "length of what is written (default: a quarter)",
        metavar="N",
        low=1,
        high=1 << 24,
    ),
    Option("image", "count", "side of a picture in pixels", metavar="N", low=1, high=1 << 14),
    Option(
        "precision", "text", "fp32, bf16 or fp16 (autocast), bf16-pure, fp16-pure", short="p", metavar="NAME"
    ),
    Option(
        "optimizer",
        "text",
        "adamw, sgd, adafactor …; adamw-fused, sgd:momentum=0.9",
        short="o",
        metavar="NAME",
    ),
    Option("accumulate", "count", "batches before the optimizer steps", metavar="N", low=1, high=1 << 16),
    Option("checkpointing", "flag", "recompute activations in the backward pass"),
    Option("clip", "text", "clip the norm of the gradients: 1.0", metavar="NORM"),
    Option("attn", "text", "sdpa or eager", metavar="NAME"),
    Option("lora", "count", "train low-rank adapters of this rank only", metavar="R", low=1, high=1 << 14),
    Option("channels-last", "flag", "pictures with their channels last"),
)
OPTIONS = (*MODEL, *RECIPE, JSON, *COMMON)
ABOUT = """Predict the memory of a training run, without a GPU and without the weights.

The training step itself is run by shape alone (forward, backward, optimizer, three times), every
request for memory goes through a model of PyTorch's CUDA allocator, and the answer is what
torch.cuda.max_memory_allocated and max_memory_reserved would say. Needs gflow[fit]."""
EXAMPLES = """gflow fit --hf config.json --batch 8 --seq 2048 --precision bf16 --optimizer adamw
gflow fit --hf ~/models/llama --batch 4 --seq 4096 --precision bf16-pure --checkpointing
gflow fit --tv resnet50 --batch 256 --precision bf16 --optimizer sgd:momentum=0.9
gflow fit --py mymodel:make --batch 32 --json"""


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values:
        from gflow.options import help

        groups = {"model": MODEL, "training": RECIPE, "options": (JSON, *COMMON)}
        sys.stdout.write(help.render("gflow fit [options]", ABOUT, groups, EXAMPLES))
        return 0
    if rest:
        raise UsageError(f"what is {rest[0]!a} for?", hint="gflow fit --hf config.json")
    from gflow.fit.estimate import estimate

    given = {name: values[name] for name in ("hf", "tv", "py", "task") if name in values}
    found = estimate(**given, recipe=recipe_of(values))
    if "json" in values:
        print(json.dumps(shown(found), indent=2))
        return 0
    from gflow.text.fit import page

    sys.stdout.write(page(found))
    return 0


def recipe_of(values: dict[str, Any]) -> Any:
    """The recipe that the options describe."""
    from gflow.fit.recipe import Recipe, optimizer

    names = {"batch": "batch", "seq": "sequence", "target-seq": "target", "image": "image",
             "precision": "precision", "accumulate": "accumulate", "checkpointing": "checkpointing",
             "attn": "attention", "lora": "lora", "channels-last": "channels_last"}  # fmt: skip
    settings = {field: values[name] for name, field in names.items() if name in values}
    if "optimizer" in values:
        settings["optimizer"], settings["optimizer_options"] = optimizer(values["optimizer"])
    if "clip" in values:
        try:
            settings["clip"] = float(values["clip"])
        except ValueError:
            raise UsageError(f"--clip takes a number, not {values['clip']!a}", hint="--clip 1.0") from None
    return Recipe(**settings)


def shown(found: Any) -> dict[str, Any]:
    """The estimate as JSON: every field, and the usual snippet's names beside."""
    import msgspec

    return {**msgspec.to_builtins(found), **found.keys()}
