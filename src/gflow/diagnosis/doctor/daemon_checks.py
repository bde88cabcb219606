"""Checks of gflow itself: daemon, configuration, service, Slurm client."""

from __future__ import annotations

from collections.abc import Iterator

from gflow.diagnosis.doctor.facts import Facts
from gflow.diagnosis.doctor.report import CheckResult, ok, problem, warning


def check_configuration(facts: Facts) -> Iterator[CheckResult]:
    if facts.daemon.config_error:
        yield problem(
            "config",
            f"the configuration is invalid: {facts.daemon.config_error}",
            "gflowd config shows every setting",
        )


def check_daemon(facts: Facts) -> Iterator[CheckResult]:
    daemon = facts.daemon
    if not daemon.is_running:
        yield warning(
            "daemon", f"the daemon does not run{': ' + daemon.trouble if daemon.trouble else ''}", "gflowd up"
        )
        return
    if daemon.is_read_only:
        yield problem(
            "daemon", f"the daemon takes no changes: {daemon.detail}", "free disk space; gflowd status"
        )
    elif daemon.version and daemon.version != daemon.client_version:
        yield warning(
            "version",
            f"the daemon is version {daemon.version}, this command {daemon.client_version}",
            "gflowd reload",
        )
    else:
        yield ok("daemon", f"the daemon runs{' for all users' if daemon.is_system else ''}")
    if daemon.is_simulated:
        yield warning(
            "simulated",
            "the daemon simulates its GPUs: no device is used",
            "gflowd restart without --simulate-gpus",
        )
    if daemon.drained:
        yield warning("drained", f"the machine is drained: {daemon.drained}", "gctl resume")


def check_service(facts: Facts) -> Iterator[CheckResult]:
    daemon = facts.daemon
    if daemon.has_service and daemon.lingers is False and not daemon.is_system:
        yield warning(
            "linger", "your services end when you log out, and the daemon with them", "loginctl enable-linger"
        )


def check_slurm(facts: Facts) -> Iterator[CheckResult]:
    client = facts.daemon.slurm_client
    if client == "":
        yield problem(
            "slurm",
            "a Slurm target is configured, and there is no sbatch on PATH",
            "load the module or install slurm-client",
        )
    elif client:
        yield ok("slurm", f"Slurm's client is {client}")
