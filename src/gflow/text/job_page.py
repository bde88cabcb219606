"""Pages of `gjob show`, `gjob history` and `gflowd status`."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Sequence
from typing import Any

from gflow.core.forecast.explain import Blocker
from gflow.core.ids import JobKey, job_key, label, number_of, task_of
from gflow.core.lifecycle.limits import spell_progress
from gflow.core.model import DEFAULT_SPEC, LOCAL, AuditEntry, Job, Moment, Spec
from gflow.core.scheduling.placement import gib
from gflow.options.job_options import JOB
from gflow.text.queue import short_state
from gflow.text.table import clock, fine, moment, table
from gflow.wire.answers.daemon import StatusAnswer


def job_page(
    job: Job,
    why: Blocker | None,
    now: Moment,
    log: str,
    gpu_use: str = "",
    measured_mib: int = 0,
    there: str = "",
) -> str:
    """The page of `gjob show`. Leaves out fields that are empty. `there`: its folder on a cluster."""
    spec, options = job.spec, _option_facts(job, measured_mib)
    reason = str(why or job.reason)
    lines: list[tuple[str, str]] = [
        ("Job", job.label),
        ("Name", options.pop("Name")),
        ("State", f"{job.state.value} ({short_state(job)})" + (f", {reason}" if reason else "")),
        ("User", job.user),
        ("Priority", options.pop("Priority")),
    ]
    details = [
        *_command_facts(spec),
        ("Folder there", there),
        ("GPUs", options.pop("GPUs")),
        ("GPU ids", ",".join(map(str, job.gpu_ids))),
        ("Id on the target", job.remote.id if job.remote else ""),
        ("GPU use", gpu_use),
        ("Tasks", _tasks(job)),
        *options.items(),
        ("Group", str(spec.group) if spec.group > 0 else ""),
        ("Redone from", label(spec.redone_from) if spec.redone_from else ""),
    ]
    lines += [(name, value) for name, value in details if value]
    lines += _timing(job, now) + _progress(job, now) + _usage(job)
    if job.exit_code is not None:
        lines.append(("Exit code", str(job.exit_code)))
    if job.signal is not None:
        lines.append(("Signal", str(job.signal)))
    if job.attempt > 1:
        lines.append(("Attempt", str(job.attempt)))
    if job.attempt and log:
        lines.append(("Log", log if not job.is_array else f"one per task: gjob log {job.label}_N"))
    return facts(lines)


def _command_facts(spec: Spec) -> list[tuple[str, str]]:
    """Command and working directory; empty where the viewer may not see them."""
    return [
        ("Script", (spec.script_path or "(from standard input)") if spec.script else ""),
        ("Arguments" if spec.script else "Command", shlex.join(spec.command)),
        ("Template", shlex.join(spec.template)),
        ("Folder", spec.cwd),
    ]


def _option_facts(job: Job, measured_mib: int) -> dict[str, str]:
    """The options that differ from their defaults, in the order of the option table."""
    composed = _composed_facts(job, measured_mib)
    is_here = job.target == LOCAL and not (job.spec.on or job.spec.overflow)
    found: dict[str, str] = {}
    for option in JOB:
        if is_here and option.only_on == "cluster":  # ignored on this machine
            continue
        name, has_value, text = option.shown.partition(": ")
        if not has_value:
            found[name] = composed[name]
            continue
        value = getattr(job.spec, option.field)
        if value != getattr(DEFAULT_SPEC, option.field):
            found[name] = text.format(_spell(option.kind, value))
    return found


def _composed_facts(job: Job, measured_mib: int) -> dict[str, str]:
    """Lines about several options, or about an option and the state of the job."""
    spec = job.spec
    nodes = f": {job.remote.nodes}" if job.remote and job.remote.nodes else ""
    return {
        "Name": job.name,
        "Priority": str(spec.priority),
        "GPUs": str(spec.gpus) + (" (shared)" if spec.shared else ""),
        "GPU memory": _gpu_memory(job),
        "Predicted": compare_prediction(spec.predicted_mib, measured_mib) if spec.predicted_mib else "",
        "Target": job.target if job.target != LOCAL else spec.on,
        "Overflow": f"to {spec.overflow} if it has not started after {clock(spec.patience_s)}"
        if spec.overflow
        else "",
        "Nodes": f"{spec.nodes}{nodes}" if job.target != LOCAL or spec.nodes > 1 else "",
        "Not before": moment(job.begin_at) if job.begin_at and not job.is_final else "",
        "Array": spec.array if job.task is None else "",
        "Singleton": _singleton(spec) if spec.singleton else "",
        "Retries": _retries(job) if spec.max_retries else "",
    }


# How values are spelled, by the kind of their option. Others are text, or lists of texts.
SPELLINGS: dict[str, Callable[[Any], str]] = {
    "size": gib,
    "duration": clock,
    "seconds": clock,
    "signal": lambda warning: _warning(*warning),
    "depends": lambda keys: _spell_parents(keys),
    "params": lambda parameters: ", ".join(f"{name}={value}" for name, value in parameters),
    "sbatch": shlex.join,
}


def _spell(kind: str, value: Any) -> str:
    if kind in SPELLINGS:
        return SPELLINGS[kind](value)
    return ", ".join(value) if isinstance(value, tuple) else str(value)


# Earlier jobs of a singleton that its page names.
MOST_NAMED = 8


def _singleton(spec: Spec) -> str:
    known, more = spec.depends_earlier[:MOST_NAMED], len(spec.depends_earlier) - MOST_NAMED
    earlier = ", ".join([*map(label, known), *([f"and {more} more"] if more > 0 else [])])
    return f"after earlier jobs of its name: {earlier}" if earlier else "there was no earlier job of its name"


def _retries(job: Job) -> str:
    spec = job.spec
    on = f", on {', '.join(spec.retry_on)}" if spec.retry_on else ""
    delay = (
        f", first after {spec.retry_delay_s} s" if spec.retry_delay_s != DEFAULT_SPEC.retry_delay_s else ""
    )
    return f"{job.retries} of {spec.max_retries}{on}{delay}"


def _spell_parents(keys: Sequence[JobKey]) -> str:
    """Ids of jobs, with adjacent ones as a range: `3, 116-315, 42_3`."""
    runs: list[list[JobKey]] = []
    for key in keys:
        is_next = runs and task_of(key) is None and key == job_key(number_of(runs[-1][-1]) + 1)
        if is_next and task_of(runs[-1][-1]) is None:
            runs[-1].append(key)
        else:
            runs.append([key])
    return ", ".join(
        f"{label(run[0])}-{label(run[-1])}" if len(run) > 2 else ", ".join(map(label, run)) for run in runs
    )


def _warning(number: int, seconds: int) -> str:
    name = signal.Signals(abs(number)).name.removeprefix("SIG") if number else ""
    to = " to the batch shell" if number < 0 else ""
    return f"{name}{to} {clock(seconds)} before the time limit" if name else ""


def _tasks(job: Job) -> str:
    """Progress of an array: `2 running, 28 waiting (3-30)`."""
    progress = job.progress
    if progress is None:
        return ""
    counts = [
        (progress.active, "running"),
        (len(progress.pending), f"waiting ({progress.pending})"),
        (progress.ok, "finished"),
        (progress.bad, "failed"),
        (progress.cancelled, "cancelled"),
    ]
    return ", ".join(f"{count} {what}" for count, what in counts if count)


def _gpu_memory(job: Job) -> str:
    size = gib(job.spec.gpu_memory_mib) if job.spec.gpu_memory_mib else ""
    origin = job.spec.gpu_memory_from
    return f"{size} ({origin})" if size and origin else size or origin


def compare_prediction(predicted_mib: int, measured_mib: int) -> str:
    """Predicted GPU memory, compared with the measured peak. 0: not measured."""
    if not measured_mib:
        return f"{gib(predicted_mib)} on each GPU"
    error = 100 * (predicted_mib / measured_mib - 1)
    off = f"{abs(error):.1f} % too {'high' if error > 0 else 'low'}"
    return f"{gib(predicted_mib)} on each GPU; measured peak {gib(measured_mib)}: {off}"


def _timing(job: Job, now: Moment) -> list[tuple[str, str]]:
    lines = [("Submitted", moment(job.submitted_at))]
    if job.started_at is not None:
        waited = clock(job.started_at - job.submitted_at)
        lines.append(("Started", f"{moment(job.started_at)} (waited {waited})"))
        ran = clock(job.run_s(now.boot) or 0.0)
        if job.finished_at is not None:
            lines.append(("Finished", f"{moment(job.finished_at)} (ran {ran})"))
        else:
            lines.append(("Running for", ran))
    elif job.finished_at is not None:
        lines.append(("Finished", f"{moment(job.finished_at)} (never started)"))
    return lines


def _progress(job: Job, now: Moment) -> list[tuple[str, str]]:
    if job.progress_report is None:
        return []
    left = job.left_s(now.wall)
    text = spell_progress(job.progress_report) + (f", about {clock(left)} left" if left is not None else "")
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in job.progress_report.metrics.items())
    return [("Progress", text), *([("Metrics", metrics)] if metrics else [])]


def _usage(job: Job) -> list[tuple[str, str]]:
    if not job.peak_kib:
        return []
    return [("CPU time", fine(job.cpu_ms / 1000)), ("Peak memory", gib(job.peak_kib >> 10))]


def history_page(lines: Sequence[AuditEntry], name_of: Callable[[int], str]) -> str:
    """The page of `gjob history`: one line per audit entry."""
    rows = [
        [moment(line.at), line.what, line.detail, "gflow" if line.uid is None else name_of(line.uid)]
        for line in lines
    ]
    return table(("WHEN", "EVENT", "DETAIL", "BY"), rows)


def status_page(status: StatusAnswer) -> str:
    """The page of `gflowd status`."""
    gpus = f"{status.gpu_total} ({status.gpu_available} free)"
    if status.gpu_simulated:
        gpus += ", simulated"
    notes = [("Note", note) for note in status.notes]
    return facts(
        [
            ("Status", _condition(status)),
            ("PID", str(status.pid)),
            ("Version", status.version),
            ("Uptime", clock(status.uptime_secs)),
            ("GPUs", gpus),
            ("CPU slots", f"{status.cpu_total} ({status.cpu_available} free)"),
            ("Memory", f"{gib(status.memory_total_mib)} ({gib(status.memory_available_mib)} free)"),
            ("Jobs", f"{status.running} running, {status.waiting} waiting"),
            ("Socket", status.socket),
            ("Config", ", ".join(status.config_files) or "(none: gflowd init writes one)"),
            ("Data", status.data),
            ("Database", status.database + _elsewhere(status)),
            *notes,
        ]
    )


def _condition(status: StatusAnswer) -> str:
    """`Running`, and why no job starts or nothing can be changed."""
    text = "Running" + (f", read-only: {status.read_only}" if status.read_only else "")
    if status.drained:
        why = f": {status.drained_reason}" if status.drained_reason else ""
        text += f", drained{why} (gctl resume lets jobs start again)"
    return text


def _elsewhere(status: StatusAnswer) -> str:
    beside = status.database.startswith(status.data + "/")
    return "" if beside else " (the data folder is on a network file system)"


def facts(lines: Sequence[tuple[str, str]]) -> str:
    """`Name: value` lines."""
    return "".join(f"{name}: {value}\n" for name, value in lines)
