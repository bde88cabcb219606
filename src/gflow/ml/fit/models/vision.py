"""Models from torchvision, by name."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from gflow.errors import Refused, UsageError, did_you_mean
from gflow.ml.fit.models.lazy_torch import torchvision_models
from gflow.ml.fit.models.model_builder import without_values
from gflow.ml.fit.models.workload import Workload, pictures, weight_dtype, words
from gflow.ml.fit.recipe import Recipe

CLASSES = 1000


def workload(name: str, recipe: Recipe) -> Workload:
    models = torchvision_models()
    known = models.list_models(module=models)
    if name not in known:
        raise UsageError(
            f"torchvision has no model {name!a}", hint=did_you_mean(name, known, "see torchvision.models")
        )
    with without_values():
        model = getattr(models, name)().to(weight_dtype(recipe))
    if recipe.lora or recipe.checkpointing:
        raise Refused(
            "torchvision's models come without adapters and checkpointing", hint="build it with --py"
        )
    model.train()
    side = recipe.image or (299 if name == "inception_v3" else 224)

    def batch() -> Any:
        x = pictures(recipe.batch, 3, side, side, dtype=weight_dtype(recipe))
        if recipe.channels_last:
            x = x.to(memory_format=torch.channels_last)
        return x, words(CLASSES, recipe.batch)

    return Workload(model, batch, _loss)


def _loss(model: Any, batch: Any) -> Any:
    out = model(batch[0])
    if not isinstance(out, torch.Tensor):  # GoogLeNet and Inception have a second head
        out = out[0]
    return functional.cross_entropy(out, batch[1])
