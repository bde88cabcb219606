"""On a private machine a job of another user looks like one that does not exist, on every route."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gflow.daemon.api.routes import ROUTES
from tests.harness import wait_until
from tests.system import System, system

# The machine's numbers begin here, so that a number in an answer is a job's.
FIRST = 77_700
# Numbers without a job: given out and thrown away since; not given out yet.
MISSING = ("77100", "99900")
NAME, PROJECT = "secretname", "apollo"
CONFIG = """
[projects]
known_projects = ["apollo", "gemini", "mercury"]

[projects.members]
mercury = ["{bob}"]
gemini = ["{ann}"]

[quota.users]
{bob} = {{max_running_gpus = 8}}
"""
Asked = tuple[str, Any]


def token() -> str:
    return os.urandom(8).hex()


def described(**options: Any) -> dict[str, Any]:
    return {"command": ["true"], "cwd": "/", "environ": "", "options": options}


def call(program: str, *words: str) -> str:
    """The body of a command line, as a thin client sends it."""
    return "\0".join(
        [program, token(), "/", "18", "-1", "-1", "0", "2" * len(words), str(len(words)), *words, ""]
    )


# What names a job, for each route that takes one: a path behind the route's, or a body.
QUESTIONS: dict[tuple[str, str], list[Callable[[str], Asked]]] = {
    ("POST", "/jobs"): [
        lambda job: ("", {"token": token(), "jobs": [described(hold=True, **{"depends-on": job})]}),
        lambda job: ("", {"token": token(), "jobs": [described(hold=True, **{"depends-on-any": job})]}),
        lambda job: ("?dry-run=1", {"token": token(), "jobs": [described(**{"depends-on": job})]}),
        lambda job: ("", {"token": token(), "jobs": [described(hold=True, **{"depends-on": f"g{job}"})]}),
        lambda job: (
            "",
            {"token": token(), "jobs": [described(**{"depends-on": job, "no-auto-cancel": True})]},
        ),
    ],
    ("POST", "/command"): [
        lambda job: ("", call("gjob", "show", job)),
        lambda job: ("", call("gqueue", "-a", job)),
        lambda job: ("", call("gqueue", "-a", "-N", NAME, "-P", PROJECT)),
        lambda job: ("", call("gbatch", "--hold", "--depends-on", job, "true")),
        lambda job: ("", call("gcancel", job)),
        lambda job: ("", call("gcancel", "-n", NAME, job)),
        lambda job: ("", call("gcancel", "-n", NAME, "-P", PROJECT, "-u", "all")),
        lambda job: ("", call("gcancel", "--signal", "CONT", job)),
        lambda job: ("", call("gjob", "history", job)),
        lambda job: ("", call("gjob", "usage", job)),
        lambda job: ("", call("gjob", "results", job)),
        lambda job: ("", call("gjob", "hold", job)),
        lambda job: ("", call("gjob", "release", job)),
    ],
    ("GET", "/jobs"): [
        lambda job: (f"?jobs={job}", None),
        lambda job: (f"?jobs={job}-{job}", None),
        lambda job: (f"?jobs={job}-{job}&form=results-json", None),
        lambda job: (f"?jobs=g{job}&form=results-json", None),
        lambda job: (f"?all=1&names={NAME}", None),
        lambda job: (f"?all=1&projects={PROJECT}", None),
    ],
    ("POST", "/jobs/redo"): [lambda job: ("", {"token": token(), "job": job})],
    ("POST", "/jobs/cancel"): [
        lambda job: ("", {"jobs": [job], "dry_run": True}),
        lambda job: ("", {"jobs": [job]}),
        lambda job: ("", {"jobs": [f"{job}-{job}"]}),
        lambda job: ("", {"jobs": [job], "names": ["s*"], "dry_run": True}),
        lambda job: ("", {"jobs": [job], "names": ["x*"], "dry_run": True}),
        lambda job: ("", {"jobs": [job], "projects": [PROJECT], "dry_run": True}),
        lambda job: ("", {"jobs": [job], "states": ["R"], "dry_run": True}),
        lambda job: ("", {"jobs": [job], "users": ["OWNER"], "dry_run": True}),
    ],
    ("POST", "/jobs/signal"): [lambda job: ("", {"jobs": [job], "signal": "CONT"})],
    ("POST", "/jobs/hold"): [lambda job: ("", {"jobs": [job]}), lambda job: ("", {"jobs": [f"{job}-{job}"]})],
    ("POST", "/jobs/release"): [lambda job: ("", {"jobs": [job]})],
    ("POST", "/jobs/update"): [
        lambda job: ("", {"jobs": [job], "options": {"priority": 5}}),
        lambda job: ("", {"jobs": ["@"], "options": {"depends-on": job}}),
    ],
    ("POST", "/limits"): [lambda job: ("", {"job": job, "max_concurrent": 2})],
    ("POST", "/jobs/{job}/exec"): [lambda job: ("", {"command": ["true"]})],
    ("GET", "/events"): [lambda job: (f"?after=0&follow=0&job={job}", None)],
    ("GET", "/stats"): [lambda job: ("?user=OWNER", None)],
    ("GET", "/stats/days"): [lambda job: ("?user=OWNER", None)],
    ("GET", "/reservations"): [lambda job: ("?user=OWNER", None)],
}
PATHS = {(route.method, route.path) for route in ROUTES if {"job", "group"} & set(route.param_convertors)}
# Of these no answer depends on a job that is named.
NO_JOB = {
    ("POST", "/drain"), ("GET", "/gpus"), ("GET", "/gpus/memory"), ("POST", "/gpus"),
    ("GET", "/quotas"), ("PUT", "/quotas"), ("POST", "/reservations"),
    ("GET", "/reservations/{id}"), ("DELETE", "/reservations/{id}"),
    ("GET", "/gpu-processes"), ("POST", "/gpu-processes/ignore"), ("POST", "/gpu-processes/unignore"),
    ("POST", "/backup"), ("POST", "/notifications/test"), ("POST", "/tokens"), ("GET", "/tokens"),
    ("POST", "/tokens/revoke"), ("GET", "/info"), ("GET", "/overview"), ("GET", "/status"),
    ("GET", "/health"), ("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/starts"), ("GET", "/me"),
    ("GET", "/gpus/history"), ("GET", "/gpus/events"), ("GET", "/targets"), ("PATCH", "/reservations/{id}"),
    ("GET", "/targets/{target}/jobs"), ("GET", "/targets/{target}/partitions"),
    ("POST", "/web/links"), ("POST", "/web/logout"),
}  # fmt: skip


def test_every_route_is_in_this_table():
    assert set(QUESTIONS) | PATHS | NO_JOB == {(route.method, route.path) for route in ROUTES}


@pytest.fixture(scope="module")
def machine() -> Iterator[tuple[System, dict[str, str]]]:
    """Bob's jobs in each state, by what they are; Ann has one, which is held."""
    with system(env={"GFLOW_PEOPLE__PRIVACY": "private"}) as made:
        logs = made.box.data / "logs"
        logs.mkdir(parents=True)
        made.box.data.chmod(0o700)
        config = made.root / "etc/gflow/gflow.toml"
        config.parent.mkdir(parents=True)
        config.write_text(CONFIG.format(ann=made.ann.person.pw_name, bob=made.bob.person.pw_name))
        (logs / f"{FIRST}.log").touch()
        made.up()
        words = ("--name", NAME, "--project", PROJECT, "--output", "/dev/null")
        jobs = {
            "running": made.bob.submit(*words, "--gpus", "1", "sleep", "600"),
            "held": made.bob.submit(*words, "--hold", "true"),
            "array": made.bob.submit(*words, "--hold", "--array", "1-3%2", "true"),
            "over": made.bob.submit(*words, "true"),
            "failed": made.bob.submit(*words, "false"),
            "swept": made.bob.submit(*words, "--hold", "--max-concurrent", "2", "true"),
        }
        swept = made.bob.ok("gbatch", *words, "--hold", "--param", "x=1,2", "--parsable", "true")
        jobs["group"] = int(swept.split()[0])
        assert min(jobs.values()) > FIRST
        made.box.finished(jobs["over"])
        made.box.finished(jobs["failed"])
        wait_until(lambda: made.box.job(jobs["running"])["state"] == "Running")
        labels = {kind: str(job) for kind, job in jobs.items()}
        made.ann.submit("--hold", "true")
        yield made, labels | {"task": f"{labels['array']}_2"}


