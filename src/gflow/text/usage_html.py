"""The report of `gstats --html`: one file with charts as SVG, without scripts and without a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from gflow.text.statistics import FIGURES, format_figure
from gflow.text.usage_chart import OTHERS, bars_of, largest_users, percent, seconds, title_of
from gflow.wire.answers.statistics import StatsAnswer
from gflow.wire.answers.usage_days import UsageDay, UsageDaysAnswer, UsageTotal

# Colours that colour-blind readers can tell apart (Okabe and Ito); the last is for all others.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a8a")
# Size of a chart, and its margins, in units of the SVG.
WIDE, HIGH = 900, 240
LEFT, RIGHT, BOTTOM, TOP = 60, 20, 26, 10
GRID = 4
HOUR_S = 3600.0
# Distances of grid lines: numbers, and times in seconds.
DECIMAL = [part * 10.0**power for power in range(-2, 7) for part in (1, 1.5, 2, 2.5, 3, 4, 5, 7.5)]
SECONDS = [0.25, 0.5, 1, 2, 5, 10, 15, 30, *(60.0 * n for n in (1, 2, 5, 10, 15, 30))]
SECONDS += [HOUR_S * hours for hours in (1, 2, 3, 6, 12, 24, 48, 96, 240)]

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --line: #d5d5d5; --soft: #666; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181b; --line: #3a3d41; --soft: #a0a0a0; }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p, figcaption { color: var(--soft); } figure { margin: 0; } svg { width: 100%; height: auto; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; } svg .grid { stroke: var(--line); }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 600; }
td, th { padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .3em 0 1em; }
.figures { display: flex; flex-wrap: wrap; gap: .5rem 2rem; }
.figures b { display: block; font-size: 1.3rem; }
"""
# The browser loads nothing and runs nothing, whatever the names in the report contain.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def report_html(stats: StatsAnswer, data: UsageDaysAnswer, host: str, made_at: str) -> str:
    """The page. `host`: the name of the machine; `made_at`: the time of the report."""
    users = largest_users(data, len(COLOURS) - 1)
    bars = bars_of(data, users)
    unit = "week" if len(bars) < len(data.days) else "day"
    parts = [
        f"<h1>{escape(title_of(data))}</h1>",
        f"<p>{escape(host)}, {data.gpus} GPUs; made by gflow at {escape(made_at)}</p>",
        _figures(stats, data),
        f"<h2>GPU-hours per {unit} by user</h2>",
        _stacked_chart(bars, [*users, OTHERS]),
        f"<h2>Efficiency per {unit}</h2>",
        _efficiency_chart([day for day, _ in bars]),
        f"<h2>Waits per {unit}</h2>",
        _waits_chart([day for day, _ in bars]),
        "<h2>Users</h2>",
        _totals("user", data.by_user),
    ]
    if any(one.name for one in data.by_project):
        parts += ["<h2>Projects</h2>", _totals("project", data.by_project)]
    if stats.top_jobs:
        parts += ["<h2>Longest jobs</h2>", _longest(stats)]
    return _page(title_of(data), "\n".join(parts))


