"""Write the report of `gstats --html`."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import msgspec

from gflow.client import http
from gflow.errors import UsageError, clean
from gflow.text.usage_html import report_html
from gflow.wire.answers.statistics import StatsAnswer
from gflow.wire.answers.usage_days import UsageDaysAnswer

JSON = "application/json"


def write_report(path: str, query: dict[str, str]) -> int:
    """Fetch usage and statistics of one period, and write the page. A file of that name is replaced."""
    asked = {name: value for name, value in query.items() if name != "form"}
    days = msgspec.json.decode(http.ask("GET", "/stats/days", b"", JSON, asked), type=UsageDaysAnswer)
    stats = http.ask("GET", "/stats", b"", JSON, asked | {"since": days.since})
    page = report_html(
        msgspec.json.decode(stats, type=StatsAnswer),
        days,
        socket.gethostname(),
        time.strftime("%Y-%m-%d %H:%M"),
    )
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{clean(path)} cannot be written: {os.strerror(error.errno or 0)}") from None
    print(f"wrote {clean(path)}")
    return 0
