"""Start and stop the daemon: `gflowd up`, `down`, `restart`, `run`, `restore`."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gflow.cli.common.daemon_choice import check_alone
from gflow.cli.daemon import logind
from gflow.cli.gflowd import OPTIONS, START, say
from gflow.client import hot_path, http, no_daemon
from gflow.config.table import SETTINGS
from gflow.errors import Forbidden, GflowError, Refused, Unreachable, UsageError
from gflow.options.parse import parse

if TYPE_CHECKING:
    from gflow.daemon.settings import Settings
    from gflow.targets.local.run_record import Content

START_S = 30.0
NO_GPUS = "no GPUs (why: gflow doctor; to try gflow: gflowd restart --simulate-gpus 4x80G)"


def run(values: dict[str, Any]) -> int:
    from gflow.daemon.launch import launch
    from gflow.daemon.main import run as serve
    from gflow.daemon.process.reload import is_successor

    if not is_successor():
        check_alone(values)
    settings = _settings(values)
    return launch(settings) if settings.is_system else serve(settings)


def up(values: dict[str, Any]) -> int:
    """Start the daemon in the background and wait until it accepts requests."""
    check_alone(values)
    try:
        pid = http.get("/status")["pid"]
        flags = _daemon_flags(values)
        change = f"\n(to change its flags: gflowd restart {' '.join(flags)})" if flags else ""
        say(values, f"gflowd is already running (PID: {pid}){change}", running=True, pid=pid, started=False)
        return 0
    except (ConnectionError, Unreachable):
        pass
    settings = _settings(values)
    if not _daemon_flags(values):
        from gflow.cli.daemon import systemd

        if systemd.is_installed(values):
            return systemd.hand_over(values, "start")
    plan = logind.decide(logind.facts(str(settings.socket)))
    notes = [*settings.notes, *filter(None, [plan.note])]
    log_file = settings.logs / "daemon.log"
    # If it does not start through the user's service manager, start it directly.
    pid = (plan.before and _start(plan.before, values, settings)) or _start((), values, settings)
    if not pid:
        raise GflowError("gflowd did not start", hint=f"its log is {log_file}")
    notes += [note for note in http.get("/status")["notes"] if note not in notes]
    lines = [f"gflowd is running (PID: {pid})", _machine()]
    if "private" in values:
        lines.append(f"Reach it with: export GFLOW_SOCKET={settings.socket}")
    lines += [f"({note})" for note in notes]
    say(
        values,
        "\n".join(lines),
        running=True,
        pid=pid,
        started=True,
        socket=str(settings.socket),
        notes=notes,
    )
    return 0


def _machine() -> str:
    """What the daemon found: `8 GPUs (A100-80GB), 64 CPU slots, 512 GiB`."""
    status = http.get("/status")
    models = Counter(gpu["model"].removeprefix("NVIDIA ") for gpu in http.get("/info")["gpus"])
    count = models.total()
    kinds = ", ".join(model if len(models) == 1 else f"{many} {model}" for model, many in models.items())
    gpus = f"{count} GPU{'s' if count > 1 else ''} ({kinds})" if count else NO_GPUS
    return f"{gpus}, {status['cpu_total']} CPU slots, {status['memory_total_mib'] / 1024:.0f} GiB memory"


def _start(before: tuple[str, ...], values: dict[str, Any], settings: Settings) -> int | None:
    """Start the daemon; return its pid once it accepts requests, None if it exited without a report."""
    log_file = settings.logs / "daemon.log"
    ready, ready_in = os.pipe()
    with _open_log(settings, log_file) as log:
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "gflow", "gflowd", "run", *_start_words(values)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            pass_fds=(ready_in,),
            env=os.environ | {"GFLOW_READY_FD": str(ready_in)},
        )
    os.close(ready_in)
    report = os.read(ready, select.PIPE_BUF).decode() if select.select([ready], [], [], START_S)[0] else ""
    os.close(ready)
    if not report and _still_runs(process):
        raise GflowError(
            f"gflowd (PID {process.pid}) does not accept requests yet", hint=f"its log is {log_file}"
        )
    if report and report != "ready\n":
        _still_runs(process)  # it is about to exit
        raise _refusal(report)
    return process.pid if report else None


def _open_log(settings: Settings, log_file: Path) -> IO[bytes]:
    """Open the daemon's log, or /dev/null if it cannot be written: the daemon itself reports that error."""
    from gflow.daemon.process import directories, scheduler_account
    from gflow.store.files import make_folders

    try:
        if settings.is_system:
            account = scheduler_account.find()
            return os.fdopen(directories.open_daemon_log(settings, account.pw_uid, account.pw_gid), "ab")
        make_folders(log_file.parent)
        return log_file.open("ab")
    except OSError:
        return open(os.devnull, "ab")


