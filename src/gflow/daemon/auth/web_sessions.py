"""Sessions of the web page: one-time login codes, and the sessions that they are exchanged for.

A code is made over the Unix socket, where the kernel identifies the caller. It is valid once, for `CODE_S`
seconds. A session has two secrets. The browser keeps one as a cookie, which scripts cannot read, and the page
keeps the other in the storage of its origin. A request needs both, because cookies of 127.0.0.1 are sent to
every port of it, also to the server of another user; the storage belongs to one port.

Codes are in memory only. Of sessions the hashes are stored, in a file of their own, so that a page stays
logged in when the daemon restarts.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from gflow.daemon.auth.users import user_name
from gflow.errors import Forbidden, ReadOnly
from gflow.store.files import replace_private

log = logging.getLogger("gflow.web")

CODE_S = 300.0
# Life of a session, and of one with the rights of an operator.
SESSION_S = 7 * 86_400.0
OPERATOR_SESSION_S = 8 * 3600.0
# Most codes and sessions of one user; the oldest makes room.
MOST_CODES = 10
MOST_SESSIONS = 20
SECRET_BYTES = 32
# What a request shows: the header has `<id>.<key>`, the cookie `gflow_<id>` has the other secret.
HEADER = "x-gflow-session"
COOKIE = "gflow_"
_SHOWN = re.compile(r"([0-9a-f]{16})\.([A-Za-z0-9_-]{43})")

Limits = tuple[tuple[int, int, int], ...]


class Login(msgspec.Struct, kw_only=True, frozen=True):
    """Who logs in: the caller on the Unix socket. `groups`: empty unless the session is an operator's."""

    uid: int
    user: str
    groups: frozenset[int] = frozenset()
    # Resource limits of the process that asked for the link, for jobs of the session.
    limits: Limits | None = None


class WebSession(Login, kw_only=True, frozen=True):
    """A stored session. Its secrets are stored as hashes."""

    id: str
    cookie_hash: str
    key_hash: str
    expires_at: float

    @property
    def label(self) -> str:
        """The origin of its requests, for the audit log."""
        return f"web page {self.id[:8]}"


class NewSession(NamedTuple):
    """A session with its secrets, which exist nowhere else."""

    session: WebSession
    cookie: str
    key: str


class Stored(msgspec.Struct, kw_only=True):
    """The content of the file: the sessions, and the port that the page is at."""

    port: int = 0
    sessions: list[WebSession] = []


class WebSessions:
    """All codes and sessions of a daemon."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._changing = asyncio.Lock()
        # By the hash of the code, oldest first: the time it ends, and who logs in.
        self._codes: dict[str, tuple[float, Login]] = {}
        stored = _read(path)
        self.port = stored.port
        self._by_id = {one.id: one for one in stored.sessions}

    def make_code(self, login: Login) -> tuple[str, float]:
        """A new code for this user, and when it ends."""
        self._drop_expired_codes()
        mine = [name for name, (_, one) in self._codes.items() if one.uid == login.uid]
        for name in mine[: max(0, len(mine) + 1 - MOST_CODES)]:
            del self._codes[name]
        code, ends_at = secrets.token_urlsafe(SECRET_BYTES), self._clock() + CODE_S
        self._codes[_hash(code)] = ends_at, login
        return code, ends_at

    async def exchange(self, code: str) -> NewSession | None:
        """The session for a code; None if the code is wrong, used or too old. A code is gone after this."""
        ends_at, login = self._codes.pop(_hash(code), (0.0, None))
        if login is None or ends_at <= self._clock():
            return None
        cookie, key = secrets.token_urlsafe(SECRET_BYTES), secrets.token_urlsafe(SECRET_BYTES)
        session = WebSession(
            uid=login.uid,
            user=login.user,
            groups=login.groups,
            limits=login.limits,
            id=secrets.token_hex(8),
            cookie_hash=_hash(cookie),
            key_hash=_hash(key),
            expires_at=self._clock() + (OPERATOR_SESSION_S if login.groups else SESSION_S),
        )
        async with self._changing:
            mine = self.of(login.uid)
            dropped = {one.id for one in mine[: max(0, len(mine) + 1 - MOST_SESSIONS)]}
            await self._replace_all([one for one in self.of(None) if one.id not in dropped] + [session])
        return NewSession(session, cookie, key)

    def of(self, uid: int | None) -> list[WebSession]:
        """The valid sessions of this user (None: of all users), oldest first."""
        now = self._clock()
        return [one for one in self._by_id.values() if uid in (None, one.uid) and one.expires_at > now]

    def find(self, shown: str, cookies: dict[str, str]) -> WebSession | None:
        """The valid session of a request with this header and these cookies."""
        match = _SHOWN.fullmatch(shown)
        session = self._by_id.get(match[1]) if match else None
        if match is None or session is None:
            return None
        # In constant time, so that timing reveals nothing about the hashes. Both are always compared.
        has_key = hmac.compare_digest(_hash(match[2]), session.key_hash)
        has_cookie = hmac.compare_digest(_hash(cookies.get(COOKIE + session.id, "")), session.cookie_hash)
        is_valid = has_key and has_cookie and session.expires_at > self._clock()
        return session if is_valid and user_name(session.uid) == session.user else None

    async def end(self, uid: int, id: str = "") -> int:
        """End this session of a user, or all of them and all codes; how many sessions ended."""
        if not id:
            self._codes = {name: one for name, one in self._codes.items() if one[1].uid != uid}
        async with self._changing:
            ended = [one for one in self.of(uid) if id in ("", one.id)]
            if ended:
                await self._replace_all([one for one in self.of(None) if one not in ended])
        return len(ended)

    async def keep_port(self, port: int) -> None:
        """Store the port, so that the next daemon listens there again."""
        async with self._changing:
            self.port = port
            await self._replace_all(self.of(None))

    def end_all(self) -> None:
        """End all sessions for good, as the daemon stops."""
        self._codes.clear()
        self._by_id.clear()
        self._path.unlink(missing_ok=True)

    def _drop_expired_codes(self) -> None:
        now = self._clock()
        self._codes = {name: one for name, one in self._codes.items() if one[0] > now}

    async def _replace_all(self, sessions: list[WebSession]) -> None:
        """Replace all sessions, on the disk first: an ended session must not come back after a crash."""
        content = msgspec.json.encode(Stored(port=self.port, sessions=sessions))
        try:
            await asyncio.to_thread(replace_private, self._path, content)
        except OSError as error:
            raise ReadOnly(f"{self._path} cannot be written: {error.strerror}") from error
        self._by_id = {one.id: one for one in sessions}


def check_may_log_in(uid: int, *, is_system: bool) -> None:
    """Refuse a session for root, except of root's own private daemon: a stolen one would open the machine."""
    if uid == 0 and (is_system or os.getuid() != 0):
        raise Forbidden(
            "root cannot have a session of the web page: it would give access to the whole machine",
            hint="run gflow web as yourself; gflow web --operator gives operators their rights",
        )


def _hash(secret: str) -> str:
    """Hash a secret. With 256 random bits it needs no salt and no slow hash."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _read(path: Path) -> Stored:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Stored)
    except FileNotFoundError:
        return Stored()
    except (OSError, msgspec.MsgspecError) as error:  # the page asks for a new link
        log.warning("%s cannot be read, so all web sessions are over: %s", path, error)
        return Stored()