def _page(title: str, body: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _figures(stats: StatsAnswer, data: UsageDaysAnswer) -> str:
    """The main figures in large type."""
    names = ("total_jobs", "success_rate", "peak_gpu_usage")
    shown = [
        ("GPU-hours", f"{data.total.gpu_hours:,.1f}"),
        ("GPUs busy while allocated", percent(data.total.efficiency)),
        ("median wait", seconds(data.total.median_wait_secs)),
        ("90 % wait at most", seconds(data.total.p90_wait_secs)),
        *((FIGURES[name], format_figure(name, getattr(stats, name))) for name in names),
    ]
    boxes = (f"<div><b>{escape(value)}</b>{escape(name)}</div>" for name, value in shown)
    return f'<div class="figures">{"".join(boxes)}</div>'


# ---------------------------------------------------------------- charts


def _frame(
    count: int, most: float, spell: Callable[[float], str], labels: Sequence[str], label: str, marks: str
) -> str:
    """A chart: grid lines with their values, labels below, and the marks."""
    lines = []
    for part in range(GRID + 1):
        value, y = most * part / GRID, _y(part / GRID)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(spell(value))}</text>')
    step = -(-count // 12)
    for at in range(0, count, step):
        x = _x(at + 0.5, count)
        lines.append(f'<text x="{x:.1f}" y="{HIGH - 6}" text-anchor="middle">{escape(labels[at])}</text>')
    return (
        f'<figure><svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{escape(label)}">'
        f"{''.join(lines)}{marks}</svg></figure>"
    )


def _x(place: float, count: int) -> float:
    return LEFT + (WIDE - LEFT - RIGHT) * place / count


def _y(part: float) -> float:
    return TOP + (HIGH - TOP - BOTTOM) * (1 - min(1.0, part))


def _rect(at: int, count: int, low: float, high: float, colour: str, title: str, inset: float = 0.1) -> str:
    """A bar from `low` to `high`, as parts of the height."""
    x, wide = _x(at + inset, count), (WIDE - LEFT - RIGHT) / count * (1 - 2 * inset)
    y, tall = _y(high), _y(low) - _y(high)
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" fill="{colour}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _labels(days: Sequence[UsageDay]) -> list[str]:
    return [day.day[5:] for day in days]


def _stacked_chart(bars: Sequence[tuple[UsageDay, list[float]]], names: Sequence[str]) -> str:
    colours = [*COLOURS[: len(names) - 1], COLOURS[-1]]
    most = round_up(max(sum(hours) for _, hours in bars), DECIMAL)
    marks = []
    for at, (day, hours) in enumerate(bars):
        low = 0.0
        for name, colour, part in zip(names, colours, hours, strict=True):
            if part > 0:
                title = f"{day.day}, {name}: {part:,.1f} GPU-hours"
                marks.append(_rect(at, len(bars), low / most, (low + part) / most, colour, title))
            low += part
    used = [sum(hours[at] for _, hours in bars) for at in range(len(names))]
    keys = (_key(name, colour) for name, colour, total in zip(names, colours, used, strict=True) if total > 0)
    days = [day for day, _ in bars]
    chart = _frame(len(bars), most, _short, _labels(days), "GPU-hours by user", "".join(marks))
    return chart + f"<p>{''.join(keys)}</p>"


def _key(name: str, colour: str) -> str:
    """An entry of a legend."""
    return f'<span class="key" style="background:{colour}"></span>{escape(name)}'


def round_up(most: float, steps: Sequence[float]) -> float:
    """The top of an axis: the smallest multiple of a step that the grid lines divide and that is not less."""
    return next((GRID * step for step in steps if GRID * step >= most), most)


def _short(value: float) -> str:
    return f"{value:,g}"


def _efficiency_chart(days: Sequence[UsageDay]) -> str:
    if not any(day.measured_gpu_hours for day in days):
        return "<p>No utilisation was measured in this period.</p>"
    marks = [
        _rect(at, len(days), 0.0, day.efficiency, COLOURS[2], f"{day.day}: {percent(day.efficiency)} busy")
        for at, day in enumerate(days)
        if day.efficiency is not None
    ]
    note = "Mean utilisation of GPUs while jobs had them. GPUs without readings do not count."
    chart = _frame(len(days), 1.0, percent, _labels(days), "efficiency", "".join(marks))
    return chart + f"<p>{note}</p>"


def _waits_chart(days: Sequence[UsageDay]) -> str:
    most = round_up(max(day.p90_wait_secs or 0.0 for day in days), SECONDS)
    marks = []
    for at, day in enumerate(days):
        if day.median_wait_secs is not None and day.p90_wait_secs is not None:
            title = f"{day.day}: median {seconds(day.median_wait_secs)}, p90 {seconds(day.p90_wait_secs)}"
            marks.append(_rect(at, len(days), 0.0, day.p90_wait_secs / most, COLOURS[4], title))
            marks.append(_rect(at, len(days), 0.0, day.median_wait_secs / most, COLOURS[0], title, 0.25))
    keys = f"<p>{_key('median', COLOURS[0])}{_key('90 % of the jobs waited at most so long', COLOURS[4])}</p>"
    return _frame(len(days), most, _short_time, _labels(days), "waits", "".join(marks)) + keys


def _short_time(value: float) -> str:
    if value >= HOUR_S:
        return f"{value / HOUR_S:g} h"
    return f"{value / 60:g} min" if value >= 60 else f"{value:g} s"


# ---------------------------------------------------------------- tables


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    """A table. The first `texts` columns are text, the others numbers."""

    def cells(tag: str, values: Sequence[str]) -> str:
        kinds = ["", ' class="number"']
        return "".join(
            f"<{tag}{kinds[at >= texts]}>{escape(value)}</{tag}>" for at, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', heads)}</tr></thead><tbody>{body}</tbody></table>"


def _totals(kind: str, totals: Sequence[UsageTotal]) -> str:
    rows = [
        [
            one.name or "(none)",
            f"{one.gpu_hours:,.1f}",
            percent(one.efficiency),
            f"{one.started_jobs:,}",
            seconds(one.median_wait_secs),
            seconds(one.p90_wait_secs),
        ]
        for one in totals
    ]
    return _table((kind, "GPU-hours", "busy", "started jobs", "median wait", "p90 wait"), rows, 1)


def _longest(stats: StatsAnswer) -> str:
    rows = [
        [str(job.id), job.name, job.user, str(job.state), seconds(job.runtime_secs), str(job.gpus)]
        for job in stats.top_jobs
    ]
    return _table(("job", "name", "user", "state", "run time", "GPUs"), rows, 4)
