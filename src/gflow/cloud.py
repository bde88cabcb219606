"""Interruption notices of spot machines on AWS, Google Cloud and Azure. A notice becomes a stop request.

Each cloud announces the interruption at its metadata service; that of AWS requires a token (IMDSv2). Where no
service answers, there is nothing to watch. The addresses are configurable, for tests and proxies.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple

from gflow.errors import UsageError, did_you_mean

LOOK_S = 5.0
TIMEOUT_S = 2.0
TOKEN_S = 21600
AWS = "http://169.254.169.254"
GCP = "http://metadata.google.internal"
AZURE = "http://169.254.169.254"
# The metadata service must not be reached through a proxy.
_OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class Notice(NamedTuple):
    """The machine will be interrupted. `at`: when, on the wall clock; None: not announced."""

    cloud: str
    what: str
    at: float | None

    @property
    def left_s(self) -> float | None:
        return None if self.at is None else max(0.0, self.at - time.time())


class ServiceSilent(Exception):
    """The metadata service does not answer."""


def _ask(url: str, headers: Mapping[str, str] = {}, method: str = "GET") -> str | None:
    """The body of the answer; None for status 404."""
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    try:
        with _OPEN(request, timeout=TIMEOUT_S) as answer:
            text: str = answer.read(65536).decode(errors="replace")
            return text
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise ServiceSilent(f"{url}: {error.code}") from error
    except (OSError, ValueError) as error:
        raise ServiceSilent(f"{url}: {error}") from error


class Aws:
    """EC2: a spot notice comes two minutes ahead."""

    name = "aws"

    def __init__(self, base: str = AWS) -> None:
        self._base = base
        self._token = ""
        self._good_until = 0.0

    def look(self) -> Notice | None:
        if time.monotonic() > self._good_until:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
            self._token = _ask(f"{self._base}/latest/api/token", headers, "PUT") or ""
            self._good_until = time.monotonic() + TOKEN_S / 2
        header = {"X-aws-ec2-metadata-token": self._token}
        text = _ask(f"{self._base}/latest/meta-data/spot/instance-action", header)
        if text is None:
            return None
        answer = json.loads(text)
        return Notice(self.name, str(answer.get("action", "terminate")), _parse_time(answer.get("time")))


class Gcp:
    """Google Cloud: a notice comes 30 seconds ahead."""

    name = "gcp"

    def __init__(self, base: str = GCP) -> None:
        self._base = base

    def look(self) -> Notice | None:
        url = f"{self._base}/computeMetadata/v1/instance/preempted"
        is_taken = (_ask(url, {"Metadata-Flavor": "Google"}) or "").strip() == "TRUE"
        return Notice(self.name, "preempted", time.time() + 30) if is_taken else None


class Azure:
    """Azure's scheduled events: a notice comes 30 seconds ahead."""

    name = "azure"

    def __init__(self, base: str = AZURE) -> None:
        self._base = base

    def look(self) -> Notice | None:
        url = f"{self._base}/metadata/scheduledevents?api-version=2020-07-01"
        answer = json.loads(_ask(url, {"Metadata": "true"}) or "{}")
        for event in answer.get("Events", ()):
            if event.get("EventType") in ("Preempt", "Terminate"):
                return Notice(self.name, str(event["EventType"]).lower(), _parse_time(event.get("NotBefore")))
        return None


# Errors of a query without a usable answer.
UNSURE = (ServiceSilent, ValueError, AttributeError)
Cloud = Aws | Gcp | Azure
CLOUDS: dict[str, Callable[..., Cloud]] = {"aws": Aws, "gcp": Gcp, "azure": Azure}


def bases_of(text: str) -> dict[str, str]:
    """Parse `aws` or `aws=http://127.0.0.1:8000`: a cloud and its address."""
    name, _, base = text.partition("=")
    if name not in CLOUDS:
        raise UsageError(f"unknown cloud {name!a}", hint=did_you_mean(name, CLOUDS, "aws, gcp or azure"))
    if base and not base.startswith(("http://", "https://")):
        raise UsageError(
            f"{base!a} is no address of a metadata service", hint=f"{name}=http://127.0.0.1:8000"
        )
    return {name: base or {"aws": AWS, "gcp": GCP, "azure": AZURE}[name]}


def responding_clouds(bases: Mapping[str, str]) -> list[Cloud]:
    """Clouds whose metadata service answers here. `bases`: addresses by cloud; empty: the usual ones."""
    found: list[Cloud] = []
    for name in bases or CLOUDS:
        cloud = CLOUDS[name](bases[name]) if bases else CLOUDS[name]()
        try:
            cloud.look()
        except UNSURE:
            continue
        found.append(cloud)
    return found


def watch(clouds: list[Cloud], wait: Callable[[float], bool], every_s: float = LOOK_S) -> Notice | None:
    """Poll until one of the clouds announces an interruption; None once `wait` returns true."""
    while True:
        for cloud in clouds:
            try:
                notice = cloud.look()
            except UNSURE:  # a slow service may answer the next time
                continue
            if notice is not None:
                return notice
        if wait(every_s):
            return None


def _parse_time(text: object) -> float | None:
    """Parse 2026-11-15T22:10:00Z, or Azure's format: Mon, 19 Sep 2016 18:29:47 GMT."""
    if not isinstance(text, str) or not text:
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        from email.utils import parsedate_to_datetime

        try:
            return parsedate_to_datetime(text).timestamp()
        except ValueError:
            return None
