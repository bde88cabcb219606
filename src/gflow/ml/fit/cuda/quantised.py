"""Weights and optimizer states in 8 and 4 bit: the allocations of bitsandbytes.

Nothing is computed. The tensors have the sizes, types and lifetimes that they have in bitsandbytes
(functional.py, nn/modules.py, optim/optimizer.py of 0.45). This has not been verified on a GPU, so estimates
that use it have medium confidence.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

# Values per scale: optimizer states, weights, and the scales of weights themselves.
STATE_BLOCK = 256
WEIGHT_BLOCK = 64
SCALE_BLOCK = 256
# Smaller tensors keep their optimizer states in 32 bit.
LEAST = 4096
# Quantisation maps: 256 numbers in fp32.
CODE = 256
DOUBTS = {
    4: "weights in 4 bit follow the rules of bitsandbytes, which were not measured",
    8: "weights in 8 bit follow the rules of bitsandbytes, which were not measured",
}
DOUBT_STATES = "states in 8 bit follow the rules of bitsandbytes, which were not measured"


class AdamW8bit(torch.optim.Optimizer):  # type: ignore[misc]
    """Two 1-byte states per weight, with a scale per block. The update is one kernel per tensor."""

    def __init__(self, params: Any, lr: float = 1e-3, **options: Any) -> None:
        super().__init__(params, {"lr": lr, **options})
        self._maps: list[Any] = []

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None and not self.state[weight]:
                    self.state[weight] = self._states(weight)

    def _states(self, weight: Any) -> dict[str, Any]:
        if weight.numel() < LEAST:
            wide = {"dtype": torch.float32}
            return {"state1": torch.zeros_like(weight, **wide), "state2": torch.zeros_like(weight, **wide)}
        if not self._maps:
            self._maps = [torch.empty(CODE, device=weight.device) for _ in range(2)]
        blocks = -(-weight.numel() // STATE_BLOCK)
        return {
            "state1": torch.zeros_like(weight, dtype=torch.uint8),
            "state2": torch.zeros_like(weight, dtype=torch.uint8),
            "absmax1": torch.zeros(blocks, device=weight.device),
            "absmax2": torch.zeros(blocks, device=weight.device),
            "maps": self._maps,
        }


OPTIMIZERS = {"AdamW8bit": AdamW8bit, "Adam8bit": AdamW8bit}


class Narrow(nn.Module):  # type: ignore[misc]
    """A linear layer with weights in 4 or 8 bit that are dequantised when used."""

    def __init__(self, base: Any, bits: int) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        self.wide = base.weight.dtype
        numbers = base.weight.numel()
        if bits == 4:
            scales = -(-numbers // WEIGHT_BLOCK)
            kept = [(-(-numbers // 2), torch.uint8), (scales, torch.uint8),
                    (-(-scales // SCALE_BLOCK), torch.float32), (CODE, torch.float32)]  # fmt: skip
        else:
            kept = [(numbers, torch.int8), (self.out_features, torch.float32)]
        for index, (count, kind) in enumerate(kept):
            self.register_buffer(f"kept{index}", torch.empty(count, dtype=kind))
        self.bias = base.bias

    def forward(self, x: Any) -> Any:
        narrow = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        wide = narrow or self.wide
        return _Product.apply(x.to(wide), self.kept0, self.bias, (self.out_features, self.in_features))


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """Product with quantised weights. Both forward and backward dequantise them and free the result."""

    @staticmethod
    def forward(ctx: Any, x: Any, packed: Any, bias: Any, shape: tuple[int, int]) -> Any:
        ctx.packed, ctx.shape = packed, shape
        weight = torch.empty(shape, dtype=x.dtype, device=packed.device)
        return functional.linear(x, weight, None if bias is None else bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        weight = torch.empty(ctx.shape, dtype=grad.dtype, device=ctx.packed.device)
        return grad @ weight, None, None, None


def numbers(model: Any) -> int:
    """Return the number of quantised weights of a model."""
    return sum(
        module.in_features * module.out_features for module in model.modules() if isinstance(module, Narrow)
    )


def narrow(model: Any, bits: int, spared: tuple[str, ...]) -> int:
    """Quantise all linear layers except those named in `spared`. Return how many were replaced."""
    found = 0
    for module in list(model.modules()):
        if isinstance(module, Narrow):
            continue
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and name not in spared and not child.weight.requires_grad:
                setattr(module, name, Narrow(child, bits))
                found += 1
    return found
