"""The diagnosis of an ended job: its record from the daemon, its log read with the rights of the caller."""

from __future__ import annotations

import os
from typing import Any

from gflow.client import http
from gflow.diagnosis.diagnose import Diagnosis, Finding, JobFacts, diagnose
from gflow.errors import Refused

# Bytes of the log that are judged, from its end. A larger log costs as much as one of this size.
READ = 256 << 10


class EndOfLog:
    """The last part of a log: its text, the number of its first line (None: unknown), or why it has none."""

    def __init__(self, text: str = "", first_line: int | None = 1, missing: str = "") -> None:
        self.text = text
        self.first_line = first_line
        self.missing = missing


def read_end(path: str) -> EndOfLog:
    """Read the end of a log. The cut-off first line of a large one is dropped."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return EndOfLog(missing=f"the log cannot be read: {error.strerror}")
    try:
        size = os.fstat(fd).st_size
        content = os.pread(fd, READ, max(0, size - READ))
    except OSError as error:
        return EndOfLog(missing=f"the log cannot be read: {error.strerror}")
    finally:
        os.close(fd)
    if size <= READ:
        return EndOfLog(content.decode(errors="replace"))
    return EndOfLog(content.partition(b"\n")[2].decode(errors="replace"), first_line=None)


def facts_of(job: dict[str, Any]) -> JobFacts:
    """What the record of a job, as the API shows it, says about its end."""
    # `gflow.core.reasons` reads such texts too, and imports msgspec, which takes longer than the diagnosis.
    code, _, detail = (job["reason"] or "").partition(":")
    signal = int(detail) if code == "Signal" and detail.isdecimal() else None
    return JobFacts(str(job["id"]), job["state"], code, detail.strip(), job["exit_code"], signal)


def diagnose_job(job: dict[str, Any], become_owner: Any = None) -> tuple[Diagnosis, EndOfLog]:
    """Diagnose an ended job. `become_owner` gets the uid of the log's owner before the log is read."""
    end = EndOfLog(missing="the job has not started")
    if job["attempt"] and job["tasks"] is None:
        try:
            place = http.get(http.job_path(str(job["id"]), "/log"))
        except Refused as error:
            end = EndOfLog(missing=f"the log cannot be read: {error}")
        else:
            if become_owner is not None:
                become_owner(place["uid"])
            end = read_end(place["path"])
    return diagnose(facts_of(job), end.text), end


def diagnosis_view(job: dict[str, Any], found: Diagnosis, end: EndOfLog) -> dict[str, Any]:
    """The diagnosis as JSON. `cause` is null if none is known."""
    return {
        "job": job["id"],
        "state": job["state"],
        "reason": job["reason"],
        "exit_code": job["exit_code"],
        "cause": found.findings[0].cause if found.findings else None,
        "findings": [_finding_view(one, end) for one in found.findings],
        "last_lines": list(found.last_lines),
        "log_error": end.missing or None,
    }


def _finding_view(one: Finding, end: EndOfLog) -> dict[str, Any]:
    evidence = one.evidence
    return {
        "cause": one.cause,
        "summary": one.summary,
        "confidence": one.confidence.name.lower(),
        "advice": list(one.advice),
        "evidence": evidence and {
            "text": evidence.text,
            "line": end.first_line + evidence.line if end.first_line else None,
            "rank": evidence.rank,
        },
        "frame": one.frame and one.frame._asdict(),
    }  # fmt: skip
