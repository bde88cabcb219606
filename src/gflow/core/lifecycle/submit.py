"""Whether a request can be taken at all: judged against the machine and against its parents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from gflow.core.ids import JobKey, label, number_of, task_of
from gflow.core.model import JobState, Spec, links_of
from gflow.core.resources import shape_of
from gflow.core.scheduling.placement import impossible
from gflow.core.state.dependencies import Wait
from gflow.core.state.quotas import PROJECT, USER
from gflow.core.state.state import State
from gflow.core.state.submissions import Judgements
from gflow.core.task_set import parse_tasks
from gflow.errors import NotFound, Refused

# What commands, paths and the like of one person's active jobs may take.
MOST_BYTES = 256 << 20
# How many parents the active jobs of one person may name, each counted once for each job that names it.
MOST_LINKS = 100_000


def check_owner(state: State, uid: int) -> None:
    """Refuse jobs of others where all jobs run as one user."""
    owner = state.policy.owner
    if owner is not None and uid != owner:
        raise Refused(
            f"this daemon runs jobs of its own user (uid {owner}) alone, and you are uid {uid}",
            hint="submit as that user, or to a daemon of your own or the machine's",
        )


def check_number(state: State, uid: int, more: int) -> None:
    """Refuse what would fill the queue with one person's jobs. Root may."""
    most, now = state.policy.most_jobs, state.of_person.get(uid, 0)
    if most and uid and now + more > most:
        raise Refused(
            f"you have {now:,} jobs that are not over, and at most {most:,} are allowed",
            hint="wait for some to end, or submit arrays: each counts once",
        )


def check_size(state: State, uid: int, more: int) -> None:
    """Refuse what would fill the memory with one person's jobs: all that wait are in there. Root may."""
    now = state.ledger.bytes.get(uid, 0)
    if state.policy.most_jobs and uid and more > 0 and now + more > MOST_BYTES:
        raise Refused(
            f"your jobs that are not over take {now >> 20} of {MOST_BYTES >> 20} MiB of memory",
            hint="put long commands into scripts: those are kept on the disk",
        )


def check_links(state: State, uid: int, more: int) -> None:
    """Refuse more pairs of a job and a parent than memory is meant for. Root's are no smaller."""
    now = state.ledger.links.get(uid, 0)
    if more > 0 and now + more > MOST_LINKS:
        raise Refused(
            f"your jobs that are not over name {now:,} parents, these {more:,} more, "
            f"and at most {MOST_LINKS:,} are allowed",
            hint="let one job wait for all parents (gbatch --depends-on … true), and the others for that one",
        )


def check_quotas(state: State, wanted: Counter[tuple[str, str]]) -> None:
    """Refuse what would let a person or a project have more waiting jobs than they may.

    `wanted`: how many more for each, by scope and name.
    """
    if not state.ledger.is_limited:
        return
    for one, more in wanted.items():
        most, now = state.ledger.quotas.of(*one).max_queued_jobs, state.ledger.of(*one).waiting
        if most is not None and now + more > most:
            whose = "you have" if one[0] == USER else f"project {one[1]} has"
            count = f"{now:,} waiting jobs, and the quota is {most:,}"
            if one[0] == PROJECT and state.policy.is_private:
                count = "as many waiting jobs as its quota allows"
            raise Refused(
                f"{whose} {count}",
                hint="wait for some to start, or submit arrays: each counts once",
            )


def check_possible(state: State, spec: Spec) -> None:
    """Refuse what this machine could never run; what others can, they say themselves.

    What is merely busy or restricted is waited for.
    """
    elsewhere = (spec.on and not spec.races_here) or spec.overflow
    if not elsewhere and not spec.allow_unsatisfiable and (why := impossible(state, shape_of(spec))):
        where = "ginfo" if spec.gpus else "gflowd status"
        raise Refused(
            why, hint=f"see what there is with {where}; --allow-unsatisfiable queues it all the same"
        )


def admitted(
    state: State,
    uid: int,
    user: str,
    specs: Sequence[Spec],
    outcomes: dict[JobKey, JobState],
    hidden: frozenset[JobKey] = frozenset(),
) -> list[Wait | None]:
    """What each of these has to wait for if they are submitted now, or a refusal. Changes nothing."""
    check_owner(state, uid)
    check_number(state, uid, len(specs))
    if state.ledger.is_limited:
        wanted = Counter((PROJECT, spec.project) for spec in specs if spec.project)
        wanted[USER, user] = len(specs)
        check_quotas(state, wanted)
    return admitted_part(state, uid, specs, outcomes, hidden, {}, {})


def admitted_part(
    state: State,
    uid: int,
    specs: Sequence[Spec],
    outcomes: dict[JobKey, JobState],
    hidden: frozenset[JobKey],
    known: Judgements,
    found: Judgements,
) -> list[Wait | None]:
    """The same for some of a submission, of which the number has been judged already.

    Jobs with the very same parents share what they wait for: `known` is what earlier parts found, `found`
    gets what is new.
    """
    if uid and state.policy.most_jobs:
        check_size(state, uid, sum(spec.size for spec in specs))
    if len(specs) == 1:
        check_possible(state, specs[0])
    else:
        kinds = {(one.shape, one.on or one.overflow, one.race, one.allow_unsatisfiable): one for one in specs}
        for spec in kinds.values():
            check_possible(state, spec)
    links = sum(map(links_of, specs))
    if not links:
        return [None] * len(specs)
    check_links(state, uid, links)
    waits: list[Wait | None] = []
    for i, spec in enumerate(specs):
        if not spec.parents:
            waits.append(None)
            continue
        name = id(spec.depends_on), id(spec.depends_any)
        one = known.get(name) or found.get(name)
        if one is None:
            one = spec, judged(state, spec, outcomes, partial(_comes, state, specs, i), hidden)
            found[name] = one
        elif one[1] is not None and one[1].broken is not None and not spec.no_auto_cancel:
            judged(state, spec, outcomes)  # the other one does not mind
        waits.append(one[1])
    return waits


def judged(
    state: State,
    spec: Spec,
    outcomes: dict[JobKey, JobState],
    comes: Callable[[JobKey], bool] = lambda key: False,
    hidden: frozenset[JobKey] = frozenset(),
) -> Wait | None:
    """What the job has to wait for (None: nothing), or a refusal if it would wait in vain.

    `comes`: whether a job is submitted with it, before it. `hidden`: jobs that count as absent.
    """
    if not spec.parents:
        return None

    ends: dict[JobKey, JobState] = {}
    for key in spec.parents:
        if key in hidden:
            raise NotFound(f"there is no job {label(key)} to depend on")
        if not state.is_active(key):
            end = state.outcome(key) or outcomes.get(key)
            if end is not None:
                ends[key] = end
            elif not comes(key):
                raise NotFound(f"there is no job {label(key)} to depend on")
    wait = Wait.of(spec, ends.get)
    if wait.broken is not None and not spec.no_auto_cancel:
        ended = ends.get(wait.broken)
        raise Refused(
            f"job {label(wait.broken)} ended {ended.value if ended else ''}: "
            "a job that depends on it would never start",
            hint=("--clear-deps does it without; " if spec.redone_from else "")
            + "--no-auto-cancel queues it all the same",
        )
    return None if wait.is_over else wait


def _comes(state: State, specs: Sequence[Spec], before: int, key: JobKey) -> bool:
    """Whether this will be one of the first `before` of these jobs, or a task of one."""
    index, task = number_of(key) - state.next_number, task_of(key)
    return 0 <= index < before and (task is None or task in parse_tasks(specs[index].array))
