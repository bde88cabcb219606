"""gflow plan: find the fastest training setup for some GPUs that is predicted to fit."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

from gflow.cli.tools.fit_model import recipe_of, run_of
from gflow.errors import Refused, UsageError, unknown
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
    import msgspec

    from gflow.cli.common.status_line import show_status
    from gflow.ml.fit.plan import PlanRequest, plan

    recipe, without = recipe_of(values), _without(values)
    gpu, count = _gpus(values, recipe.precision)
    request = PlanRequest(
        gpu,
        count,
        values.get("effective-batch", 32),
        recipe.sequence,
        recipe.precision,
        recipe.optimizer in ("Adam", "AdamW"),
        without,
        values.get("take", 1),
    )
    runs = runs_of(values, recipe, gpu.card, request)
    with show_status("comparing training setups"):
        found = plan(runs, request)
    found = msgspec.structs.replace(found, optimizer=recipe.optimizer, clip=recipe.clip, lora=recipe.lora)
    made = {**msgspec.to_builtins(found), "command": _command(found.chosen, values.get("out"))}
    if "out" in values:
        _write(values["out"], made)
    if "json" in values:
        print(json.dumps(made, indent=2))
    else:
        from gflow.client import hot_path
        from gflow.text.fit import plan_page

        width = int(hot_path.terminal().get("width", 0))
        sys.stdout.write(plan_page(found, made["command"], width))
    return 0


def _without(values: dict[str, Any]) -> frozenset[str]:
    from gflow.ml.fit.plan import TECHNIQUES

    found = frozenset(word.strip() for word in values.get("without", "").split(",") if word.strip())
    for word in sorted(found - set(TECHNIQUES)):
        raise unknown("technique", word, TECHNIQUES)
    return found


def runs_of(values: dict[str, Any], recipe: Any, card: Any, request: Any) -> dict[bool, Any]:
    """Runs without and with checkpointing; not every model supports it."""
    runs = {False: _run(values, recipe, card, False)}
    if "checkpointing" in request.without:
        return runs
    try:
        runs[True] = _run(values, recipe, card, True)
    except Refused as refusal:
        sys.stderr.write(f"gflow plan: checkpointing is not possible: {refusal.message}\n")
    return runs


def _run(values: dict[str, Any], recipe: Any, card: Any, checkpointing: bool) -> Any:
    import msgspec

    return run_of(values, msgspec.structs.replace(recipe, checkpointing=checkpointing), card)


def _gpus(values: dict[str, Any], precision: str) -> tuple[Any, int]:
    """The GPUs of --on (`4xA100-80GB`), or those of the local daemon."""
    from gflow.ml.fit.catalogue import find_gpu

    if "on" in values:
        count, times, name = values["on"].partition("x")
        if times and count.isdigit():
            if not 1 <= int(count) <= 1024:
                raise UsageError(f"invalid number of GPUs: {count}", hint="--on 4xA100-80GB")
            return _capped(find_gpu(name, precision), values), int(count)
        return _capped(find_gpu(values["on"], precision), values), 1
    gpu, count = _of_this_machine()
    return _capped(gpu, values), count


def _capped(gpu: Any, values: dict[str, Any]) -> Any:
    """The GPU with its memory limited to --cap."""
    import msgspec

    return msgspec.structs.replace(gpu, memory_gib=values["cap"] / 1024) if "cap" in values else gpu


def _of_this_machine() -> tuple[Any, int]:
    from gflow.client import http
    from gflow.ml.fit.catalogue import Gpu

    gpus = http.get("/info")["gpus"]
    if not gpus:
        raise UsageError("this machine has no GPUs", hint="name the GPUs: --on 4xA100-80GB")
    least = min(gpus, key=lambda gpu: gpu["memory_mib"])
    return (
        Gpu(
            name=str(least.get("model") or "GPU"),
            architecture="hopper",
            memory_gib=least["memory_mib"] / 1024,
            bandwidth=0,
            bf16=0,
            fp32=0,
        ),
        len(gpus),
    )


def _command(way: Any, path: str | None) -> str:
    """The gbatch command line for this setup."""
    start = "gflow launch train.py" if way.gpus > 1 else "python train.py"
    if path and not way.tools:
        start = f"gflow launch --plan {shlex.quote(path)} train.py"
    size = f"auto --fit {shlex.quote(path)}" if path else f"{-(-way.bytes // (1 << 20))}M"
    return f"gbatch --gpus {way.gpus} --gpu-memory {size} {start}"


def _write(path: str, made: dict[str, Any]) -> None:
    try:
        with open(path, "w") as file:
            file.write(json.dumps(made, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {path!a}: {error.strerror}") from None
