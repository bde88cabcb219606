"""Models of torchvision, by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from gflow.errors import Refused, UsageError, did_you_mean
from gflow.fit.building import without_values
from gflow.fit.recipe import Recipe
from gflow.fit.workload import Workload, pictures, pure, words

CLASSES = 1000


def workload(name: str, recipe: Recipe) -> Workload:
    models = load()
    known = models.list_models(module=models)
    if name not in known:
        raise UsageError(
            f"torchvision has no model {name!a}", hint=did_you_mean(name, known, "see torchvision.models")
        )
    with without_values():
        model = getattr(models, name)().to(pure(recipe))
    if recipe.lora or recipe.checkpointing:
        raise Refused(
            "torchvision's models come without adapters and checkpointing", hint="build it with --py"
        )
    model.train()
    side = recipe.image or (299 if name == "inception_v3" else 224)

    def batch() -> Any:
        x = pictures(recipe.batch, 3, side, side, dtype=pure(recipe))
        if recipe.channels_last:
            x = x.to(memory_format=torch.channels_last)
        return x, words(CLASSES, recipe.batch)

    return Workload(model, batch, _loss)


def _loss(model: Any, batch: Any) -> Any:
    out = model(batch[0])
    if not isinstance(out, torch.Tensor):  # GoogLeNet and Inception have a second head
        out = out[0]
    return functional.cross_entropy(out, batch[1])


def load() -> Any:
    """torchvision's models. Its compiled operators may be missing (there are builds for GPUs only); no
    classifier needs them, so their registrations are passed over. transformers loads it as well, if it is
    there, and would fail for the same reason."""
    if sys.modules.get("torchvision", ...) is None:
        del sys.modules["torchvision"]  # see `light`
    register = torch.library.register_fake

    def tolerant(name: str, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        def wrap(function: Any) -> Any:
            try:
                return register(name, *args, **kwargs)(function)
            except RuntimeError:
                return function

        return wrap

    torch.library.register_fake = tolerant
    try:
        import torchvision.models
    except ImportError as error:
        raise Refused(
            f"torchvision cannot be loaded: {error}", hint="pip install torchvision pillow"
        ) from None
    finally:
        torch.library.register_fake = register
    return torchvision.models
