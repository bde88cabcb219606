"""Temporary replacement of an attribute of a module or class."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def patch(owner: Any, name: str, value: Any) -> Iterator[None]:
    is_own = name in vars(owner)
    old = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, old)
        else:
            delattr(owner, name)
