"""Tokens: they identify a user where the kernel cannot, on the TCP port.

Only hashes are stored, in a file of their own, so that no backup of the database contains them. A token
belongs to an account. Once the account is deleted, or its uid has another name, the token is revoked
permanently, even if an account with the same name and uid is created later.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from pathlib import Path

import msgspec

from gflow.daemon.auth import users
from gflow.errors import NotFound, ReadOnly, Refused, StoreError
from gflow.store.files import replace_private

# gflow_<id>_<secret>: the prefix lets secret scanners find published tokens.
_SHAPE = re.compile(r"gflow_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
SECRET_BYTES = 32
DAY_S = 86_400
# Tokens of one user.
MAX_TOKENS = 50
# Seconds between two checks for tokens of deleted accounts.
CHECK_S = 60.0

log = logging.getLogger("gflow.tokens")


class Token(msgspec.Struct, kw_only=True, frozen=True):
    """A stored token. `user`: the name of the uid at creation; the uid may get another name later."""

    id: str
    uid: int
    user: str
    name: str
    hash: str
    made_at: float
    expires_at: float
    # Resource limits of the process that created it, for its jobs: number, soft, hard (-1: unlimited).
    limits: tuple[tuple[int, int, int], ...] | None = None

    @property
    def label(self) -> str:
        """The origin of its requests, for the audit log."""
        return f"token {self.id}"

    @property
    def groups(self) -> frozenset[int]:
        """A token gives no rights by groups: those need the Unix socket."""
        return frozenset()


class Tokens:
    """All tokens of a daemon."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changing = asyncio.Lock()
        self._by_id = {token.id: token for token in _read(path)}

    def of(self, uid: int | None) -> list[Token]:
        """The valid tokens of this user (None: of all users), oldest first."""
        now = time.time()
        wanted = (one for one in self._by_id.values() if uid in (None, one.uid) and one.expires_at > now)
        return sorted(wanted, key=lambda one: (one.made_at, one.id))

    def find(self, text: str) -> Token | None:
        """The valid token with this text, if there is one."""
        match = _SHAPE.fullmatch(text)
        token = self._by_id.get(match[1]) if match else None
        if match is None or token is None:
            return None
        # In constant time, so that timing reveals nothing about the hash.
        is_right = hmac.compare_digest(_hash(match[2]), token.hash)
        return token if is_right and token.expires_at > time.time() else None

    async def make(
        self,
        uid: int,
        user: str,
        name: str,
        days: int,
        limits: tuple[tuple[int, int, int], ...] | None = None,
    ) -> tuple[Token, str]:
        """Create a token. Its text is returned only here."""
        async with self._changing:
            if len(self.of(uid)) >= MAX_TOKENS:
                raise Refused(f"you have {MAX_TOKENS} tokens", hint="gctl token revoke ID removes one")
            number, secret, now = secrets.token_hex(4), secrets.token_urlsafe(SECRET_BYTES), time.time()
            while number in self._by_id:
                number = secrets.token_hex(4)
            token = Token(
                id=number,
                uid=uid,
                user=user,
                name=name,
                hash=_hash(secret),
                made_at=now,
                expires_at=now + days * DAY_S,
                limits=limits,
            )
            await self._replace_all([*self.of(None), token])
            return token, f"gflow_{number}_{secret}"

    async def revoke(self, uid: int | None, number: str) -> Token:
        """Revoke a token of this user (None: of any user)."""
        async with self._changing:
            mine = self.of(uid)
            for token in mine:
                if token.id == number:
                    await self._replace_all([one for one in self.of(None) if one is not token])
                    return token
        raise NotFound(f"you have no token {number[:20]!a}", hint="gctl token list shows them")

    async def revoke_orphans(self) -> None:
        """Revoke the tokens whose account was deleted or replaced."""
        owners = {(one.uid, one.user) for one in self._by_id.values()}
        replaced = {owner for owner in owners if users.is_replaced(*owner)}
        if not replaced:
            return
        async with self._changing:
            await self._replace_all([one for one in self.of(None) if (one.uid, one.user) not in replaced])
        for uid, user in sorted(replaced):
            log.warning("the tokens of %s (uid %d) are revoked: that account is gone", user, uid)

    async def watch(self) -> None:
        """Revoke orphaned tokens now and every CHECK_S: the uid may soon be given to a new account."""
        while True:
            try:
                await self.revoke_orphans()
            except ReadOnly as error:
                log.error("tokens of deleted accounts are refused, and cannot be removed yet: %s", error)
            await asyncio.sleep(CHECK_S)

    async def _replace_all(self, tokens: list[Token]) -> None:
        """Replace all tokens, on the disk first: a revoked token must not come back after a crash."""
        await asyncio.to_thread(_write, self._path, tokens)
        self._by_id = {token.id: token for token in tokens}


def _hash(secret: str) -> str:
    """Hash a secret. With 256 random bits it needs no salt and no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _read(path: Path) -> list[Token]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Token])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}", hint="without this file all tokens are invalid"
        ) from error


def _write(path: Path, tokens: list[Token]) -> None:
    try:
        replace_private(path, msgspec.json.encode(tokens))
    except OSError as error:
        raise ReadOnly(f"{path} cannot be written: {error.strerror}") from error
