"""Patterns of paths: `runs/**`, `*.csv`, `logs/`. Pure.

A pattern without `/` matches names in any folder, one with `/` paths from the top. `**` stands for any
number of folders. A folder that matches stands for everything in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

TOKEN = re.compile(rb"\*\*/|\*\*|\*|\?|\[!?\]?[^\]/]*\]|.", re.DOTALL)


def matcher(patterns: Sequence[str]) -> Callable[[bytes], bool]:
    """Whether a path matches any of the patterns."""
    whole = re.compile(b"|".join(b"(?:%b)" % _regex(pattern) for pattern in patterns), re.DOTALL)
    return lambda path: whole.fullmatch(path) is not None


def _regex(pattern: str) -> bytes:
    text = os.fsencode(pattern).removeprefix(b"./").rstrip(b"/")
    anywhere = b"" if b"/" in text else b"(?:.*/)?"
    return anywhere + b"".join(map(_translate, TOKEN.findall(text))) + b"(?:/.*)?"


def _translate(token: bytes) -> bytes:
    simple = {b"**/": b"(?:.*/)?", b"**": b".*", b"*": b"[^/]*", b"?": b"[^/]"}
    if token in simple:
        return simple[token]
    if token.startswith(b"[") and len(token) > 2:
        inner = token[1:-1].replace(b"\\", b"\\\\").replace(b"[", b"\\[")
        inner = b"^" + inner[1:] if inner.startswith(b"!") else inner
        return b"(?!/)[" + inner.replace(b"]", b"\\]") + b"]"
    return re.escape(token)
