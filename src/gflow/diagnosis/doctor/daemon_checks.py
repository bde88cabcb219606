"""Checks of gflow itself: daemon, configuration, service, Slurm client."""

from __future__ import annotations

from collections.abc import Iterator

from gflow.diagnosis.doctor.facts import Facts
from gflow.diagnosis.doctor.report import CheckResult, ok, problem, warning


def check_configuration(facts: Facts) -> Iterator[CheckResult]:
    daemon = facts.daemon
    if daemon.config_error:
        yield problem(
            "config",
            f"the configuration is invalid: {daemon.config_error}",
            daemon.config_hint or "gflowd config shows every setting",
        )
    for note in daemon.config_notes:
        yield warning("config-ignored", note, "remove it from the file")
    for path in daemon.open_configs:
        yield problem("config-open", f"other users may change {path}", f"chmod go-w {path}")
    for path in daemon.readable_secrets:
        yield warning("config-secret", f"other users may read the secrets in {path}", f"chmod go-rwx {path}")


def check_daemon(facts: Facts) -> Iterator[CheckResult]:
    daemon = facts.daemon
    if not daemon.is_running and daemon.trouble:
        yield problem(
            "daemon", f"the daemon does not answer: {daemon.trouble}", "gflowd status; gflowd restart"
        )
        return
    if not daemon.is_running:
        yield warning("daemon", "the daemon does not run", "gflowd up")
        return
    if daemon.is_read_only:
        yield problem(
            "daemon", f"the daemon takes no changes: {daemon.detail}", "df -h; gflowd status shows the folder"
        )
    elif daemon.version and daemon.version != daemon.client_version:
        yield warning(
            "version",
            f"the daemon is version {daemon.version}, this command {daemon.client_version}",
            "gflowd reload",
        )
    else:
        yield ok("daemon", f"the daemon runs{' for all users' if daemon.is_system else ''}")
    if daemon.is_simulated and facts.driver.has_no_gpu:
        count = f"{daemon.gpu_count} simulated GPU{'' if daemon.gpu_count == 1 else 's'}"
        yield ok("simulated", f"{count}; this machine has no NVIDIA GPU")
    elif daemon.is_simulated:
        yield warning(
            "simulated",
            "the daemon simulates its GPUs: no device is used",
            "gflowd down; gflowd up",
        )
    if daemon.isolation_problem:
        yield warning(
            "device-isolation",
            f"a job can open the GPUs of other jobs: {daemon.isolation_problem}",
            "it needs cgroup v2, the native shim (install gflow with a C compiler) and gpu.isolate_devices",
        )
    if daemon.drained:
        yield warning("drained", f"the machine is drained: {daemon.drained}", "gctl resume")


def check_strays(facts: Facts) -> Iterator[CheckResult]:
    if facts.daemon.strays:
        yield warning(
            "strays",
            f"jobs run that the database does not know: {', '.join(facts.daemon.strays[:5])}",
            "gflowd status lists their processes",
        )


def check_service(facts: Facts) -> Iterator[CheckResult]:
    daemon = facts.daemon
    if daemon.is_system:
        return
    if daemon.has_service and daemon.service_state == "failed":
        yield problem("service", "the service of the daemon has failed", "journalctl --user -u gflowd -n 50")
    elif daemon.has_service:
        yield ok("service", f"the daemon is a service{_state(daemon.service_state)}")
    if daemon.has_service and daemon.lingers is False:
        yield warning(
            "linger", "your services end when you log out, and the daemon with them", "loginctl enable-linger"
        )
    if not daemon.has_service and daemon.is_running and daemon.kills_at_logout:
        yield warning(
            "logout",
            "logind ends your processes when you log out, and the daemon with its jobs",
            "gflowd service install; loginctl enable-linger",
        )


def _state(text: str) -> str:
    return f" ({text})" if text else ""


def check_slurm(facts: Facts) -> Iterator[CheckResult]:
    daemon = facts.daemon
    if daemon.slurm_client is None:
        return
    if not daemon.slurm_client:
        yield problem(
            "slurm",
            "a Slurm target is configured, and there is no sbatch on PATH",
            "module load slurm, or apt install slurm-client",
        )
    elif daemon.slurm_trouble:
        yield problem("slurm", f"Slurm does not answer: {daemon.slurm_trouble}", "scontrol ping; sinfo")
    else:
        yield ok("slurm", f"Slurm's client is {daemon.slurm_client}")
    for folder in daemon.closed_folders:
        yield problem(
            "slurm-folder",
            f"the folder of a Slurm target cannot be written: {folder}",
            f"mkdir -p {folder}; it must be on a disk that the nodes mount",
        )
