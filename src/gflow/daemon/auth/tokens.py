"""Tokens: what stands for a person where the kernel cannot tell who calls.

Only a hash of each is kept, in a file of its own: no backup of the database has any. A token belongs to an
account: once that is seen to be deleted, or its uid to have another name, the token is revoked for good,
also if an account of the same name and uid comes later.
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
from pathlib import Path

import msgspec

from gflow.daemon.auth import users
from gflow.errors import NotFound, ReadOnly, Refused, StoreError
from gflow.store.files import put_in_place

# gflow_<id>_<secret>: a mark by which scanners find those that were published by mistake.
_SHAPE = re.compile(r"gflow_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
SECRET_BYTES = 32
DAY_S = 86_400
# Of one person.
MOST = 50
# Seconds between two looks for tokens whose account is gone.
LOOK_S = 60.0

log = logging.getLogger("gflow.tokens")


class Token(msgspec.Struct, kw_only=True, frozen=True):
    """A token as it is kept. `user`: who had the uid then; it may be given to somebody else later."""

    id: str
    uid: int
    user: str
    name: str
    hash: str
    made_at: float
    expires_at: float
    # Resource limits of the process that made it, for its jobs: number, soft, hard (-1: unlimited).
    limits: tuple[tuple[int, int, int], ...] | None = None


class Tokens:
    """All tokens of a daemon."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changing = asyncio.Lock()
        self._by_id = {token.id: token for token in _read(path)}

    def of(self, uid: int | None) -> list[Token]:
        """This person's tokens (None: everybody's) that can still be used, the oldest first."""
        now = time.time()
        wanted = (one for one in self._by_id.values() if uid in (None, one.uid) and one.expires_at > now)
        return sorted(wanted, key=lambda one: (one.made_at, one.id))

    def find(self, text: str) -> Token | None:
        """The token that this text is, if it is one that can be used now."""
        match = _SHAPE.fullmatch(text)
        token = self._by_id.get(match[1]) if match else None
        if match is None or token is None:
            return None
        # Both, always: how long it takes tells nothing.
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
        """A new token, and the text that is shown this once."""
        async with self._changing:
            if len(self.of(uid)) >= MOST:
                raise Refused(f"you have {MOST} tokens", hint="gctl token revoke ID takes one away")
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
            await self._keep([*self.of(None), token])
            return token, f"gflow_{number}_{secret}"

    async def revoke(self, uid: int | None, number: str) -> Token:
        """Take away a token of this person's (None: anybody's)."""
        async with self._changing:
            mine = self.of(uid)
            for token in mine:
                if token.id == number:
                    await self._keep([one for one in self.of(None) if one is not token])
                    return token
        raise NotFound(f"you have no token {number[:20]!a}", hint="gctl token list shows them")

    async def revoke_orphans(self) -> None:
        """Take away the tokens whose account was deleted or replaced."""
        owners = {(one.uid, one.user) for one in self._by_id.values()}
        gone = {owner for owner in owners if users.is_replaced(*owner)}
        if not gone:
            return
        async with self._changing:
            await self._keep([one for one in self.of(None) if (one.uid, one.user) not in gone])
        for uid, user in sorted(gone):
            log.warning("the tokens of %s (uid %d) are revoked: that account is gone", user, uid)

    async def watch(self) -> None:
        """Look for such tokens at once, and then often: the account may be back soon."""
        while True:
            try:
                await self.revoke_orphans()
            except ReadOnly as error:
                log.error("tokens of deleted accounts are refused, and cannot be removed yet: %s", error)
            await asyncio.sleep(LOOK_S)

    async def _keep(self, tokens: list[Token]) -> None:
        """These are all there are from now on. On the disk first: a revoked one must not come back."""
        await asyncio.to_thread(_write, self._path, tokens)
        self._by_id = {token.id: token for token in tokens}


def _hash(secret: str) -> str:
    """A secret of 256 random bits needs no salt and no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _read(path: Path) -> list[Token]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Token])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"{path} cannot be read: {error}", hint="without it there are no tokens") from error


def _write(path: Path, tokens: list[Token]) -> None:
    new = path.with_suffix(".new")
    try:
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(tokens))
        put_in_place(new, path)
    except OSError as error:
        raise ReadOnly(f"{path} cannot be written: {error.strerror}") from error
