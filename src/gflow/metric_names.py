"""Names of the metrics that a job reports: `accuracy`, `eval/f1`, `val_loss`."""

from __future__ import annotations

import re

# Metrics of one job; further names are ignored.
MOST_METRICS = 32
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./@-]{0,47}", re.ASCII)


def is_metric_name(name: str) -> bool:
    """Whether a metric may have this name: a letter, then letters, digits and `_./@-`, at most 48."""
    return _NAME.fullmatch(name) is not None
