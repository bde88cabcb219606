"""Durations as people read them."""

from __future__ import annotations


def clock(seconds: float) -> str:
    """`00:05:30`, or `1-02:00:00` from a day on."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    text = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def fine(seconds: float) -> str:
    """`0.25 s` below a minute, where a clock would say too little."""
    return f"{seconds:.2f} s" if seconds < 60 else clock(seconds)
