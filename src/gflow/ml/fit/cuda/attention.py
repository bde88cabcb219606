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


def choose(
    query: Any, key: Any, value: Any, mask: Any, *, is_grouped: bool, card: Architecture, dropout: float = 0.0
) -> str:
    """Return the first kernel whose conditions hold."""
    if not _is_fusible(query, key, value, mask, is_grouped):
        return "math"
    width, value_width = query.shape[-1], value.shape[-1]
    if query.dtype in HALVES:
        if card.capability >= (9, 0) and _fits_cudnn(query, key, value, mask, card, dropout):
            return "cudnn"
        if card.capability >= (8, 0) and mask is None and width <= 256 and width == value_width:
            return "flash"
    if is_grouped and query.shape[1] != key.shape[1]:
        return "math"
    step = 4 if query.dtype == torch.float32 else 8
    return "efficient" if width % step == value_width % step == 0 else "math"


def _is_fusible(query: Any, key: Any, value: Any, mask: Any, is_grouped: bool) -> bool:
    """Whether the conditions hold that all fused kernels have in common."""
    all_three = (query, key, value)
    if any(one.dim() != 4 or one.stride(-1) != 1 for one in all_three):
        return False
    if mask is not None and mask.stride(-1) != 1:
        return False
    if is_grouped:
        return bool(query.shape[0] == key.shape[0] == value.shape[0] and query.shape[1] % key.shape[1] == 0)
    # No fused kernel broadcasts one key head over all query heads.
    return bool(query.shape[:2] == key.shape[:2] == value.shape[:2])


def _fits_cudnn(query: Any, key: Any, value: Any, mask: Any, card: Architecture, dropout: float) -> bool:
    width, value_width = query.shape[-1], value.shape[-1]
    # cuDNN 9.10 and 9.11: wider heads on Hopper, and those of DeepSeek on Blackwell.
    widest = 256 if card.capability == (9, 0) or (width, value_width) == (192, 128) else 128
    if max(width, value_width) > widest or width % 8 or value_width % 8:
        return False
    if key.shape[2] == 1 or (query.shape[2] == 1 and dropout):
        return False
    # cuDNN's kernel gives no gradient of a bias; the memory-efficient kernel does.
    return mask is None or (not mask.requires_grad and _is_cudnn_mask(mask, query, key))


def _is_cudnn_mask(mask: Any, query: Any, key: Any) -> bool:
    whole = (*query.shape[:3], key.shape[2])
    return mask.dim() in (2, 4) and all(
        size in (1, full) for size, full in zip(mask.shape, whole[-mask.dim() :], strict=True)
    )


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
    kernel = choose(query, key, value, attn_mask, is_grouped=enable_gqa, card=card, dropout=dropout_p)
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
    """Convert a boolean mask to a bias; for the efficient kernel, pad its rows to eight numbers."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype)
    if kernel == "efficient" and any(stride % 8 for stride in mask.stride()[:-1]):
        length = mask.shape[-1]
        mask = torch.nn.functional.pad(mask, (0, 8 - length % 8))[..., :length]
    lengths = (query.shape[0], query.shape[1], query.shape[2], mask.shape[-1])
    return mask.expand(lengths) if mask.dim() <= 4 else mask
