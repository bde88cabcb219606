"""Options of gflow fit; gflow plan and gflow gpus pick share those of the model and its training."""

from __future__ import annotations

from gflow.options.job_options import COMMON, JSON, Option

MODEL = (
    Option(
        "hf",
        "text",
        "the config.json of a Hugging Face model, its folder, or its name in the local cache (org/model)",
        metavar="FILE",
    ),
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
    Option(
        "expandable-segments",
        "flag",
        "the allocator's setting expandable_segments:True, as gflow launch sets it by the same option",
    ),
)
CARD = (
    Option(
        "gpu",
        "text",
        "check against this GPU of the catalogue: H200, A100-40GB",
        aliases=("gpus",),
        metavar="NAME",
    ),
    Option("cap", "size", "check against a GPU with this much memory: 24G", metavar="SIZE", low=1),
    Option("largest", "flag", "find the largest batch that fits into that GPU (several runs)"),
)
CHART = (
    Option("chart", "flag", "draw memory against batch size, with the limits of the GPUs (two more runs)"),
    Option("plot", "path", "write the chart to an image file: memory.png (needs matplotlib)", metavar="FILE"),
)
SERVING = (
    Option("infer", "flag", "predict serving the model instead of training it"),
    Option("bits", "count", "bits per weight: 16, 8 or 4 (default 16)", metavar="N", low=4, high=16),
    Option("context", "count", "tokens per request (default 4096)", metavar="N", low=1, high=1 << 24),
    Option("concurrency", "count", "concurrent requests (default 1)", metavar="N", low=1, high=1 << 20),
    Option(
        "tensor-parallel",
        "count",
        "GPUs over which every layer is split (default 1)",
        metavar="N",
        low=1,
        high=1024,
    ),
)
OPTIONS = (*MODEL, *RECIPE, *CARD, *CHART, *SERVING, JSON, *COMMON)
GROUPS = {"model": MODEL, "training": RECIPE, "the GPU": CARD, "chart": CHART, "serving": SERVING,
          "options": (JSON, *COMMON)}  # fmt: skip
