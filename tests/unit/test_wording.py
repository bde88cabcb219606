"""Phrases that readers stumbled over stay out of programs and documents."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXTS = [
    *(ROOT / "src/gflow").rglob("*.py"),
    *(path for path in (ROOT / "docs").rglob("*.md") if "adr" not in path.parts),
    ROOT / "README.md",
]
PHRASES = (
    "GPUs for each of these", "first job that is kept", r"\banew\b", "one job, please", "which jobs[?]",
    "Nobody can tell", "its start is promised", "is a word of the shell", "taken without a time limit",
    "and no device is there", "Govern the machine", "keeps no jobs off", "how long it is good",
    "for whoever wonders", "say a quota", "user without a quota of its own", "has no quota any more",
    "from when on", "its world:", "whom to tell", "what it is called:", "leave with its exit code",
    "ends after which", "words for the command of further", "All about jobs", "again and again",
    "the jobs that fell with it", "Asked are", "comes back after", "of which .* learn",
    "say it for this GPU", "length of what is written", "after which it does", "0: it does", "0: they do not",
    "does not know you", "token that is still good", "would open the whole machine", "in any moment",
    "are given on", "belong into", "in that moment", "Who was away", "is promised nothing",
    "what nobody knows", "Who is alone", r"\bfor ever\b", r"\b(nobody|somebody|whoever)\b",
)  # fmt: skip


def test_texts_avoid_phrases_that_readers_stumbled_over() -> None:
    pattern = re.compile("|".join(PHRASES))
    found = {path.name: match[0] for path in TEXTS if (match := pattern.search(path.read_text()))}
    assert found == {}
