"""All checks, in the order of the report."""

from __future__ import annotations

from gflow.diagnosis.doctor import daemon_checks, gpu_checks, host_checks
from gflow.diagnosis.doctor.facts import Facts
from gflow.diagnosis.doctor.report import CheckResult

CHECKS = (
    daemon_checks.check_configuration,
    daemon_checks.check_daemon,
    daemon_checks.check_service,
    daemon_checks.check_slurm,
    gpu_checks.check_driver,
    gpu_checks.check_gpus,
    gpu_checks.check_versions,
    host_checks.check_shared_memory,
    host_checks.check_limits,
    host_checks.check_memory,
    host_checks.check_disks,
    host_checks.check_control_groups,
    host_checks.check_clock,
    host_checks.check_schedulers,
)


def check_all(facts: Facts) -> list[CheckResult]:
    """The results of all checks."""
    return [result for check in CHECKS for result in check(facts)]
