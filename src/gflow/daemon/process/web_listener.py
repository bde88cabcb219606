"""Where the web page is served: the configured port, or a loopback port that is opened on demand.

A loopback port can be reached by all users of the machine, so every request needs a session. When a daemon
stops, another user could listen on its port and get the secrets that an open page sends. In system mode the
port is therefore below 1024, where only root listens, and a private daemon that stops ends its sessions.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

from gflow.daemon.auth.web_sessions import WebSessions
from gflow.daemon.process.tcp_settings import ANYWHERE, LOOPBACK, ListenSettings
from gflow.errors import Refused

# Ports of private daemons lie below those of outgoing connections; those of root where only root listens.
PORTS = range(20_000, 30_000)
ROOT_PORTS = range(600, 1024)
TRIES = 20

Listen = Callable[[ListenSettings], None]


class WebListener:
    """The port of the web page. `listen` is set when the daemon serves."""

    def __init__(self, settings: ListenSettings, sessions: WebSessions, *, is_system: bool) -> None:
        self.sessions = sessions
        self._is_system = is_system
        self._at = settings if settings.port else None
        self.listen: Listen = _not_yet

    @property
    def is_configured(self) -> bool:
        """Whether the port is that of `daemon.port`, which the daemon opens itself."""
        return self._at is not None

    def resume(self) -> None:
        """Listen again at the port of the last daemon, if a page may still be logged in there."""
        if self._at is None and self.sessions.port and self.sessions.of(None):
            wanted = ListenSettings(port=self.sessions.port)
            try:
                self.listen(wanted)
            except Refused:
                return  # taken: the page's user asks for a new link
            self._at = wanted

    async def open(self) -> ListenSettings:
        """Listen, if nothing does yet; where."""
        if self._at is None:
            self._at = self._open_any()
            await self.sessions.keep_port(self._at.port)
        return self._at

    def _open_any(self) -> ListenSettings:
        ports = ROOT_PORTS if self._is_system else PORTS
        for port in random.sample(ports, TRIES):
            wanted = ListenSettings(port=port)
            try:
                self.listen(wanted)
            except Refused:
                continue
            return wanted
        raise Refused("no port for the web page is free", hint="set daemon.port")

    def stop(self) -> None:
        """End all sessions as the daemon stops for good, unless only root can take its port."""
        if not self._is_system:
            self.sessions.end_all()


def url_of(at: ListenSettings) -> tuple[str, str]:
    """The URL at which a browser reaches the page, and its host name."""
    host = at.host
    if host in ANYWHERE:
        host = at.names[0] if at.names else os.uname().nodename
    if host in LOOPBACK:
        host = LOOPBACK[0]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if at.certificate else 'http'}://{shown}:{at.port}/web/", host


def _not_yet(_wanted: ListenSettings) -> None:
    raise Refused("the daemon does not serve yet")
