"""A daemon of a version that knows neither `gflowd reload` nor the signal of `gflowd restart`."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from gflow.daemon.process import reload

UNKNOWN = (signal.SIGUSR1, signal.SIGUSR2)
_add = asyncio.SelectorEventLoop.add_signal_handler


def add_known(loop: asyncio.SelectorEventLoop, number: int, *rest: Any) -> None:
    if number not in UNKNOWN:
        _add(loop, number, *rest)


asyncio.SelectorEventLoop.add_signal_handler = add_known  # type: ignore[method-assign]
reload.ignore_reload_signal = lambda: None

if __name__ == "__main__":
    from gflow.cli.main import run as main

    sys.exit(main("gflowd", ["run", *sys.argv[1:]]))
