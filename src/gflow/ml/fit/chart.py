"""Chart of memory against batch size with the memory of GPUs: its data, and the plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gflow import plotting
from gflow.ml.fit.catalogue import Gpu
from gflow.ml.fit.recipe import MOST_BATCH
from gflow.ml.fit.sharding import Shaping

if TYPE_CHECKING:
    from gflow.ml.fit.plan import Run

LEAST_POINTS = 4
GIB = 1 << 30
TICKS_GIB = [1 << power for power in range(12)]
# Labels of GPUs whose memory is within this factor would overlap.
NEAR = 1.15
RIGHT, LEFT = (0.995, "right"), (0.005, "left")


class Point(msgspec.Struct, frozen=True):
    batch: int
    # Of the process, with the CUDA context.
    bytes: int


class Limit(msgspec.Struct, frozen=True):
    """GPUs with about the same memory."""

    gpus: list[str]
    bytes: int
    # The largest batch among the points that fits; 0: none.
    batch: int


class Chart(msgspec.Struct, frozen=True):
    points: list[Point]
    limits: list[Limit]


def chart(run: Run, cards: dict[str, int], context: int) -> Chart:
    """Compute the chart. `cards`: memory by GPU name. Batches double until the largest GPU is full."""
    points: list[Point] = []
    batch, most = 1, max(cards.values())
    while batch <= MOST_BATCH:
        size = run.needed(batch, Shaping()) or 0
        points.append(Point(batch, size + context))
        if size + context > most and len(points) >= LEAST_POINTS:
            break
        batch *= 2
    return Chart(points, _limits(cards, points))


def sizes(gpus: dict[str, Gpu]) -> dict[str, int]:
    return {name: int(gpu.memory_gib * GIB) for name, gpu in gpus.items()}


def _limits(cards: dict[str, int], points: list[Point]) -> list[Limit]:
    """Group GPUs within 8 % of each other into one line, drawn at the smallest."""
    groups: list[tuple[int, list[str]]] = []
    for name, size in sorted(cards.items(), key=lambda item: item[1]):
        if groups and size <= 1.08 * groups[-1][0]:
            groups[-1][1].append(name)
        else:
            groups.append((size, [name]))
    return [
        Limit(names, size, max((point.batch for point in points if point.bytes <= size), default=0))
        for size, names in groups
    ]


def picture(found: Chart, title: str, path: str) -> None:
    """Write the chart to a file; its extension selects the format."""
    drawn = plotting.figure(8, 5)
    axes = drawn.add_subplot()
    axes.plot(
        [p.batch for p in found.points], [p.bytes / GIB for p in found.points], marker="o", color="tab:blue"
    )
    for limit, (position, side) in zip(found.limits, _sides(found.limits), strict=True):
        axes.axhline(limit.bytes / GIB, color="tab:red", linewidth=0.8, linestyle="--")
        axes.annotate(
            ", ".join(limit.gpus), (position, limit.bytes / GIB), xycoords=("axes fraction", "data"),
            fontsize=7, ha=side, va="bottom",
        )  # fmt: skip
    axes.set(yscale="log", xlabel="batch on one GPU", ylabel="memory of the process, GiB", title=title)
    axes.set_xscale("log", base=2)
    axes.set_yticks(TICKS_GIB)
    axes.set_xticks([point.batch for point in found.points])
    shown = [point.bytes / GIB for point in found.points] + [limit.bytes / GIB for limit in found.limits]
    axes.set_ylim(0.85 * min(shown), 1.2 * max(shown))
    axes.minorticks_off()
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    plotting.save(drawn, path)


def _sides(limits: list[Limit]) -> list[tuple[float, str]]:
    """Return the label positions: on the right, or on the left if the label below is too near."""
    positions: list[tuple[float, str]] = []
    for before, limit in zip([None, *limits], limits, strict=False):
        is_near = before is not None and limit.bytes < NEAR * before.bytes and positions[-1] == RIGHT
        positions.append(LEFT if is_near else RIGHT)
    return positions
