"""gflow gpus: the GPU catalogue, the choice of a GPU, and the load of this machine's GPUs."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from gflow.client import http
from gflow.errors import UsageError, did_you_mean
from gflow.options.commands.gpus_options import WATCH
from gflow.options.parse import parse

COLUMNS = ("time", "gpu", "busy", "memory_mib", "memory_total_mib", "power_w", "temperature", "clock_mhz",
           "slowed", "jobs")  # fmt: skip
ABOUT = "Sample the GPUs repeatedly: load, memory, power, temperature, clocks, and their jobs."
EXAMPLES = """gflow gpus watch
gflow gpus watch --csv -n 1 > gpus.csv
gflow gpus watch --json -c 1"""


COMMANDS = {"watch": "load of this machine's GPUs", "pick": "choose a GPU for a workload"}


def run(words: list[str]) -> int:
    command = next((word for word in words if not word.startswith("-")), "")
    if command == "watch":
        return _watch(words)
    from gflow.cli.tools import gpus_catalogue

    if command == "pick":
        return gpus_catalogue.pick([word for word in words if word != "pick"])
    if command in ("", "tables"):
        return gpus_catalogue.show(words)
    raise UsageError(
        f"gflow gpus has no command {command!a}",
        hint=did_you_mean(command, [*COMMANDS, "tables"], "gflow gpus, gflow gpus pick, gflow gpus watch"),
    )


def _watch(words: list[str]) -> int:
    values, rest = parse(words, WATCH)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow gpus watch [options]", ABOUT, WATCH, EXAMPLES))
        return 0
    if rest != ["watch"]:
        raise UsageError(f"unexpected argument {rest[1]!a}", hint="gflow gpus watch")
    if "csv" in values and "json" in values:
        raise UsageError("--csv and --json do not go together")
    left = values.get("count")
    _print(values, header=True)
    while left is None or (left := left - 1) > 0:
        time.sleep(values.get("interval", 1))
        _print(values, header=False)
    return 0


def _print(values: dict[str, Any], *, header: bool) -> None:
    rows = [_row(gpu) for gpu in http.get("/info")["gpus"]]
    if "json" in values:
        text = "".join(json.dumps(row) + "\n" for row in rows)
    elif "csv" in values:
        lines = [",".join(_cell(row[name]) for name in COLUMNS) for row in rows]
        text = "".join(line + "\n" for line in ([",".join(COLUMNS)] if header else []) + lines)
    else:
        from gflow.text.table import table

        text = table(
            [name.upper() for name in COLUMNS],
            [[_cell(row[name]) or "-" for name in COLUMNS] for row in rows],
        )
    sys.stdout.write(text)
    sys.stdout.flush()


def _row(gpu: dict[str, Any]) -> dict[str, Any]:
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "gpu": gpu["index"],
        "busy": gpu.get("utilisation"),
        "memory_mib": gpu.get("used_mib"),
        "memory_total_mib": gpu["memory_mib"],
        "power_w": gpu.get("power_w"),
        "temperature": gpu.get("temperature"),
        "clock_mhz": gpu.get("clock_mhz"),
        "slowed": gpu.get("slowed", []),
        "jobs": gpu["jobs"],
    }


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(map(str, value))
    return "" if value is None else str(value)
