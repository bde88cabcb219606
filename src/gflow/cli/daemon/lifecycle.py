"""Starting and stopping the daemon: `gflowd up`, `down`, `restart`, `run`, `restore`."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
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

START_S = 30.0


def run(values: dict[str, Any]) -> int:
    from gflow.daemon.main import run as serve
    from gflow.daemon.process.reload import is_successor

    if not is_successor():
        check_alone(values)
    return serve(_settings(values))


def up(values: dict[str, Any]) -> int:
    """Start the daemon apart from this terminal and wait until it serves."""
    check_alone(values)
    try:
        pid = http.get("/status")["pid"]
        say(values, f"gflowd is already running (PID: {pid})", running=True, pid=pid, started=False)
        return 0
    except (ConnectionError, Unreachable):
        pass
    settings = _settings(values)
    if not _told(values):
        from gflow.cli.daemon import systemd

        if systemd.is_installed(values):
            return systemd.hand_over(values, "start")
    plan = logind.decide(logind.facts(str(settings.socket)))
    notes = [*settings.notes, *filter(None, [plan.note])]
    log_file = settings.logs / "daemon.log"
    # Without the user's service manager if that does not do it.
    pid = (plan.before and _start(plan.before, values, log_file)) or _start((), values, log_file)
    if not pid:
        raise GflowError("gflowd did not start", hint=f"its log is {log_file}")
    lines = [f"gflowd is running (PID: {pid})"]
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


def _start(before: tuple[str, ...], values: dict[str, Any], log_file: Path) -> int | None:
    """Start the daemon; its pid once it serves, None if it ended without a word."""
    ready, ready_in = os.pipe()
    with _opened(log_file) as log:
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
    said = os.read(ready, select.PIPE_BUF).decode() if select.select([ready], [], [], START_S)[0] else ""
    os.close(ready)
    if not said and _still_runs(process):
        raise GflowError(f"gflowd (PID {process.pid}) does not serve yet", hint=f"its log is {log_file}")
    if said and said != "ready\n":
        _still_runs(process)  # it is about to end
        raise _refusal(said)
    return process.pid if said else None


def _opened(log_file: Path) -> IO[bytes]:
    """The daemon's log; nothing if it cannot be written, for the daemon itself will say what is wrong."""
    from gflow.store.files import make_folders

    try:
        make_folders(log_file.parent)
        return log_file.open("ab")
    except OSError:
        return open(os.devnull, "ab")


def _refusal(said: str) -> GflowError:
    """The error of a daemon that could not start: its exit code, its sentence, and a hint."""
    code, message, hint = said.split("\n", 2)
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
    """What a daemon with these flags would work with, or a refusal."""
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


def _told(values: dict[str, Any]) -> list[str]:
    """What a daemon is to do otherwise; which daemon is meant does not count."""
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
    left = f"; {running} running job{'s go' if running > 1 else ' goes'} on" if running else ""
    if "again" not in values or "json" not in values:
        say(values, f"gflowd is down{left}", running=False, stopped=True, running_jobs=running)
    return 0


def _kill_jobs() -> None:
    """Let nothing more start, end what runs, and wait until it is gone. What waits goes on waiting."""
    http.post("/drain", {"on": True, "passing": True})
    running = [str(job["id"]) for job in http.get("/jobs", states="Running")["jobs"]]
    if running:
        http.post("/jobs/cancel", {"jobs": running, "now": True})
    for stray in http.get("/status").get("strays", ()):  # an older daemon does not say
        _kill_stray(stray["pid"], stray["started"])
    patience = time.monotonic() + START_S
    while (status := http.get("/status"))["running"] or status.get("strays"):
        if time.monotonic() > patience:
            raise GflowError(
                "some jobs do not end",
                hint="gqueue shows them; they may hang in the kernel, or their cluster does not answer",
            )
        time.sleep(0.05)


