"""Routes of a job: the search in its log, its diagnosis, also in Python, its dependencies."""

from __future__ import annotations

import msgspec

from gflow.diagnosis.diagnose import diagnose
from gflow.diagnosis.job_end import EndOfLog, diagnosis_view, facts_of
from gflow.wire.answers.job_details import DiagnosisAnswer, DiagnosisFinding
from tests.harness import Box, wait_until
from tests.process.test_library import program

SCRIPT = (
    "seq 1 50; echo Traceback '(most recent call last):'; echo '  File \"a.py\", line 7, in main';"
    " echo '    import einops'; echo \"ModuleNotFoundError: No module named 'einops'\"; exit 1"
)


def test_diagnosis_names_cause_evidence_and_advice(daemon: Box) -> None:
    job = daemon.submit("bash", "-c", SCRIPT)
    daemon.finished(job)
    status, found = daemon.api("GET", f"/jobs/{job}/diagnosis")
    assert status == 200 and found["cause"] == "missing-module"
    first = found["findings"][0]
    assert first["evidence"]["line"] == 54 and first["frame"]["line"] == 7 and first["advice"]
    text = daemon.text_of(job)
    assert text[first["evidence"]["offset"] :].startswith("ModuleNotFoundError")
    assert program(daemon, f"print(json.dumps(gflow.Job({job}).diagnosis()))") == found
    runs, waits = daemon.submit("sleep", "600"), daemon.submit("--hold", "true")
    wait_until(lambda: daemon.job(runs)["state"] == "Running")
    seen = program(daemon, f"print(json.dumps(gflow.Job({runs}).diagnosis()))")
    assert (seen["job"], seen["verdict"], seen["blockers"]) == (runs, "starting", [])
    blocked = program(daemon, f"print(json.dumps(gflow.Job({waits}).diagnosis()))")
    assert blocked == daemon.api("GET", f"/jobs/{waits}/why")[1] and blocked["blockers"]
    assert "einops" in daemon.ok("gjob", "why", str(job))
    held = daemon.submit("--hold", "true")
    status, refusal = daemon.api("GET", f"/jobs/{held}/diagnosis")
    assert status == 409 and "has not ended" in refusal["title"]
    daemon.ok("gcancel", str(held))
    daemon.finished(held)
    assert daemon.api("GET", f"/jobs/{held}/diagnosis")[1]["log_error"] == "the job has not started"


def test_log_is_searched_by_the_daemon(daemon: Box) -> None:
    job = daemon.submit("bash", "-c", SCRIPT)
    daemon.finished(job)
    found = daemon.api("GET", f"/jobs/{job}/output/search?find=EINOPS&limit=1")[1]
    assert [one["line"] for one in found["found"]] == [53] and found["next"]["line"] == 54
    more = "&".join(f"{name}={value}" for name, value in found["next"].items())
    found = daemon.api("GET", f"/jobs/{job}/output/search?find=EINOPS&limit=1&{more}")[1]
    assert [one["line"] for one in found["found"]] == [54]
    first = daemon.api("GET", f"/jobs/{job}/output/search?limit=1")[1]["found"][0]
    assert first["text"] == "Traceback (most recent call last):"
    piece = daemon.api("GET", f"/jobs/{job}/output?lines=1&offset={first['offset']}&limit=9")[1]
    assert (piece["line"], piece["text"]) == (51, "Traceback")
    assert daemon.api("GET", f"/jobs/{job}/output/search?find=a%0Ab")[0] == 400


def test_answer_of_the_route_has_the_keys_of_the_command() -> None:
    job = {"id": 3, "state": "Failed", "reason": "ExitCode:1", "exit_code": 1, "gpus": 0}
    text = "ModuleNotFoundError: No module named 'x'\n"
    view = diagnosis_view(job, diagnose(facts_of(job), text), EndOfLog(text))
    assert set(view) == set(DiagnosisAnswer.__struct_fields__)
    assert set(view["findings"][0]) == set(DiagnosisFinding.__struct_fields__)
    assert msgspec.convert(view, DiagnosisAnswer).cause == "missing-module"


def test_both_sides_of_a_dependency_are_shown(daemon: Box) -> None:
    first = daemon.submit("--hold", "--name", "first", "true")
    second = daemon.submit("--depends-on", str(first), "--name", "second", "true")
    third = daemon.submit("--dependency", f"afterany:{first}", "--name", "third", "true")
    found = daemon.api("GET", f"/jobs/{first}/dependencies")[1]
    assert [(one["id"], one["needs"]) for one in found["children"]] == [(second, "succeed"), (third, "end")]
    assert found["children_total"] == 2 and found["parents"] == []
    found = daemon.api("GET", f"/jobs/{third}/dependencies")[1]
    assert found["parents"] == [{"id": first, "name": "first", "state": "Hold", "needs": "end"}]
    array = daemon.submit("--hold", "--array", "1-3", "true")
    assert len(daemon.api("GET", f"/jobs/{array}?tasks=0")[1]["jobs"]) == 1
    daemon.ok("gcancel", "--all")


def test_waiting_task_has_the_estimate_of_its_array(daemon: Box) -> None:
    array = daemon.submit("--array", "1-3%1", "--time", "10:00", "sleep", "600")
    wait_until(lambda: daemon.api("GET", f"/jobs/{array}_1")[1]["jobs"][0]["state"] == "Running")
    whole, task = (daemon.api("GET", f"/jobs/{job}/why")[1] for job in (array, f"{array}_3"))
    assert whole["start"] and task["start"], (whole, task)
    assert [one["code"] for one in task["blockers"]] == [one["code"] for one in whole["blockers"]]
    page = daemon.ok("gjob", "why", f"{array}_3")
    assert "The next task of its array starts at about " in page and "estimated" not in page, page
