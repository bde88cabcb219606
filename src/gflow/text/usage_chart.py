"""The page of `gstats --chart`: a bar of GPU-hours for each day, and the totals of users and projects."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

from gflow.errors import clean
from gflow.text.csv_yaml import csv_writer
from gflow.text.table import cut, fine, table
from gflow.wire.answers.usage_days import DayGroup, UsageDay, UsageDaysAnswer, UsageTotal

# Fillings of bars, for the users with the most GPU-hours and then for all others.
FILLS = ("█", "▓", "▒", "░")
OTHERS = "others"
# Periods with more days are shown by week.
MOST_DAYS = 62
USUAL_WIDTH = 80
LEAST_BAR = 10


def largest_users(data: UsageDaysAnswer, most: int) -> list[str]:
    """The users with a bar of their own, the largest first."""
    return [one.name or "" for one in data.by_user if one.gpu_hours > 0][:most]


def bars_of(data: UsageDaysAnswer, users: Sequence[str]) -> list[tuple[UsageDay, list[float]]]:
    """Each day, or each week of a long period, with the GPU-hours of these users and of all others."""
    days = data.days if len(data.days) <= MOST_DAYS else _by_week(data.days)
    found = []
    for day in days:
        hours = dict.fromkeys((*users, OTHERS), 0.0)
        for group in day.groups:
            hours[group.user if group.user in users else OTHERS] += group.gpu_hours
        found.append((day, list(hours.values())))
    return found


def _by_week(days: Sequence[UsageDay]) -> list[UsageDay]:
    """Days added up by week; the waits are those of the day with the most starts."""
    weeks: dict[str, list[UsageDay]] = {}
    for day in days:
        at = date.fromisoformat(day.day)
        weeks.setdefault((at - timedelta(days=at.weekday())).isoformat(), []).append(day)
    return [_week(start, some) for start, some in weeks.items()]


def _week(start: str, days: Sequence[UsageDay]) -> UsageDay:
    groups: list[DayGroup] = [group for day in days for group in day.groups]
    busiest = max(days, key=lambda day: day.started_jobs)
    return UsageDay(
        day=start,
        groups=groups,
        gpu_hours=sum(day.gpu_hours for day in days),
        measured_gpu_hours=sum(day.measured_gpu_hours for day in days),
        busy_gpu_hours=sum(day.busy_gpu_hours for day in days),
        started_jobs=sum(day.started_jobs for day in days),
        median_wait_secs=busiest.median_wait_secs,
        p90_wait_secs=busiest.p90_wait_secs,
    )


def percent(part: float | None) -> str:
    """`63 %`; `-` if nothing was measured."""
    return "-" if part is None else f"{part:.0%}".replace("%", " %")


def seconds(value: float | None) -> str:
    return "-" if value is None else fine(value)


def title_of(data: UsageDaysAnswer) -> str:
    """`GPU-hours of ann, 2026-12-11 to 2026-12-24`."""
    kind = " on simulated GPUs" if data.simulated else ""
    return f"GPU-hours{kind} of {data.user or 'all users'}, {data.days[0].day} to {data.days[-1].day}"


def usage_chart(data: UsageDaysAnswer, columns: int = 0) -> str:
    """The chart. `columns`: width of the terminal; 0: unknown."""
    if not data.total.gpu_hours and not data.total.started_jobs:
        return f"No job of {clean(data.user or 'any user')} ran since {data.days[0].day}.\n"
    users = largest_users(data, len(FILLS) - 1)
    bars = bars_of(data, users)
    first = next(at for at, (day, _) in enumerate(bars) if day.gpu_hours or day.started_jobs)
    is_weekly = len(bars) < len(data.days)
    parts = [clean(title_of(data)) + (", by week" if is_weekly else "") + "\n"]
    parts += _bar_lines(bars[first:], columns or USUAL_WIDTH)  # from the first day with jobs on
    parts += [_legend(users, bars), "\n", _totals("USER", data.by_user)]
    if any(one.name for one in data.by_project):
        parts += ["\n", _totals("PROJECT", data.by_project)]
    return "".join(parts)


def _bar_lines(bars: Sequence[tuple[UsageDay, list[float]]], columns: int) -> list[str]:
    """The lines of the chart: day, GPU-hours, efficiency, median wait, bar."""
    head = f"{'DAY':<14}  {'HOURS':>8}  {'BUSY':>5}  {'WAIT':>10}  "
    room = max(LEAST_BAR, columns - len(head))
    most = max(sum(hours) for _, hours in bars) or 1.0
    lines = [head.rstrip() + "\n"]
    for day, hours in bars:
        name = date.fromisoformat(day.day).strftime("%Y-%m-%d %a")
        figures = f"{day.gpu_hours:>8,.1f}  {percent(day.efficiency):>5}  {seconds(day.median_wait_secs):>10}"
        lines.append(f"{name:<14}  {figures}  {_bar(hours, most, room)}".rstrip() + "\n")
    return lines


def _bar(hours: Sequence[float], most: float, columns: int) -> str:
    """A bar with a filling for each user. Rounding is of the sums, so that lengths stay comparable."""
    text, total = "", 0.0
    for fill, part in zip((*FILLS[: len(hours) - 1], FILLS[-1]), hours, strict=True):
        total += part
        text += fill * (round(total / most * columns) - len(text))
    return text or ("▏" if total else "")


def _legend(users: Sequence[str], bars: Sequence[tuple[UsageDay, list[float]]]) -> str:
    has_others = any(hours[-1] for _, hours in bars)
    names = [f"{fill} {cut(clean(user), 16)}" for fill, user in zip(FILLS, users, strict=False)]
    names += [f"{FILLS[-1]} {OTHERS}"] if has_others else []
    return "  ".join(names) + "\n" if len(names) > 1 else ""


def _totals(head: str, totals: Sequence[UsageTotal]) -> str:
    rows = [
        [
            one.name or "-",
            f"{one.gpu_hours:,.1f}",
            percent(one.efficiency),
            f"{one.started_jobs:,}",
            seconds(one.median_wait_secs),
            seconds(one.p90_wait_secs),
        ]
        for one in totals
    ]
    return table((head, "GPU-HOURS", "BUSY", "STARTED", "MEDIAN WAIT", "P90 WAIT"), rows)


def usage_days_csv(data: UsageDaysAnswer) -> str:
    """A row for each day, user and project."""
    line = csv_writer()
    rows = [line(("day", "user", "project", "gpu_hours", "measured_gpu_hours", "busy_gpu_hours"))]
    for day in data.days:
        for one in day.groups:
            hours = (one.gpu_hours, one.measured_gpu_hours, one.busy_gpu_hours)
            rows.append(line((day.day, one.user, one.project or "", *hours)))
    return "".join(rows)
