"""Diagnosis of failed jobs: each rule by its example, and a corpus of the ends of real logs."""

from __future__ import annotations

import pytest

from gflow.diagnosis.diagnose import Confidence, JobFacts, diagnose
from gflow.diagnosis.log_text import Frame
from gflow.diagnosis.rules import RULES
from tests.failure_corpus import Tail, read_corpus

# Of 79 entries; fewer is better. Lower it when the rules improve.
SCORED_WRONG = 3


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
    from gflow.daemon.execution.log_diagnosis import read_end
    from gflow.diagnosis.job_end import READ
    from gflow.targets.file_rights import OWN_FILES

    (tmp_path / "log").write_text("x" * READ + "\nRuntimeError: CUDA error: invalid device ordinal\n")
    end = read_end(str(tmp_path / "log"), OWN_FILES)[2]
    assert end.first_line is None and first_of(end.text) == "visible-devices"


def test_a_missing_log_is_said_and_the_record_explains() -> None:
    from gflow.daemon.execution.log_diagnosis import read_end
    from gflow.diagnosis.job_end import facts_of
    from gflow.targets.file_rights import OWN_FILES

    end = read_end("/nonexistent/log", OWN_FILES)[2]
    assert end.missing == "there is no log"
    job = {"id": 3, "state": "Timeout", "reason": "TimeLimit", "exit_code": None, "gpus": 0}
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


FAULT = """Fatal Python error: Segmentation fault

Thread 0x00007f01 (most recent call first):
  File "/home/ann/proj/loader.py", line 8 in wait

Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/ann/proj/train.py", line 31 in step
  File "/home/ann/proj/train.py", line 40 in <module>

Extension modules: numpy.core._multiarray_umath (total: 1)
gflow: job 17 was killed by signal 11 (Segmentation fault)
"""


def test_line_of_the_user_is_read_from_the_dump_of_faulthandler() -> None:
    (found,) = diagnose(JobFacts(exit_code=139), FAULT).findings
    assert (found.cause, found.evidence.line) == ("segfault", 0)
    assert found.frame == Frame("/home/ann/proj/train.py", 31, "step", "")
    cut_off = FAULT.replace("Current thread", "Thread")
    assert diagnose(JobFacts(exit_code=139), cut_off).findings[0].frame is None


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("cp: cannot stat '/data/a': No such file or directory\n", "missing-file"),
        ("bash: line 1:  4242 File size limit exceeded head -c 9999 /dev/zero > big\n", "file-size"),
        ("step 12 train_loss nan lr 0.1\nstep 13 train_loss nan lr 0.1\n", "nan"),
    ],
)
def test_text_of_a_tool_names_its_cause(text: str, cause: str) -> None:
    assert first_of(text) == cause
