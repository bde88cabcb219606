"""The order of the shapes of a race in Slurm's queue.

Slurm reserves a start for the shape that is first in its queue. That reservation can keep another shape of
the same job from starting at once. Then the shapes that would start later step back for a while (scontrol
update Nice): users may do that with their own jobs, and take it back. If it does not help, another job
blocks, and the order is restored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from gflow.targets.slurm.candidate import NO_ANSWER, Candidate
from gflow.targets.slurm.commands.slurm_cli import Row
from gflow.targets.slurm.remote_launch import build_script, environment_of
from gflow.targets.slurm.submission import RowTag, SlurmSubmission
from gflow.targets.slurm.tracker import Tracker

log = logging.getLogger("gflow.slurm")
# A shape steps back if another one starts at least this many seconds sooner.
MIN_GAIN_S = 120.0
# How long it does: several rounds of Slurm's backfill (bf_interval, 30 s by default).
BEHIND_S = 120.0
# Pauses between two attempts.
MIN_PAUSE_S = 60.0
MAX_PAUSE_S = 600.0
# Added to the nice value of a shape that steps back.
BEHIND = 1_000_000


class Probe(NamedTuple):
    """When a shape would start, and its nice value; None: Slurm does not say."""

    start: datetime | None
    nice: int | None


def review(tracker: Tracker, rows: Mapping[str, list[tuple[RowTag, Row]]]) -> None:
    """Look whether a race blocks itself. `rows`: the rows of the queue, by run."""
    for submission in tracker.submissions.values():
        if (
            len(submission.candidates) > 1
            and not submission.is_split
            and submission.is_prepared
            and submission.can_begin
        ):
            of_run = rows.get(submission.run.name, [])
            pending = {tagged.candidate: row for tagged, row in of_run if row.state == "PENDING"}
            _review(tracker, submission, pending)


def _review(tracker: Tracker, submission: SlurmSubmission, pending: dict[int, Row]) -> None:
    race, now = submission.race, tracker.clock()
    if race.favourite is not None and (now >= race.until or race.favourite not in pending):
        race.favourite, race.note = None, ""
        race.retry.back_off(now, MAX_PAUSE_S, MIN_PAUSE_S)
        _restore(tracker, submission, pending)
    elif race.choice is not None:
        choice, race.choice = race.choice, None
        behind = [number for number in race.later if number in pending and number in race.nice]
        if choice in pending and behind:
            _favour(tracker, submission, choice, {number: pending[number] for number in behind})
    elif now >= race.retry.at and not race.is_probing and (race.is_adopted or _is_blocking(pending.values())):
        _probe(tracker, submission, pending)


def _is_blocking(rows: Iterable[Row]) -> bool:
    """Whether one shape waits for resources, and another one behind it."""
    return {"Resources", "Priority"} <= {row.reason for row in rows}


def _favour(tracker: Tracker, submission: SlurmSubmission, choice: int, behind: dict[int, Row]) -> None:
    race = submission.race
    race.favourite, race.until = choice, tracker.clock() + BEHIND_S
    shape = _shape(submission.candidates[choice])
    race.note = f"RaceOrder: {shape} may start sooner, so the other shapes are behind it in the queue for now"
    log.info("%s: %s", submission.run.name, race.note)
    for number, row in behind.items():
        _set_nice(tracker, row.id, race.nice[number] + BEHIND)


def _restore(tracker: Tracker, submission: SlurmSubmission, pending: dict[int, Row]) -> None:
    race = submission.race
    for number, row in pending.items():
        if number in race.later and number in race.nice:
            _set_nice(tracker, row.id, race.nice[number])


def _set_nice(tracker: Tracker, id: str, nice: int) -> None:
    """Set the nice value of a job that the queue has just shown with our tag."""
    tracker.calls.start(lambda: tracker.slurm.set_nice(id, nice), lambda _: None, NO_ANSWER)


def _probe(tracker: Tracker, submission: SlurmSubmission, pending: dict[int, Row]) -> None:
    """Ask when each shape would start, and for its nice value."""
    race, slurm = submission.race, tracker.slurm
    race.is_probing = True
    race.retry.back_off(tracker.clock(), MAX_PAUSE_S, MIN_PAUSE_S)
    launch, spec = submission.launch, submission.launch.job.spec
    scripts = {
        number: build_script(
            launch, submission.candidates[number], tracker.cluster, str(tracker.shared_folder.folder), "probe"
        )
        for number in (pending if _is_blocking(pending.values()) else ())
    }

    def ask() -> dict[int, Probe]:
        environ = environment_of(launch)
        starts = {
            number: slurm.submit(script, environ, spec.cwd, spec.umask, test=True).text
            for number, script in scripts.items()
        }
        return {
            number: Probe(_parse_time(starts.get(number, "")), slurm.nice_of(row.id))
            for number, row in pending.items()
        }

    none: dict[int, Probe] = {}
    tracker.calls.start(ask, lambda probes: _apply(tracker, submission, pending, probes), none)


def _apply(
    tracker: Tracker, submission: SlurmSubmission, pending: dict[int, Row], probes: dict[int, Probe]
) -> None:
    race = submission.race
    race.is_probing = False
    nices = {number: probe.nice for number, probe in probes.items() if probe.nice is not None}
    race.nice = {number: nice % BEHIND for number, nice in nices.items()}
    if race.is_adopted and race.nice:
        race.is_adopted = False
        race.later = {number for number, nice in nices.items() if nice >= BEHIND}
        _restore(tracker, submission, pending)  # an earlier daemon left them behind
    starts = {number: probe.start for number, probe in probes.items() if probe.start is not None}
    if not starts:
        return
    best = min(starts, key=lambda number: starts[number])
    gains = {number: (start - starts[best]).total_seconds() for number, start in starts.items()}
    race.later = {number for number, gain in gains.items() if gain >= MIN_GAIN_S}
    is_behind = best in pending and pending[best].reason == "Priority"
    race.choice = best if race.later and is_behind else None
    tracker.poll_within(1.0)


def _shape(candidate: Candidate) -> str:
    return f"n{candidate.nodes}_gpu{candidate.gpus}"


def _parse_time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
