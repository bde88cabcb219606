"""Options that describe a model and its training, and the recipe they give (gflow fit, gflow plan)."""

from __future__ import annotations

from typing import Any

from gflow.errors import UsageError
from gflow.options.table import Option

MODEL = (
    Option("hf", "text", "the config.json of a Hugging Face model, or its folder", metavar="FILE"),
    Option("tv", "text", "a torchvision model: resnet50", metavar="NAME"),
    Option("py", "text", "a function that returns model and batch (and step)", metavar="MODULE:NAME"),
    Option(
        "params", "text", "the number of parameters only: 7B (a rough estimate, without PyTorch)", metavar="N"
    ),
    Option(
        "task",
        "text",
        "causal, mlm, seq2seq, sequence, image, speech or audio (default: depends on the model)",
        metavar="NAME",
    ),
)
RECIPE = (
    Option(
        "batch",
        "count",
        "examples per step on one GPU (default 1)",
        short="b",
        metavar="N",
        low=1,
        high=1 << 20,
    ),
    Option("seq", "count", "sequence length (default 512)", short="s", metavar="N", low=1, high=1 << 24),
    Option(
        "target-seq",
        "count",
        "target sequence length (default: a quarter of --seq)",
        metavar="N",
        low=1,
        high=1 << 24,
    ),
    Option("image", "count", "image size in pixels (side length)", metavar="N", low=1, high=1 << 14),
    Option(
        "precision", "text", "fp32, bf16 or fp16 (autocast), bf16-pure, fp16-pure", short="p", metavar="NAME"
    ),
    Option(
        "optimizer",
        "text",
        "adamw, sgd, adafactor …; adamw-fused, adamw-8bit, sgd:momentum=0.9",
        short="o",
        metavar="NAME",
    ),
    Option(
        "accumulate",
        "count",
        "gradient accumulation: batches per optimizer step",
        metavar="N",
        low=1,
        high=1 << 16,
    ),
    Option("checkpointing", "flag", "recompute activations in the backward pass"),
    Option("clip", "text", "clip the gradient norm: 1.0", metavar="NORM"),
    Option("attn", "text", "attention implementation: sdpa or eager", metavar="NAME"),
    Option(
        "lora", "count", "train only low-rank adapters (LoRA) of this rank", metavar="R", low=1, high=1 << 14
    ),
    Option(
        "quantize",
        "count",
        "quantize the weights below the adapters to 4 or 8 bits",
        metavar="N",
        low=1,
        high=16,
    ),
    Option("channels-last", "flag", "channels-last memory format for images"),
)


def run_of(values: dict[str, Any], recipe: Any, card: Any) -> Any:
    """The training run of the recipe, for any batch size."""
    import msgspec

    if "params" in values:
        from gflow.ml.fit import formula

        return formula.FormulaRun(formula.count(values["params"]), recipe)
    from gflow.ml.fit.batch_scaling import BatchScaling

    return BatchScaling(lambda batch: tape_of(values, msgspec.structs.replace(recipe, batch=batch), card))


def tape_of(values: dict[str, Any], recipe: Any, card: Any) -> Any:
    from gflow.cli.common.status_line import show_status
    from gflow.ml.fit.estimate import check_one_model, record
    from gflow.ml.fit.models import hf_config, lazy_torch

    check_one_model(values)
    given = {name: values[name] for name in ("hf", "tv", "py", "task") if name in values}
    if "hf" in given:
        # Report an unreadable file before PyTorch is loaded.
        given["hf"] = hf_config.read(given["hf"])
    with show_status("loading PyTorch"):
        lazy_torch.load(transformers="hf" in given, is_ours="py" not in given)
    with show_status(f"recording a run with batch {recipe.batch}"):
        return record(**given, recipe=recipe, card=card)


def recipe_of(values: dict[str, Any]) -> Any:
    """The recipe that the options describe."""
    from gflow.ml.fit.recipe import Recipe, optimizer

    names = {"batch": "batch", "seq": "sequence", "target-seq": "target", "image": "image",
             "precision": "precision", "accumulate": "accumulate", "checkpointing": "checkpointing",
             "attn": "attention", "lora": "lora", "quantize": "quantize",
             "channels-last": "channels_last"}  # fmt: skip
    settings = {field: values[name] for name, field in names.items() if name in values}
    if "optimizer" in values:
        settings["optimizer"], settings["optimizer_options"] = optimizer(values["optimizer"])
    if "clip" in values:
        try:
            settings["clip"] = float(values["clip"])
        except ValueError:
            raise UsageError(f"--clip takes a number, not {values['clip']!a}", hint="--clip 1.0") from None
    return Recipe(**settings)
