"""Sessions of the web page: codes work once and in time; a session needs both of its secrets."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gflow.daemon.auth import web_sessions
from gflow.daemon.auth.users import user_name
from gflow.daemon.auth.web_sessions import (
    CODE_S,
    MOST_CODES,
    MOST_SESSIONS,
    OPERATOR_SESSION_S,
    SESSION_S,
    Login,
    NewSession,
    WebSessions,
    check_may_log_in,
)
from gflow.errors import Forbidden

ME = os.getuid()


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(tmp_path: Path, clock: Clock) -> WebSessions:
    return WebSessions(tmp_path / "web.json", clock)


def login(uid: int = ME, **more: object) -> Login:
    return Login(uid=uid, user=user_name(uid), **more)  # type: ignore[arg-type]


def exchange(sessions: WebSessions, code: str) -> NewSession | None:
    return asyncio.run(sessions.exchange(code))


def logged_in(sessions: WebSessions, uid: int = ME, **more: object) -> NewSession:
    made = exchange(sessions, sessions.make_code(login(uid, **more))[0])
    assert made is not None
    return made


def shown(made: NewSession) -> tuple[str, dict[str, str]]:
    return f"{made.session.id}.{made.key}", {f"gflow_{made.session.id}": made.cookie}


def test_code_gives_a_session_of_its_user_once(sessions: WebSessions) -> None:
    code, _ = sessions.make_code(login())
    made = exchange(sessions, code)
    assert made is not None
    found = sessions.find(*shown(made))
    assert found is not None and (found.uid, found.user) == (ME, user_name(ME))
    assert exchange(sessions, code) is None


def test_wrong_code_gives_none_and_leaves_the_right_one(sessions: WebSessions) -> None:
    code, _ = sessions.make_code(login())
    for wrong in ("", "x", code[:-1], code + "x", code.swapcase(), "\udcff", "é"):
        assert exchange(sessions, wrong) is None
    assert exchange(sessions, code) is not None


def test_code_ends_after_its_time(sessions: WebSessions, clock: Clock) -> None:
    early, ends_at = sessions.make_code(login())
    late, _ = sessions.make_code(login())
    assert ends_at == clock.now + CODE_S
    clock.now += CODE_S - 1
    assert exchange(sessions, early) is not None
    clock.now += 1
    assert exchange(sessions, late) is None


def test_session_needs_key_and_cookie(sessions: WebSessions) -> None:
    made, other = logged_in(sessions), logged_in(sessions)
    header, cookies = shown(made)
    foreign_header, foreign_cookies = shown(other)
    assert sessions.find(header, cookies) == made.session
    assert sessions.find(header, {}) is None
    assert sessions.find("", cookies) is None
    assert sessions.find(header, foreign_cookies) is None
    assert sessions.find(foreign_header, cookies) is None
    assert sessions.find(f"{made.session.id}.{other.key}", cookies) is None
    assert sessions.find(header, {f"gflow_{made.session.id}": other.cookie}) is None
    assert sessions.find(f"{made.session.id}.{made.cookie}", cookies) is None
    assert sessions.find(f"{other.session.id}.{made.key}", cookies) is None
    assert sessions.find(header + "x", cookies) is None


def test_session_ends_after_its_time_and_an_operators_sooner(sessions: WebSessions, clock: Clock) -> None:
    usual, operator = logged_in(sessions), logged_in(sessions, groups=frozenset({7}))
    clock.now += OPERATOR_SESSION_S - 1
    assert sessions.find(*shown(operator)) is not None
    clock.now += 1
    assert sessions.find(*shown(operator)) is None
    assert sessions.find(*shown(usual)) is not None
    clock.now += SESSION_S - OPERATOR_SESSION_S
    assert sessions.find(*shown(usual)) is None


def test_session_has_groups_only_if_the_login_had_them(sessions: WebSessions) -> None:
    assert logged_in(sessions).session.groups == frozenset()
    assert logged_in(sessions, groups=frozenset({7})).session.groups == {7}


def test_session_of_a_renamed_account_is_refused(
    sessions: WebSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = logged_in(sessions)
    monkeypatch.setattr(web_sessions, "user_name", lambda uid: "someone-else")
    assert sessions.find(*shown(made)) is None


def test_logout_ends_own_sessions_and_codes_only(sessions: WebSessions) -> None:
    mine, again = logged_in(sessions), logged_in(sessions)
    theirs = logged_in(sessions, 65534)
    code, _ = sessions.make_code(login())
    assert asyncio.run(sessions.end(ME, mine.session.id)) == 1
    assert sessions.find(*shown(mine)) is None
    assert sessions.find(*shown(again)) is not None
    assert asyncio.run(sessions.end(ME, theirs.session.id)) == 0
    assert asyncio.run(sessions.end(ME)) == 1
    assert sessions.find(*shown(again)) is None
    assert exchange(sessions, code) is None
    assert sessions.find(*shown(theirs)) is not None


def test_numbers_of_codes_and_sessions_are_bounded(sessions: WebSessions) -> None:
    theirs, _ = sessions.make_code(login(65534))
    codes = [sessions.make_code(login())[0] for _ in range(MOST_CODES + 1)]
    assert exchange(sessions, codes[0]) is None  # the oldest made room
    assert exchange(sessions, codes[1]) is not None
    assert exchange(sessions, theirs) is not None
    made = [logged_in(sessions) for _ in range(MOST_SESSIONS)]
    assert len(sessions.of(ME)) == MOST_SESSIONS
    assert sessions.find(*shown(made[0])) is not None
    logged_in(sessions)
    assert sessions.find(*shown(made[0])) is None
    assert len(sessions.of(65534)) == 1


def test_next_daemon_knows_sessions_by_hashes(tmp_path: Path, sessions: WebSessions, clock: Clock) -> None:
    made = logged_in(sessions)
    asyncio.run(sessions.keep_port(20_001))
    path = tmp_path / "web.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert made.key not in path.read_text() and made.cookie not in path.read_text()
    following = WebSessions(path, clock)
    assert following.port == 20_001
    assert following.find(*shown(made)) == made.session
    following.end_all()
    assert following.find(*shown(made)) is None
    assert WebSessions(path, clock).find(*shown(made)) is None


def test_damaged_file_ends_all_sessions(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "web.json"
    path.write_text("{")
    assert WebSessions(path, clock).of(None) == []


def test_root_gets_no_session_but_of_its_own_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    check_may_log_in(1000, is_system=False)
    check_may_log_in(1000, is_system=True)
    for is_system in (False, True):
        with pytest.raises(Forbidden):
            check_may_log_in(0, is_system=is_system)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    check_may_log_in(0, is_system=False)
    with pytest.raises(Forbidden):
        check_may_log_in(0, is_system=True)
