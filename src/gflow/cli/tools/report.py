"""gflow report: report progress and metrics from a shell script."""

from __future__ import annotations

import os
import sys

from gflow.errors import UsageError
from gflow.metric_names import MOST_METRICS, is_metric_name
from gflow.options.commands.report_options import OPTIONS
from gflow.options.parse import parse

ABOUT = """Report the progress and metrics of a job from inside it, in any language. step, steps, epoch and
epochs are whole numbers; loss and every other name are numbers. What an earlier call reported stays until
the same name is reported again. gqueue -f JOBID,PROGRESS,LOSS,accuracy shows it.

Outside of a job the command does nothing. Python scripts call gflow.train.report instead."""
EXAMPLES = """gflow report step=40 steps=100 loss=0.31
gflow report accuracy=0.93"""
COUNTS = ("step", "steps", "epoch", "epochs")


def run(words: list[str]) -> int:
    values, pairs = parse(words, OPTIONS)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow report NAME=VALUE…", ABOUT, OPTIONS, EXAMPLES))
        return 0
    if not pairs:
        raise UsageError("there is nothing to report", hint="gflow report step=40 steps=100 loss=0.31")
    given = dict(map(_read, pairs))
    if not os.environ.get("GFLOW_PROGRESS"):
        return 0
    from gflow.ml.train.progress import Reporter

    fields = {name: number for name, number in given.items() if name in (*COUNTS, "loss")}
    metrics = {name: number for name, number in given.items() if name not in fields}
    if len(metrics) > MOST_METRICS:
        raise UsageError(f"a job has at most {MOST_METRICS} metrics, not {len(metrics)}")
    Reporter(metered=False).update(fields, metrics)
    return 0


def _read(pair: str) -> tuple[str, float]:
    name, _, text = pair.partition("=")
    if not is_metric_name(name):
        raise UsageError(
            f"{pair!a:.60} is not NAME=VALUE", hint="a name has letters, digits and _./@-: accuracy=0.93"
        )
    try:
        number = int(text) if name in COUNTS else float(text)
    except ValueError:
        number = None
    if number is None or (name in COUNTS and number < 0):
        kind = "a whole number from 0 on" if name in COUNTS else "a number"
        raise UsageError(f"{name} takes {kind}, not {text!a:.60}", hint=f"gflow report {name}=40")
    return name, number