def _refusal(report: str) -> GflowError:
    """The error of a daemon that could not start: exit code, message and hint, one per line."""
    code, message, hint = report.split("\n", 2)
    error = GflowError(message, hint=hint.strip())
    error.exit_code = int(code)
    return error


def _still_runs(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(1)
    except subprocess.TimeoutExpired:
        return True
    return False


def _settings(values: dict[str, Any]) -> Settings:
    """The settings of a daemon with these flags; raises if they are invalid."""
    from gflow.daemon.settings import settings_for

    if "config" in values:
        values["config"] = os.path.abspath(values["config"])  # the daemon runs in another folder
    words = tuple(_start_words(values))
    return settings_for(
        values,
        values.get("config", ""),
        paranoid="paranoid" in values,
        words=words,
        system="system" in values,
    )


def _start_words(values: dict[str, Any]) -> list[str]:
    words = []
    for option in START:
        if option.name in values:
            words.append(f"--{option.name}" if option.is_flag else f"--{option.name}={values[option.name]}")
    return words


def _daemon_flags(values: dict[str, Any]) -> list[str]:
    """Flags that change the daemon's settings: all but --system and --private, which select the daemon."""
    return _start_words({name: value for name, value in values.items() if name not in ("system", "private")})


def down(values: dict[str, Any]) -> int:
    try:
        status = http.get("/status")
    except (ConnectionError, Unreachable):
        say(values, "gflowd is not running", running=False, stopped=False, running_jobs=None)
        return 0
    running = status["running"]
    if "kill-jobs" in values:
        _kill_jobs()
        running = 0
    from gflow.cli.daemon import systemd

    scope = {"system": True} if "--system" in status["flags"] else {}
    if "again" not in values and systemd.is_active(scope):
        return systemd.hand_over(values | scope, "stop")
    is_again = "again" in values and _handles(status["pid"], signal.SIGUSR2)
    _terminate(status["pid"], signal.SIGUSR2 if is_again else signal.SIGTERM)
    left = f"; {running} running job{'s continue' if running > 1 else ' continues'}" if running else ""
    if "again" not in values:  # a restart reports its result only
        say(values, f"gflowd is down{left}", running=False, stopped=True, running_jobs=running)
    return 0


def _kill_jobs() -> None:
    """Drain the machine, kill the running jobs and wait for their end. Waiting jobs stay in the queue."""
    http.post("/drain", {"on": True, "passing": True})
    running = [str(job["id"]) for job in http.get("/jobs", states="Running")["jobs"]]
    if running:
        http.post("/jobs/cancel", {"jobs": running, "now": True})
    for stray in http.get("/status").get("strays", ()):  # an older daemon does not report them
        _kill_stray(stray["pid"], stray["started"])
    patience = time.monotonic() + START_S
    while (status := http.get("/status"))["running"] or status.get("strays"):
        if time.monotonic() > patience:
            raise GflowError(
                "some jobs could not be ended",
                hint="gqueue shows them; they may be blocked in the kernel, or their cluster does not answer",
            )
        time.sleep(0.05)


def _handles(pid: int, number: int) -> bool:
    """Whether a process catches or ignores this signal, so that the signal does not end it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # /proc is hidden from us; every current daemon handles it
        return True
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def _kill_stray(pid: int | None, started: int | None) -> None:
    """Tell the shim of a job unknown to the daemon to kill it. The start time guards against pid reuse."""
    from gflow.targets.local.run_record import start_time

    if pid is None:
        return
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        if start_time(pid) == started:
            signal.pidfd_send_signal(pidfd, signal.SIGUSR1)
        os.close(pidfd)


def _terminate(pid: int, number: int) -> None:
    """Send the signal to exactly this process and wait for its exit."""
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, number)
    except PermissionError:
        raise Forbidden(
            "the system-wide gflow daemon belongs to root", hint="gflowd down --private stops one of your own"
        ) from None
    if not select.select([pidfd], [], [], START_S)[0]:
        raise GflowError(f"gflowd (PID {pid}) did not stop")
    os.close(pidfd)


def restart(values: dict[str, Any]) -> int:
    """Replace the daemon. Its flags are kept unless they are given again or hold for one daemon only."""
    running = True
    try:
        flags, _ = parse(http.get("/status")["flags"], OPTIONS)
    except (ConnectionError, Unreachable):
        running, flags = False, {}
    passing = {setting.flag for setting in SETTINGS if setting.flag and not setting.kept}
    kept = {name: value for name, value in flags.items() if name not in passing}
    if "system" not in kept | values and running and no_daemon.has_system_daemon(hot_path.getenv):
        kept["private"] = True  # it was started before the system-wide daemon
    if "system" in kept and os.geteuid():
        raise Forbidden("the system-wide gflow daemon belongs to root")
    from gflow.cli.daemon import systemd

    if systemd.is_active(kept):
        if _daemon_flags(values):
            raise UsageError(
                "a systemd service takes no flags", hint="put them into gflow.toml: gflowd config shows where"
            )
        return systemd.hand_over(values | kept, "restart")
    _settings(kept | values)  # report errors while the old daemon still runs
    down({"again": True} | {name: True for name in values if name == "json"})
    return up(kept | values)


def reload(values: dict[str, Any]) -> int:
    """Let the daemon re-execute itself in the same process. With new flags, restart it instead."""
    try:
        before = http.get("/status")
    except (ConnectionError, Unreachable):
        return up(values)
    if _daemon_flags(values):
        return restart(values)
    if not _handles(before["pid"], signal.SIGUSR1):
        sys.stderr.write(f"gflowd {before['version']} cannot reload in place; restarting it instead\n")
        return restart(values)
    flags, _ = parse(before["flags"], OPTIONS)
    _settings(flags)  # report errors while the old daemon still runs
    asked = time.monotonic()
    try:
        os.kill(before["pid"], signal.SIGUSR1)
    except PermissionError:
        raise Forbidden("the system-wide gflow daemon belongs to root") from None
    while time.monotonic() < asked + START_S:
        with suppress(ConnectionError, Unreachable):
            now = http.get("/status")
            if now["uptime_secs"] < time.monotonic() - asked:
                say(values, f"gflowd reloaded (PID: {now['pid']})", running=True, pid=now["pid"])
                return 0
        time.sleep(0.02)
    raise GflowError("gflowd did not come back", hint="see gflowd status and its log")


def restore_backup(values: dict[str, Any], backup: str) -> int:
    """Replace the database by a backup, while no daemon is running."""
    from gflow.daemon.process import instance_lock
    from gflow.store.backup import restore
    from gflow.store.location import first_free_number
    from gflow.targets.local.run_record import list_locked

    if os.geteuid() == 0:  # root rarely means a private daemon where a system-wide one is set up
        check_alone(values)
    settings = _settings(values)
    source = Path(backup).resolve()
    if not source.is_file():
        raise UsageError(f"there is no file {backup}")
    scope = " --system" if settings.is_system else " --private" if "private" in values else ""
    held = instance_lock.take(settings.data, f"stop it first: gflowd down{scope}")
    number = first_free_number(settings.data)
    living = list_locked(str(settings.run_dir))
    if settings.is_system:
        copy = _confine(settings, source)
        if isinstance(copy, int):  # a child has done it
            return copy
    else:
        copy = source
    _check_nothing_is_orphaned(living, copy)
    # Jobs that waited in the backup may have run since; drain the machine so that root can check first.
    drained = f"restored from {source.name}" if settings.is_system else ""
    kept = restore(copy, settings.database, number, settings.kind, drained)
    if copy != source:
        copy.unlink()
    os.close(held)
    print(f"restored {source}" + (f"; the previous database is now {kept}" if kept else ""))
    if drained:
        print("(no job starts until gctl resume: check the queue first)")
    return 0


def _confine(settings: Settings, source: Path) -> Path | int:
    """Go on in a child with the rights of the scheduler: its exit code; in the child, a copy of `source`.

    The database is the scheduler's, and could have been made to harm who opens it.
    """
    from gflow.daemon.process import directories, scheduler_account
    from gflow.privileged import sandbox

    account = scheduler_account.find()
    directories.check_trusted(source, account.pw_uid)
    directories.prepare(settings, account.pw_gid)
    directories.give_to_scheduler(settings, account.pw_uid, account.pw_gid)
    with source.open("rb") as file:
        sys.stdout.flush()
        if pid := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sandbox.enter(account.pw_uid, account.pw_gid)
        copy = settings.data / "restoring.db"
        copy.unlink(missing_ok=True)
        fd = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as made:
            shutil.copyfileobj(file, made)
    return copy


def _check_nothing_is_orphaned(living: dict[str, Content], backup: Path) -> None:
    """Refuse a backup that lacks a running job: the daemon could neither stop it nor count its GPUs."""
    from gflow.store.backup import runs_in

    unknown = sorted(living.keys() - runs_in(backup))
    if unknown:
        jobs = ", ".join(name.rpartition(".")[0] for name in unknown)
        shims = " ".join(str(shim.pid) for name in unknown if (shim := living[name].shim))
        raise Refused(
            f"job {jobs} is running and is not in the backup",
            hint="let it end first: gflowd up; gflowd down --kill-jobs"
            + (f" (or, if the daemon does not start: kill {shims})" if shims else ""),
        )
