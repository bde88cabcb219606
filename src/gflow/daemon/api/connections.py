"""Connection counting and admission.

A connection counts from its accept until its descriptor is closed. The bounds leave descriptors for running
jobs and the store.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from gflow.daemon.auth.users import NO_ACCOUNT, accounting_uid

# A user: the uid, or NO_ACCOUNT. A TCP peer without a token (a stranger): its network.
Peer = int | str

# Most TCP connections without a token. A network may have half of them (`Bounds.of_network`).
MOST_STRANGERS = 256
# Time for which a stranger is not evicted after its accept, and after its first byte. The request head is
# read in the next turns of the event loop; a TLS handshake takes one or two round trips.
FRESH_S, FRESH_TLS_S = 0.05, 0.5
# Connections guaranteed to each user with an account while descriptors are scarce.
WHEN_SCARCE = 8
# Connections of root beyond `Bounds.total`, to administer an overloaded machine.
FOR_ROOT = 64
# Open connections that carry a refusal: in total, and per peer. Others are closed without an answer.
REFUSALS, REFUSALS_OF_PEER = 64, 16
LOOPBACK = "loopback"


class Bounds(NamedTuple):
    """Limits on the number of open connections."""

    total: int
    # Above this number, only root and users with an account and fewer than `WHEN_SCARCE` are admitted.
    shared: int
    of_user: int
    strangers: int
    of_network: int
    # A descriptor with this number or a higher one means that few are left: the kernel assigns the lowest
    # free number.
    scarce_from: int


def bounds_of(descriptors: int, of_user: int = 0) -> Bounds:
    """Bounds for a process with this many descriptors. `of_user`: the setting, 0 for no limit.

    Half of the descriptors stay reserved for jobs and the store.
    """
    total = max(WHEN_SCARCE, descriptors // 2)
    strangers = min(MOST_STRANGERS, max(2, descriptors // 16))
    return Bounds(
        total=total,
        shared=total - total // 4 if of_user else total,
        of_user=min(of_user, max(WHEN_SCARCE, total // 4)) if of_user else total,
        strangers=strangers,
        of_network=max(1, strangers // 2),
        scarce_from=descriptors * 3 // 4,
    )


class NoRoomYet(Exception):
    """No stranger of this network can be evicted now: all are fresh or have a request in progress."""


class Ticket:
    """One connection, counted until `release`."""

    __slots__ = (
        "_connections", "fresh_until", "is_busy", "is_evicted", "is_refused", "is_stranger", "on_release",
        "peer", "sock",
    )  # fmt: skip

    def __init__(self, connections: Connections, peer: Peer, sock: socket.socket) -> None:
        self._connections: Connections | None = connections
        self.peer = peer
        self.sock = sock
        self.is_stranger = self.is_evicted = False
        # For strangers: a request is in progress; the earliest time of eviction (monotonic).
        self.is_busy = False
        self.fresh_until = 0.0
        # Admitted only to receive a refusal.
        self.is_refused = False
        self.on_release: Callable[[], None] | None = None

    def release(self) -> None:
        """Stop counting the connection; its descriptor is closed. Idempotent."""
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.forget(self)
            if self.on_release is not None:
                self.on_release()

    def refresh(self, for_s: float) -> None:
        """Protect the connection from eviction for `for_s` seconds, because data arrived."""
        self.fresh_until = time.monotonic() + for_s

    def recognise(self, uid: int) -> bool:
        """Count the connection for the user whose token it showed. False if the user has too many."""
        return self._connections is not None and self._connections.recognise(self, uid)


class Connections:
    """All open connections of the daemon."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._open = 0
        self._of: Counter[Peer] = Counter()
        self._refusals: Counter[Peer] = Counter()
        # In order of arrival.
        self._strangers: dict[Ticket, None] = {}

    def admit_user(self, uid: int, sock: socket.socket) -> Ticket | None:
        """Admit a connection of this user, perhaps only for a refusal. None: close it at once."""
        peer: Peer = accounting_uid(uid)
        ticket = Ticket(self, peer, sock)
        if not self._has_room(peer, sock.fileno()):
            if not self._may_refuse(peer, sock.fileno()):
                return None
            ticket.is_refused = True
        self._count(ticket)
        return ticket

    def admit_stranger(self, address: str, sock: socket.socket) -> Ticket | None:
        """Admit a TCP connection. None: close it at once.

        At the limit, the oldest idle stranger is evicted. A legitimate client sends its token immediately, so
        idle connections cannot keep it out. Raises `NoRoomYet` if no stranger is idle.
        """
        if self._open >= self._bounds.shared or sock.fileno() >= self._bounds.scarce_from:
            return None
        ticket = Ticket(self, network_of(address), sock)
        ticket.is_stranger = True
        ticket.refresh(FRESH_S)
        if self._of[ticket.peer] >= self._bounds.of_network:
            self._evict(ticket.peer)
        elif len(self._strangers) >= self._bounds.strangers:
            self._evict(Counter(one.peer for one in self._strangers).most_common(1)[0][0])
        self._strangers[ticket] = None
        self._count(ticket)
        return ticket

    def recognise(self, ticket: Ticket, uid: int) -> bool:
        peer: Peer = accounting_uid(uid)
        if not ticket.is_stranger:
            return ticket.peer == peer
        if ticket.is_evicted or not self._has_room(peer, ticket.sock.fileno()):
            return False
        self._leave(ticket)
        ticket.is_stranger, ticket.peer = False, peer
        self._of[peer] += 1
        return True

    def forget(self, ticket: Ticket) -> None:
        self._open -= not ticket.is_refused
        if not ticket.is_evicted:
            self._leave(ticket)

    def _has_room(self, peer: Peer, fd: int) -> bool:
        bounds = self._bounds
        if peer == 0:
            return self._open < bounds.total + FOR_ROOT
        if peer != NO_ACCOUNT and self._of[peer] < min(WHEN_SCARCE, bounds.of_user):
            return self._open < bounds.total
        is_plenty = self._open < bounds.shared and fd < bounds.scarce_from
        return is_plenty and self._of[peer] < bounds.of_user

    def _may_refuse(self, peer: Peer, fd: int) -> bool:
        """Whether the peer gets a refusal. Refusals do not count towards `total`."""
        of_peer, of_all = self._refusals[peer], self._refusals.total()
        return fd < self._bounds.scarce_from and of_peer < REFUSALS_OF_PEER and of_all < REFUSALS

    def _count(self, ticket: Ticket) -> None:
        self._open += not ticket.is_refused
        (self._refusals if ticket.is_refused else self._of)[ticket.peer] += 1

    def _leave(self, ticket: Ticket) -> None:
        counts = self._refusals if ticket.is_refused else self._of
        counts[ticket.peer] -= 1
        if counts[ticket.peer] <= 0:
            del counts[ticket.peer]
        self._strangers.pop(ticket, None)

    def _evict(self, network: Peer) -> None:
        """Shut down the oldest idle stranger of this network. It counts until its descriptor is closed."""
        now = time.monotonic()
        oldest = next((one for one in self._strangers if one.peer == network and _is_idle(one, now)), None)
        if oldest is None:
            raise NoRoomYet
        self._leave(oldest)
        oldest.is_evicted = True
        with suppress(OSError):  # closed just now
            oldest.sock.shutdown(socket.SHUT_RDWR)


def _is_idle(ticket: Ticket, now: float) -> bool:
    """Whether no request is in progress and no data waits to be read."""
    if ticket.is_busy or now < ticket.fresh_until:
        return False
    try:
        return not ticket.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:  # no data, or closed
        return True


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """The unit of counting of an address: an IPv4 address, an IPv6 /64 network, or loopback."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip
    if ip.is_loopback:
        return LOOPBACK
    return str(ip) if ip.version == 4 else str(ipaddress.IPv6Network((ip, 64), strict=False))
