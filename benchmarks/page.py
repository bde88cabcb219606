"""Write the benchmark page of the documentation from the figures of runs.

    python3 -m benchmarks.page [FOLDER]        reads FOLDER (.bench), writes docs/benchmarks.md, its curves, and the
                                               measured rows of README.md
    python3 -m benchmarks.page --readme        writes these rows from docs/benchmarks.md as it is

Read are `out.json` (side by side), and if they exist `growth.json` (`scale` and `gpus` of this gflow) and `bulk.json`
(`benchmarks.bulk --json`). `make bench` makes all of them first. Tables of measurements that need a trace, a GPU or hours
are copied from the documents that explain them.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import US, number

DOCS = Path(__file__).resolve().parents[1] / "docs"
README = DOCS.parent / "README.md"
CURVES = "images/benchmarks-growth.svg"
# Trials in the words of a reader; others are shown by their name.
TITLES = {
    "cli": "Commands", "start": "From the submit command to the start of the job",
    "start_open": "The same from a program with an open connection",
    "throughput": "Jobs that do nothing", "gap": "Between two jobs of one slot",
    "submit": "Submissions", "durable": "Acknowledged jobs after kill -9 of the daemon",
    "timelimit": "Jobs with a time limit",
}  # fmt: skip
NAMES = {
    "ours": "gflow", "ours-system": "gflow, system mode", "slurm": "Slurm", "gflow-process": "runqd (processes)", "gflow-tmux": "runqd (tmux)", "tsp": "task-spooler",
    "hyperqueue": "HyperQueue (Python binding)",
}  # fmt: skip
# Figures of the trial `scale` that grow with the number of waiting jobs: name, what it is, whether it is the
# total for all jobs. Costs of one event must not grow.
GROWING = (
    ("submit", "submit, per job", True),
    ("start of one more", "submit to start of one more job", False),
    ("CPU of one more", "CPU of one more job, daemon", False),
    ("queue of 20", "gqueue -n 20", False),
    ("queue", "gqueue, which lists all of them", False),
    ("memory", "memory above the empty daemon, per job", True),
)
# The same of the trial `gpus`, by the number of GPUs.
GPUS_GROWING = (
    ("start of one more", "submit to start of one job", False),
    ("CPU of one more", "CPU of one job, daemon", False),
    ("info", "ginfo", False),
)
# Trials of `benchmarks.bulk` in the words of a reader.
REQUESTS = {
    "submit": "submit all, {batch:,} in a request", "sweep": "submit a sweep of {sweep:,}",
    "array": "submit an array of {batch:,}", "list": "list all, JSON", "queue-all": "`gqueue -a`, {listed:,} rows", "queue-20": "`gqueue -n 20`, 20 times", "hold": "hold all",
    "release": "release all", "update": "change the priority of all", "cancel": "`gcancel --all`",
}  # fmt: skip
# No client may wait longer for the daemon than this.
STALL_MS = 50
Point = tuple[int, float]


class Copied(NamedTuple):
    """A table of another document: its title here, the document, the text before it, and the command that makes it."""

    title: str
    document: str
    after: str
    command: str
    note: str


POLICIES = (
    Copied(
        "The traces on which the defaults were chosen", "docs/scheduling.md", "## Measurements behind the defaults",
        "python -m benchmarks.philly philly.csv --seeds 15",
        "Nine pools of Microsoft's Philly cluster. Figures are ratios to `greedy` (in order, and every job that fits starts);"
        "\nbelow 1 is better. The settings were chosen with the arrivals of five of the 15 runs.",
    ),
    Copied(
        "Other traces", "docs/scheduling.md", "### Other traces",
        "python -m benchmarks.philly alibaba_openb_pods.csv whole --seeds 5",
        "No setting was chosen on the first. The second was looked at while rules between users were written.",
    ),
    Copied(
        "Users who harm others", "benchmarks/README.md", "## Fairness", "python -m benchmarks.fairness --policies slurm,ours",
        "Mean wait of the victims in hours, without > with the harmful work (longest).",
    ),
)  # fmt: skip
MEMORY = (
    Copied(
        "Cases that were looked at during development", "benchmarks/fit_cases.md", "# Predicted and measured",
        "python benchmarks/fit_cases.py --rows benchmarks/fit_cases_predicted.jsonl "
        "--tracker benchmarks/fit_cases_tracker.jsonl --write benchmarks/fit_cases.md",
        "Errors against what an H200 measured.",
    ),
    Copied(
        "Cases that were predicted before they were measured", "docs/fit.md", "## Accuracy on new cases",
        "python benchmarks/fit_proof.py compare", "Chosen after the code was finished.",
    ),
)  # fmt: skip


def main(folder: Path) -> int:
    found = {name: read(folder / f"{name}.json") for name in ("out", "growth", "bulk")}
    if found["out"] is None:
        print(f"there is no {folder}/out.json: run benchmarks/run first", file=sys.stderr)
        return 1
    scale = found["growth"]["results"][US] if found["growth"] else {}
    curves = growth_curves(scale.get("scale", {}))
    if curves:
        (DOCS / CURVES).write_text(draw(curves))
    (DOCS / "benchmarks.md").write_text("\n".join(page(found["out"], found["growth"], curves, found["bulk"])))
    print(DOCS / "benchmarks.md")
    return write_readme()


def read(path: Path) -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


# ---------------------------------------------------------------- the page


def page(
    run: dict[str, Any],
    growth: dict[str, Any] | None,
    curves: dict[str, list[Point]],
    bulk: dict[str, Any] | None,
) -> Iterator[str]:
    yield from ("# Benchmarks", "", "<!-- Written by `make bench` from its figures: run that. -->", "")
    yield "`make bench` repeats everything on your machine; compare only figures of one run. What each trial"
    yield from ("measures is in `benchmarks/README.md`.", "")
    yield from ("## Side by side", "", *circumstances(run), "")
    yield from (command("benchmarks/run", run), "", *versions(run), "")
    yield "Cells are medians, with the least value in brackets. `-`: not offered; a system that does not offer"
    yield from ("the whole trial has no column.", "")
    yield from side_by_side(run["results"])
    if growth and curves:
        yield from ("## Growth", "", *circumstances(growth), "", command("benchmarks/run", growth), "")
        yield "The exponent k of cost = c · N^k is fitted to all sizes: 0 is a cost that does not depend on the"
        yield from ("number of waiting jobs, 1 one that is proportional to it.", "")
        yield from growth_table(curves)
        yield from ("", f"![Cost of one event by the number of waiting jobs]({CURVES})", "")
        by_gpus = growth_curves(growth["results"][US].get("gpus", {}), GPUS_GROWING)
        if by_gpus:
            yield from ("By the number of (simulated) GPUs:", "", *growth_table(by_gpus), "")
    if bulk:
        yield from ("## What others wait for", "", *circumstances(bulk), "", *bulk_table(bulk), "")
    yield from ("## Waits under other policies", "")
    yield from ("[scheduling.md](scheduling.md#measurements-behind-the-defaults) explains the traces and the rules.", "")
    for one in POLICIES:
        yield from copied(one)
    yield from ("## Predicted memory of training runs", "")
    yield from ("[fit.md](fit.md#accuracy) explains the estimators and the cases.", "")
    for one in MEMORY:
        yield from copied(one)
    yield from ("## More", "")
    yield "Expected and real starts: [scheduling.md](scheduling.md#accuracy). Causes of failures, `gflow top`, the web page,"
    yield from ("Slurm behind an SSH login: `benchmarks/README.md`.", "")


def copied(one: Copied) -> Iterator[str]:
    """A table of another document, with its circumstances and command."""
    yield from (f"### {one.title}", "", one.note, "", f"Repeat: `{one.command}`", "")
    text = (DOCS.parent / one.document).read_text()
    lines = text[text.index(f"{one.after}") :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    yield from (*takewhile(lambda line: line.startswith("|"), lines[start:]), "")


def circumstances(run: dict[str, Any]) -> list[str]:
    """The machine and the day; and a warning if other work disturbed the run."""
    machine = run["machine"]
    low, high, cores = min(machine["load"]), max(machine["load"]), machine["cores"]
    lines = [
        f"{run['at'][:10]}, {machine['system']}, {cores} cores, Python {machine['python']}, load {low} to {high}."
    ]
    if high > 1.5 * cores:
        lines += [
            "",
            "**The machine was busy with other work.** Times are longer than on a quiet machine, and vary;",
        ]
        lines += ["ratios and counts are more reliable."]
    if run.get("quick"):
        lines += ["", "Few samples (`--quick`)."]
    return lines


def command(program: str, run: dict[str, Any]) -> str:
    trials = list(next(iter(run["results"].values())))
    words = [program, "-s", ",".join(run["results"]), "-t", ",".join(trials), "--rounds", str(run["rounds"])]
    words += ["--quick"] if run["quick"] else []
    words += [f"{name}={value}" for name, value in run["chosen"].items()]
    return f"Repeat: `{' '.join(words)}`"


def versions(run: dict[str, Any]) -> list[str]:
    return [
        "| system | version |",
        "|---|---|",
        *(f"| {NAMES.get(name, name)} | {text} |" for name, text in run["versions"].items()),
    ]


def side_by_side(results: dict[str, dict[str, dict[str, Any]]]) -> Iterator[str]:
    """A table for each trial: medians, with the least in brackets where there are several samples."""
    for trial in results[US]:
        systems = [name for name in results if has_figures(results[name].get(trial, {}))]
        if not systems:
            continue
        yield from (f"### {TITLES.get(trial, trial)}", "")
        yield f"| | {' | '.join(NAMES.get(name, name) for name in systems)} |"
        yield "|---|" + "---|" * len(systems)
        names = dict.fromkeys(
            name for system in systems for name in results[system].get(trial, {}) if name != "all"
        )
        for name in names:
            cells = [cell(results[system].get(trial, {}).get(name, "n/a")) for system in systems]
            yield f"| {name}{unit(results, trial, name)} | {' | '.join(cells)} |"
        yield ""


def has_figures(figures: dict[str, Any]) -> bool:
    return any(isinstance(value, dict) and value["n"] for value in figures.values())


def cell(value: dict[str, Any] | str) -> str:
    if isinstance(value, str) or not value["n"]:
        return "-"
    least = f" ({number(value['min'])})" if value["n"] > 1 and value["min"] != value["med"] else ""
    return f"{number(value['med'])}{least}"


def unit(results: dict[str, dict[str, dict[str, Any]]], trial: str, name: str) -> str:
    for system in results.values():
        value = system.get(trial, {}).get(name)
        if isinstance(value, dict):
            return f", {value['unit']}" + (" (more is better)" if value.get("more_is_better") else "")
    return ""


def bulk_table(bulk: dict[str, Any]) -> Iterator[str]:
    rows = bulk["rows"]
    jobs = bulk["jobs"]
    sizes = {"batch": min(jobs, 100_000), "sweep": min(jobs, 10_000), "listed": min(jobs, 200_000)}
    titles = {name: REQUESTS.get(name, name).format(**sizes) for name in rows}
    yield f"One client changes or lists {bulk['jobs']:,} jobs, a second asks for `/info` every 5 ms."
    yield from (f"Repeat: `benchmarks/run bulk --jobs {bulk['jobs']} -t {','.join(rows)}`", "")
    yield "| request | took, s | longest wait of the second client, ms | 99 % of its waits, ms | longest turn of the loop, CPU ms |"
    yield "|---|---|---|---|---|"
    for name, row in rows.items():
        cells = (row["took"] / 1000, row["longest"], row["p99"], row["turn"])
        yield f"| {titles[name]} | {' | '.join(map(number, cells))} |"
    worst = max(rows, key=lambda name: rows[name]["longest"])
    longest = rows[worst]["longest"]
    verdict = "within" if longest <= STALL_MS else "not within"
    yield from ("", f"The longest wait of all is {number(longest)} ms ({titles[worst]}), {verdict} the aim of {STALL_MS} ms.")


# ---------------------------------------------------------------- the README


class Measured(NamedTuple):
    """A row of the comparison in the README: its title, and the trial and the row (a pattern) of the page."""

    title: str
    trial: str
    figure: str
    unit: str


# "{}" is the number in the name of the row: `lost of 200, blocked, jobs`.
MEASURED = (
    Measured("submit a job by a command", "cli", "submit true, ms", "ms"),
    Measured("from that command to the start of the job", "start", "latency, ms", "ms"),
    Measured("pause between two jobs of a slot", "gap", "idle, ms", "ms"),
    Measured("jobs that do nothing, per second", "throughput", r"rate, jobs/s \(more is better\)", ""),
    Measured("acknowledged jobs lost by kill -9, of {} waiting", "durable", r"lost of (\d+), blocked, jobs", ""),
    Measured("run time of a job with a limit of {} s", "timelimit", r"run time at (\d+) s, s", "s"),
)
# The systems of the comparison, as the page has them; None: not measured.
COLUMNS = ("gflow", "runqd (processes)", "Slurm", "task-spooler", "HyperQueue (Python binding)", None)
MARK = "²"
MEASURED_ROWS = re.compile(rf"(^\| [^|]*{MARK} \|.*\n)+", re.MULTILINE)


def write_readme() -> int:
    """Replace the measured rows of the README by those of the page."""
    try:
        rows = "".join(f"{row}\n" for row in readme_rows((DOCS / "benchmarks.md").read_text()))
    except LookupError as error:
        print(f"README.md is as it was: {error}", file=sys.stderr)
        return 1
    README.write_text(MEASURED_ROWS.sub(lambda _: rows, README.read_text(), count=1))
    print(README)
    return 0


def readme_rows(text: str) -> Iterator[str]:
    """The measured rows of the README, made of the medians of the page."""
    for row in MEASURED:
        systems, cells, number_in_name = measured_cells(text, row)
        found = dict(zip(systems, cells, strict=False))
        shown = [found.get(name or "", "-").partition(" (")[0] for name in COLUMNS]
        values = ["" if value == "-" else f" {value} {row.unit}".rstrip() for value in shown]
        yield f"| {row.title.format(number_in_name)}{MARK} |" + "".join(f"{value} |" for value in values)


def measured_cells(text: str, row: Measured) -> tuple[list[str], list[str], str]:
    """The systems and the cells of a row of the page, and the number in the name of the row."""
    _, _, section = text.partition(f"### {TITLES[row.trial]}\n")
    table = [line for line in section.partition("\n##")[0].splitlines() if line.startswith("| ")]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    for name, *cells in lines[1:]:
        if match := re.fullmatch(row.figure, name):
            return lines[0][1:], cells, match.group(1) if match.groups() else ""
    raise LookupError(f"docs/benchmarks.md has no row {row.figure!r} below {TITLES[row.trial]!r}")


# ---------------------------------------------------------------- growth


def growth_curves(
    figures: dict[str, Any], growing: Sequence[tuple[str, str, bool]] = GROWING
) -> dict[str, list[Point]]:
    """The cost of one event, or of one job, by the number of waiting jobs (or of GPUs)."""
    curves: dict[str, list[Point]] = {}
    empty = median(figures, "0: memory") or 0.0
    sizes = sorted({int(name.partition(":")[0]) for name in figures if ":" in name} - {0})
    for name, title, is_total in growing:
        points = []
        for size in sizes:
            value = median(figures, f"{size}: {name}")
            if value is not None:
                value -= empty if name == "memory" else 0.0
                points.append((size, value / size * 1000 if is_total else value))
        curves[title] = [(size, value) for size, value in points if value > 0]
    return {title: points for title, points in curves.items() if points}


def median(figures: dict[str, Any], name: str) -> float | None:
    value = figures.get(name)
    return value.get("med") if isinstance(value, dict) else None


def growth_table(curves: dict[str, list[Point]]) -> Iterator[str]:
    """A row for each curve, with the exponent k of cost = c * N^k; 0: it does not grow."""
    sizes = sorted({size for points in curves.values() for size, _ in points})
    yield f"| | {' | '.join(f'{size:,}' for size in sizes)} | exponent | last / first |"
    yield "|---|" + "---|" * (len(sizes) + 2)
    for title, points in curves.items():
        values = dict(points)
        cells = [number(values[size]) if size in values else "-" for size in sizes]
        slope, ratio = f"{exponent(points):.2f}", f"{points[-1][1] / points[0][1]:.1f}"
        fitted = (slope, ratio) if len(points) > 1 else ("-", "-")
        yield f"| {title}{UNITS.get(title, ', ms')} | {' | '.join([*cells, *fitted])} |"


UNITS = {"memory above the empty daemon, per job": ", kB"}


def exponent(points: Sequence[Point]) -> float:
    """The slope of the least-squares line through the logarithms; nan with fewer than two sizes."""
    if len({size for size, _ in points}) < 2:
        return math.nan
    logs = [(math.log(size), math.log(value)) for size, value in points]
    x_mean = sum(x for x, _ in logs) / len(logs)
    y_mean = sum(y for _, y in logs) / len(logs)
    return sum((x - x_mean) * (y - y_mean) for x, y in logs) / sum((x - x_mean) ** 2 for x, _ in logs)


WIDTH, HEIGHT, LEFT, TOP, LEGEND = 640, 300, 60, 20, 20
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e")


def draw(curves: dict[str, list[Point]]) -> str:
    """An SVG with each curve relative to its first point, both axes logarithmic."""
    relative = {
        title: [(size, value / points[0][1]) for size, value in points] for title, points in curves.items()
    }
    sizes = [size for points in relative.values() for size, _ in points]
    ratios = [ratio for points in relative.values() for _, ratio in points]
    low, high = math.floor(math.log10(min(ratios))), max(1, math.ceil(math.log10(max(ratios))))
    first, last = math.log10(min(sizes)), max(math.log10(max(sizes)), math.log10(min(sizes)) + 1e-9)

    def place(size: float, ratio: float) -> str:
        x = LEFT + (math.log10(size) - first) / (last - first) * (WIDTH - 2 * LEFT)
        y = TOP + (high - math.log10(ratio)) / (high - low) * (HEIGHT - TOP - 40)
        return f"{x:.1f},{y:.1f}"

    height = HEIGHT + LEGEND * len(relative)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
    ]
    lines += ['font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for power in range(low, high + 1):
        start, end = place(min(sizes), 10.0**power), place(max(sizes), 10.0**power)
        lines.append(f'<polyline points="{start} {end}" stroke="#ddd"/>')
        lines.append(
            text(float(start.split(",")[0]) - 8, float(start.split(",")[1]) + 4, f"{10.0**power:g}", "end")
        )
    for size in sorted(set(sizes)):
        x, y = map(float, place(size, 10.0**low).split(","))
        lines.append(text(x, y + 18, f"{size:,}", "middle"))
    for at, (title, points) in enumerate(relative.items()):
        colour = COLOURS[at % len(COLOURS)]
        path = " ".join(place(size, ratio) for size, ratio in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = HEIGHT + LEGEND * at + 10
        lines.append(f'<rect x="{LEFT}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        lines.append(text(LEFT + 18, y, f"{title}: times that of {points[0][0]:,} waiting jobs"))
    return "\n".join([*lines, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


if __name__ == "__main__":
    if sys.argv[1:] == ["--readme"]:
        sys.exit(write_readme())
    else:
        sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".bench")))
