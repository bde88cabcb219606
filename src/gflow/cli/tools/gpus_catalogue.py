"""gflow gpus, gflow gpus tables, gflow gpus pick: the GPU catalogue and the choice of a GPU."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

from gflow.errors import UsageError
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
    from gflow.ml.fit.gpu_choice import WORKLOADS, good_for
    from gflow.text.fit import money, price_notes
    from gflow.text.table import Sheet, table

    gpus = catalogue()
    if "json" in values:
        rows = [{**msgspec.to_builtins(gpu), "good_for": good_for(gpu)} for gpu in gpus.values()]
        print(json.dumps(rows, indent=2))
        return 0
    lines = [
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
    offers = [offer for gpu in gpus.values() for offer in (gpu.spot, gpu.hourly)]
    notes = price_notes((one.price, one.is_compared) if one else (None, True) for one in offers)
    sys.stdout.write(table(header, lines) + notes + "\n\n")
    sheet = Sheet(["WORKLOAD", "ONE OF THESE GPUS IS ENOUGH"])
    for name in WORKLOADS:
        enough = [gpu.name for gpu in gpus.values() if name in good_for(gpu)]
        sheet.add([name, ", ".join(enough) or "-"])
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    sys.stdout.writelines([*sheet.lines(width, wraps=True), "\n"])
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
    from gflow.cli.common.status_line import show_status
    from gflow.ml.fit import gpu_choice
    from gflow.ml.fit.requests import choose_gpu

    values, rest = parse(words, PICK)
    if "help" in values:
        from gflow.options import help

        names = "\n".join(f"  {name:<14} {work.about}" for name, work in gpu_choice.WORKLOADS.items())
        about = f"Choose a GPU. The workload is given by name, or as a model:\n\n{names}"
        sys.stdout.write(help.render("gflow gpus pick [options]", about, PICK, EXAMPLES))
        return 0
    if rest:
        raise UsageError(f"unexpected argument {rest[0]!a}", hint="gflow gpus pick --workload finetune-7b")
    picked, found, work = choose_gpu(values, show_status)
    _print(values, found, picked, work)
    return 0


def _print(values: dict[str, Any], found: Any, picked: Any, work: Any) -> None:
    import msgspec

    from gflow.text.fit import money, price_notes, size
    from gflow.text.table import table

    if "json" in values:
        print(json.dumps({**msgspec.to_builtins(picked), "fits": msgspec.to_builtins(found)}, indent=2))
        return
    rows = [
        [
            f"{choice.count}x {choice.gpu}",
            f"{100 * choice.share:.0f} %",
            money(choice.hourly, choice.is_compared),
            f"{choice.speed:g}",
            money(choice.work_cost, choice.is_compared),
            " ".join(name for name in ("cheapest", "fastest", "value") if getattr(picked, name) is choice),
        ]
        for choice in found
    ]
    price = "$/HOUR SPOT" if "spot" in values else "$/HOUR"
    speed, cost = ("TFLOP/S", "$/EFLOP") if work.is_arithmetic else ("GB/S", "$/PB")
    sys.stdout.write(table(["GPUS", "OF ITS MEMORY", price, speed, cost, ""], rows))
    print(f"{work.about}: {size(work.needs(1))} on a single GPU")
    if notes := price_notes((choice.hourly, choice.is_compared) for choice in found):
        print(notes)
