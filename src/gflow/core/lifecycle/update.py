"""Update of a spec, while a job waits and, for some fields, while it runs.

An update of an array applies to the tasks that still wait in it. Fields that may change while a job runs
(time limit, priority, …) change for its started tasks too.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from gflow.core.effects import AddAuditEntry, Effect, Save
from gflow.core.events import Update
from gflow.core.ids import JobKey, label
from gflow.core.lifecycle.cancel import release_claims
from gflow.core.lifecycle.finish import active_tasks
from gflow.core.lifecycle.hold import authorize_whole_jobs
from gflow.core.lifecycle.submit import check_links, check_parents, check_possible, check_size
from gflow.core.model import DEFAULT_SPEC, PARENT_FIELDS, Job, JobState, Spec, links_of
from gflow.core.reasons import NO_REASON
from gflow.core.scheduling.placement import gib
from gflow.core.scheduling.scheduler import run_round
from gflow.core.state.dependencies import Wait, ancestors
from gflow.core.state.reservations import hard_end, hard_s, spell_owners
from gflow.core.state.state import State
from gflow.core.sweep_template import fill_spec
from gflow.errors import Forbidden, Hint, Refused
from gflow.options.rules import (
    OPERATOR_FIELDS,
    REMOTE_FIELDS,
    RUNNING_FIELDS,
    check_rules,
    remaining_words,
)

DEPENDENCIES = frozenset({*PARENT_FIELDS, "no_auto_cancel"})
FIELD_NAMES = {
    "depends_any": "depends on any",
    "depends_end": "depends on end",
    "depends_failure": "depends on failure",
    "depends_start": "depends on start",
    "warning": "signal",
    "parameters": "parameter",
}
# Characters of a change that the audit log keeps.
MOST_SHOWN = 1000
HIDDEN = frozenset({"environ", "script_path", "template", "name_template"})


class Plan(NamedTuple):
    """One job, its new spec, and its new dependencies."""

    job: Job
    spec: Spec
    wait: Wait | None
    # Whether the job keeps its present dependencies; `wait` is then unused.
    is_kept: bool = False


class Parents:
    """Checks the parents of the jobs of one update, each distinct set of parents once."""

    def __init__(self, state: State, event: Update) -> None:
        self.state = state
        self._event = event
        # By identity of the sets of parents, as in `core.lifecycle.submit`.
        self._found: dict[tuple[tuple[int, ...], bool], tuple[Spec, set[JobKey], Wait | None]] = {}

    def wait_of(self, job: Job, spec: Spec) -> Wait | None:
        """Return the dependencies that the job waits for; refuse a cycle, or what can never be met."""
        name = spec.parents_id, spec.no_auto_cancel
        found = self._found.get(name)
        if found is None:
            above = ancestors(self.state.jobs, spec.parents, self.state.jobs.tasks)
            if job.key not in above:
                event = self._event
                wait = check_parents(self.state, spec, event.outcomes, hidden=event.hidden)
                found = spec, above, wait
                self._found[name] = found
        if found is None or job.key in found[1]:
            raise Refused(f"job {job.label} would wait for itself")
        return found[2]


def update(state: State, event: Update, effects: list[Effect]) -> None:
    """Update the specs of all jobs, or of none."""
    plans = _plan_jobs(state, event)
    _check_memory(state, event, plans)
    release_claims(state, event, event.keys, effects)
    description = _describe_change(event)
    for plan in plans:
        if not plan.job.is_final:  # final: cancelled on arrival, because a parent failed
            _apply(state, plan, event)
            effects += (Save(plan.job), AddAuditEntry(plan.job.key, "updated", description))
    run_round(state, event.at, effects)


def check_update(state: State, event: Update, size: int, links: int) -> tuple[int, int]:
    """Check an update; return the bytes and dependency links that it adds, with those of earlier parts.

    `size`, `links`: added by earlier parts of the same update.
    """
    return _check_memory(state, event, _plan_jobs(state, event), size, links)


def _check_memory(
    state: State, event: Update, plans: list[Plan], size: int = 0, links: int = 0
) -> tuple[int, int]:
    size += sum(plan.spec.size - plan.job.spec.size for plan in plans)
    links += sum(links_of(plan.spec) - links_of(plan.job.spec) for plan in plans)
    check_size(state, event.uid, size)
    check_links(state, plans[0].job.uid if plans else event.uid, links)  # only owners and root change parents
    return size, links


def _plan_jobs(state: State, event: Update) -> list[Plan]:
    """Plan the update of each job, and of the started tasks of arrays; or refuse."""
    jobs = authorize_whole_jobs(state, event.keys, event)
    _check_operator_fields(jobs, event)
    # Jobs that get a cap and have no group become one group, as if submitted together.
    group = event.group or min((job.number for job in jobs if not job.spec.group), default=0)
    parents = Parents(state, event)
    plans = [_plan(parents, job, event, event.fields, group) for job in jobs]
    keys = {job.key for job in jobs}
    running_fields = {name: value for name, value in event.fields.items() if name in RUNNING_FIELDS}
    if running_fields or event.extend_s:
        tasks = [task for job in jobs if job.is_array for task in active_tasks(state, job.key)]
        plans += [
            _plan(parents, task, event, running_fields, group) for task in tasks if task.key not in keys
        ]
    return plans


def _check_operator_fields(jobs: list[Job], event: Update) -> None:
    """Operators may change resources and times of jobs of others, not the command: it runs as the owner."""
    for job in jobs:
        if event.uid not in (job.uid, 0):
            for name in sorted(event.fields.keys() - OPERATOR_FIELDS):
                raise Forbidden(
                    f"job {job.label} belongs to {job.user}, who alone may change its {_option(name)}"
                )


def _plan(parents: Parents, job: Job, event: Update, fields: dict[str, Any], group: int) -> Plan:
    """Plan the update of one job, or refuse."""
    state = parents.state
    if job.key in state.remote.jobs:
        for name in sorted(fields.keys() - REMOTE_FIELDS) or ["time_limit_s"] * bool(event.extend_s):
            raise Refused(
                f"{job.target} has job {job.label}, and {_option(name)} cannot change there",
                hint=Hint("take_back", f"hold job {job.label} first, if it still waits", job=job.label),
            )
    elif job.state is JobState.RUNNING:
        for name in sorted(fields.keys() - RUNNING_FIELDS):
            raise Refused(f"job {job.label} is running, and {_option(name)} cannot change any more")
    spec = override_spec(job, job.spec, fields, event.extend_s)
    if spec.max_concurrent and not spec.group:
        spec = msgspec.structs.replace(spec, group=group)
    if (spec.shape, spec.project) != (job.spec.shape, job.spec.project):
        check_possible(state, job.user, spec)
    if job.key in state.running and state.reserved.live:
        _check_reserved(state, job, spec, event)
    if not fields.keys() & DEPENDENCIES:
        return Plan(job, spec, None, is_kept=True)
    return Plan(job, spec, parents.wait_of(job, spec))


def _check_reserved(state: State, job: Job, spec: Spec, event: Update) -> None:
    """Refuse a longer time limit that would run into a GPU reservation. Operators are exempt."""
    if hard_s(spec) <= hard_s(job.spec) or event.is_operator or not event.uid:
        return
    for reservation in state.reserved.against(job.user, event.at.wall, hard_end(job, spec, event.at)):
        if taken := sorted(set(reservation.gpus).intersection(job.gpu_ids)):
            gpus, owner = ",".join(map(str, taken)), spell_owners([reservation.user], state.policy.is_private)
            raise Refused(
                f"GPU {gpus} is reserved for {owner} before job {job.label} would be over",
                hint=Hint("ask_less_time", "ask for less time, or ask an operator; see the reservations"),
            )


def override_spec(job: Job, spec: Spec, fields: dict[str, Any], extend_s: int = 0) -> Spec:
    """Return the spec with other values for some fields; refuse combinations that are not allowed."""
    if "gpu_memory_mib" in fields:
        fields = {"gpu_memory_from": "", **fields}
    if fields.keys() & {"gpus", "nodes"}:  # the named shape no longer applies
        fields = {"shape_name": "", **fields}
    if spec.slurm:  # what is said to gflow replaces words for sbatch
        changed = fields.keys() | ({"time_limit_s"} if extend_s else set())
        fields = {"slurm": remaining_words(spec.slurm, changed), **fields}
    spec = _fill_parameters(job, msgspec.structs.replace(spec, **fields), fields)
    if extend_s:
        if not spec.time_limit_s:
            raise Refused(f"job {job.label} has no time limit that could be extended")
        spec = msgspec.structs.replace(spec, time_limit_s=spec.time_limit_s + extend_s)
    check_rules(spec, DEFAULT_SPEC)
    return spec


def _fill_parameters(job: Job, spec: Spec, fields: dict[str, Any]) -> Spec:
    """Fill the parameters into command and name again if one of them has changed."""
    if not fields.keys() & {"parameters", "command", "name"}:
        return spec
    values = dict(job.spec.parameters)
    for name, value in fields.get("parameters", ()):
        if name not in values:
            known = ", ".join(values) or "none"
            raise Refused(f"job {job.label} has no parameter {name!r}", hint=f"parameters: {known}")
        values[name] = value
    template = fields.get("command", spec.template or spec.command)
    name = fields.get("name", spec.name_template or spec.name)
    if not values:
        return msgspec.structs.replace(spec, template=())
    return fill_spec(msgspec.structs.replace(spec, command=template, name=name), values)


def _apply(state: State, plan: Plan, event: Update) -> None:
    """Give the job its new spec; a waiting job re-enters the queue."""
    job = plan.job
    state.groups.move(job, plan.spec.group)
    if (job.state is JobState.RUNNING and not job.is_array) or job.key in state.remote.jobs:
        _update_running(state, job, plan.spec)
        return
    wait = state.dependencies.waits.get(job.key) if plan.is_kept else plan.wait
    state.stop_waiting(job)
    state.accounting.quota_usage.add(job, -1)
    state.jobs.rename(job, plan.spec.shared_name)
    job.spec = plan.spec
    state.accounting.quota_usage.add(job)
    if "begin_at" in event.fields:  # an explicit begin time replaces the retry delay
        job.set_retry_delay(0, event.at)
    if wait is not None:
        state.dependencies.add(job, wait)
    if job.state is JobState.QUEUED:
        state.admit(job, event.at)


def _update_running(state: State, job: Job, spec: Spec) -> None:
    """Update a running or remote job. It keeps its resources; its deadlines are set again."""
    is_ready = job in state.ready  # a remote job that also races here
    if is_ready:
        state.ready.remove(job)
    old, job.spec = job.spec, spec
    if is_ready:
        state.ready.add(job)
    if not job.is_array:
        state.accounting.regroup(old.group, spec.group)
        state.running.note_preemptible(job)
    if (spec.time_limit_s, spec.warning) != (old.time_limit_s, old.warning):
        if job.stopping is None:
            job.reason = NO_REASON  # the new limit gets its own warning
        state.deadlines.set_limit(job)
        state.running.set_end(job)


def _option(field: str) -> str:
    """The name of a field in messages."""
    if field in FIELD_NAMES:
        return FIELD_NAMES[field]
    for unit in ("_s", "_mib", "_at"):
        field = field.removesuffix(unit)
    return field.replace("_", " ")


def _describe_change(event: Update) -> str:
    """Describe the change for the audit log. Environments are never included."""
    fields = sorted(event.fields.items())
    parts = [f"{_option(name)} = {_value(name, value)}" for name, value in fields if name not in HIDDEN]
    if event.extend_s:
        parts.append(f"time limit + {event.extend_s} s")
    text = ", ".join(parts)
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…"


def _value(field: str, value: Any) -> str:
    """Format the value of a field for the audit log."""
    if field == "command":
        return " ".join(value)[:200]
    if value == getattr(DEFAULT_SPEC, field):
        return "the default"
    if field in PARENT_FIELDS:
        return ",".join(map(label, value))
    if field == "parameters":
        return ", ".join(f"{name}={chosen}" for name, chosen in value)
    if field.endswith("_s"):
        return f"{value} s"
    if field.endswith("_mib"):
        return gib(value)
    if field.endswith("_at"):
        return datetime.fromtimestamp(value, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
