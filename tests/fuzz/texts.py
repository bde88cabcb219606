"""Texts that are nearly right, or wrong in ways that parsers like least."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

# What our little languages are made of.
SIGNS = st.sampled_from("0123456789-_,:;%@~[]()+.=/*xXGMsmhdT \n\t#'\"\\{}$`|&é😀\0\x7f\u202e")
GOOD = (
    "1", "0", "-1", "42_3", "42_[1-5]", "@", "@~1", "1,3,5-7", "1-10%2", "0-9999999", "1-10000000", "+1h",
    "2:00:00", "1-00:00:00", "90m", "80G", "0.5G", "1024", "USR1@60", "4x80G", "2x80G,2x24G", "lr=0.1,0.01",
    "seed=1:5", "x=0:1:0.25", "all", "today", "2026-01-31", "2026-01-31T12:00:00Z", "R", "Running", "true",
    "99999999999999999999", "1e309", "NaN", "../x", "%j.log", "a" * 300, "tomorrow 9:00", "yesterday", "now",
)  # fmt: skip


def _mixed(parts: tuple[str, str, str]) -> str:
    good, signs, other = parts
    at = len(signs) % (len(good) + 1)
    return good[:at] + signs + good[at:] + other


TEXT = st.one_of(
    st.sampled_from(GOOD),
    st.text(SIGNS, max_size=30),
    st.text(max_size=30),
    st.tuples(st.sampled_from(GOOD), st.text(SIGNS, max_size=3), st.sampled_from(("", *GOOD))).map(_mixed),
)
NUMBER = st.one_of(
    st.sampled_from((0, 1, -1, 2**31, 2**63, -(2**63) - 1, 2**64, 10**30)), st.integers(-100, 100)
)
VALUE = st.one_of(st.none(), st.booleans(), NUMBER, st.floats(), TEXT)
JSON: st.SearchStrategy[Any] = st.recursive(
    VALUE, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=8
)
