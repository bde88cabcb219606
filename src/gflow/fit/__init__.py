"""Will it fit? Memory of training and serving, predicted without a GPU.

`estimate` needs PyTorch (`pip install 'gflow[fit]'`); importing this room does not load it.
"""

from __future__ import annotations

from gflow.ml.fit.estimate import estimate
from gflow.ml.fit.recipe import Recipe

__all__ = ["Recipe", "estimate"]
