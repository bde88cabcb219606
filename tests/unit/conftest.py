from __future__ import annotations

import pytest
from hypothesis import settings

from gflow.daemon import people

# A loaded machine must not turn a slow example into a failure.
settings.register_profile("gflow", deadline=None)
settings.load_profile("gflow")


# In the user database of `accounts`, lower uids have accounts; this one and higher ones have none.
FIRST_WITHOUT_ACCOUNT = 100_000


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    def account_of(uid: int) -> people.Account | None:
        return people.Account(f"u{uid}", "/", uid, "") if uid < FIRST_WITHOUT_ACCOUNT else None

    monkeypatch.setattr(people, "account_of", account_of)
