"""The page of `gflow scale`: a table, bars of throughput against ideal scaling, and the bottleneck."""

from __future__ import annotations

from typing import Any

from gflow.text.table import Sheet, wrap

WIDTH = 80
SOURCES = {
    "gflow.train": "measured by gflow.train after {warmup} steps of warm-up",
    "train.report": "reported by the script after {warmup} steps of warm-up",
    "clock": "declared samples by wall time of each whole run, including startup and loading",
}
KINDS = {
    "weak": "weak scaling: the batch per GPU or process is constant",
    "strong": "strong scaling: the total batch is constant",
    "mixed": "neither weak nor strong scaling: the batch changes with the size",
    "unknown": "weak or strong scaling is unknown: the script does not report its batch",
}


def scaling_page(found: Any, warmup: int, width: int = 0) -> str:
    """The page. `width`: columns of the terminal; 0: unknown."""
    source = SOURCES[found.rows[0].measured.source].format(warmup=warmup)
    lines = [*_table(found), "", *_bars(found, width or WIDTH), ""]
    for text in (
        f"{KINDS[found.kind]}; {source}.",
        f"Bottleneck: {found.bottleneck.name}: {found.bottleneck.why}.",
    ):
        lines += wrap(text, width) if width else [text]
    return "\n".join(lines) + "\n"


def _table(found: Any) -> list[str]:
    sheet = Sheet(("SIZE", "SAMPLES/S", "SPEED-UP", "EFFICIENCY", "STEP", "DATA", "EXCHANGE", "BATCH"))
    for row in found.rows:
        one = row.measured
        sheet.add(
            (
                one.size.shape,
                f"{one.samples_per_s:.{0 if one.samples_per_s >= 100 else 3}f}",
                f"{row.speedup:.2f}",
                f"{row.efficiency:.0%} {row.mark}",
                _ms(one.step_s),
                _ms(one.data_s),
                _ms(one.exchange_s),
                "-"
                if one.effective_batch is None
                else f"{one.effective_batch:.{4 if one.effective_batch < 1000 else 12}g}",
            )
        )
    return "".join(sheet.lines()).splitlines()


def _bars(found: Any, width: int) -> list[str]:
    """Bars of throughput, with the ideal by the throughput per GPU of the smallest size."""
    each = found.rows[0].measured.samples_per_s / found.rows[0].measured.size.gpus
    most = max(max(row.measured.samples_per_s, each * row.measured.size.gpus) for row in found.rows)
    labels = [row.measured.size.shape for row in found.rows]
    first = max(map(len, labels))
    room = max(20, width - first - 4)
    lines = []
    for label, row in zip(labels, found.rows, strict=True):
        done = round(row.measured.samples_per_s / most * room)
        ideal = max(1, round(each * row.measured.size.gpus / most * room))
        bar = "".join(
            "┆" if at == ideal - 1 and at >= done else "━" if at < done else " " for at in range(room)
        )
        lines.append(f"{label:<{first}}  {bar}".rstrip())
    return [*lines, f"{'':<{first}}  ━ samples per second  ┆ ideal scaling from {labels[0]}"]


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.1 else f"{seconds * 1000:.3g} ms"
