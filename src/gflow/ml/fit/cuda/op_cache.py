"""Cache of operator results by the shapes of the arguments: a model's layers repeat the same calls.

PyTorch's fake tensors have such a cache, but it covers all needs of the compiler and took most of a run's
time. This one handles plain tensors only: no symbolic shapes, no constants, no complex numbers. Any other
call goes to PyTorch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.utils._pytree import tree_leaves

Key = tuple[Any, ...]


class Plain(NamedTuple):
    """Description of a result tensor, sufficient to create another one."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device


class Unknown(Exception):
    """The call cannot be cached."""


class OpCache:
    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._made: dict[Key, tuple[Plain | None, ...]] = {}
        self._kinds: dict[Any, str] = {}

    def key(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Key | None:
        """Return the cache key of a call; None if it cannot be cached."""
        kind = self._kinds.get(func) or self._kind(func)
        if kind == "other":
            return None
        try:
            named = tuple((name, _part(value, kind)) for name, value in kwargs.items()) if kwargs else ()
            return (func, *[_part(arg, kind) for arg in args], named)
        except Unknown:
            return None

    def look_up(self, key: Key, args: Any) -> Any:
        """Return the cached result, or NotImplemented."""
        made = self._made.get(key)
        if made is None:
            return NotImplemented
        base = args[0].untyped_storage() if self._kinds[key[0]] == "view" else None
        outs = [None if plain is None else self._make(plain, base) for plain in made]
        return outs[0] if len(outs) == 1 else tuple(outs)

    def store(self, key: Key, args: Any, out: Any) -> None:
        outs = out if isinstance(out, tuple) and len(out) > 1 else (out,)
        is_view = self._kinds[key[0]] == "view"
        given = {_storage(leaf) for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)}
        for one in outs:
            # Some operators return an argument although their schema declares no alias.
            if one is not None and (not _is_plain(one) or (_storage(one) in given) != is_view):
                self._kinds[key[0]] = "other"
                return
        if not is_view or len(given) == 1:
            self._made[key] = tuple(None if one is None else _plain(one) for one in outs)

    def _make(self, plain: Plain, base: Any) -> Any:
        with in_kernel_invocation_manager(self._mode):
            made = torch.empty_strided(plain.shape, plain.stride, dtype=plain.dtype, device="meta")
            if base is not None:
                made.set_(base, plain.offset, plain.shape, plain.stride)
        return FakeTensor(self._mode, made, plain.device)

    def _kind(self, func: Any) -> str:
        """Classify an operator: `new` tensors, a `view` of its first argument, or `other`."""
        schema = func._schema
        aliases = [part.alias_info for part in (*schema.arguments, *schema.returns)]
        is_tensors = all(str(part.type) in ("Tensor", "Optional[Tensor]") for part in schema.returns)
        if not is_tensors or not schema.returns or torch.Tag.dynamic_output_shape in func.tags:
            kind = "other"
        elif not any(aliases):
            kind = "new"
        else:
            kind = "view" if func.is_view and len(schema.returns) == 1 else "other"
        self._kinds[func] = kind
        return kind


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _plain(tensor: Any) -> Plain:
    shape, offset = tuple(tensor.shape), tensor.storage_offset()
    return Plain(shape, tensor.stride(), offset, tensor.dtype, tensor.fake_device)


def _is_plain(value: Any) -> bool:
    return (
        type(value) is FakeTensor
        and value.constant is None
        and value.layout is torch.strided
        and not value.dtype.is_complex
        and not value.is_quantized
    )


def _part(value: Any, kind: str) -> Any:
    known = type(value)
    if known is FakeTensor:
        if value.constant is not None or value.layout is not torch.strided or value.dtype.is_complex:
            raise Unknown
        offset = value.storage_offset() if kind == "view" else 0
        return (value.shape, value.stride(), value.dtype, value.fake_device, offset)
    if known is int or known is float or known is bool:
        return (known, value)  # 1, 1.0 and True are equal
    if known in SIMPLE:
        return value
    if known is list or known is tuple or known is torch.Size:
        return tuple([_part(item, kind) for item in value])
    raise Unknown


SIMPLE = (type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format)
