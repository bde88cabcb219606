"""Facts about gflow itself: daemon, configuration, service, Slurm client."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from contextlib import suppress
from typing import Any, NamedTuple

from gflow import paths
from gflow.client import http
from gflow.client.doctor.programs import output_of, text_of, user_folder
from gflow.config.load import Config, load
from gflow.diagnosis.doctor.facts import DaemonFacts
from gflow.errors import GflowError, Unreachable

ANSWER_S = 1.5
# Settings whose tables may hold passwords and tokens.
SECRETS = ("notifications.webhooks", "notifications.emails")


class GpuUse(NamedTuple):
    """What the daemon knows of a GPU: its number, jobs that have it, pids of other processes on it."""

    number: int
    jobs: tuple[str, ...]
    foreign: tuple[int, ...]


def read_daemon() -> tuple[DaemonFacts, dict[str, GpuUse]]:
    """The state of gflow, and the use of each GPU by its UUID."""
    found = _service(_configuration(DaemonFacts(client_version=_version())))
    try:
        status, info = http.get_within("/status", ANSWER_S), http.get_within("/info", ANSWER_S)
    except Unreachable:
        return found, {}
    except TimeoutError:
        return found._replace(trouble=f"it takes longer than {ANSWER_S} s"), {}
    except (GflowError, OSError) as error:
        is_absent = isinstance(error, (FileNotFoundError, ConnectionRefusedError))
        return found._replace(trouble="" if is_absent else str(error)), {}
    return _running(found, status, info), {gpu["uuid"]: _use(gpu) for gpu in info["gpus"]}


def _version() -> str:
    """The version of this command. The package is looked up, since its public names import this module."""
    return str(sys.modules["gflow"].__version__)


def _use(gpu: dict[str, Any]) -> GpuUse:
    foreign = [one["pid"] for one in gpu["processes"] if not one["tolerated"]]
    return GpuUse(gpu["index"], tuple(map(str, gpu["jobs"])), tuple(foreign))


def _running(found: DaemonFacts, status: dict[str, Any], info: dict[str, Any]) -> DaemonFacts:
    return found._replace(
        is_running=True,
        is_read_only=bool(status["read_only"]),
        detail=status["read_only"],
        is_system=status["socket"] == paths.system_socket(os.environ.get),
        version=status["version"],
        is_simulated=status["gpu_simulated"],
        gpu_count=status["gpu_total"],
        drained=(info["reason"] or "no reason given") if info["drained"] else "",
        isolation_problem=info.get("isolation_problem", ""),
        strays=tuple(stray["job"] for stray in status["strays"]),
    )


# ------------------------------------------------------------ configuration


def _configuration(found: DaemonFacts) -> DaemonFacts:
    """What the files of the user and of the system daemon say, and whether they are well protected."""
    system = paths.system_config(os.environ.get)
    for usual in ("", system) if os.path.exists(system) else ("",):
        try:
            config = load({}, os.environ, usual=usual)
        except GflowError as error:
            hint = error.hint if isinstance(error.hint, str) else ""
            return found._replace(config_error=str(error), config_hint=hint)
        found = _clusters(_protection(found, config), config)
    return found


def _protection(found: DaemonFacts, config: Config) -> DaemonFacts:
    open_files, readable = list(found.open_configs), list(found.readable_secrets)
    for path in config.files:
        with suppress(OSError):
            mode = os.stat(path).st_mode
            if mode & (stat.S_IWGRP | stat.S_IWOTH):
                open_files.append(path)
            has_secrets = any(config[key] and config.found[key].origin == path for key in SECRETS)
            if has_secrets and mode & (stat.S_IRGRP | stat.S_IROTH):
                readable.append(path)
    return found._replace(
        config_notes=(*found.config_notes, *config.notes),
        open_configs=tuple(dict.fromkeys(open_files)),
        readable_secrets=tuple(dict.fromkeys(readable)),
    )


def _clusters(found: DaemonFacts, config: Config) -> DaemonFacts:
    """Slurm's client, whether the controller answers, and the folders of the targets."""
    tables = config["targets"]
    if not tables:
        return found
    client = shutil.which("sbatch") or ""
    folders = [table["folder"] for table in tables.values() if table.get("folder")]
    closed = [folder for folder in folders if not os.access(os.path.expanduser(folder), os.W_OK)]
    trouble = _slurm_trouble() if client else ""
    return found._replace(slurm_client=client, slurm_trouble=trouble, closed_folders=tuple(closed))


def _slurm_trouble() -> str:
    answer = output_of(["scontrol", "ping"])
    if answer is None:
        return "scontrol ping does not end"
    states = re.findall(r"is (UP|DOWN)", answer)
    return "" if "UP" in states else (answer.strip().splitlines() or ["scontrol ping failed"])[0]


# ------------------------------------------------------------ the service


def _service(found: DaemonFacts) -> DaemonFacts:
    base = os.environ.get("XDG_CONFIG_HOME") or f"{user_folder()}/.config"
    has_service = os.path.exists(f"{base}/systemd/user/gflowd.service")
    state = (output_of(["systemctl", "--user", "is-active", "gflowd"]) or "") if has_service else ""
    return found._replace(
        has_service=has_service,
        service_state=state.strip(),
        lingers=_lingers(),
        kills_at_logout=_kills_at_logout(),
    )


def _lingers(folder: str = "/var/lib/systemd") -> bool | None:
    import pwd

    if not os.path.isdir(folder):
        return None
    try:
        return os.path.exists(f"{folder}/linger/{pwd.getpwuid(os.getuid()).pw_name}")
    except KeyError:  # a uid without an account, as in containers
        return None


def _kills_at_logout(folder: str = "/etc/systemd") -> bool:
    """Whether logind.conf says so; the last file counts."""
    names = [f"{folder}/logind.conf"]
    with suppress(OSError):
        names += sorted(f"{folder}/logind.conf.d/{name}" for name in os.listdir(f"{folder}/logind.conf.d"))
    said = re.findall(r"^\s*KillUserProcesses\s*=\s*(\w+)", "\n".join(map(text_of, names)), re.MULTILINE)
    return bool(said) and said[-1].lower() in ("yes", "true", "on", "1")
