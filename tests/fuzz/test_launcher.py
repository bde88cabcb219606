"""The checks of a launcher: an arbitrary scheduler gets no start as root and touches no foreign run."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.privileged import checked_target, messages
from gflow.privileged.checked_target import START_CHECKS, CheckedTarget
from gflow.targets.port import Launch, Run
from tests.fuzz.hostile_scheduler import (
    ANN,
    BOB,
    SCHEDULER,
    HostileScheduler,
    KnownMachine,
    Recorder,
    World,
    attack,
    violations,
)

WORLD = World()
# Messages and launches of one attack; `make fuzz` sends more.
COUNT = int(os.environ.get("GFLOW_FUZZ_EXAMPLES", "20")) * 100
START: dict[str, Any] = {
    "do": "start", "key": 1 << 20, "attempt": 1, "uid": ANN, "user": "ann", "command": ["id"], "cwd": "/",
}  # fmt: skip
SIGNAL: dict[str, Any] = {"do": "signal", "key": 1 << 20, "attempt": 1, "number": 15}


def attacked(seed: int) -> Recorder:
    recorder = Recorder()
    attack(seed, COUNT, WORLD, CheckedTarget(recorder, WORLD.rules))
    return recorder


@pytest.mark.parametrize("seed", range(3))
def test_hostile_scheduler_gets_only_what_it_may(seed: int) -> None:
    asked = attacked(seed).asked
    assert violations(asked, WORLD) == []
    kinds = {what for what, _ in asked}
    assert kinds == {"start", "exec", "stop", "signal", "adopt", "forget"}, "all of it happens"


@pytest.mark.parametrize("check", START_CHECKS, ids=lambda check: check.__name__)
def test_removal_of_a_check_of_starts_is_noticed(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = tuple(one for one in START_CHECKS if one is not check)
    monkeypatch.setattr(checked_target, "START_CHECKS", rest)
    assert violations(attacked(0).asked, WORLD)


class KnowsAll(dict):  # type: ignore[type-arg]
    """Takes every run for one that was adopted."""

    def __contains__(self, run: object) -> bool:
        return True

    def __missing__(self, run: object) -> None:
        return None

    def __delitem__(self, run: object) -> None:
        self.pop(run, None)


class Nameless(dict):  # type: ignore[type-arg]
    """Takes every run that was started for one that was adopted."""

    def __setitem__(self, run: object, uid: object) -> None:
        super().__setitem__(run, None)


@pytest.mark.parametrize("runs", [KnowsAll, Nameless])
def test_removal_of_a_check_of_runs_is_noticed(runs: type[dict[Run, int | None]]) -> None:
    recorder = Recorder()
    target = CheckedTarget(recorder, WORLD.rules)
    target._runs = runs()
    attack(0, COUNT, WORLD, target)
    assert violations(recorder.asked, WORLD)


@pytest.mark.parametrize(("name", "mutant"), [("SIGNALS", range(1 << 50)), ("is_run", lambda run: True)])
def test_removal_of_a_check_of_numbers_is_noticed(
    name: str, mutant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_target, name, mutant)
    assert violations(attacked(0).asked, WORLD)


def test_run_stays_that_of_the_user_who_began_it() -> None:
    """Another user cannot start it once more, and then execute a command in it."""
    recorder = Recorder()
    target = CheckedTarget(recorder, WORLD.rules)
    start = messages.decode(msgspec.msgpack.encode(START))
    messages.carry_out(start, target, KnownMachine(WORLD))
    messages.carry_out(start, target, KnownMachine(WORLD))  # again after an error of the machine
    other = messages.decode(msgspec.msgpack.encode(START | {"uid": BOB, "user": "bob"}))
    with pytest.raises(PermissionError, match="it is a run of another user"):
        messages.carry_out(other, target, KnownMachine(WORLD))
    assert [what for what, _ in recorder.asked] == ["start", "start"]


@pytest.mark.parametrize("uid", [0, SCHEDULER])
def test_root_and_the_scheduler_run_no_jobs(uid: int) -> None:
    launch = next(one for one in HostileScheduler(0, WORLD).launches(100) if one.uid == ANN)
    job = msgspec.structs.replace(launch.job, uid=uid, user=WORLD.accounts[uid].name)
    refused: Launch = launch._replace(uid=uid, job=job)
    with pytest.raises(PermissionError):
        CheckedTarget(Recorder(), WORLD.rules._replace(min_uid=0)).start(refused)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        messages.decode(data)


@given(st.dictionaries(st.sampled_from([*START, *SIGNAL, "log_cap"]), st.none() | st.integers() | st.text()))
def test_arbitrary_fields_are_decoded_or_refused(fields: dict[str, Any]) -> None:
    try:
        data = msgspec.msgpack.encode(START | fields)
    except (OverflowError, UnicodeEncodeError):
        return
    try:
        message = messages.decode(data)
    except ValueError:
        return
    assert isinstance(message, messages.Message)


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (START, {"record": "/etc/shadow"}),
        (START, {"leases": ["/etc/shadow"]}),
        (START, {"log_cap": 1}),
        (START, {"uid": -1}),
        (START, {"uid": (1 << 32) - 1}),
        (START, {"uid": None}),
        (START, {"user": ""}),
        (START, {"user": "ann\0"}),
        (START, {"user": "../ann"}),
        (START, {"key": 0}),
        (START, {"key": -1}),
        (START, {"attempt": 0}),
        (START, {"command": ["a\0b"]}),
        (START, {"cwd": "/" + "x" * 4096}),
        (START, {"gpus": ["../passwd"]}),
        (START, {"gpus": ["GPU-0\n"]}),
        (START, {"umask": -1}),
        (START, {"limits": [[-1, 0, 0]]}),
        (START, {"do": "reboot"}),
        (SIGNAL, {"number": 65}),
        (SIGNAL, {"pid": 1}),
    ],
    ids=str,
)
def test_message_with_a_wrong_field_is_refused(message: dict[str, Any], fields: dict[str, Any]) -> None:
    assert messages.decode(msgspec.msgpack.encode(message)).run == Run(1 << 20, 1)
    with pytest.raises(ValueError):
        messages.decode(msgspec.msgpack.encode(message | fields))


def test_message_above_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = msgspec.msgpack.encode(START)
    monkeypatch.setattr(messages, "MAX_BYTES", len(data) - 1)
    with pytest.raises(ValueError, match="too long"):
        messages.decode(data)
