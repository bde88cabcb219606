"""Tables from results: every figure with its spread, and how we compare."""

from __future__ import annotations

from typing import Any

US = "ours"
# A trial that gave no figures at all says why under this name.
WHOLE = "all"
# results[system][trial][figure]: a summary (see `measure.Sample.summary`) or a text
Results = dict[str, dict[str, dict[str, Any]]]


def table(results: Results) -> str:
    """One row per figure, one column per system, then our ratio to each of the others."""
    systems = list(results)
    peers = [name for name in systems if name != US] if US in systems else []
    head = ["", "unit", *systems, *(f"{US} / {peer}" for peer in peers)]
    rows, notes = [head], []
    for trial, figure in _figures(results):
        cells = [_found(results[name].get(trial, {}), figure) for name in systems]
        shown = [_cell(cell) for cell in cells]
        for name, cell in zip(systems, cells):
            if isinstance(cell, str):
                whole = results[name][trial].get(WHOLE) == cell
                notes.append(f"{name}, {trial}{'' if whole else ' ' + figure}: {cell}")
        ratios = [_ratio(results, peer, trial, figure) for peer in peers]
        rows.append([f"{trial} {figure}", _unit(cells), *shown, *ratios])
    foot = "min / median / p99 over all rounds; + more is better, else less; ratios of medians"
    return "\n".join([*_aligned(rows), "", foot, *dict.fromkeys(notes)])


def _figures(results: Results) -> list[tuple[str, str]]:
    """Trials and figures in the order in which they first appeared."""
    found: dict[str, dict[str, None]] = {}
    for trials in results.values():
        for trial, figures in trials.items():
            found.setdefault(trial, {}).update(dict.fromkeys(figures))
    for figures in found.values():
        if len(figures) > 1:
            figures.pop(WHOLE, None)
    return [(trial, figure) for trial, figures in found.items() for figure in figures]


def _found(figures: dict[str, Any], figure: str) -> Any:
    """A figure, or what prevented its whole trial."""
    return figures.get(figure, figures.get(WHOLE))


def _cell(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell.partition(":")[0]
    if not cell["n"]:
        return "none"
    if cell["n"] == 1:
        return number(cell["med"])
    return " / ".join(number(cell[part]) for part in ("min", "med", "p99"))


def _unit(cells: list[Any]) -> str:
    for cell in cells:
        if isinstance(cell, dict):
            return str(cell["unit"]) + (" +" if cell.get("more_is_better") else "")
    return ""


def _ratio(results: Results, peer: str, trial: str, figure: str) -> str:
    mine = results[US].get(trial, {}).get(figure)
    theirs = results[peer].get(trial, {}).get(figure)
    if not isinstance(mine, dict) or not isinstance(theirs, dict):
        return "-"
    if not theirs.get("med") or mine.get("med") is None:
        return "-"
    ratio = mine["med"] / theirs["med"]
    return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.2g}"


def number(value: float) -> str:
    """Three significant digits; a noisy machine gives no more."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *rest = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join([first, *rest]).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines
