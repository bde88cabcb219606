from __future__ import annotations

import pytest
from hypothesis import settings

from gflow.daemon.auth import users

# A loaded machine must not turn a slow example into a failure.
settings.register_profile("gflow", deadline=None)
settings.load_profile("gflow")


# In the user database of `accounts`, lower uids have accounts; this one and higher ones have none.
FIRST_WITHOUT_ACCOUNT = 100_000


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    def account_of(uid: int) -> users.Account | None:
        return users.Account(f"u{uid}", "/", uid, "") if uid < FIRST_WITHOUT_ACCOUNT else None

    monkeypatch.setattr(users, "account_of", account_of)
