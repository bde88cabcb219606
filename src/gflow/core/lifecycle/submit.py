"""Submission of jobs, and its checks: owner, limits, quotas, resources of the machine, parents.

A submission is accepted completely or refused. The checks change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from gflow.core.effects import Accepted, AddAuditEntry, Effect, Save
from gflow.core.events import Submit
from gflow.core.ids import JobKey, job_key, label, number_of, task_of
from gflow.core.model import LOCAL, ArrayProgress, Job, JobState, Spec, links_of
from gflow.core.reasons import HELD, NO_REASON
from gflow.core.resources import shape_of
from gflow.core.scheduling.placement import why_impossible
from gflow.core.scheduling.scheduler import start_among
from gflow.core.state.dependencies import Wait
from gflow.core.state.name_index import NameIndex
from gflow.core.state.quotas import PROJECT, USER, Scope
from gflow.core.state.state import State
from gflow.core.state.submissions import WaitCache
from gflow.core.task_set import parse_tasks
from gflow.core.transitions import HOLD, QUEUED
from gflow.errors import Hint, Refused, no_job

# Memory for commands, paths and the like of one user's active jobs, in bytes.
MOST_BYTES = 256 << 20
# Dependency links (pairs of job and parent) that the active jobs of one user may have.
MOST_LINKS = 100_000
REDO_BROKEN = Hint("redo_broken", "clear_deps=True does it without; no_auto_cancel=True queues it anyway")


def submit(state: State, event: Submit, effects: list[Effect]) -> None:
    """Accept all jobs of a submission, and start those that may start now."""
    at = event.at
    specs = find_earlier(state, event.uid, event.specs, state.jobs.next_number, NameIndex())
    waits = check_submission(state, event.uid, event.user, specs, event.outcomes, event.hidden)
    keys = []
    groups = set()
    for spec, wait in zip(specs, waits, strict=True):
        job = _add_job(state, event, spec)
        key = job.key
        keys.append(key)
        if wait is not None:
            state.dependencies.add(job, wait)
        if job.state is QUEUED:
            groups.add(state.admit(job, at))
        effects += (Save(job), AddAuditEntry(key, "submitted", describe_redo(spec)))
    effects.append(Accepted(tuple(keys)))
    start_among(state, groups, at, effects)


def describe_redo(spec: Spec) -> str:
    """Detail of the audit entry of a submission: which job it repeats; empty: none."""
    return f"job {label(spec.redone_from)} again" if spec.redone_from else ""


def _add_job(state: State, event: Submit, spec: Spec) -> Job:
    key = job_key(state.jobs.next_number)
    state.jobs.next_number += 1
    job = new_job(key, spec, event.uid, event.user, event.at.wall)
    state.add(job)
    state.jobs.remember_recent(event.uid, key)
    return job


def new_job(key: JobKey, spec: Spec, uid: int, user: str, wall: float) -> Job:
    """Make the record of a newly submitted job."""
    progress = None
    if spec.array:
        progress = ArrayProgress(parse_tasks(spec.array))
        # An array is a group of its own, so its cap counts its tasks only. The number is negative because a
        # submission with several jobs has a group too, numbered after its first job.
        spec = msgspec.structs.replace(spec, group=-number_of(key))
    return Job(
        key=key,
        spec=spec,
        uid=uid,
        user=user,
        submitted_at=wall,
        progress=progress,
        state=HOLD if spec.hold else QUEUED,
        reason=HELD if spec.hold else NO_REASON,
        target=spec.on or LOCAL,
    )


def find_earlier(
    state: State, uid: int, specs: Sequence[Spec], number: int, before: NameIndex
) -> Sequence[Spec]:
    """The specs, singletons with the earlier jobs of their name that they wait for.

    `number`: of the first of them. `before`: earlier jobs of the same submission, and then these.
    """
    if not any(spec.singleton for spec in specs):
        return specs
    found = []
    for key, spec in enumerate(specs, number):
        name = spec.shared_name
        if spec.singleton and name:
            spec = msgspec.structs.replace(
                spec, depends_earlier=(*_active_jobs_named(state, uid, name), *before.find(uid, name))
            )
        before.add(uid, name, job_key(key))
        found.append(spec)
    return found


def _active_jobs_named(state: State, uid: int, name: str) -> list[JobKey]:
    """The active jobs of this user and name, also those of staged submissions that are still arriving."""
    found = state.jobs.names.find(uid, name)
    for opened in state.open.values():
        if opened.is_closed:
            found += [key for key in opened.names.find(uid, name) if key in state.arriving]
    return found


def check_owner(state: State, uid: int) -> None:
    """Refuse jobs of other users on a private daemon, which runs all jobs as its own user."""
    owner = state.policy.owner
    if owner is not None and uid != owner:
        raise Refused(
            f"this daemon runs jobs of its own user (uid {owner}) alone, and you are uid {uid}",
            hint="submit as that user, or to a daemon of your own or the machine's",
        )


def check_number(state: State, uid: int, more: int) -> None:
    """Refuse more active jobs than one user may have. Root is exempt."""
    most, now = state.policy.most_jobs, state.accounting.active_jobs.get(uid, 0)
    if most and uid and now + more > most:
        raise Refused(
            f"you have {now:,} jobs that have not ended, and at most {most:,} are allowed",
            hint="wait for some to end, or submit arrays: each counts once",
        )


def check_size(state: State, uid: int, more: int) -> None:
    """Refuse more memory than the active jobs of one user may take. Root is exempt."""
    now = state.accounting.quota_usage.bytes.get(uid, 0)
    if state.policy.most_jobs and uid and more > 0 and now + more > MOST_BYTES:
        raise Refused(
            f"your jobs that have not ended take {now >> 20} of {MOST_BYTES >> 20} MiB of memory",
            hint="put long commands into scripts: those are kept on the disk",
        )


def check_links(state: State, uid: int, more: int) -> None:
    """Refuse more dependency links than one user may have. Root is not exempt: the memory is the same."""
    now = state.accounting.quota_usage.links.get(uid, 0)
    if more > 0 and now + more > MOST_LINKS:
        raise Refused(
            f"your jobs that have not ended name {now:,} parents, these {more:,} more, "
            f"and at most {MOST_LINKS:,} are allowed",
            hint=Hint(
                "share_parents", "let one job wait for all parents (depends_on), and the others for that one"
            ),
        )


def check_quotas(state: State, wanted: Counter[tuple[Scope, str]]) -> None:
    """Refuse jobs beyond the queued-jobs quota of a user or a project.

    `wanted`: the number of new jobs by (scope, name).
    """
    if not state.accounting.quota_usage.is_limited:
        return
    for holder, more in wanted.items():
        most, now = (
            state.accounting.quota_usage.quotas.of(*holder).max_queued_jobs,
            state.accounting.quota_usage.of(*holder).waiting,
        )
        if most is not None and now + more > most:
            whose = "you have" if holder[0] == USER else f"project {holder[1]} has"
            count = f"{now:,} waiting jobs, and the quota is {most:,}"
            if holder[0] == PROJECT and state.policy.is_private:
                count = "as many waiting jobs as its quota allows"
            raise Refused(
                f"{whose} {count}",
                hint="wait for some to start, or submit arrays: each counts once",
            )


def check_possible(state: State, user: str, spec: Spec) -> None:
    """Refuse a job that could never run on this machine or under the quotas in force.

    Other targets check their jobs themselves. Resources that are only busy or restricted, and quotas that
    other jobs use up, do not count: the job waits for them.
    """
    is_elsewhere = (spec.on and not spec.races_here) or spec.overflow
    if is_elsewhere or spec.allow_unsatisfiable:
        return
    if why := why_impossible(state, shape_of(spec)):
        raise Refused(
            why,
            hint=Hint(
                "queue_impossible_gpus" if spec.gpus else "queue_impossible",
                "allow_unsatisfiable=True queues it anyway",
            ),
        )
    if why := state.accounting.never_within_quota(user, spec, state.policy):
        raise Refused(why, hint=Hint("queue_over_quota", "allow_unsatisfiable=True queues it anyway"))


def check_submission(
    state: State,
    uid: int,
    user: str,
    specs: Sequence[Spec],
    outcomes: dict[JobKey, JobState],
    hidden: frozenset[JobKey] = frozenset(),
) -> list[Wait | None]:
    """Check a submission; return the dependencies that each job waits for, None if it waits for none."""
    check_owner(state, uid)
    check_number(state, uid, len(specs))
    if state.accounting.quota_usage.is_limited:
        wanted = Counter((PROJECT, spec.project) for spec in specs if spec.project)
        wanted[USER, user] = len(specs)
        check_quotas(state, wanted)
    return check_submission_part(state, uid, user, specs, outcomes, hidden, {}, {})


def check_submission_part(
    state: State,
    uid: int,
    user: str,
    specs: Sequence[Spec],
    outcomes: dict[JobKey, JobState],
    hidden: frozenset[JobKey],
    known: WaitCache,
    found: WaitCache,
) -> list[Wait | None]:
    """Check a part of a submission whose number of jobs has been checked already.

    Jobs with identical parents share one Wait, looked up by identity. `known`: those of earlier parts;
    `found` receives the new ones.
    """
    if uid and state.policy.most_jobs:
        check_size(state, uid, sum(spec.size for spec in specs))
    if len(specs) == 1:
        check_possible(state, user, specs[0])
    else:
        kinds = {
            (one.shape, one.project, one.on or one.overflow, one.race, one.allow_unsatisfiable): one
            for one in specs
        }
        for spec in kinds.values():
            check_possible(state, user, spec)
    links = sum(map(links_of, specs))
    if not links:
        return [None] * len(specs)
    check_links(state, uid, links)
    waits: list[Wait | None] = []
    for i, spec in enumerate(specs):
        if not spec.parents:
            waits.append(None)
            continue
        name = spec.parents_id
        one = known.get(name) or found.get(name)
        if one is None:
            one = (
                spec,
                check_parents(state, spec, outcomes, partial(_is_submitted_before, state, specs, i), hidden),
            )
            found[name] = one
        elif one[1] is not None and one[1].broken is not None and not spec.no_auto_cancel:
            check_parents(state, spec, outcomes)  # the job that shares it has no_auto_cancel
        waits.append(one[1])
    return waits


def check_parents(
    state: State,
    spec: Spec,
    outcomes: dict[JobKey, JobState],
    is_submitted: Callable[[JobKey], bool] = lambda key: False,
    hidden: frozenset[JobKey] = frozenset(),
) -> Wait | None:
    """Return the dependencies that the job waits for (None: none); refuse if they can never be met.

    `is_submitted`: whether a parent is an earlier job of the same submission. `hidden`: parents that the
    submitter may not see; they count as nonexistent.
    """
    if not spec.parents:
        return None

    ends: dict[JobKey, JobState] = {}
    for key in spec.parents:
        if key in hidden:
            raise no_job(label(key), " to depend on")
        if not state.jobs.is_active(key):
            end = state.jobs.outcome(key) or outcomes.get(key)
            if end is not None:
                ends[key] = end
            elif not is_submitted(key):
                raise no_job(label(key), " to depend on")
    wait = Wait.of(spec, ends.get, state.jobs.has_begun)
    if wait.broken is not None and not spec.no_auto_cancel:
        ended = ends.get(wait.broken)
        raise Refused(
            f"job {label(wait.broken)} ended {ended.value if ended else ''}: a job that depends on "
            f"{'its failure' if ended is JobState.FINISHED else 'it'} would never start",
            hint=REDO_BROKEN if spec.redone_from else _queue_broken(wait.broken),
        )
    return None if wait.is_over else wait


def _queue_broken(parent: JobKey) -> Hint:
    """What to do instead of depending on a job that has failed."""
    job = label(parent)
    text = f"depends_on_end starts it after any end; redo job {job} with cascade=True to repeat that one"
    return Hint("queue_broken", text, job=job)


def _is_submitted_before(state: State, specs: Sequence[Spec], before: int, key: JobKey) -> bool:
    """Whether the key is one of the first `before` jobs of this submission, or a task of one."""
    index, task = number_of(key) - state.jobs.next_number, task_of(key)
    return 0 <= index < before and (task is None or task in parse_tasks(specs[index].array))
