"""Diagnosis of failed jobs: each rule by its example, and a corpus of the ends of real logs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from gflow.diagnosis.diagnose import Confidence, JobFacts, diagnose
from gflow.diagnosis.rules import RULES

# Of 79 entries; fewer is better. Lower it when the rules improve.
SCORED_WRONG = 3
CORPUS = Path(__file__).parents[1] / "corpus" / "failure_logs"


class Tail(NamedTuple):
    """The end of a log, and the cause that a person finds in it."""

    name: str
    cause: str
    facts: JobFacts
    text: str


def read_corpus(half: str) -> list[Tail]:
    parts = re.split(r"^=== ", (CORPUS / f"{half}.txt").read_text(), flags=re.MULTILINE)[1:]
    return [_read_part(number, part) for number, part in enumerate(parts, 1)]


def _read_part(number: int, part: str) -> Tail:
    head, _, text = part.partition("\n")
    cause, *words = head.split()
    given = dict(word.split("=", 1) for word in words if "=" in word)
    facts = JobFacts("17", given.get("state", "Failed"), given.get("reason", ""), "", int(given["exit"]))
    return Tail(f"{number}-{cause}", cause, facts, text)


def first_cause(tail: Tail) -> tuple[str, Confidence]:
    found = diagnose(tail.facts, tail.text).findings
    return (found[0].cause, found[0].confidence) if found else ("unknown", Confidence.POSSIBLE)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.cause}-{rule.find[0][:20]}")
def test_rule_finds_its_example_first(rule) -> None:
    found = diagnose(JobFacts(exit_code=1), rule.example).findings
    assert found[0].cause == rule.cause


def wrong_of(half: str) -> list[tuple[str, str, Confidence]]:
    """The tails of which another cause is named first, with that cause."""
    named = [(tail, *first_cause(tail)) for tail in read_corpus(half)]
    return [(tail.name, cause, sure) for tail, cause, sure in named if cause != tail.cause]


def test_known_logs_name_their_causes() -> None:
    """The half on which the rules were written."""
    wrong = wrong_of("known")
    assert len(wrong) <= 0.02 * len(read_corpus("known")), wrong
    assert not [one for one in wrong if one[2] is Confidence.CERTAIN]


def test_scored_logs_name_their_causes() -> None:
    """The half that no rule was written on: only the score is shown, so that it stays unseen."""
    assert len(wrong_of("scored")) <= SCORED_WRONG


def test_the_line_of_a_large_log_is_found_at_its_end(tmp_path) -> None:
    from gflow.client.diagnosis import READ, read_end

    (tmp_path / "log").write_text("x" * READ + "\nRuntimeError: CUDA error: invalid device ordinal\n")
    end = read_end(str(tmp_path / "log"))
    assert end.first_line is None and first_of(end.text) == "visible-devices"


def test_a_missing_log_is_said_and_the_record_explains() -> None:
    from gflow.client.diagnosis import facts_of, read_end

    end = read_end("/nonexistent/log")
    assert "cannot be read" in end.missing
    job = {"id": 3, "state": "Timeout", "reason": "TimeLimit", "exit_code": None}
    assert diagnose(facts_of(job), end.text).findings[0].cause == "time-limit"


def test_terminal_sequences_and_ranks_are_read_over() -> None:
    text = (
        '\x1b[31m[rank1]: Traceback (most recent call last):\x1b[0m\n[rank1]:   File "a.py", line 3, in f\n'
    )
    text += "[rank1]:     g()\n[rank1]: ModuleNotFoundError: No module named 'einops'\n"
    (found, *_) = diagnose(JobFacts(exit_code=1), text).findings
    assert found.cause == "missing-module" and found.evidence.rank == 1 and found.frame.line == 3


def test_page_fits_80_columns() -> None:
    from gflow.text.diagnosis import diagnosis_page

    job = {"id": 3, "name": "train.py", "state": "Failed", "reason": "ExitCode:1"}
    for tail in read_corpus("known"):
        page = diagnosis_page(job, diagnose(tail.facts, tail.text), 1, "")
        assert max(map(len, page.splitlines())) <= 80 or " " not in max(page.split(), key=len), page


def first_of(text: str) -> str:
    return diagnose(JobFacts(exit_code=1), text).findings[0].cause


def chained(*errors: str) -> str:
    """A log in which each exception was raised while the one before was handled."""
    trace = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n'
    return "\nDuring handling of the above exception, another exception occurred:\n\n".join(
        f"{trace}{error}\n" for error in errors
    )


def test_the_first_of_chained_exceptions_counts() -> None:
    refused = "requests.exceptions.ConnectionError: Max retries exceeded with url: /api"
    missing = "OSError: a/b is not a local folder and is not a valid model identifier"
    assert first_of(chained(refused, missing)) == "network"
    assert first_of(chained(missing, refused)) == "hub-missing"


def test_the_report_of_a_launcher_hides_no_exception() -> None:
    report = "failed (exitcode: 1) local_rank: 1 (pid: 7021) of binary: /usr/bin/python\n"
    found = diagnose(JobFacts(exit_code=1), chained("KeyError: 'label'") + report).findings
    assert [one.cause for one in found] == ["exception", "rank-died"]


def test_an_exception_that_points_above_is_a_consequence() -> None:
    first = "ImportError: libGL.so.1: cannot open shared object file\n"
    assert first_of(first + chained("RuntimeError: Start failed. See root cause above.")) == "missing-library"


def test_an_exception_without_traceback_is_possible() -> None:
    (found,) = diagnose(JobFacts(exit_code=1), "NotImplementedError: No operator found\n").findings
    assert (found.cause, found.confidence) == ("exception", Confidence.POSSIBLE)


def test_the_error_of_a_traceback_counts_more_than_its_code() -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n'
    trace += '    check("Read-only file system")\n'
    assert first_of(trace + "OSError: [Errno 5] Input/output error: '/x'\n") == "file-system"
    assert first_of(trace + "IndexError: list index out of range\n") == "index-range"


def test_a_warning_is_at_most_possible() -> None:
    error = "requests.exceptions.ConnectionError: Max retries exceeded with url: /api\n"
    text = error + "W0101 10:00:00 loader.py:3] list index out of range: skipped\n"
    found = diagnose(JobFacts(exit_code=1), text).findings
    assert [(one.cause, one.confidence.name) for one in found] == [
        ("network", "LIKELY"),
        ("index-range", "POSSIBLE"),
    ]
