"""gflow gpus, gflow gpus tables, gflow gpus pick."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from gflow.cli.fit import MODEL, RECIPE
from gflow.errors import Refused, UsageError, unknown
from gflow.options.parse import parse
from gflow.options.table import COMMON, JSON, Option

SHOW = (JSON, *COMMON)
PICK = (
    Option("workload", "text", "work by its name: see below", short="w", metavar="NAME"),
    *MODEL,
    *RECIPE,
    JSON,
    *COMMON,
)
ABOUT = """GPUs that people rent, borrow and buy: memory that a program gets, bandwidth, dense TFLOP/s, links,
and prices, each with its source and date. Prices are examples: change them in your own file.

  gflow gpus          the catalogue
  gflow gpus tables   sizes of models, what sharding and other techniques save, computed
  gflow gpus pick     the cheapest, the fastest and the best value for some work
  gflow gpus watch    what the GPUs of this machine do"""
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

    from gflow.fit.catalogue import catalogue, own_file
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
            f"{gpu.spot.price:.2f}" if gpu.spot else "-",
            f"{gpu.hourly.price:.2f}" if gpu.hourly else "-",
        ]
        for gpu in gpus.values()
    ]
    header = ["GPU", "MEMORY", "GB/S", "BF16 TFLOPS", "FP32 TFLOPS", "NVLINK", "$/H SPOT", "$/H"]
    sys.stdout.write(table(header, rows))
    print(f"(sources and dates: gflow gpus --json; your own entries: {own_file()})")
    return 0


def _tables(values: dict[str, Any]) -> int:
    from gflow.fit import tables
    from gflow.text.table import table

    made = {"sizes": tables.sizes(), "sharding": tables.sharding(), "techniques": tables.techniques()}
    if "json" in values:
        print(json.dumps({name: [dict(zip(header, row, strict=True)) for row in rows]
                          for name, (header, rows) in made.items()}, indent=2))  # fmt: skip
    else:
        sys.stdout.write("\n".join(table(header, rows) for header, rows in made.values()))
    return 0


def pick(words: list[str]) -> int:
    from gflow.fit import picking
    from gflow.fit.catalogue import catalogue

    values, rest = parse(words, PICK)
    if "help" in values:
        from gflow.options import help

        names = "\n".join(f"  {name:<14} {work.about}" for name, work in picking.WORKLOADS.items())
        about = f"Which GPU to take. Work is known by name, or given as a model:\n\n{names}"
        sys.stdout.write(help.render("gflow gpus pick [options]", about, PICK, EXAMPLES))
        return 0
    if rest:
        raise UsageError(f"what is {rest[0]!a} for?", hint="gflow gpus pick --workload finetune-7b")
    needs, is_arithmetic = _needs(values)
    found = picking.choices(needs, catalogue(), is_arithmetic=is_arithmetic)
    if not found:
        raise Refused("no GPU of the catalogue has the room, not even eight of them", hint="see gflow plan")
    _print(values, found, picking.pick(found))
    return 0


def _needs(values: dict[str, Any]) -> tuple[Callable[[int], int], bool]:
    from gflow.fit import formula, picking

    if "workload" in values:
        name = values["workload"]
        if name not in picking.WORKLOADS:
            raise unknown("workload", name, picking.WORKLOADS)
        return picking.WORKLOADS[name].needs, picking.WORKLOADS[name].is_arithmetic
    from gflow.cli.fit import recipe_of, tape_of
    from gflow.fit.answer import answer
    from gflow.fit.cards import HOPPER

    recipe = recipe_of(values)
    if "params" in values:
        found = formula.estimate(formula.count(values["params"]), recipe)
    else:
        found = answer(tape_of(values, recipe, HOPPER))
    return (lambda _: found.process_bytes), True


def _print(values: dict[str, Any], found: Any, picked: Any) -> None:
    import msgspec

    from gflow.text.table import table

    if "json" in values:
        print(json.dumps({**msgspec.to_builtins(picked), "fits": msgspec.to_builtins(found)}, indent=2))
        return
    rows = [
        [
            f"{choice.count}x {choice.gpu}",
            f"{100 * choice.share:.0f} %",
            "-" if choice.hourly is None else f"{choice.hourly:.2f}",
            " ".join(name for name in ("cheapest", "fastest", "value") if getattr(picked, name) is choice),
        ]
        for choice in found
    ]
    sys.stdout.write(table(["GPUS", "OF ITS MEMORY", "$/HOUR", ""], rows))
