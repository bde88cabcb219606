"""gflow fit: predict the memory of a training run without a GPU."""

from __future__ import annotations

import json
import sys
from typing import Any

from gflow.cli.tools.fit_model import recipe_of, run_of, trace_of
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
    from gflow.cli.tools import fit_gpu
    from gflow.ml.fit.catalogue import catalogue, find_gpu
    from gflow.ml.fit.cuda.architectures import HOPPER
    from gflow.ml.fit.fits import verdicts
    from gflow.ml.fit.report import evaluate

    if "plot" in values:
        from gflow.plotting import check_plot

        check_plot(values["plot"])
    recipe = recipe_of(values)
    gpu = find_gpu(values["gpu"], recipe.precision) if "gpu" in values else None
    space = fit_gpu.room_of(values, gpu)
    if "params" in values:
        from gflow.ml.fit import formula

        if any(name in values for name in ("hf", "tv", "py", "largest")):
            raise UsageError("--params cannot be combined with a model or --largest")
        trace, found = None, formula.estimate(formula.count(values["params"]), recipe)
    else:
        trace = trace_of(values, recipe, gpu.card if gpu else HOPPER)
        found = evaluate(trace, gpu.card if gpu else HOPPER)
    gpus = {gpu.name: gpu} if gpu else catalogue()
    page: dict[str, Any] = as_json(found)
    page["gpus"] = [] if "cap" in values else verdicts(found, trace, gpus)
    if space is not None:
        page["fits"] = fit_gpu.fits(trace, found, space)
        if not page["fits"]:
            page["would_fit"] = fit_gpu.ways(values, recipe, gpu)
        if "largest" in values:
            page["largest_batch"] = fit_gpu.largest(values, recipe, gpu.card if gpu else HOPPER, space)
    if "chart" in values or "plot" in values:
        page["chart"] = _chart(values, recipe, gpu.card if gpu else HOPPER, gpus)
    return _print(values, page, found)


def _chart(values: dict[str, Any], recipe: Any, card: Any, gpus: dict[str, Any]) -> Any:
    """Memory against batch size; also drawn to a file with --plot."""
    from gflow.ml.fit.chart import chart, picture, sizes

    cards = {"the card": int(values["cap"]) << 20} if "cap" in values else sizes(gpus)
    found = chart(run_of(values, recipe, card), cards, card.context)
    if "plot" in values:
        given = next(values[name] for name in ("hf", "tv", "py", "params") if name in values)
        picture(found, f"{given}, {recipe.precision}, sequence {recipe.sequence}", values["plot"])
    return found


def _print(values: dict[str, Any], page: dict[str, Any], found: Any) -> int:
    import msgspec

    if "json" in values:
        print(json.dumps(msgspec.to_builtins(page), indent=2))
    else:
        from gflow.client import hot_path
        from gflow.text import fit as text

        width = int(hot_path.terminal().get("width", 0))
        sys.stdout.write(text.page(found, page.get("fits")) + text.cards(page, width))
        if "chart" in values:
            sys.stdout.write("\n" + text.chart_page(page["chart"], width))
    return 0


def as_json(found: Any) -> dict[str, Any]:
    """The estimate as JSON: every field, plus the key names of the usual PyTorch snippet."""
    import msgspec

    return {**msgspec.to_builtins(found), **found.keys()}
