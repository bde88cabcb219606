"""A TCP proxy that cuts each connection after a number of bytes, counted in both directions."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress


class CuttingProxy:
    """Forwards to a port of this machine. `budgets`: bytes of each connection (None: all), until `relax`."""

    def __init__(self, to: int, budgets: Iterator[int | None]) -> None:
        self._to, self._budgets = to, budgets
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.cuts = self.bytes = 0
        self._is_relaxed = False
        threading.Thread(target=self._serve, daemon=True).start()

    def relax(self) -> None:
        """Cut no further connection."""
        self._is_relaxed = True

    def close(self) -> None:
        self._server.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                budget = None if self._is_relaxed else next(self._budgets, None)
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    client.close()
                    continue
                _Link(self, client, server, budget)


class _Link:
    """One connection and what is left of its budget."""

    def __init__(
        self, proxy: CuttingProxy, client: socket.socket, server: socket.socket, budget: int | None
    ) -> None:
        self._proxy, self._left = proxy, budget
        self._ends, self._lock = (client, server), threading.Lock()
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    self._proxy.bytes += len(data)
                    part = data if self._left is None else data[: self._left]
                    if self._left is not None:
                        self._left -= len(part)
                if part:
                    sink.sendall(part)
                if len(part) < len(data):
                    self._proxy.cuts += 1
                    break
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