def asked(
    made: System, route: tuple[str, str], question: Callable[[str], Asked], job: str
) -> tuple[int, str]:
    """The answer that Ann gets, without the number that she named."""
    method, path = route
    more, body = question(job)
    owner = "zoe" if job.partition("_")[0] in MISSING else made.bob.person.pw_name
    words = json.loads(json.dumps([more, body]).replace("OWNER", owner))
    sent = words[1].encode() if isinstance(words[1], str) else words[1]
    status, answer = made.ask(made.ann, method, path.format(job=job, group=job) + words[0], sent)
    return status, json.dumps(answer, default=str).replace(job.partition("_")[0], "JOB")


@pytest.mark.parametrize("route", sorted(PATHS | set(QUESTIONS)), ids=" ".join)
def test_job_of_others_is_as_if_it_did_not_exist(
    machine: tuple[System, dict[str, str]], route: tuple[str, str]
) -> None:
    (made, jobs), (_, path) = machine, route
    for question in QUESTIONS.get(route, [lambda job: ("", None)]):
        for kind, job in jobs.items():
            suffix = job.partition("_")[1] + job.partition("_")[2]
            seen = asked(made, route, question, job)
            allowed = (200, 403 if path.startswith("/stats") else 404, *([400] if kind == "task" else []))
            assert seen[0] in allowed, (kind, seen)  # a range of tasks is written in another way
            for missing in MISSING:
                assert seen == asked(made, route, question, missing + suffix), (kind, missing)
            assert NAME not in seen[1] and PROJECT not in seen[1]


