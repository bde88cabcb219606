"""Limits of users in system mode: priority, grace, projects, stored texts. Operators have none."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import Box
from tests.system import System, system

CONFIG = """
[projects.members]
apollo = ["{bob}"]
crew = ["@{operators}"]
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[System]:
    with system(env={"GFLOW_PEOPLE__MAX_KEPT_MIB": "4"}) as made:
        config = made.root / "etc/gflow/gflow.toml"
        config.parent.mkdir(parents=True)
        names = {"bob": made.bob.person.pw_name, "operators": made.box.env["GFLOW_PEOPLE__OPERATORS"]}
        config.write_text(CONFIG.format(**names))
        yield made.up()


def submission(**options: Any) -> dict[str, Any]:
    job = {"command": ["true"], "cwd": "/", "environ": "", "options": {"hold": True, **options}}
    return {"token": os.urandom(8).hex(), "jobs": [job]}


def submit(made: System, box: Box, **options: Any) -> tuple[int, Any]:
    return made.ask(box, "POST", "/jobs", submission(**options))


def update(made: System, box: Box, job: int, **options: Any) -> tuple[int, Any]:
    return made.ask(box, "POST", "/jobs/update", {"jobs": [str(job)], "options": options})


@pytest.mark.parametrize(
    ("fine", "beyond", "word"),
    [
        ({"priority": 10}, {"priority": 11}, "priority"),
        ({"priority": 0}, {"priority": 255}, "priority"),
        ({"grace": 600}, {"grace": 601}, "grace"),
        ({"grace": 1}, {"grace": 315_360_000}, "grace"),
    ],
)
def test_users_are_bound_and_operators_are_not(
    machine: System, fine: dict[str, Any], beyond: dict[str, Any], word: str
) -> None:
    for options in ({}, {"array": "1-3"}):
        status, answer = submit(machine, machine.bob, **options, **beyond)
        assert (status, word in answer["title"], bool(answer["hint"])) == (409, True, True), answer
    dry = machine.ask(machine.bob, "POST", "/jobs?dry-run=1", submission(**beyond))
    assert dry[0] == 409
    status, answer = submit(machine, machine.bob, **fine)
    assert status == 201, answer
    job = answer["jobs"][0]["id"]
    assert update(machine, machine.bob, job, **beyond)[0] == 409
    again = {"token": os.urandom(8).hex(), "job": str(job), "options": beyond}
    assert machine.ask(machine.bob, "POST", "/jobs/redo", again)[0] == 409
    assert submit(machine, machine.opal, **beyond)[0] == 201
    assert update(machine, machine.bob, job, **fine)[0] == 200


def test_operator_raises_priority_and_owner_may_change_the_rest(machine: System) -> None:
    job = submit(machine, machine.bob)[1]["jobs"][0]["id"]
    assert update(machine, machine.opal, job, priority=200)[0] == 200
    assert update(machine, machine.bob, job, comment="still mine")[0] == 200
    again = {"token": os.urandom(8).hex(), "job": str(job)}
    assert machine.ask(machine.bob, "POST", "/jobs/redo", {**again, "options": {"priority": 11}})[0] == 409
    assert machine.ask(machine.bob, "POST", "/jobs/redo", {**again, "options": {"priority": 10}})[0] == 201


def test_redo_of_a_raised_job_has_the_highest_priority_of_users(machine: System) -> None:
    job = submit(machine, machine.bob)[1]["jobs"][0]["id"]
    assert update(machine, machine.opal, job, priority=200)[0] == 200
    done = machine.bob.run("gjob", "redo", str(job))
    assert done.returncode == 0, done.stderr
    assert "priority 200 became 10" in done.stderr
    again = machine.ask(machine.bob, "GET", "/jobs/@")[1]["jobs"][0]
    assert (again["redone_from"], again["priority"]) == (job, 10)
    assert "priority" not in machine.bob.run("gjob", "redo", str(job), "--priority", "5").stderr


