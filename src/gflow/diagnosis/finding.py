"""A finding of the diagnosis: a cause, the evidence it rests on, and what to do."""

# Annotations are not postponed: as texts they double the time to define a NamedTuple.
from typing import NamedTuple

from gflow.diagnosis.log_text import Frame
from gflow.diagnosis.rules.rule import Confidence, Depth


class Evidence(NamedTuple):
    """A fact that a finding rests on.

    `source`: `log`, `record` (of the job), `gpu`, `memory` (of the host), `disk` or `history` (other runs).
    `line`: the number of the line in the text of the log, from 0. `rank`: the rank that wrote it.
    """

    line: int | None
    text: str
    rank: int | None = None
    source: str = "log"


class Finding(NamedTuple):
    """A cause, with what it rests on and what to do."""

    cause: str
    summary: str
    advice: tuple[str, ...]
    confidence: Confidence
    depth: Depth
    evidence: Evidence | None = None
    # The innermost line of the user's own code, if a Python traceback leads to it.
    frame: Frame | None = None
    # Further facts that support it, of other sources.
    support: tuple[Evidence, ...] = ()
    # The figures in the text: `tried_mib`, `free_mib`.
    figures: dict[str, float] | None = None

    @property
    def is_from_log(self) -> bool:
        return self.evidence is not None and self.evidence.source == "log"


class JobFacts(NamedTuple):
    """What the record of a job says about its end."""

    job: str = "ID"
    state: str = "Failed"
    # The code of the reason, as in `OutOfMemory`, and its explanation.
    reason: str = ""
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    # Whether it asked for GPUs.
    has_gpus: bool = False


class Diagnosis(NamedTuple):
    """Findings, the most probable first, and the last lines of the log."""

    findings: tuple[Finding, ...]
    last_lines: tuple[str, ...]
