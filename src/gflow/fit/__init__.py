"""Public API for memory prediction of training and serving, without a GPU.

`estimate` needs PyTorch (the extra `fit`); importing this package does not import it.
Only names are exported here; the code is in `gflow.ml.fit`.
"""

from __future__ import annotations

from gflow.ml.fit.recipe import Recipe
from gflow.ml.fit.requests import estimate, largest
from gflow.ml.fit.requests import pick_gpu as pick
from gflow.ml.fit.requests import plan_training as plan
from gflow.ml.fit.serving import estimate_serving

__all__ = ["Recipe", "estimate", "estimate_serving", "largest", "pick", "plan"]
