"""`gflow doctor` as data: all checks of a machine, of the environment of a job, and the self-test of GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gflow.client.doctor.job_environment import read_job
from gflow.client.doctor.machine_facts import collect
from gflow.diagnosis.doctor.checks import check_all
from gflow.diagnosis.doctor.compatibility import READ_ON, SOURCES
from gflow.diagnosis.doctor.job_checks import check_job
from gflow.diagnosis.doctor.report import CheckResult, Level
from gflow.diagnosis.doctor.self_test import TITLES, Measurement, SelfTest, check_self_test

# Seconds for a driver that has to be loaded first, before its GPUs are measured.
LOADING_S = 30.0
NAMES = {Level.OK: "ok", Level.WARNING: "warning", Level.PROBLEM: "problem"}


class Examination(NamedTuple):
    """The results, and the figures of the self-test if it ran."""

    results: list[CheckResult]
    self_test: SelfTest | None = None

    @property
    def worst(self) -> Level:
        return max((one.level for one in self.results), default=Level.OK)


def examine_machine() -> Examination:
    return Examination(check_all(collect()))


def examine_job(reference: str, become_owner: Callable[[int], None] | None = None) -> Examination:
    """Check the environment of a job. The machine is read first: root drops its rights for the job."""
    facts = collect()
    return Examination(check_job(read_job(reference, become_owner), facts))


def measure_gpus(
    wanted: tuple[int, ...] = (),
    *,
    is_forced: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Examination:
    """Check the machine, then measure its GPUs."""
    from gflow.client.doctor.gpu_self_test import run_self_test
    from gflow.ml.self_test.expected_figures import add_expectations

    facts = collect(LOADING_S)
    found = run_self_test(facts.driver, facts.python, wanted, is_forced=is_forced, progress=progress)
    cards = {gpu.number: gpu for gpu in facts.driver.gpus}
    found = found._replace(measurements=add_expectations(found.measurements, cards))
    return Examination([*check_all(facts), *check_self_test(found)], found)


def view(found: Examination, *, is_quiet: bool = False) -> dict[str, Any]:
    """The examination as JSON."""
    shown = [one for one in found.results if one.level or not is_quiet]
    answer: dict[str, Any] = {
        "checks": [_check_view(one) for one in shown],
        "worst": NAMES[found.worst],
        "rules": {"read_on": READ_ON, "sources": SOURCES},
    }
    if found.self_test is not None:
        answer["self_test"] = _self_test_view(found.self_test)
    return answer


def _check_view(one: CheckResult) -> dict[str, str | None]:
    return {"name": one.name, "level": NAMES[one.level], "text": one.text, "fix": one.fix or None}


def _self_test_view(test: SelfTest) -> dict[str, Any]:
    return {
        "torch": test.torch or None,
        "seconds": test.seconds,
        "trouble": test.trouble or None,
        "skipped": [one._asdict() for one in test.skipped],
        "figures": [_figure_view(one) for one in test.measurements],
    }


def _figure_view(one: Measurement) -> dict[str, Any]:
    return {
        "name": one.name,
        "gpus": list(one.gpus),
        "value": None if one.value is None else round(one.value, 1),
        "unit": TITLES[one.name][1],
        "expected": one.expected and round(one.expected, 1),
        "share": one.share and round(one.share, 3),
        "error": one.error or None,
    }