@pytest.mark.parametrize(
    "more",
    [{"users": ["BOB"]}, {"names": ["secret*"], "users": ["BOB"]}, {"projects": [PROJECT], "users": ["BOB"]}],
    ids=["users", "names", "projects"],
)
def test_cancel_by_filter_does_not_match_what_is_not_seen(
    machine: tuple[System, dict[str, str]], more: dict[str, Any]
) -> None:
    made, jobs = machine
    more = json.loads(json.dumps(more).replace("BOB", made.bob.person.pw_name))
    assert made.ask(made.ann, "POST", "/jobs/cancel", more) == (200, {"jobs": [], "total": 0})
    assert made.box.job(int(jobs["running"]))["state"] == "Running"


@pytest.mark.parametrize("accept", ["application/json", "text/plain"])
def test_overview_names_no_job_and_no_user_but_the_caller(
    machine: tuple[System, dict[str, str]], accept: str
) -> None:
    made, _ = machine
    status, answer = made.ask(made.ann, "GET", "/overview?lists=9", accept=accept)
    text = json.dumps(answer, default=str)
    assert status == 200 and made.ann.person.pw_name in text
    for hidden in (NAME, PROJECT, made.bob.person.pw_name):
        assert hidden not in text


def test_cancel_preview_hides_dependents_of_others(
    machine: tuple[System, dict[str, str]],
) -> None:
    made, _ = machine
    mine = made.ann.submit("--hold", "true")
    words = {"token": token(), "jobs": [described(**{"depends-on": str(mine), "hold": True})]}
    status, answer = made.ask(made.opal, "POST", "/jobs", words)
    assert status == 201, answer
    body = {"jobs": [str(mine)], "dry_run": True}
    assert made.ask(made.ann, "POST", "/jobs/cancel", body)[1]["total"] == 1
    assert made.ask(made.box, "POST", "/jobs/cancel", body)[1]["total"] == 2


