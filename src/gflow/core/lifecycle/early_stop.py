"""Early stopping (`stop_when`): judge the rules of a job by its progress reports, and stop it.

A rule with `at step N` is judged once for each job: by the first report of step N or later that has the
metric. A rule about the median compares that value with those of the other jobs of the group.
"""

from __future__ import annotations

from gflow.core.effects import AddAuditEntry, Effect, Save, Stop
from gflow.core.model import Job, JobProgress, JobState
from gflow.core.reasons import Reason, ReasonKind
from gflow.core.state.state import State
from gflow.stop_rules import FEWEST_SIBLINGS, NAN, StopRule, parse_rule


def judge_rules(state: State, job: Job, report: JobProgress, effects: list[Effect]) -> None:
    """Judge all rules of a job by its report; stop the job if one is met.

    A report of the last step stops no job: the work is done. Its values count for the siblings.
    """
    if job.stopping is not None:
        return
    found = [why for text in job.spec.stop_when if (why := _judge(state, job, text, report))]
    if found and not 0 < report.steps <= report.step:
        job.stopping, job.reason = JobState.CANCELLED, Reason(ReasonKind.STOPPED_EARLY, found[0])
        state.running.note_stop(job)
        effects += (Save(job), AddAuditEntry(job.key, "early stop", found[0]), Stop(job.key, job.attempt))


def _judge(state: State, job: Job, text: str, report: JobProgress) -> str:
    """Judge one rule; return why the job is to be stopped, empty if it is not."""
    rule = parse_rule(text)
    is_nan, value = rule.metric in report.nan, report.metric(rule.metric)
    if report.step < rule.step or (value is None and not (is_nan and rule.condition == NAN)):
        return ""
    if rule.when == "at" and text in state.groups.judged_of(job):
        return ""
    if rule.condition == NAN:
        why = f"{rule.metric} is nan or inf at step {report.step}" if is_nan else ""
    else:
        assert value is not None
        why = _compare(rule, value, state.groups.values_of(job.spec.group, text), report.step)
    if rule.when == "at":
        state.groups.record(job, text, value or 0.0)
    return why


def _compare(rule: StopRule, value: float, siblings: list[float], step: int) -> str:
    """Compare a value with the rule's bound or the median of the siblings; empty if the rule is not met."""
    if not rule.is_about_median:
        is_met = rule.is_met(value, rule.bound)
        return f"{rule.metric} {value:.6g} {rule.condition} {rule.bound:.6g} at step {step}" if is_met else ""
    count = len(siblings)
    if count < FEWEST_SIBLINGS:
        return ""
    median = (siblings[(count - 1) // 2] + siblings[count // 2]) / 2
    side = rule.condition.split()[0]
    middle = f"{side} the median {median:.6g} of {count} jobs"
    return f"{rule.metric} {value:.6g} {middle} at step {step}" if rule.is_met(value, median) else ""
