"""gflow fit: predict the memory of a training run without a GPU."""

from __future__ import annotations

import json
import sys
from typing import Any

from gflow.cli.tools.fit_serving import serve
from gflow.errors import UsageError
from gflow.options.commands.fit_options import GROUPS, OPTIONS, SERVING
from gflow.options.parse import parse

ABOUT = """Predict the memory of a training run, without a GPU and without the weights.

The training step is executed with shapes only (forward, backward, optimizer, three times). Every
allocation goes through a model of PyTorch's CUDA allocator, which gives the values that
torch.cuda.max_memory_allocated and max_memory_reserved would return. Needs PyTorch (the extra fit),
except with --params and --infer."""
EXAMPLES = """gflow fit --hf config.json --batch 8 --seq 2048 --precision bf16 --optimizer adamw
gflow fit --hf ~/models/llama --batch 4 --seq 4096 --precision bf16-pure --checkpointing
gflow fit --tv resnet50 --precision bf16 --optimizer sgd:momentum=0.9 --gpu A10G --largest
gflow fit --hf config.json --seq 2048 --precision bf16 --chart --plot memory.png
gflow fit --py mymodel:make --batch 32 --json
gflow fit --params 7B --precision bf16-pure --checkpointing
gflow fit --infer --hf config.json --bits 4 --context 8192 --concurrency 16"""


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow fit [options]", ABOUT, GROUPS, EXAMPLES))
        return 0
    if rest:
        raise UsageError(
            f"unexpected argument {rest[0]!a}",
            hint=f"gflow fit --hf {rest[0] if '/' in rest[0] else 'config.json'}",
        )
    if "infer" in values:
        return serve(values)
    if any(option.name in values for option in SERVING):
        raise UsageError(
            "--bits, --context, --concurrency and --tensor-parallel require --infer", hint="--infer"
        )
    return _train(values)


def _train(values: dict[str, Any]) -> int:
    from gflow.cli.common.status_line import show_status
    from gflow.ml.fit.requests import predict

    if "plot" in values:
        from gflow.plotting import check_plot

        check_plot(values["plot"])
    answer = predict(values, show_status)
    if "json" in values:
        import msgspec

        print(json.dumps(msgspec.to_builtins(answer), indent=2))
    else:
        from gflow.client import hot_path
        from gflow.text import fit as text

        width = int(hot_path.terminal().get("width", 0))
        sys.stdout.write(text.page(answer, answer.get("fits")) + text.cards(answer, width))
        if "chart" in values:
            sys.stdout.write("\n" + text.chart_page(answer["chart"], width))
    return 0
