"""gflow simulate: replay a trace under one policy or several."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from gflow.errors import UsageError, did_you_mean
from gflow.options.commands.simulate_options import OPTIONS
from gflow.options.parse import parse

ABOUT = """Replay a trace on a pool of GPUs with gflow's scheduler and a simulated clock, under one or
more policies. No job is started.

A trace is a CSV file (Philly, Alibaba, Helios, Acme, output of sacct, any other with --map), a file
in the Standard Workload Format (.swf, as in the Parallel Workloads Archive) or the database of a
gflowd. Columns of --map mean submit, duration (or start and end), gpus, user, name, limit, priority
and preemptible. Times are seconds, clock times, or have a unit: us, ms, s, min, h, d. Policies:
"""
# A wait or a run of more than a year is probably a mistake in the unit of a column.
YEAR_S = 365 * 86400.0
EXAMPLES = """gflow simulate trace.csv --pool 64 --policy greedy,easy,ours
gflow simulate trace.csv --map submit=timestamp,duration=duration:ms,gpus=num_gpus
gflow simulate pods.csv --map submit=t,duration=d,gpus=g,preemptible=qos:BE
gflow simulate trace.csv --pool 64 --plot waits.png
gflow simulate ~/.local/share/gflow/gflow.db --pool 8 --policy ours,fifo --json"""


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    from gflow.simulate.replay import POLICIES

    if "help" in values:
        from gflow.options import help

        policies = "\n".join(f"  {name:<13} {about}" for name, (about, _) in POLICIES.items())
        sys.stdout.write(
            help.render("gflow simulate TRACE [options]", ABOUT + "\n" + policies, OPTIONS, EXAMPLES)
        )
        return 0
    if len(rest) != 1:
        raise UsageError("gflow simulate takes one trace", hint="see gflow simulate --help")
    names = values.get("policy", "greedy,easy,ours").split(",")
    for name in names:
        if name not in POLICIES:
            hint = did_you_mean(name, POLICIES, otherwise="policies: " + ", ".join(POLICIES))
            raise UsageError(f"there is no policy {name!a}", hint=hint)
    picture = Path(values["plot"]) if "plot" in values else None
    if picture is not None:
        from gflow.plotting import check_plot

        check_plot(str(picture))
    entries, pool = _prepare(Path(rest[0]), values)
    replays = {name: _replay(entries, pool, name, "resume" in values) for name in names}
    _show(rest[0], replays, pool, values)
    if picture is not None:
        from gflow.simulate.metrics import plot

        plot(replays, pool, picture)
    return 0


def _show(trace: str, replays: dict[str, list[Any]], pool: int, values: dict[str, Any]) -> None:
    """Print the metrics of all replays, and what makes them doubtful."""
    from gflow.simulate.metrics import measure

    results = {name: measure(ran, pool, values.get("wide", 8)) for name, ran in replays.items()}
    entries = [one.entry for one in next(iter(replays.values()))]
    notes = list(_notes(replays))
    if "json" in values:
        import json

        about = _describe(trace, entries, pool, values)
        print(json.dumps({**about, "notes": notes, "policies": results}, indent=2))
    else:
        _print(results, len(entries), pool)
        print("".join(f"{note}\n" for note in notes), end="")


def _describe(trace: str, entries: list[Any], pool: int, values: dict[str, Any]) -> dict[str, Any]:
    """All that is needed to repeat the replays, and what they were of."""
    from gflow import __version__
    from gflow.simulate.trace_transform import span, work

    return {
        "version": __version__,
        "trace": trace,
        "map": _pairs(values, "map"),
        "where": _pairs(values, "where"),
        "jobs": len(entries),
        "pool": pool,
        "load": _load(values) or None,
        "offered_load": work(entries) / (pool * span(entries)),
        "seed": values.get("seed", 0),
        "jitter": values.get("jitter", 0),
        "limits": "limits" in values,
        "with_limit": sum(1 for entry in entries if entry.limit) / len(entries),
        "resume": "resume" in values,
    }


def _notes(replays: dict[str, list[Any]]) -> Iterator[str]:
    """What a reader of the figures should know, a line each."""
    ran = next(iter(replays.values()))
    if "easy" in replays and not any(one.entry.limit or one.entry.preemptible for one in ran):
        yield "easy: no job of the trace has a time limit, so it equals greedy (--limits adds limits)"
    for name, jobs in replays.items():
        if stopped := [one for one in jobs if one.preempted]:
            times = sum(len(one.preempted) for one in stopped)
            yield f"{name}: {len(stopped)} jobs were preempted, {times} times in all"
    run = max(one.entry.duration for one in ran) / YEAR_S
    wait = max(one.wait_s for jobs in replays.values() for one in jobs) / YEAR_S
    if max(run, wait) > 1:
        yield f"Jobs wait for up to {wait:.1f} years and run for up to {run:.1f} years."
        yield "Are all times in seconds? If not, name the unit: --map duration=COLUMN:ms"


def _prepare(path: Path, values: dict[str, Any]) -> tuple[list[Any], int]:
    """The jobs to replay and the GPUs to replay them on."""
    from gflow.simulate import trace_transform
    from gflow.simulate.trace import read_trace

    entries = read_trace(path, _pairs(values, "map"), _pairs(values, "where"))
    if not entries:
        raise UsageError(f"{path} contains no job that ran on a GPU")
    random = Random(values.get("seed", 0))
    load = _load(values)
    pool = values.get("pool") or trace_transform.pool_for(entries, load or 0.9)
    entries = trace_transform.fit_to_pool(entries, pool, load if "pool" in values else 0.0, random)
    if "jitter" in values:
        entries = trace_transform.jitter(entries, values["jitter"], random)
    if "limits" in values:
        entries = trace_transform.add_limits(entries, random)
    return sorted(entries), pool


def _load(values: dict[str, Any]) -> float:
    text = values.get("load", "0")
    try:
        load = float(text)
    except ValueError:
        load = -1.0
    if not 0 <= load <= 100:
        raise UsageError(f"--load takes a fraction of the pool, not {text!a}", hint="--load 0.9")
    return load


def _pairs(values: dict[str, Any], name: str) -> dict[str, str]:
    pairs = {}
    for part in filter(None, values.get(name, "").split(",")):
        left, equals, right = part.partition("=")
        if not equals:
            form = "MEANING=COLUMN" if name == "map" else "COLUMN=VALUE"
            raise UsageError(f"--{name}: {part!a} is not {form}")
        pairs[left] = right
    return pairs


def _replay(entries: list[Any], pool: int, name: str, resumes: bool) -> list[Any]:
    from gflow.simulate.replay import POLICIES, Replay

    is_tty = sys.stderr.isatty()

    def report(done: int) -> None:
        sys.stderr.write(f"\r{name}: {done * 100 // len(entries)} %\033[K")

    replay = Replay(entries, pool, POLICIES[name][1], exact=name == "easy-perfect", resumes=resumes)
    ran = replay.run(report if is_tty else None)
    if is_tty:
        sys.stderr.write("\r\033[K")
    return ran


def _print(results: dict[str, dict[str, Any]], jobs: int, pool: int) -> None:
    from gflow.text.table import Sheet, clock

    print(f"{jobs} jobs on {pool} GPUs")
    sheet = Sheet(
        ("POLICY", "MEAN", "MEDIAN", "P95", "P99", "SLOWDOWN", "USED", "FAIR", "WIDE P99", "WIDE MAX")
    )
    for name, found in results.items():
        wide = found["wide"]
        waits = [found[f"{part}_wait_s"] for part in ("mean", "median", "p95", "p99")]
        sheet.add(
            (
                name,
                *(clock(wait) for wait in waits),
                f"{found['mean_slowdown']:.1f}",
                f"{found['utilisation']:.1%}",
                f"{found['fairness']:.2f}",
                *(clock(wide[f"{part}_wait_s"]) if wide["jobs"] else "-" for part in ("p99", "max")),
            )
        )
    print("".join(sheet.lines()), end="")
