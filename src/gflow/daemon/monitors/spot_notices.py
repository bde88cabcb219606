"""Whether the cloud takes this machine away: a thread that asks its metadata service, where there is one.

Which cloud this is the machine's own name tells (`spot.cloud = "auto"`); elsewhere nobody is asked. The loop
only hears of what is new: a notice, or that it was withdrawn.
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
# What a machine's maker says of it -> its cloud.
MAKERS = {"Amazon EC2": "aws", "Google": "gcp", "Microsoft Corporation": "azure"}
# Its memory is kept, and so are the jobs: they go on when it comes back.
HARMLESS = ("hibernate",)

Post = Callable[[Callable[[Moment], Event]], None]


def cloud_here(dmi: Path = DMI) -> str:
    """The cloud that this machine is of; empty if it is of none that we know."""
    try:
        maker = (dmi / "sys_vendor").read_text().strip()
        product = (dmi / "product_name").read_text().strip()
    except (OSError, ValueError):
        return ""
    if maker == "Microsoft Corporation" and product != "Virtual Machine":
        return ""
    return MAKERS.get(maker, "")


class SpotWatch:
    """The thread. `close` does not wait for it: it may be in the middle of a question."""

    def __init__(self, bases: Mapping[str, str], every_s: float, post: Post) -> None:
        self._bases = bases
        self._every_s = every_s
        self._post = post
        self._loop = asyncio.get_running_loop()
        self._over = threading.Event()
        self._told = False
        threading.Thread(target=self._run, name="spot", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def _run(self) -> None:
        from gflow.cloud import CLOUDS

        clouds = [CLOUDS[name](base) for name, base in self._bases.items()]
        while not self._over.is_set():
            for cloud in clouds:
                self._look(cloud)
            self._over.wait(self._every_s)

    def _look(self, cloud: Cloud) -> None:
        from gflow.cloud import UNSURE

        try:
            notice = cloud.look()
        except UNSURE:  # a service that is slow now may answer the next time
            return
        if notice is not None and notice.what in HARMLESS:
            notice = None
        if (notice is not None) != self._told and not self._over.is_set():
            self._told = notice is not None
            self._loop.call_soon_threadsafe(self._tell, notice)

    def _tell(self, notice: Notice | None) -> None:
        if notice is None:
            log.warning("the cloud keeps this machine after all")
            self._post(lambda at: Reclaimed(at=at, why=""))
            return
        why = f"{notice.cloud} takes this machine away ({notice.what})"
        left_s = notice.left_s
        log.warning("%s%s", why, "" if left_s is None else f" in {left_s:.0f} s")
        self._post(lambda at: Reclaimed(at=at, why=why, left_s=left_s))


def spot_watch_of(cloud: str, every_s: float, post: Post) -> SpotWatch | None:
    """The watch as gflow.toml wants it; None: there is nothing to watch."""
    name = cloud_here() if cloud == "auto" else cloud
    if name in ("", "off"):
        return None
    from gflow.cloud import bases_of

    return SpotWatch(bases_of(name), every_s, post)
