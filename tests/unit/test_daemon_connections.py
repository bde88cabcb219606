"""Counting connections: who may have how many, and which ones make room for others."""

from __future__ import annotations

import socket

import pytest

from gflow.daemon.api import connections as module
from gflow.daemon.api.connections import LOOPBACK, Bounds, Connections, NoRoomYet, bounds_of, network_of
from gflow.daemon.auth import users
from tests.unit.conftest import FIRST_WITHOUT_ACCOUNT

BOUNDS = Bounds(total=100, shared=100, of_user=20, strangers=10, of_network=5, scarce_from=150)


@pytest.fixture(autouse=True)
def surroundings(accounts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", 0.0)


class Sock:
    """A socket that only has a number and perhaps unread bytes, and remembers that it was shut down."""

    def __init__(self, fd: int = 10, unread: bytes = b"") -> None:
        self.fd = fd
        self.unread = unread
        self.is_down = False

    def recv(self, size: int, flags: int) -> bytes:
        assert flags == socket.MSG_PEEK | socket.MSG_DONTWAIT
        if not self.unread:
            raise BlockingIOError
        return self.unread[:size]

    def fileno(self) -> int:
        return self.fd

    def shutdown(self, how: int) -> None:
        self.is_down = True


def test_user_beyond_bound_is_refused_and_then_closed_at_once() -> None:
    known = Connections(BOUNDS)
    held = [known.admit_user(1001, Sock()) for _ in range(20)]
    assert not any(ticket.is_refused for ticket in held)
    refused = [known.admit_user(1001, Sock()) for _ in range(100)]
    answered = [ticket for ticket in refused if ticket is not None]
    assert len(answered) == module.REFUSALS_OF_PEER
    assert all(ticket.is_refused for ticket in answered)
    assert known.admit_user(1002, Sock()).is_refused is False
    for ticket in [*answered, held[0]]:
        ticket.release()
        ticket.release()
    assert known.admit_user(1001, Sock()).is_refused is False
    assert known.admit_user(1001, Sock()).is_refused is True


def test_refusals_of_many_users_are_bounded_together() -> None:
    known = Connections(BOUNDS._replace(of_user=0))
    answered = [known.admit_user(uid, Sock()) for uid in range(1000, 2000)]
    assert sum(ticket is not None for ticket in answered) == module.REFUSALS


def test_total_is_bounded_and_root_still_gets_in() -> None:
    known = Connections(BOUNDS)
    for uid in range(5):
        for _ in range(20):
            assert known.admit_user(1000 + uid, Sock()).is_refused is False
    assert known.admit_user(2000, Sock()).is_refused
    assert known.admit_stranger("192.0.2.1", Sock()) is None
    assert known.admit_user(0, Sock()).is_refused is False


def test_few_descriptors_left_lets_each_user_have_a_few() -> None:
    known = Connections(BOUNDS)
    taken = [known.admit_user(1001, Sock(fd=160)) for _ in range(20)]
    assert sum(ticket is not None and not ticket.is_refused for ticket in taken) == module.WHEN_SCARCE
    assert known.admit_user(1002, Sock(fd=160)).is_refused is False
    assert known.admit_stranger("192.0.2.1", Sock(fd=160)) is None


def test_uids_without_account_share_the_bound_of_one_user() -> None:
    known = Connections(BOUNDS)
    taken = [known.admit_user(FIRST_WITHOUT_ACCOUNT + number, Sock()) for number in range(90)]
    admitted = [ticket for ticket in taken if ticket is not None and not ticket.is_refused]
    assert len(admitted) == BOUNDS.of_user
    assert sum(ticket is not None for ticket in taken) == BOUNDS.of_user + module.REFUSALS_OF_PEER
    for ticket in taken:
        if ticket is not None:
            ticket.release()
    assert known.admit_user(FIRST_WITHOUT_ACCOUNT, Sock()).is_refused is False


def test_uid_of_the_daemon_needs_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users.os, "getuid", lambda: FIRST_WITHOUT_ACCOUNT)
    known = Connections(BOUNDS)
    for _ in range(BOUNDS.of_user):
        known.admit_user(FIRST_WITHOUT_ACCOUNT + 1, Sock())
    assert known.admit_user(FIRST_WITHOUT_ACCOUNT, Sock()).is_refused is False


def test_each_account_has_connections_kept_free() -> None:
    known = Connections(BOUNDS._replace(shared=75))
    for uid in range(1000, 1004):
        for _ in range(BOUNDS.of_user):
            known.admit_user(uid, Sock())
    for number in range(BOUNDS.of_user):
        known.admit_user(FIRST_WITHOUT_ACCOUNT + number, Sock())
    assert known.admit_stranger("192.0.2.1", Sock()) is None
    taken = [known.admit_user(2000, Sock()) for _ in range(BOUNDS.of_user)]
    assert [ticket.is_refused for ticket in taken[: module.WHEN_SCARCE]] == [False] * module.WHEN_SCARCE
    assert taken[module.WHEN_SCARCE].is_refused


