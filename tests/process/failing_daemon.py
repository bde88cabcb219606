"""A daemon with a bug: each question for `/info` ends in an exception."""

from __future__ import annotations

from typing import NoReturn

from starlette.requests import Request

from gflow.daemon.api.handlers import status
from gflow.entry import main


async def info(request: Request) -> NoReturn:
    raise ZeroDivisionError(request.url.path)


if __name__ == "__main__":
    status.show_info = info  # type: ignore[assignment]
    main("gflowd")
