"""The corpus of failed jobs: ends of logs, each with the cause that a person finds in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from gflow.diagnosis.finding import JobFacts

CORPUS = Path(__file__).parent / "corpus" / "failure_logs"


class Tail(NamedTuple):
    """The end of a log, and the cause that a person finds in it."""

    name: str
    cause: str
    facts: JobFacts
    text: str


def read_corpus(half: str) -> list[Tail]:
    """The entries of `known`, on which rules are written, or of `scored`, which only scores them."""
    parts = re.split(r"^=== ", (CORPUS / f"{half}.txt").read_text(), flags=re.MULTILINE)[1:]
    return [_read_part(number, part) for number, part in enumerate(parts, 1)]


def _read_part(number: int, part: str) -> Tail:
    head, _, text = part.partition("\n")
    cause, *words = head.split()
    given = dict(word.split("=", 1) for word in words if "=" in word)
    facts = JobFacts("17", given.get("state", "Failed"), given.get("reason", ""), "", int(given["exit"]))
    return Tail(f"{number}-{cause}", cause, facts, text)