@pytest.mark.parametrize(
    ("addresses", "peer"),
    [
        (("127.0.0.1", "127.11.0.7", "::1", "::ffff:127.9.9.9"), LOOPBACK),
        (("2001:db8::1", "2001:db8::ffff:1"), "2001:db8::/64"),
        (("fe80::1%eth0", "fe80::2%eth0"), "fe80::/64"),
        (("192.0.2.1", "::ffff:192.0.2.1"), "192.0.2.1"),
    ],
)
def test_addresses_of_one_peer_are_one_network(addresses: tuple[str, ...], peer: str) -> None:
    assert {network_of(address) for address in addresses} == {peer}
    assert network_of("192.0.2.2") != network_of("192.0.2.1")


def test_stranger_above_network_limit_replaces_oldest() -> None:
    known, socks = Connections(BOUNDS), [Sock() for _ in range(12)]
    far = Sock()
    known.admit_stranger("192.0.2.1", far)
    tickets = [known.admit_stranger(f"127.0.0.{n + 1}", sock) for n, sock in enumerate(socks)]
    assert [sock.is_down for sock in socks] == [True] * 7 + [False] * 5
    assert not far.is_down
    for ticket in tickets:
        ticket.release()
    more = [Sock() for _ in range(5)]
    for sock in more:
        known.admit_stranger("127.0.0.1", sock)
    assert not any(sock.is_down for sock in more)


def test_strangers_above_limit_replace_largest_network() -> None:
    known, near, far = Connections(BOUNDS), [Sock() for _ in range(5)], [Sock() for _ in range(7)]
    for sock in near:
        known.admit_stranger("127.0.0.1", sock)
    for number, sock in enumerate(far):
        known.admit_stranger(f"192.0.2.{number}", sock)
    assert [sock.is_down for sock in near] == [True, True, False, False, False]
    assert not any(sock.is_down for sock in far)


def test_stranger_with_open_request_is_not_evicted() -> None:
    known, asking, sending, idle = Connections(BOUNDS), Sock(), Sock(unread=b"GET"), Sock()
    busy = known.admit_stranger("127.0.0.1", asking)
    busy.is_busy = True
    for sock in (sending, idle):
        known.admit_stranger("127.0.0.1", sock)
    for _ in range(3):
        known.admit_stranger("127.0.0.1", Sock())
    assert (asking.is_down, sending.is_down, idle.is_down) == (False, False, True)
    busy.is_busy, sending.unread = False, b""
    for _ in range(2):
        known.admit_stranger("127.0.0.1", Sock())
    assert (asking.is_down, sending.is_down) == (True, True)


def test_newcomer_waits_while_its_network_is_fresh() -> None:
    known, socks = Connections(BOUNDS), [Sock() for _ in range(5)]
    tickets = [known.admit_stranger("127.0.0.1", sock) for sock in socks]
    for ticket in tickets:
        ticket.refresh(60)
    with pytest.raises(NoRoomYet):
        known.admit_stranger("127.0.0.1", Sock())
    assert not any(sock.is_down for sock in socks)
    assert known.admit_stranger("192.0.2.1", Sock()) is not None
    assert tickets[3].recognise(1001)
    assert known.admit_stranger("127.0.0.1", Sock()) is not None


def test_token_shown_makes_a_stranger_a_user() -> None:
    known, first = Connections(BOUNDS._replace(of_user=2)), Sock()
    ticket = known.admit_stranger("127.0.0.1", first)
    assert ticket.recognise(1001) and ticket.recognise(1001)
    assert not ticket.recognise(1002)
    for _ in range(20):
        known.admit_stranger("127.0.0.1", Sock())
    assert not first.is_down
    assert known.admit_user(1001, Sock()).is_refused is False
    assert known.admit_user(1001, Sock()).is_refused is True
    assert not known.admit_stranger("127.0.0.1", Sock()).recognise(1001)
    ticket.release()
    assert known.admit_stranger("127.0.0.1", Sock()).recognise(1001)


@pytest.mark.parametrize("descriptors", [64, 256, 1024, 4096, 20_000, 1 << 20])
def test_bounds_leave_half_of_the_descriptors_to_jobs(descriptors: int) -> None:
    bounds = bounds_of(descriptors, 512)
    assert bounds.of_user <= bounds.shared <= bounds.total <= max(8, descriptors // 2)
    assert 1 <= bounds.of_network <= bounds.strangers <= bounds.total
    assert bounds_of(descriptors).of_user == bounds.total


def test_eviction_of_a_closed_socket_is_no_error() -> None:
    known = Connections(BOUNDS)
    for _ in range(6):
        sock = socket.socket()
        known.admit_stranger("127.0.0.1", sock)
        sock.close()
