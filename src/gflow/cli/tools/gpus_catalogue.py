"""gflow gpus, gflow gpus tables, gflow gpus pick: the GPU catalogue and the choice of a GPU."""

from __future__ import annotations

import json
import sys
from typing import Any

from gflow.errors import Refused, UsageError, unknown
from gflow.options.commands.gpus_options import PICK, SHOW
from gflow.options.parse import parse

ABOUT = """Catalogue of GPUs: memory available to a program, bandwidth, dense TFLOP/s, interconnects and
prices, each with its source and date. Prices are examples: change them in your own file.

  gflow gpus          the catalogue
  gflow gpus tables   model sizes; memory saved by sharding and other techniques
  gflow gpus pick     the cheapest, fastest and best-value GPU for a workload
  gflow gpus watch    load of this machine's GPUs"""
EXAMPLES = """gflow gpus
gflow gpus pick --workload finetune-7b
gflow gpus pick --hf config.json --batch 8 --seq 2048 --precision bf16
gflow gpus watch --csv -n 1 > gpus.csv"""


def show(words: list[str]) -> int:
    values, rest = parse(words, SHOW)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow gpus [tables|pick|watch] [options]", ABOUT, SHOW, EXAMPLES))
        return 0
    if rest == ["tables"]:
        return _tables(values)
    import msgspec

    from gflow.ml.fit.catalogue import catalogue, own_file
    from gflow.text.fit import UNSURE, money
    from gflow.text.table import table

    gpus = catalogue()
    if "json" in values:
        print(json.dumps([msgspec.to_builtins(gpu) for gpu in gpus.values()], indent=2))
        return 0
    rows = [
        [
            gpu.name,
            f"{gpu.memory_gib:g} GiB",
            f"{gpu.bandwidth:g}",
            f"{gpu.bf16:g}",
            f"{gpu.fp32:g}",
            f"{gpu.nvlink:g}" if gpu.nvlink else "-",
            *(money(price.price, price.is_compared) if price else "-" for price in (gpu.spot, gpu.hourly)),
        ]
        for gpu in gpus.values()
    ]
    header = ["GPU", "MEMORY", "GB/S", "BF16 TFLOPS", "FP32 TFLOPS", "NVLINK", "$/H SPOT", "$/H"]
    sys.stdout.write(table(header, rows) + UNSURE + "\n")
    print(f"(sources and dates: gflow gpus --json)\n(your own entries: {own_file()})")
    return 0


def _tables(values: dict[str, Any]) -> int:
    from gflow.ml.fit import tables
    from gflow.text.table import table

    made = {"sizes": tables.sizes(), "sharding": tables.sharding(), "techniques": tables.techniques()}
    if "json" in values:
        print(json.dumps({name: [dict(zip(header, row, strict=True)) for row in rows]
                          for name, (header, rows) in made.items()}, indent=2))  # fmt: skip
    else:
        sys.stdout.write("\n".join(table(header, rows) for header, rows in made.values()))
    return 0


def pick(words: list[str]) -> int:
    from gflow.ml.fit import gpu_choice
    from gflow.ml.fit.catalogue import catalogue, find_gpu

    values, rest = parse(words, PICK)
    if "help" in values:
        from gflow.options import help

        names = "\n".join(f"  {name:<14} {work.about}" for name, work in gpu_choice.WORKLOADS.items())
        about = f"Choose a GPU. The workload is given by name, or as a model:\n\n{names}"
        sys.stdout.write(help.render("gflow gpus pick [options]", about, PICK, EXAMPLES))
        return 0
    if rest:
        raise UsageError(f"unexpected argument {rest[0]!a}", hint="gflow gpus pick --workload finetune-7b")
    work = _work(values)
    named = [find_gpu(name.strip()) for name in values["gpu"].split(",")] if "gpu" in values else []
    found = gpu_choice.choices(work, {gpu.name: gpu for gpu in named} or catalogue())
    if not found:
        size = work.needs(gpu_choice.COUNTS[-1]) / (1 << 30)
        none = "none of these GPUs" if named else "no GPU of the catalogue"
        raise Refused(
            f"{none} has enough memory, not even eight of them: {size:.0f} GiB on each",
            hint="gflow plan tries more: checkpointing, an 8-bit optimizer, offloading",
        )
    _print(values, found, gpu_choice.pick(found), work)
    return 0


def _work(values: dict[str, Any]) -> Any:
    """The named workload, or the training of a model."""
    from gflow.ml.fit import gpu_choice

    models = [name for name in ("hf", "tv", "py", "params") if name in values]
    if "workload" not in values:
        if not models:
            names = ", ".join(gpu_choice.WORKLOADS)
            raise UsageError("which workload?", hint=f"--workload {names}; or --hf config.json, --params 7B")
        return _training(values)
    if models:
        raise UsageError(f"--workload or --{models[0]}, not both")
    name = values["workload"]
    if name not in gpu_choice.WORKLOADS:
        raise unknown("workload", name, gpu_choice.WORKLOADS)
    return gpu_choice.WORKLOADS[name]


def _training(values: dict[str, Any]) -> Any:
    """Training of a model; several GPUs shard weights, gradients and optimizer states (FSDP)."""
    from gflow.cli.tools.fit_model import recipe_of, trace_of
    from gflow.ml.fit import batch_scaling, formula, gpu_choice
    from gflow.ml.fit.cuda.architectures import HOPPER
    from gflow.ml.fit.sharding import Shaping, Sharing

    recipe = recipe_of(values)
    if "params" in values:
        counted = formula.FormulaRun(formula.count(values["params"]), recipe)
    else:
        trace = trace_of(values, recipe, HOPPER)
        sizes = [request.size for request in trace.requests]

    def needs(gpus: int) -> int:
        way = Shaping(Sharing(gpus, "fsdp" if gpus > 1 else "none"))
        if "params" in values:
            return (counted.needed(recipe.batch, way) or 0) + HOPPER.context
        return (batch_scaling.needed(trace, sizes, way) or 0) + HOPPER.context

    about = f"training, batch {recipe.batch} on each GPU, {recipe.precision}; several GPUs by FSDP"
    return gpu_choice.Workload(about, needs, needs_bf16=recipe.precision.startswith("bf16"))


def _print(values: dict[str, Any], found: Any, picked: Any, work: Any) -> None:
    import msgspec

    from gflow.text.fit import UNSURE, money, size
    from gflow.text.table import table

    if "json" in values:
        print(json.dumps({**msgspec.to_builtins(picked), "fits": msgspec.to_builtins(found)}, indent=2))
        return
    rows = [
        [
            f"{choice.count}x {choice.gpu}",
            f"{100 * choice.share:.0f} %",
            money(choice.hourly, choice.is_compared) + (" spot" if choice.offer == "spot" else ""),
            " ".join(name for name in ("cheapest", "fastest", "value") if getattr(picked, name) is choice),
        ]
        for choice in found
    ]
    sys.stdout.write(table(["GPUS", "OF ITS MEMORY", "$/HOUR", ""], rows))
    print(f"{work.about}: {size(work.needs(1))} on a single GPU")
    if not all(choice.is_compared for choice in found):
        print(UNSURE)
