"""A workload to predict: a model, its batches and its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gflow.errors import UsageError
from gflow.ml.fit.recipe import Recipe

# Names of the layers that usually get LoRA adapters.
ADAPTED = ("q_proj", "v_proj", "query", "value", "c_attn", "query_key_value", "qkv_proj", "Wqkv", "q", "v")


# Names of the layers that are not quantised.
HEADS = ("lm_head", "embed_out", "classifier", "score", "head")


class Workload:
    """A model on the CPU; `batch` creates a batch on the device, `loss` computes the loss.

    `step`, if given, replaces the complete training step. `doubts`: reasons why the prediction may be off.
    """

    def __init__(
        self,
        model: Any,
        batch: Callable[[], Any],
        loss: Callable[[Any, Any], Any],
        step: Callable[..., Any] | None = None,
        doubts: tuple[str, ...] = (),
    ) -> None:
        self.model = model
        self.batch = batch
        self.loss = loss
        self.step = step
        self.doubts = doubts


def words(vocabulary: int, *shape: int) -> Any:
    """Random tokens, created on the host and copied to the device as by a data loader."""
    return torch.randint(0, vocabulary, shape).to(torch.device("cuda", 0))


def pictures(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape).to(torch.device("cuda", 0), dtype)


class Adapted(nn.Module):  # type: ignore[misc]
    """A frozen layer with a trainable low-rank (LoRA) correction."""

    def __init__(self, base: Any, rank: int, dtype: Any) -> None:
        super().__init__()
        ins, outs = _sizes(base)
        self.base = base
        self.down = nn.Linear(ins, rank, bias=False, dtype=dtype)
        self.up = nn.Linear(rank, outs, bias=False, dtype=dtype)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x)) * 2.0


def adapt(model: Any, recipe: Recipe) -> Any:
    """Freeze the model and add trainable LoRA adapters to the attention projections."""
    model.requires_grad_(False)
    found = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in ADAPTED and _sizes(child) is not None:
                setattr(module, name, Adapted(child, recipe.lora, child.weight.dtype))
                found += 1
    if not found:
        raise UsageError(
            "this model has no projections that adapters are put on",
            hint=f"looked for {', '.join(ADAPTED)}; build it with adapters and use --py",
        )
    if recipe.quantize:
        from gflow.ml.fit.cuda.quantised import narrow

        narrow(model, recipe.quantize, HEADS)
    if recipe.checkpointing and hasattr(model, "enable_input_require_grads"):
        model.enable_input_require_grads()
    return model


def _sizes(layer: Any) -> Any:
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    weight = getattr(layer, "weight", None)
    if type(layer).__name__ == "Conv1D" and weight is not None:
        return weight.shape[0], weight.shape[1]
    return None


def weight_dtype(recipe: Recipe) -> Any:
    """Return the dtype of the weights."""
    return {"bf16-pure": torch.bfloat16, "fp16-pure": torch.float16}.get(recipe.precision, torch.float32)
