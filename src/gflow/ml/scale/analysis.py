"""Scaling analysis: speed-up, efficiency, the likely bottleneck, and a plot of them.

A bottleneck is named only if it was measured. Pure, except `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gflow import plotting
from gflow.ml.scale.measurement import Measurement

GOOD, FAIR = 0.95, 0.85
# A cause of at least this fraction of the lost time is called the bottleneck.
MOSTLY = 0.5
# Effective batches that differ by less count as equal: the last step of an epoch may be smaller.
SAME = 0.05


class Row(msgspec.Struct, frozen=True):
    measured: Measurement
    speedup: float
    efficiency: float
    # good (95 % or more), fair (85 % or more) or poor.
    mark: str


class Bottleneck(msgspec.Struct, frozen=True):
    """`name`: none, communication, data loading, batch too small, CPU cores, or not known."""

    name: str
    why: str


class Scaling(msgspec.Struct, frozen=True):
    # weak: constant batch per GPU; strong: constant total batch; mixed; or unknown.
    kind: str
    rows: list[Row]
    bottleneck: Bottleneck


def analyse(
    found: Sequence[Measurement], control: Measurement | None = None, declared: str = "unknown"
) -> Scaling:
    """Compare the measurements with the first one. `control`: the first size, measured with the last size's
    samples per GPU. `declared`: the kind of scaling to assume if the batch is unknown.
    """
    base = found[0]
    each = base.samples_per_s / base.size.gpus
    rows = [
        Row(one, one.samples_per_s / base.samples_per_s, efficiency, mark_of(efficiency))
        for one in found
        for efficiency in [one.samples_per_s / (each * one.size.gpus)]
    ]
    kind = kind_of(found, declared)
    return Scaling(kind, rows, bottleneck(base, rows[-1], kind, control))


def mark_of(efficiency: float) -> str:
    return "good" if efficiency >= GOOD else "fair" if efficiency >= FAIR else "poor"


def kind_of(found: Sequence[Measurement], declared: str) -> str:
    batches = [one.effective_batch for one in found]
    if any(batch is None for batch in batches):
        return declared
    whole = [batch for batch in batches if batch is not None]
    if _alike(whole):
        return "strong"
    if _alike([batch / one.size.gpus for batch, one in zip(whole, found, strict=True)]):
        return "weak"
    return "mixed"


def _alike(figures: Sequence[float]) -> bool:
    return max(figures) - min(figures) <= SAME * max(figures)


def bottleneck(base: Measurement, last: Row, kind: str, control: Measurement | None) -> Bottleneck:
    """Why the largest size is slower than it could be."""
    if last.efficiency > 1 + SAME:
        why = f"{last.efficiency:.0%} is more than there can be: something slowed {base.size.what} down"
        return Bottleneck("not known", why)
    if last.efficiency >= GOOD:
        return Bottleneck("none", f"{last.measured.size.what} reach {last.efficiency:.0%}")
    most = last.measured
    if shortage := _core_shortage(most):
        return Bottleneck("CPU cores", shortage)
    if most.step_s is None or most.effective_batch is None:
        return Bottleneck("not known", "only the whole time of each run was measured")
    ideal = most.effective_batch / (base.samples_per_s / base.size.gpus * most.size.gpus)
    lost = most.step_s - ideal
    parts = _parts(base, most, ideal, control)
    name, (part, how) = max(parts.items(), key=lambda item: item[1][0], default=("", (0.0, "")))
    if parts and part >= MOSTLY * lost:
        return Bottleneck(name, f"{how}, of {_ms(lost)} that a step is longer than it could be")
    missing = "" if kind != "strong" or control else "; smaller batches for each GPU may be slower, too"
    words = "; ".join(f"{how}" for _, how in parts.values()) or "nothing else was measured"
    return Bottleneck("not known", f"a step is {_ms(lost)} longer than it could be; {words}{missing}")


def _core_shortage(most: Measurement) -> str:
    """Describe a shortage of CPU cores in a run on CPUs; empty if there is none."""
    if most.device != "cpu" or not most.cores:
        return ""
    if most.processes > most.cores:
        return f"{most.processes} processes share {most.cores} cores of a node, and there is no GPU"
    if most.load > 1.5 * most.cores:
        return f"other work keeps the {most.cores} cores of the node busy (load {most.load:.1f})"
    return ""


def _parts(
    base: Measurement, most: Measurement, ideal: float, control: Measurement | None
) -> dict[str, tuple[float, str]]:
    """Return the lost seconds per step that each cause explains, with a description."""
    parts: dict[str, tuple[float, str]] = {}
    if most.data_s is not None and base.data_s is not None and base.step_s:
        more = most.data_s - base.data_s * ideal / base.step_s
        parts["data loading"] = (more, f"waiting for data takes {_ms(more)} more")
    if most.exchange_s is not None:
        mib = most.exchange_bytes / (1 << 20)
        words = f"exchanging {mib:.3g} MiB of gradients takes {_ms(most.exchange_s)}"
        parts["communication"] = (most.exchange_s, words)
    if control is not None and most.effective_batch is not None:
        each = most.effective_batch / most.size.gpus
        slower = each * (base.size.gpus / control.samples_per_s - base.size.gpus / base.samples_per_s)
        words = f"computing {each:.3g} samples in each process instead of more takes {_ms(slower)} more"
        parts["batch too small"] = (slower, words)
    return parts


def _ms(seconds: float) -> str:
    return f"{max(0.0, seconds) * 1000:.{0 if seconds >= 0.1 else 2}f} ms"


def plot(scaling: Scaling, title: str, path: str) -> None:
    label = "GPUs" if scaling.rows[0].measured.size.on_gpus else "processes"
    gpus = [row.measured.size.gpus for row in scaling.rows]
    drawn = plotting.figure(8, 7)
    speed, part = drawn.subplots(2, 1)
    speed.plot(gpus, [one / gpus[0] for one in gpus], color="gray", linestyle="--", label="ideal")
    speed.plot(gpus, [row.speedup for row in scaling.rows], marker="o", label="measured")
    speed.set(xlabel=label, ylabel=f"speed-up over {gpus[0]}", title=title)
    speed.legend()
    part.plot(gpus, [100 * row.efficiency for row in scaling.rows], marker="o")
    for mark, colour in ((GOOD, "tab:green"), (FAIR, "tab:orange")):
        part.axhline(100 * mark, color=colour, linestyle="--", linewidth=0.8, label=f"{mark:.0%}")
    part.set(xlabel=label, ylabel="efficiency, %", ylim=(0, None))
    part.legend()
    for one in (speed, part):
        one.set_xticks(sorted(set(gpus)))
        one.grid(alpha=0.3)
    plotting.save(drawn, path)
