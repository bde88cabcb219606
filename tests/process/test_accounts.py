"""Accounts that are locked, expired, deleted or replaced: their tokens and their waiting jobs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import free_port, wait_until
from tests.process.test_port import Caller, made_token, patiently
from tests.system import System, administer, system


@pytest.fixture
def machine() -> Iterator[tuple[System, int]]:
    number = free_port()
    with system(env={"GFLOW_DAEMON__PORT": str(number)}) as made:
        yield made.up(), number


def body() -> dict[str, Any]:
    return {
        "token": os.urandom(8).hex(),
        "jobs": [{"command": ["true"], "cwd": "/", "environ": "", "options": {"output": "/dev/null"}}],
    }


def status_of(caller: Caller) -> int:
    return patiently(caller, "POST", "/jobs", body())[0]


@pytest.mark.parametrize(
    ("how", "word"),
    [(("usermod", "-e", "1"), "expired"), (("usermod", "-p", "!$6$salt$hash"), "locked")],
    ids=["expired", "locked"],
)
def test_token_of_unusable_account_is_refused_until_usable_again(
    machine: tuple[System, int], how: tuple[str, ...], word: str
) -> None:
    made, port = machine
    caller = Caller(port, made_token(made.bob))
    administer("usermod", "-p", "*", made.bob.person.pw_name)  # no password is not a lock
    assert status_of(caller) == 201
    administer(*how, made.bob.person.pw_name)
    wait_until(lambda: status_of(caller) == 403, what="the token to be refused")
    assert word in patiently(caller, "GET", "/jobs")[1]["title"]
    status, answer = made.ask(made.bob, "POST", "/jobs", body())
    assert (status, word in answer["title"]) == (403, True)
    administer("usermod", "-e", "", "-p", "*", made.bob.person.pw_name)
    wait_until(lambda: status_of(caller) == 201, what="the token to be good again")


def test_token_of_deleted_account_stays_revoked(machine: tuple[System, int]) -> None:
    made, port = machine
    person, token = made.bob.person, made_token(made.bob)
    caller = Caller(port, token)
    assert status_of(caller) == 201
    administer("userdel", "--force", person.pw_name)
    wait_until(lambda: status_of(caller) == 401, what="the token to be refused")
    administer("useradd", "--no-create-home", "-u", str(person.pw_uid), person.pw_name)
    mine = Caller(port, wait_until(lambda: fresh_token(made)))
    assert status_of(mine) == 201
    assert status_of(caller) == 401
    assert token.split("_")[1] not in made.box.ok("gctl", "token", "list")


def fresh_token(made: System) -> str:
    """A new token of Bob's, once the daemon knows his account."""
    status, answer = made.ask(made.bob, "POST", "/tokens", {})
    return str(answer["token"]) if status == 201 and answer["user"] == made.bob.person.pw_name else ""


def test_token_is_refused_when_uid_changed_owner(machine: tuple[System, int]) -> None:
    made, port = machine
    caller = Caller(port, made_token(made.bob))
    administer("userdel", "--force", made.bob.person.pw_name)
    administer("usermod", "-u", str(made.bob.person.pw_uid), made.ann.person.pw_name)
    wait_until(lambda: status_of(caller) == 401, what="the token to be refused")


def test_daemon_start_revokes_tokens_of_deleted_accounts(machine: tuple[System, int]) -> None:
    made, _ = machine
    kept, gone = made_token(made.ann), made_token(made.bob)
    made.box.down()
    administer("userdel", "--force", made.bob.person.pw_name)
    made.up()

    def listed() -> set[str]:
        tokens = json.loads((made.box.data / "tokens.json").read_text())
        return {token["id"] for token in tokens}

    wait_until(lambda: listed() == {kept.split("_")[1]}, what="the token to be revoked")
    assert gone.split("_")[1] not in listed()


@pytest.mark.parametrize(
    ("how", "word"),
    [(("userdel", "--force"), "there is no account"), (("usermod", "-e", "1"), "expired")],
    ids=["deleted", "expired"],
)
def test_waiting_job_of_unusable_account_is_not_started(
    machine: tuple[System, int], how: tuple[str, ...], word: str
) -> None:
    made, _ = machine
    job = made.bob.submit("--hold", "--output", "/dev/null", "true")
    administer(*how, made.bob.person.pw_name)
    wait_until(lambda: made.ask(made.bob, "POST", "/jobs", body())[0] == 403)
    made.box.ok("gjob", "release", str(job))
    final = made.box.finished(job)
    assert final["state"] == "Failed"
    assert final["reason"].startswith("StartFailed: ") and word in final["reason"]


