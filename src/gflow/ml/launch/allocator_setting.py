"""The setting of PyTorch's CUDA allocator that grows its segments instead of reserving more of them."""

from __future__ import annotations

from collections.abc import Mapping

NAME = "expandable_segments"
# The older name is known to all versions; the newer one wins where it is known.
OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


def expandable_setting(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that turn expandable segments on, and keep what else is set."""
    given = environ.get(NEW) or environ.get(OLD) or ""
    if NAME in given:  # the user's own choice
        return {}
    value = ",".join(filter(None, [given, f"{NAME}:True"]))
    return {OLD: value, **({NEW: value} if NEW in environ else {})}
