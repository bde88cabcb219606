"""Choice of the CUDA kernel for scaled dot-product attention.

The order of preference is that of ATen/native/transformers/cuda/sdp_utils.cpp. For 16-bit types cuDNN comes
first on Hopper and later, elsewhere flash attention. Both keep only the row sums for the backward pass, as
does the memory-efficient kernel. The fallback (`math`) keeps the complete attention matrix.
"""

from __future__ import annotations

from typing import Any

import torch

from gflow.ml.fit.cuda.architectures import Architecture

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)


def choose(query: Any, key: Any, value: Any, mask: Any, *, is_grouped: bool, card: Architecture) -> str:
    if mask is not None and mask.requires_grad:
        return "math"  # no fused kernel gives the gradient of a bias here
    if query.dim() != 4:
        return "math"
    if not is_grouped and not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        return "math"  # no fused kernel broadcasts one key head over all query heads
    width, value_width = query.shape[-1], value.shape[-1]
    if query.dtype in HALVES:
        if card.capability >= (9, 0) and max(width, value_width) <= 128 and width % 8 == value_width % 8 == 0:
            return "cudnn"
        if card.capability >= (8, 0) and mask is None and width <= 256 and width == value_width:
            return "flash"
    if is_grouped and query.shape[1] != key.shape[1]:
        return "math"
    step = 4 if query.dtype == torch.float32 else 8
    return "efficient" if width % step == value_width % step == 0 else "math"


def attend(
    card: Architecture,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    kernel = choose(query, key, value, attn_mask, is_grouped=enable_gqa, card=card)
    if kernel == "math":
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
        return aten._scaled_dot_product_attention_math.default(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    if attn_mask is not None:
        attn_mask = _bias(attn_mask, query, kernel)
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if kernel == "flash":
        if query.shape[-1] % 8:
            more = 8 - query.shape[-1] % 8
            query, key, value = (torch.nn.functional.pad(t, (0, more)) for t in (query, key, value))
        return aten._scaled_dot_product_flash_attention.default(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    if kernel == "cudnn":
        return aten._scaled_dot_product_cudnn_attention.default(
            query, key, value, attn_mask, learns, dropout_p, is_causal, False, scale=scale
        )[0]
    return aten._scaled_dot_product_efficient_attention.default(
        query, key, value, attn_mask, learns, dropout_p, is_causal, scale=scale
    )[0]


def _bias(mask: Any, query: Any, kernel: str) -> Any:
    """Convert a boolean mask to a bias; for the efficient kernel, pad its rows to 16 bytes."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype)
    step = 16 // query.element_size()
    if kernel == "efficient" and mask.shape[-1] % step:
        length = mask.shape[-1]
        mask = torch.nn.functional.pad(mask, (0, step - length % step))[..., :length]
    lengths = (query.shape[0], query.shape[1], query.shape[2], mask.shape[-1])
    return mask.expand(lengths) if mask.dim() <= 4 else mask