def test_waiting_job_does_not_run_as_new_owner_of_its_uid(machine: tuple[System, int]) -> None:
    made, _ = machine
    job = made.bob.submit("--hold", "--output", "/dev/null", "true")
    administer("userdel", "--force", made.bob.person.pw_name)
    administer("usermod", "-u", str(made.bob.person.pw_uid), made.ann.person.pw_name)
    name = made.ann.person.pw_name
    wait_until(lambda: made.ask(made.bob, "GET", "/stats")[1]["user"] == name, what="the change to be seen")
    made.box.ok("gjob", "release", str(job))
    final = made.box.finished(job)
    assert (final["state"], name in final["reason"]) == ("Failed", True)


def hand_over(made: System) -> str:
    """Bob's account is deleted, and Ann's gets his uid; the name that this has now."""
    administer("userdel", "--force", made.bob.person.pw_name)
    administer("usermod", "-u", str(made.bob.person.pw_uid), made.ann.person.pw_name)
    return made.ann.person.pw_name


@pytest.mark.parametrize("shim", ["plain", "python"])
def test_launch_compares_the_name_of_the_account_afresh(shim: str) -> None:
    """Also if the daemon has an older answer of the user database."""
    with system(env={"GFLOW_SHIM": shim}) as made:
        made.box.program = [sys.executable, str(Path(__file__).with_name("caching_daemon.py"))]
        made.up()
        proof = made.root / "proof"
        job = made.bob.submit("--hold", "--output", "/dev/null", f"id > {proof}")
        name = hand_over(made)
        assert made.ask(made.bob, "GET", "/stats")[1]["user"] == made.bob.person.pw_name, "not yet seen"
        made.box.ok("gjob", "release", str(job))
        final = made.box.finished(job)
        assert (final["state"], proof.exists()) == ("Failed", False)
        assert final["reason"] == (
            f"StartFailed: uid {made.bob.person.pw_uid} belongs to {name} now, "
            f"and not to {made.bob.person.pw_name}"
        )


@pytest.mark.parametrize("privacy", ["open", "private"])
def test_next_owner_of_a_uid_does_not_own_jobs_of_the_former(privacy: str) -> None:
    refused = 403 if privacy == "open" else 404
    with system(env={"GFLOW_PEOPLE__PRIVACY": privacy}) as made:
        made.up()
        over = made.bob.submit("--output", "/dev/null", "echo", "secretword")
        held = made.bob.submit("--hold", "--output", "/dev/null", "echo", "secretword")
        made.box.finished(over)
        new, name = made.bob, hand_over(made)
        wait_until(lambda: made.ask(new, "GET", "/stats")[1]["user"] == name, what="the change to be seen")
        for job in (over, held):
            for path in (f"/jobs/{job}", f"/jobs/{job}-{job}", "/jobs?all=1", "/events?after=0&follow=0"):
                assert "secretword" not in str(made.ask(new, "GET", path)[1]), path
            for path in ("log", "history"):
                assert made.ask(new, "GET", f"/jobs/{job}/{path}")[0] == refused
            again = {"token": os.urandom(8).hex(), "job": str(job)}
            assert made.ask(new, "POST", "/jobs/redo", again)[0] == refused
        for verb, more in {"cancel": {}, "hold": {}, "update": {"options": {"comment": "mine"}}}.items():
            for named in (str(held), f"{held}-{held}"):
                assert made.ask(new, "POST", f"/jobs/{verb}", {"jobs": [named], **more})[0] == refused
        assert made.ask(new, "POST", "/jobs/cancel", {"all": True}) == (200, {"jobs": [], "total": 0})
        assert made.ask(made.opal, "POST", "/jobs/cancel", {"jobs": [str(held)]})[0] == 200


def test_uid_without_account_may_not_submit(machine: tuple[System, int]) -> None:
    made, _ = machine
    administer("userdel", "--force", made.bob.person.pw_name)
    wait_until(lambda: made.ask(made.bob, "POST", "/jobs", body())[0] == 403)
