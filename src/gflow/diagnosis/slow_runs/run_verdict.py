"""Judge a running job: slow, stuck or fine. Pure: the facts are collected by the caller."""

from __future__ import annotations

import re
from typing import NamedTuple

from gflow.diagnosis.log_text import Frame
from gflow.diagnosis.rules.rule import Confidence
from gflow.diagnosis.slow_runs import signs
from gflow.diagnosis.slow_runs.run_facts import RunFacts
from gflow.diagnosis.slow_runs.signs import Sign
from gflow.diagnosis.slow_runs.slow_rules import END_IT, RULES, SlowRule, Verdict

# A younger job loads libraries and data; its samples say nothing.
YOUNG_S = 20.0
ASK_AGAIN_S = 20.0
MOST = 4


class RunFinding(NamedTuple):
    """A cause, the figures that it rests on, what to do, and the experiment that would confirm it."""

    cause: str
    verdict: Verdict
    summary: str
    confidence: Confidence
    figures: tuple[str, ...]
    advice: tuple[str, ...]
    experiment: str
    # The line of the program in which most samples of this activity are.
    frame: Frame | None = None


class RunDiagnosis(NamedTuple):
    """The verdict with its findings, the most probable first. `summary`: the verdict in a sentence."""

    verdict: Verdict
    summary: str
    findings: tuple[RunFinding, ...]
    # Figures of a run without findings, and what could not be observed.
    figures: tuple[str, ...]
    notes: tuple[str, ...]
    # Seconds after which to ask again; None: there is no need.
    ask_again_s: float | None = None


def judge(facts: RunFacts) -> RunDiagnosis:
    """The verdict about a running job."""
    findings = _find(facts)
    if waits := _start_up(facts, findings):
        return RunDiagnosis(Verdict.STARTING, waits, (), figures_of(facts), facts.notes, _ask_again_s(facts))
    verdict = _verdict(facts, findings)
    return RunDiagnosis(
        verdict,
        _spell_verdict(verdict, facts),
        findings,
        (*figures_of(facts), *(() if findings else _place_figure(facts))),
        facts.notes,
        _ask_again_s(facts) if verdict is Verdict.UNKNOWN else None,
    )


def _find(facts: RunFacts) -> tuple[RunFinding, ...]:
    found = [_make(rule, sign, facts) for rule in RULES if (sign := rule.sign(facts))]
    if any(one.verdict is Verdict.STUCK for one in found):
        found = [one for one in found if one.verdict is Verdict.STUCK]
    elif sum(one.verdict is Verdict.SLOW for one in found) > 1:  # a cause is known
        found = [one for one in found if one.cause != "gpu-underused"]
    return tuple(sorted(found, key=_weight, reverse=True)[:MOST])


def _weight(one: RunFinding) -> tuple[bool, int]:
    return (one.verdict is not Verdict.FINE, int(one.confidence))


def _make(rule: SlowRule, sign: Sign, facts: RunFacts) -> RunFinding:
    names = {"job": facts.job, "pid": str(facts.main.pid) if facts.main else "PID"} | sign.names
    names["dump"] = facts.stack.dump
    # A cluster reports one moment of the GPUs, and nothing about the processes.
    sure = min(sign.confidence, Confidence.POSSIBLE) if facts.is_remote else sign.confidence
    return RunFinding(
        rule.cause,
        rule.verdict,
        _fill(rule.summary, names),
        sure,
        sign.figures,
        tuple(_fill(line, names) for line in _advice(rule, has_dump=bool(facts.stack.dump))),
        rule.experiment,
        facts.stack.frames.get(sign.activity),
    )


def _advice(rule: SlowRule, *, has_dump: bool) -> list[str]:
    lines = [line for line in rule.advice if has_dump or "{dump}" not in line]
    return [*lines, END_IT] if rule.verdict is Verdict.STUCK else lines


def _fill(text: str, names: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], found[0]), text)