def test_slurms_nice_passes_the_same_check(machine: System) -> None:
    done = machine.bob.run("gbatch", "--hold", "--nice=-5", "true")
    assert (done.returncode, "priority" in done.stderr) == (1, True)
    machine.bob.ok("gbatch", "--hold", "--nice=5", "true")


def test_project_with_members_is_for_them(machine: System) -> None:
    assert submit(machine, machine.bob, project="apollo")[0] == 201
    status, answer = submit(machine, machine.ann, project="apollo")
    assert (status, "apollo" in answer["title"]) == (403, True)
    assert submit(machine, machine.ann, project="crew")[0] == 403
    assert submit(machine, machine.opal, project="crew")[0] == 201
    assert submit(machine, machine.ann, project="open")[0] == 201


def test_environments_of_user_are_limited_equal_count_once(machine: System) -> None:
    def bring(environ: bytes) -> int:
        body = submission()
        body["jobs"][0]["environ"] = base64.b64encode(environ).decode()
        status, answer = machine.ask(machine.ann, "POST", "/jobs", body)
        if status == 201:  # cancelled at once: it never runs
            machine.ask(machine.ann, "POST", "/jobs/cancel", {"jobs": [str(answer["jobs"][0]["id"])]})
        return status

    same = b"A=" + b"x" * (3 << 19)
    assert [bring(same) for _ in range(4)] == [201] * 4
    assert [bring(same + bytes([65 + i])) for i in range(3)] == [201, 429, 429]
    assert bring(same) == 201
    assert machine.bob.submit("--hold", "true")


@pytest.mark.parametrize(
    ("options", "fits"),
    [({}, 10), ({"array": "1-4"}, 2), ({"param": ["x=1,2,3,4"]}, 2)],
    ids=["job", "array", "sweep"],
)
def test_long_commands_of_one_person_have_the_same_bound(options: dict[str, Any], fits: int) -> None:
    """Each job, task and job of a sweep has its own on the disk."""
    with system(env={"GFLOW_PEOPLE__MAX_KEPT_MIB": "4"}) as made:
        made.up()

        def bring() -> int:
            body = submission(**options)
            body["jobs"][0]["command"] = ["true", "x" * 400_000]
            return made.ask(made.ann, "POST", "/jobs", body)[0]

        assert [bring() for _ in range(fits + 2)] == [201] * fits + [429] * 2
        assert made.bob.submit("--hold", "true")


def test_redo_and_update_with_a_long_command_are_counted() -> None:
    with system(env={"GFLOW_PEOPLE__MAX_KEPT_MIB": "4"}) as made:
        made.up()
        body = submission()
        body["jobs"][0]["command"] = ["true", "x" * 900_000]
        job = made.ask(made.ann, "POST", "/jobs", body)[1]["jobs"][0]["id"]
        again = [
            made.ask(made.ann, "POST", "/jobs/redo", {"token": os.urandom(8).hex(), "job": str(job)})[0]
            for _ in range(4)
        ]
        assert again == [201, 201, 201, 429]
        change = {"jobs": [str(job)], "command": ["true", "y" * 900_000]}
        assert made.ask(made.ann, "POST", "/jobs/update", change)[0] == 429
        assert update(made, made.ann, job, comment="short")[0] == 200


def test_quota_of_a_closed_project_is_not_told_to_others(machine: System) -> None:
    """Also not by which refusal comes first, for submissions that are taken in parts."""
    machine.box.ok("gctl", "quota", "set", "--project", "apollo", "--max-queued-jobs", "5")
    try:
        for query in ("", "?dry-run=1"):
            body = submission(project="apollo")
            body["jobs"] *= 150
            status, answer = machine.ask(machine.ann, "POST", f"/jobs{query}", body)
            assert (status, "member" in answer["title"]) == (403, True), answer
    finally:
        machine.box.ok("gctl", "quota", "remove", "--project", "apollo")
