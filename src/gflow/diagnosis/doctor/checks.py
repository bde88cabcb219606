"""All checks, in the order of the report."""

from __future__ import annotations

from collections.abc import Iterator

from gflow.diagnosis.doctor import (
    daemon_checks,
    gpu_checks,
    host_checks,
    topology_checks,
    version_checks,
)
from gflow.diagnosis.doctor.facts import Facts
from gflow.diagnosis.doctor.report import CheckResult, ok, warning

# What each extra adds.
EXTRAS = {"spy": "stack samples in gjob why", "tui": "gflow top"}


def check_time(facts: Facts) -> Iterator[CheckResult]:
    for part in facts.late:
        yield warning(
            "late", f"{part} could not be read in time", "run gflow doctor again; uptime shows the load"
        )


def check_extras(facts: Facts) -> Iterator[CheckResult]:
    """Name the extras that are not installed: the rest of gflow works without them."""
    if facts.missing_extras:
        names = ", ".join(f"{extra} ({EXTRAS[extra]})" for extra in facts.missing_extras)
        yield ok("extras", f"extras that are not installed: {names}; {facts.extras_command}")


CHECKS = (
    daemon_checks.check_configuration,
    daemon_checks.check_daemon,
    daemon_checks.check_strays,
    daemon_checks.check_service,
    daemon_checks.check_slurm,
    gpu_checks.check_driver,
    gpu_checks.check_gpus,
    topology_checks.check_topology,
    version_checks.check_python,
    version_checks.check_versions,
    version_checks.check_torch_copies,
    version_checks.check_libraries,
    version_checks.check_toolkits,
    host_checks.check_shared_memory,
    host_checks.check_limits,
    host_checks.check_memory,
    host_checks.check_home,
    host_checks.check_disks,
    host_checks.check_control_groups,
    host_checks.check_compiler,
    host_checks.check_clock,
    host_checks.check_schedulers,
    check_extras,
    check_time,
)


def check_all(facts: Facts) -> list[CheckResult]:
    """The results of all checks."""
    return [result for check in CHECKS for result in check(facts)]