def _start_up(facts: RunFacts, findings: tuple[RunFinding, ...]) -> str:
    """Why it is too early for a judgement; empty: it is not."""
    if any(one.confidence is Confidence.CERTAIN and one.verdict is Verdict.STUCK for one in findings):
        return ""
    if facts.age_s < YOUNG_S:
        return f"it has run for {facts.age_s:.0f} s: there are not enough samples yet"
    for activity, doing in (("importing", "imports modules"), ("compiling", "compiles kernels")):
        if facts.stack.share(activity) >= 0.5 and not signs.is_saturated(facts):
            return f"it still {doing} ({signs.percent(facts.stack.share(activity))} of the stack samples)"
    return ""


def _ask_again_s(facts: RunFacts) -> float | None:
    """Seconds after which the answer may be another one; None: more samples give the same."""
    if facts.age_s < YOUNG_S:
        return max(5.0, YOUNG_S + 5 - facts.age_s)
    if facts.is_remote or not (facts.has_processes or facts.gpus):
        return None
    if facts.busy is not None or facts.stack.share("importing", "compiling"):
        return ASK_AGAIN_S
    left_s = signs.QUIET_S + 1 - signs.quiet_s(facts)
    return left_s if left_s > 0 and signs.is_inactive(facts) else None


def _verdict(facts: RunFacts, findings: tuple[RunFinding, ...]) -> Verdict:
    named = {one.verdict for one in findings}
    if Verdict.STUCK in named:
        return Verdict.STUCK
    if Verdict.SLOW in named:
        return Verdict.SLOW
    return Verdict.FINE if _is_working(facts) and not facts.is_remote else Verdict.UNKNOWN


def _is_working(facts: RunFacts) -> bool:
    """Whether something shows that the job gets on with its work.

    The CPU shows it only of a job without GPUs: one that waits for its GPUs may be busy, too.
    """
    if facts.busy is not None:
        return facts.busy >= signs.UNDERUSED
    return bool(signs.progress_figure(facts)) or (not facts.gpu_count and _is_busy(facts))


def _is_busy(facts: RunFacts) -> bool:
    return any(one.busiest_wanted_cpu >= 20 for one in facts.processes)


def _spell_verdict(verdict: Verdict, facts: RunFacts) -> str:
    if verdict is Verdict.UNKNOWN:
        return _spell_unknown(facts)
    if verdict is Verdict.FINE and facts.busy is None and (facts.gpu_count or not _is_busy(facts)):
        return signs.progress_figure(facts)
    return {
        Verdict.STUCK: "it makes no progress",
        Verdict.SLOW: "it could be faster",
        Verdict.FINE: "nothing slows it down",
    }[verdict]


def _spell_unknown(facts: RunFacts) -> str:
    """What is known about a job without a verdict."""
    if facts.is_remote:
        return "its processes run on a cluster and cannot be observed from here"
    if facts.busy is not None:
        return "it does little, and nothing shows why"
    if not facts.has_processes:
        return "neither its processes nor its GPUs can be observed"
    quiet = f"{facts.cpu:.0f} % of one core, no output for {signs.spell_s(signs.quiet_s(facts))}"
    if not _is_busy(facts):
        return f"it does little: CPU {quiet}"
    uses = "it uses its GPU" if facts.gpu_count == 1 else "it uses its GPUs"
    return f"busy on the CPU: {quiet}; whether {uses} is not known"


def figures_of(facts: RunFacts) -> tuple[str, ...]:
    """The main figures of a run, for every verdict."""
    figures = [*signs.gpu_figure(facts), *signs.memory_figure(facts)]
    if facts.has_processes:
        count = len(facts.processes)
        figures.append(f"CPU {facts.cpu:.0f} % of one core in {count} process{'es' if count > 1 else ''}")
    if facts.steps:
        figures.append(_step_figure(facts))
    if facts.log_age_s is not None:
        figures.append(f"last output {signs.spell_s(facts.log_age_s)} ago")
    return tuple(figures)


def _place_figure(facts: RunFacts) -> tuple[str, ...]:
    """Where a run without findings spends its time."""
    frame = facts.stack.frames.get(signs.most_sampled(facts))
    return (f"most stack samples at {frame.file}:{frame.line} in {frame.function}",) if frame else ()


def _step_figure(facts: RunFacts) -> str:
    steps = facts.steps
    assert steps is not None
    total = f" of {steps.steps}" if steps.steps else ""
    each = steps.now_s or steps.usual_s
    return f"step {steps.step}{total}" + (f", {signs.spell_s(each)} per step" if each else "")
