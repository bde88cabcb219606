"""gflow plan: find the fastest training setup for some GPUs that is predicted to fit."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

from gflow.errors import UsageError
from gflow.options.commands.plan_options import GROUPS, OPTIONS
from gflow.options.parse import parse

ABOUT = """Find the fastest training setup that is predicted to fit: micro-batch, gradient accumulation,
checkpointing, sharding, 8-bit optimizer, offloading, number of GPUs. Alternatives that fit are listed with
their cost in speed. Memory is predicted as by gflow fit; sharding, 8-bit states and offloading are
added by formula."""
EXAMPLES = """gflow plan --hf config.json --on 4xA100-80GB --seq 4096 --precision bf16 --effective-batch 256
gflow plan --params 7B --on 8xH100-80GB --precision bf16-pure --effective-batch 64
gflow plan --hf config.json --on RTX-4090 --out plan.json"""


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow plan [options]", ABOUT, GROUPS, EXAMPLES))
        return 0
    if rest:
        raise UsageError(
            f"unexpected argument {rest[0]!a}", hint="gflow plan --hf config.json --on 4xA100-80GB"
        )
    from gflow.cli.common.status_line import show_status
    from gflow.ml.fit.requests import make_plan, plan_answer, write_plan

    found = make_plan(values, _of_this_machine, show_status)
    command = _command(found.chosen, values.get("out"))
    if "out" in values:
        write_plan(values["out"], found, command)
    if "json" in values:
        print(json.dumps(plan_answer(found, command), indent=2))
    else:
        from gflow.client import hot_path
        from gflow.text.fit import plan_page

        width = int(hot_path.terminal().get("width", 0))
        sys.stdout.write(plan_page(found, command, width))
    return 0


def _of_this_machine() -> tuple[Any, int]:
    """The smallest GPU of this machine, as the catalogue knows it, and their number."""
    from gflow.client import http
    from gflow.ml.fit.catalogue import gpu_of_machine

    gpus = http.get("/info")["gpus"]
    if not gpus:
        raise UsageError("this machine has no GPUs", hint="name the GPUs: --on 4xA100-80GB")
    least = min(gpus, key=lambda gpu: gpu["memory_mib"])
    return gpu_of_machine(str(least.get("model") or "GPU"), least["memory_mib"] / 1024), len(gpus)


def _command(way: Any, path: str | None) -> str:
    """The gbatch command line for this setup."""
    start = "gflow launch train.py" if way.gpus > 1 else "python train.py"
    if path and not way.tools:
        start = f"gflow launch --plan {shlex.quote(path)} train.py"
    size = f"auto --fit {shlex.quote(path)}" if path else f"{-(-way.bytes // (1 << 20))}M"
    return f"gbatch --gpus {way.gpus} --gpu-memory {size} {start}"
