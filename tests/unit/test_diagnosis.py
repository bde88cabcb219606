"""Diagnosis of failed jobs: each rule by its example, and a corpus of the ends of real logs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from gflow.diagnosis.diagnose import Confidence, JobFacts, diagnose
from gflow.diagnosis.rules import RULES

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


@pytest.mark.parametrize("tail", read_corpus("known"), ids=lambda tail: tail.name)
def test_known_log_names_its_cause(tail: Tail) -> None:
    assert first_cause(tail)[0] == tail.cause
