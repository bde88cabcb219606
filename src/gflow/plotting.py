"""Plot files. The only module that uses matplotlib, an optional dependency imported on first use."""

from __future__ import annotations

import os
from typing import Any

from gflow.errors import Refused, UsageError

FORMS = (".png", ".svg", ".pdf")


def check_plot(path: str) -> None:
    """Refuse a plot that cannot be written, before the figures for it are computed."""
    if not path.lower().endswith(FORMS):
        raise UsageError(
            f"--plot: {path!a} is not an image file", hint="name a file that ends in .png, .svg or .pdf"
        )
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UsageError(f"--plot: there is no folder {folder}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        from gflow.install_hint import install_hint

        raise Refused("--plot needs matplotlib, which is not installed", hint=install_hint("plot")) from None


def figure(width: float, height: float) -> Any:
    """Create an empty figure; sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(found)
    return found


def save(drawn: Any, path: str) -> None:
    try:
        drawn.savefig(path, dpi=150)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from error
