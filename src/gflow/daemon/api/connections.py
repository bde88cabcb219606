"""Counting connections: each from its accept until its descriptor is closed, against bounds that leave
descriptors for running jobs and the store."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from gflow.daemon.auth.users import NO_ACCOUNT, counted_as

# A user: the uid, or NO_ACCOUNT. A peer at the port that has not shown a token: its network.
Peer = int | str

# Connections at the port that have not shown a token yet, and those of one network among them.
MOST_STRANGERS = 256
# How long a stranger is not evicted: after its accept, and after its first byte (the head of a request is
# read in the next turns of the loop; a TLS handshake takes one or two round trips).
FRESH_S, FRESH_TLS_S = 0.05, 0.5
# What each user with an account may have while descriptors are scarce or others have taken the rest.
WHEN_SCARCE = 8
# Connections that root may have beyond the bound for all: to look after a machine that is overrun.
FOR_ROOT = 64
# Refusals that wait until the peer has read them; others are closed without a word.
REFUSALS, REFUSALS_OF_PEER = 64, 16
LOOPBACK = "loopback"


class Bounds(NamedTuple):
    """How many connections there may be at once."""

    total: int
    # Beyond this many, a connection is admitted only for a user with an account who has fewer than
    # `WHEN_SCARCE`, and for root.
    shared: int
    of_user: int
    strangers: int
    of_network: int
    # A connection whose descriptor has this number or a higher one shows that few are left: the kernel
    # gives out the lowest free number.
    scarce_from: int


def bounds_of(descriptors: int, of_user: int = 0) -> Bounds:
    """Bounds for a process that may have this many descriptors; `of_user`: the setting, 0 for any number.

    Half of the descriptors stay for jobs, the store and the rest, however many peers there are.
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
    """All strangers of this network are fresh or have a request in progress: none can be evicted now."""


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
        # Strangers: a request is in progress; not evicted before this time.
        self.is_busy = False
        self.fresh_until = 0.0
        # Admitted only to be told that there are too many.
        self.is_refused = False
        self.on_release: Callable[[], None] | None = None

    def release(self) -> None:
        """The descriptor is closed. Only the first call counts."""
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.forget(self)
            if self.on_release is not None:
                self.on_release()

    def refresh(self, for_s: float) -> None:
        """Something has come: the connection is not idle for this time."""
        self.fresh_until = time.monotonic() + for_s

    def recognise(self, uid: int) -> bool:
        """The peer has shown a token of this user; whether the user may have one more connection."""
        return self._connections is not None and self._connections.recognise(self, uid)


class Connections:
    """All open connections of the daemon."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._open = 0
        self._of: Counter[Peer] = Counter()
        self._refusals: Counter[Peer] = Counter()
        # In the order of their arrival.
        self._strangers: dict[Ticket, None] = {}

    def user(self, uid: int, sock: socket.socket) -> Ticket | None:
        """Admit a connection of this user, or admit it to be refused; None: close it at once."""
        peer: Peer = counted_as(uid)
        ticket = Ticket(self, peer, sock)
        if not self._has_room(peer, sock.fileno()):
            if not self._may_refuse(peer, sock.fileno()):
                return None
            ticket.is_refused = True
        self._count(ticket)
        return ticket

    def stranger(self, address: str, sock: socket.socket) -> Ticket | None:
        """Admit a connection to the port; None: close it at once.

        Where there are too many, the oldest idle one that has shown no token is evicted: a client that shows
        one does so at once, so idle connections keep none out. Raises `NoRoomYet` where none is idle.
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
        peer: Peer = counted_as(uid)
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
        """Whether this peer is told that it has too many. Refusals take nothing from `total`."""
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
        """Hang up on the oldest idle stranger of this network. Its descriptor counts until it is closed."""
        now = time.monotonic()
        oldest = next((one for one in self._strangers if one.peer == network and _is_idle(one, now)), None)
        if oldest is None:
            raise NoRoomYet
        self._leave(oldest)
        oldest.is_evicted = True
        with suppress(OSError):  # closed just now
            oldest.sock.shutdown(socket.SHUT_RDWR)


def _is_idle(ticket: Ticket, now: float) -> bool:
    """Whether no request is in progress and nothing that has come waits to be read."""
    if ticket.is_busy or now < ticket.fresh_until:
        return False
    try:
        return not ticket.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:  # nothing has come, or it is closed
        return True


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """What counts as one peer: an IPv4 address, an IPv6 network of 64 bits, everything on this machine."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip
    if ip.is_loopback:
        return LOOPBACK
    return str(ip) if ip.version == 4 else str(ipaddress.IPv6Network((ip, 64), strict=False))
