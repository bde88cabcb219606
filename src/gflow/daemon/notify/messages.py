"""Contents of notifications: pure functions from an event and its job to JSON or mail."""

from __future__ import annotations

import hashlib
from email import policy
from email.message import EmailMessage
from typing import Any, NamedTuple

from gflow import __version__
from gflow.core.lifecycle.group_end import ENDED, FIRST_FAILURE, read_counts
from gflow.core.lifecycle.limits import spell_duration
from gflow.core.model import AuditEntry, Job
from gflow.core.queries.audit_log import GROUPED
from gflow.core.reasons import ReasonKind
from gflow.job_states import FINAL_NAMES
from gflow.wire.encoding import key_label, rfc3339
from gflow.wire.events import LEADS_TO

# Line ends of SMTP, and only ASCII, for servers without 8BITMIME.
MAIL = policy.SMTP.clone(cte_type="7bit")


class Notice(NamedTuple):
    """A notification: the audit entry, its number, the event name, and the job it is about."""

    number: int
    name: str
    line: AuditEntry
    job: Job | None
    host: str
    # Whether the job is one of several of a sweep or array.
    is_in_group: bool = False

    @property
    def id(self) -> str:
        """The delivery id. A repeated delivery has the same id, so that the receiver can drop duplicates."""
        part = f"-{self.job.label}" if self.job is not None and self.line.what in GROUPED else ""
        return f"{self.host}-{self.number}{part}"

    @property
    def title(self) -> str:
        """`Job completed: job #42 (train)`."""
        about = self.name.replace("_", " ").capitalize()
        if self.job is None:
            return f"{about}: {self.line.detail or self.host}"
        group, _, detail = self.line.detail.partition(": ")
        if self.line.what == ENDED:
            name = self.job.spec.name_template or self.job.name
            return f"{group.capitalize()} ({name}) ended: {detail}"
        job = f"job #{self.job.label} ({self.job.name})"
        return f"First failure of {group}: {job}" if self.line.what == FIRST_FAILURE else f"{about}: {job}"

    @property
    def text(self) -> str:
        """The title and the user of the job; at its end also the exit code or reason, and the run time."""
        job, state = self.job, LEADS_TO.get(self.line.what)
        if job is None or self.line.what == ENDED:
            return self.title
        words = [f"{self.title} of {job.user}"]
        if job.is_final and (state in FINAL_NAMES or self.line.what == FIRST_FAILURE):
            is_exit = job.exit_code is not None and job.reason.kind in (ReasonKind.NONE, ReasonKind.EXIT_CODE)
            words.append(f"exit code {job.exit_code}" if is_exit else str(job.reason))
            words += [f"ran {spell_duration(job.ran_s)}"] if job.ran_s is not None else []
        return ", ".join(words)


def payload(notice: Notice) -> dict[str, Any]:
    """The JSON of a webhook. It never contains commands, environments or output."""
    line, job = notice.line, notice.job
    data: dict[str, Any] = {
        "id": notice.id,
        "event": notice.name,
        "timestamp": rfc3339(line.at),
        "scheduler": {"host": notice.host, "version": __version__},
        "text": notice.text,
    }
    if job is not None:
        data["job"] = {
            "id": key_label(job.key),
            "name": job.name,
            "user": job.user,
            "state": LEADS_TO.get(line.what, job.state.value),
            "runtime": _runtime(job),
            "gpus": list(job.gpu_ids),
            "submitted_at": rfc3339(job.submitted_at),
            "started_at": rfc3339(job.started_at),
            "finished_at": rfc3339(job.finished_at),
            "exit_code": job.exit_code,
            "reason": str(job.reason) or None,
        }
    if line.what == ENDED and job is not None:
        data["group"] = _group(job, line)
    return data


def _group(job: Job, line: AuditEntry) -> dict[str, Any]:
    """The group that has ended: its number (that of an array is the array's), and its jobs by outcome."""
    counts = read_counts(line.detail)
    outcomes = {outcome.replace(" ", "_"): count for outcome, count in counts.items()}
    return {"id": abs(job.spec.group), "user": job.user, "jobs": sum(counts.values()), **outcomes}


def _runtime(job: Job) -> float | None:
    return None if job.ran_s is None else round(job.ran_s, 3)


def mail(notice: Notice, sender: str, to: str, prefix: str) -> EmailMessage:
    """The notification as a plain-text mail to one address."""
    message = EmailMessage(policy=MAIL)
    subject = f"{prefix} {notice.title}".strip()
    shown = "".join(char if char.isprintable() else "?" for char in subject)
    # A job name may look like an encoded word (RFC 2047), which the reader would decode.
    message["Subject"] = shown.replace("=?", "= ?")
    message["From"] = sender
    message["To"] = to
    recipient = hashlib.blake2b(to.encode(), digest_size=4).hexdigest()
    message["Message-ID"] = f"<gflow-{notice.id}-{recipient}@{notice.host}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content("\n".join(_lines(notice)) + "\n")
    return message


def _lines(notice: Notice) -> list[str]:
    data = payload(notice)
    about = data.get("group") or data.get("job", {})
    rows = [notice.title, ""]
    rows += [f"{name.replace('_', ' ')}: {value}" for name, value in about.items() if value not in (None, [])]
    rows += [f"time: {data['timestamp']}", f"host: {notice.host}"]
    if notice.line.what == ENDED and notice.job is not None and not notice.job.is_array:
        rows += ["", f"More: gjob show g{notice.job.spec.group}"]
    elif notice.job is not None:
        rows += ["", f"More: gjob show {notice.job.label}"]
    return rows
