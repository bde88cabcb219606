"""Speed-up and efficiency against the number of GPUs, as a picture."""

from __future__ import annotations

from gflow import pictures
from gflow.scale.judging import FAIR, GOOD, Scaling


def plot(scaling: Scaling, title: str, path: str) -> None:
    label = "GPUs" if scaling.rows[0].measured.size.on_gpus else "processes"
    gpus = [row.measured.size.gpus for row in scaling.rows]
    drawn = pictures.figure(8, 7)
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
    pictures.save(drawn, path)