def _handles(pid: int, number: int) -> bool:
    """Whether a process does something with this signal, instead of being ended by it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # hidden from us: a daemon of today does
        return True
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def _kill_stray(pid: int | None, started: int | None) -> None:
    """Let the shim of a job that the daemon does not know end it at once: exactly that process."""
    from gflow.targets.local.run_record import start_time

    if pid is None:
        return
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        if start_time(pid) == started:
            signal.pidfd_send_signal(pidfd, signal.SIGUSR1)
        os.close(pidfd)


def _terminate(pid: int, number: int) -> None:
    """End exactly this process and wait for it."""
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, number)
    except PermissionError:
        raise Forbidden(
            "the machine's gflow daemon is root's", hint="gflowd down --private stops one of your own"
        ) from None
    if not select.select([pidfd], [], [], START_S)[0]:
        raise GflowError(f"gflowd (PID {pid}) does not stop")
    os.close(pidfd)


def restart(values: dict[str, Any]) -> int:
    """Replace the daemon; what it was told about the machine holds, unless said otherwise."""
    running = True
    try:
        told, _ = parse(http.get("/status")["flags"], OPTIONS)
    except (ConnectionError, Unreachable):
        running, told = False, {}
    passing = {setting.flag for setting in SETTINGS if setting.flag and not setting.kept}
    kept = {name: value for name, value in told.items() if name not in passing}
    if "system" not in kept | values and running and no_daemon.is_machine_served(hot_path.getenv):
        kept["private"] = True  # one that was started before the machine had its own
    if "system" in kept and os.geteuid():
        raise Forbidden("the machine's gflow daemon is root's")
    from gflow.cli.daemon import systemd

    if systemd.is_active(kept):
        if _told(values):
            raise UsageError(
                "flags do not reach a service", hint="put it into gflow.toml: gflowd config shows where"
            )
        return systemd.hand_over(values | kept, "restart")
    _settings(kept | values)  # what is wrong is said while the old one still runs
    down({"again": True} | {name: True for name in values if name == "json"})
    return up(kept | values)


def reload(values: dict[str, Any]) -> int:
    """Let the daemon start anew as the same process. With flags it is another one: a restart."""
    try:
        before = http.get("/status")
    except (ConnectionError, Unreachable):
        return up(values)
    if _told(values):
        return restart(values)
    if not _handles(before["pid"], signal.SIGUSR1):
        sys.stderr.write(
            f"gflowd {before['version']} is too old to reload in place: it is restarted instead\n"
        )
        return restart(values)
    told, _ = parse(before["flags"], OPTIONS)
    _settings(told)  # what is wrong is said while the old one still runs
    asked = time.monotonic()
    try:
        os.kill(before["pid"], signal.SIGUSR1)
    except PermissionError:
        raise Forbidden("the machine's gflow daemon is root's") from None
    while time.monotonic() < asked + START_S:
        with suppress(ConnectionError, Unreachable):
            now = http.get("/status")
            if now["uptime_secs"] < time.monotonic() - asked:
                say(values, f"gflowd is running anew (PID: {now['pid']})", running=True, pid=now["pid"])
                return 0
        time.sleep(0.02)
    raise GflowError("gflowd did not come back", hint="gflowd status; its log says more")


def restore_backup(values: dict[str, Any], backup: str) -> int:
    """Put a backup in the database's place, with no daemon running."""
    from gflow.daemon.process import directories, instance_lock
    from gflow.store.backup import restore
    from gflow.store.location import first_free_number

    if os.geteuid() == 0:  # root's private daemon is seldom meant where the machine has one
        check_alone(values)
    settings = _settings(values)
    source = Path(backup).resolve()
    if not source.is_file():
        raise UsageError(f"there is no file {backup}")
    if settings.is_system:
        directories.check_trusted(source)
    held = instance_lock.take(settings.data)
    _check_nothing_is_orphaned(settings, source)
    number = first_free_number(settings.data)
    # Much of what waited then may have run since, and the queue is everybody's: root looks first.
    drained = f"restored from {source.name}" if settings.is_system else ""
    kept = restore(source, settings.database, number, settings.kind, drained)
    os.close(held)
    print(f"restored {source}" + (f"; what was there is now {kept}" if kept else ""))
    if drained:
        print("(nothing starts until you have looked at the queue: gctl resume)")
    return 0


def _check_nothing_is_orphaned(settings: Settings, backup: Path) -> None:
    """Refuse a backup that does not know a job which runs: nobody would end it or count what it has."""
    from gflow.store.backup import runs_in
    from gflow.targets.local.run_record import list_locked

    living = list_locked(str(settings.run_dir))
    unknown = sorted(living.keys() - runs_in(backup))
    if unknown:
        jobs = ", ".join(name.rpartition(".")[0] for name in unknown)
        shims = " ".join(str(shim.pid) for name in unknown if (shim := living[name].shim))
        raise Refused(
            f"job {jobs} runs, and the backup does not know it",
            hint="let it end first: gflowd up; gflowd down --kill-jobs"
            + (f" (or, if the daemon does not start: kill {shims})" if shims else ""),
        )