def test_quotas_show_no_projects_of_others(machine: tuple[System, dict[str, str]]) -> None:
    made, _ = machine
    for scope in ({"name": ""}, {"name": PROJECT}):
        quota = {"scope": "project", "max_running_gpus": 8, **scope}
        assert made.ask(made.box, "PUT", "/quotas", quota)[0] == 200
    mine = made.ask(made.ann, "GET", "/quotas")[1]["quotas"]
    assert [line["name"] for line in mine if line["scope"] == "project"] == [None]
    assert PROJECT in str(made.ask(made.opal, "GET", "/quotas")[1])


def test_full_project_is_refused_without_numbers(machine: tuple[System, dict[str, str]]) -> None:
    made, _ = machine
    quota = {"scope": "project", "name": PROJECT, "max_queued_jobs": 2}
    assert made.ask(made.box, "PUT", "/quotas", quota)[0] == 200
    words = {"token": token(), "jobs": [described(project=PROJECT, hold=True)]}
    status, answer = made.ask(made.ann, "POST", "/jobs", words)
    assert status == 409
    assert not any(char.isdigit() for char in answer["title"])


def test_settings_that_name_people_are_shown_to_operators_alone(
    machine: tuple[System, dict[str, str]],
) -> None:
    made, _ = machine
    name = made.bob.person.pw_name
    seen = made.ask(made.ann, "GET", "/status")[1]["settings"]
    assert name not in str(seen) and "mercury" not in str(seen)
    assert "people.privacy" in seen
    for box in (made.opal, made.box):
        settings = made.ask(box, "GET", "/status")[1]["settings"]
        assert settings["projects.members"]["value"]["mercury"] == [name]
        assert name in settings["quota.users"]["value"]


def test_refusal_of_a_project_lists_the_callers_own_alone(machine: tuple[System, dict[str, str]]) -> None:
    made, _ = machine

    def refused(project: str) -> tuple[int, str, str]:
        words = {"token": token(), "jobs": [described(project=project, hold=True)]}
        status, answer = made.ask(made.ann, "POST", "/jobs", words)
        return status, answer["title"].replace(project, "NAME"), answer["hint"]

    assert refused("nothing") == refused("mercury")
    assert refused("nothing")[2] == "known projects: apollo, gemini"


@pytest.mark.parametrize("accept", ["application/json", "text/plain"])
@pytest.mark.parametrize("path", ["/info", "/info?long=1", "/gpus", "/jobs/@/why", "/jobs/@", "/jobs"])
def test_gpus_and_reasons_do_not_name_jobs_of_others(
    machine: tuple[System, dict[str, str]], path: str, accept: str
) -> None:
    made, jobs = machine
    waits = made.ann.submit("--gpus", "2", "true")
    try:
        _, answer = made.ask(made.ann, "GET", path, accept=accept)
        assert jobs["running"] not in json.dumps(answer, default=str)
        assert path != "/jobs/@/why" or "another job has GPU" in str(answer)
        if path == "/info" and accept == "application/json":
            gpu = answer["gpus"][0]
            assert (gpu["available"], gpu["jobs"], gpu["holders"][0]["id"]) == (False, [], None)
        if not path.startswith("/jobs"):
            assert jobs["running"] in str(made.ask(made.opal, "GET", path, accept=accept)[1])
    finally:
        made.ann.ok("gcancel", str(waits))


def test_preempted_job_hides_the_preempting_job(
    machine: tuple[System, dict[str, str]],
) -> None:
    made, _ = machine
    mine = made.ann.submit("--gpus", "1", "--preemptible", "sleep", "600")
    wait_until(lambda: made.box.job(mine)["state"] == "Running")
    other = made.bob.submit("--gpus", "1", "--output", "/dev/null", "sleep", "600")
    try:
        wait_until(lambda: made.box.job(mine)["state"] == "Queued")
        for path in (f"/jobs/{mine}", f"/jobs/{mine}/history", f"/events?after=0&follow=0&job={mine}"):
            assert str(other) not in str(made.ask(made.ann, "GET", path)[1]), path
        assert str(other) in str(made.ask(made.box, "GET", f"/jobs/{mine}/history")[1])
    finally:
        made.box.ok("gcancel", "--now", str(mine), str(other))
