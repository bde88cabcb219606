"""Accounts: what bars one, and how long an entry of the user database is believed."""

from __future__ import annotations

import os
import pwd

import pytest

from gflow.daemon.auth import users
from gflow.privileged import accounts

DAY = 86_400.0
NOW = 20_000 * DAY + 5.0


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(users, "_known_accounts", {})


@pytest.mark.parametrize(
    ("password", "expires", "why"),
    [
        ("$6$salt$hash", -1, ""),
        ("!$6$salt$hash", -1, "locked"),
        ("!!$6$salt$hash", -1, "locked"),
        ("", -1, ""),
        ("*", -1, ""),
        ("!", -1, ""),
        ("!!", -1, ""),
        ("!*", -1, ""),
        ("$6$salt$hash", 0, "expired"),
        ("*", 1, "expired"),
        ("*", 20_000, "expired"),
        ("*", 20_001, ""),
    ],
)
def test_account_barred_by_lock_or_expiry_only(password, expires, why):
    assert accounts.why_barred(password, expires, NOW) == why


def entry(name: str, uid: int = 4242) -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, 4242, "", f"/home/{name}", "/bin/sh"))


def test_entry_of_user_database_is_looked_up_again_after_seconds(monkeypatch):
    now, names = [100.0], ["ann"]
    monkeypatch.setattr(users.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(users.pwd, "getpwuid", lambda uid: entry(names[0], uid))
    assert (users.user_name(4242), users.home_of(4242)) == ("ann", "/home/ann")
    names[0] = "bob"
    assert users.user_name(4242) == "ann"
    now[0] += users.ACCOUNT_S
    assert (users.user_name(4242), users.home_of(4242)) == ("bob", "/home/bob")
    assert users.is_replaced(4242, "ann")
    assert users.why_unusable(4242, "ann") == "uid 4242 belongs to bob now, and not to ann"


@pytest.mark.parametrize("answers", [True, False], ids=["absent", "unavailable"])
def test_account_counts_as_gone_only_if_user_database_answers(monkeypatch, answers):
    monkeypatch.setattr(users, "_is_absent", lambda uid: answers)
    monkeypatch.setattr(users, "_look_up", lambda uid: None)
    assert users.is_replaced(4242, "ann") is answers
    assert not users.is_replaced(4242, "4242")  # it had no account when it was noted
    assert "no account" in users.why_unusable(4242, "ann")


def test_absent_uid_differs_from_existing_uid():
    assert not users._is_absent(os.getuid())
    assert users._is_absent(3_999_999_999)


def test_root_is_never_barred():
    assert users.why_unusable(0) == ""
