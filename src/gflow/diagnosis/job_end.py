"""The end of a job as the API shows it: its facts for the diagnosis, the end of its log, the answer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from gflow.diagnosis.circumstances import Circumstances, GpuFault, GpuUse, RunsOnGpu
from gflow.diagnosis.finding import Diagnosis, Evidence, Finding, JobFacts

# Bytes of the log that are judged, from its end. A larger log costs as much as one of this size.
READ = 256 << 10
# The line of the shim with which the log of a further attempt begins.
ATTEMPT = b"gflow: attempt "
# Names of options and parameters for the samples in a batch.
BATCH_NAMES = frozenset(
    {"batch", "batchsize", "bs", "trainbatchsize", "microbatchsize", "microbatch", "perdevicetrainbatchsize"}
)


class EndOfLog:
    """The last part of a log: its text, the number of its first line (None: unknown), or why it has none."""

    def __init__(
        self, text: str = "", first_line: int | None = 1, missing: str = "", skipped: int = 0
    ) -> None:
        self.text = text
        self.first_line = first_line
        self.missing = missing
        # Bytes of the content before the text.
        self.skipped = skipped


def end_of(content: bytes, *, is_whole: bool) -> EndOfLog:
    """The part of the content that the last attempt wrote: each further one begins with a line of gflow.

    The cut-off first line of a log that is not whole is dropped.
    """
    cut = 0 if is_whole else content.find(b"\n") + 1
    begins = content.rfind(b"\n" + ATTEMPT, cut) + 1
    if begins:
        cut = content.find(b"\n", begins) + 1 or len(content)
    first_line = content.count(b"\n", 0, cut) + 1 if is_whole else None
    return EndOfLog(content[cut:].decode(errors="replace"), first_line, skipped=cut)


def facts_of(job: dict[str, Any]) -> JobFacts:
    """What the record of a job, as the API shows it, says about its end."""
    # `gflow.core.reasons` reads such texts too, and imports msgspec, which takes longer than the diagnosis.
    code, _, detail = (job["reason"] or "").partition(":")
    signal = int(detail) if code == "Signal" and detail.isdecimal() else None
    return JobFacts(
        str(job["id"]), job["state"], code, detail.strip(), job["exit_code"], signal, bool(job["gpus"])
    )


def circumstances_of(job: dict[str, Any], ended: dict[str, Any]) -> Circumstances:
    """What the daemon knows about the end of a job besides its record."""
    events = [GpuFault(one["gpu"], one["at"], one["text"]) for one in ended.get("gpu_faults", ())]
    runs = [_runs_on_gpu(one) for one in ended.get("runs", ())]
    return Circumstances(
        peak_mib=job["peak_memory_mib"],
        limit_mib=job["memory_mib"],
        gpus=tuple(GpuUse(one["gpu"], one["peak_mib"], one["total_mib"]) for one in ended.get("gpus", ())),
        gpu_faults=tuple(events),
        attempts=tuple(one["reason"] for one in ended.get("attempts", ())),
        on_gpus=tuple(one for one in runs if one.gpu is not None),
        elsewhere=next((one for one in runs if one.gpu is None), RunsOnGpu(None, 0, 0)),
        stopped=ended.get("stopped") or "",
        allocator=ended.get("allocator") or "",
        batch=batch_of(job["command"], job["parameters"]),
        predicted_mib=job["gpu_memory_predicted_mib"] or 0,
    )


def _runs_on_gpu(one: dict[str, Any]) -> RunsOnGpu:
    return RunsOnGpu(one["gpu"], one["ended"], one["failed"], tuple(map(str, one["jobs"])))


def batch_of(command: list[str], parameters: dict[str, str]) -> int:
    """The batch that a sweep or the command line sets: `--batch-size 64`, `bs=64`; 0: none is found."""
    words = " ".join(command).replace("=", " ").split()
    for name, value in [*parameters.items(), *pairwise(words)]:
        plain = name.rpartition(".")[2].replace("-", "").replace("_", "").lower()
        if plain in BATCH_NAMES and value.isdecimal():
            return int(value)
    return 0


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
        "failed_tasks": [],
    }


def _finding_view(one: Finding, end: EndOfLog) -> dict[str, Any]:
    return {
        "cause": one.cause,
        "summary": one.summary,
        "confidence": one.confidence.name.lower(),
        "advice": list(one.advice),
        "evidence": one.evidence and _evidence_view(one.evidence, end),
        "frame": one.frame and one.frame._asdict(),
        "support": [_evidence_view(fact, end) for fact in one.support],
        "figures": one.figures,
    }


def _evidence_view(fact: Evidence, end: EndOfLog) -> dict[str, Any]:
    has_number = end.first_line is not None and fact.line is not None
    return {
        "text": fact.text,
        "line": (end.first_line or 0) + (fact.line or 0) if has_number else None,
        "rank": fact.rank,
        "source": fact.source,
    }
