"""Spot termination notices: a thread that polls the metadata service of the cloud.

With `spot.cloud = "auto"` the DMI data of the machine identify the cloud; on other machines nothing is
polled. The loop gets only changes: a new notice, or its withdrawal.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gflow.core.events import Event, Reclaimed
from gflow.core.model import Moment

if TYPE_CHECKING:
    from gflow.cloud import Cloud, Notice

log = logging.getLogger("gflow.spot")
DMI = Path("/sys/class/dmi/id")
# DMI vendor -> cloud.
MAKERS = {"Amazon EC2": "aws", "Google": "gcp", "Microsoft Corporation": "azure"}
# Notices that need no action: memory is kept, and jobs continue when the machine resumes.
HARMLESS = ("hibernate",)

Post = Callable[[Callable[[Moment], Event]], None]


def cloud_here(dmi: Path = DMI) -> str:
    """The cloud that this machine runs in; empty if it is unknown."""
    try:
        maker = (dmi / "sys_vendor").read_text().strip()
        product = (dmi / "product_name").read_text().strip()
    except (OSError, ValueError):
        return ""
    if maker == "Microsoft Corporation" and product != "Virtual Machine":
        return ""
    return MAKERS.get(maker, "")


class SpotWatch:
    """The polling thread. `close` does not wait for it: a request may be in progress."""

    def __init__(self, bases: Mapping[str, str], every_s: float, post: Post) -> None:
        self._bases = bases
        self._every_s = every_s
        self._post = post
        self._loop = asyncio.get_running_loop()
        self._closing = threading.Event()
        self._is_reported = False
        threading.Thread(target=self._run, name="spot", daemon=True).start()

    def close(self) -> None:
        self._closing.set()

    def _run(self) -> None:
        from gflow.cloud import CLOUDS

        clouds = [CLOUDS[name](base) for name, base in self._bases.items()]
        while not self._closing.is_set():
            for cloud in clouds:
                self._look(cloud)
            self._closing.wait(self._every_s)

    def _look(self, cloud: Cloud) -> None:
        from gflow.cloud import UNSURE

        try:
            notice = cloud.look()
        except UNSURE:  # the service may answer the next time
            return
        if notice is not None and notice.what in HARMLESS:
            notice = None
        if (notice is not None) != self._is_reported and not self._closing.is_set():
            self._is_reported = notice is not None
            self._loop.call_soon_threadsafe(self._report, notice)

    def _report(self, notice: Notice | None) -> None:
        if notice is None:
            log.warning("the cloud withdrew its notice")
            self._post(lambda at: Reclaimed(at=at, why=""))
            return
        why = f"{notice.cloud} will reclaim this machine ({notice.what})"
        left_s = notice.left_s
        log.warning("%s%s", why, "" if left_s is None else f" in {left_s:.0f} s")
        self._post(lambda at: Reclaimed(at=at, why=why, left_s=left_s))


def spot_watch_of(cloud: str, every_s: float, post: Post) -> SpotWatch | None:
    """The watch that the setting `spot.cloud` asks for; None if there is nothing to poll."""
    name = cloud_here() if cloud == "auto" else cloud
    if name in ("", "off"):
        return None
    from gflow.cloud import bases_of

    return SpotWatch(bases_of(name), every_s, post)
