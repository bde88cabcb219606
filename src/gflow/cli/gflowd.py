"""gflowd: the daemon's life."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gflow.cli import call
from gflow.errors import GflowError, Unreachable, UsageError
from gflow.options import help, paths
from gflow.options.parse import parse
from gflow.options.table import COMMON, JSON, Option

START = (
    Option("simulate-gpus", "text", "pretend to have these GPUs: 4x80G, or 2x80G,2x24G", metavar="WHAT"),
    Option("cpus", "count", "CPU slots for jobs (default: the cores)", metavar="N", low=1, high=65536),
    Option("paranoid", "flag", "check every invariant after every step (slow)"),
)
OPTIONS = (
    *START,
    Option("kill-jobs", "flag", "down: end the running jobs too; what waits goes on waiting"),
    JSON,
    *COMMON,
)
ABOUT = """The daemon: `up` starts it, `down` stops it and leaves running jobs alone,
`restart` replaces it, `status` shows it, `run` keeps it in the foreground.
`backup` writes a checked copy of its database now (one a day is made anyway);
`restore FILE` puts such a copy in place of the database, which is kept beside it."""
EXAMPLES = """gflowd up
gflowd up --simulate-gpus 4x80G
gflowd status
gflowd down"""
COMMANDS = {"up": "up", "start": "up", "down": "down", "stop": "down", "restart": "restart",
            "status": "status", "run": "run", "backup": "backup", "restore": "restore"}  # fmt: skip
START_S = 30.0


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values:
        sys.stdout.write(help.render("gflowd up|down|restart|status|run [options]", ABOUT, OPTIONS, EXAMPLES))
        return 0
    name = rest[0] if rest else "run"
    verb = COMMANDS.get(name)
    if verb == "restore" and len(rest) == 2:
        return _restore(rest[1])
    if verb is None or verb == "restore" or len(rest) > 1:
        raise UsageError(f"gflowd has no command {' '.join(rest)!r}", hint="commands: " + ", ".join(COMMANDS))
    handlers = {
        "up": _up,
        "down": _down,
        "restart": _restart,
        "status": _status,
        "run": _run,
        "backup": _backup,
    }
    return handlers[verb](values)


def _run(values: dict[str, Any]) -> int:
    from gflow.daemon.main import run as serve
    from gflow.daemon.settings import from_environment

    settings = from_environment(
        values.get("simulate-gpus", ""),
        values.get("cpus", 0),
        paranoid="paranoid" in values,
        flags=tuple(_start_words(values)),
    )
    return serve(settings)


def _up(values: dict[str, Any]) -> int:
    """Start the daemon apart from this terminal and wait until it serves."""
    try:
        pid = call.get("/status")["pid"]
        print(f"gflowd is already running (PID: {pid})")
        return 0
    except (ConnectionError, Unreachable):
        pass
    logs = paths.log_dir(os.environ.get)
    os.makedirs(logs, mode=0o700, exist_ok=True)
    log_file = f"{logs}/daemon.log"
    ready, ready_in = os.pipe()
    with open(log_file, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gflow", "gflowd", "run", *_start_words(values)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            pass_fds=(ready_in,),
            env=os.environ | {"GFLOW_READY_FD": str(ready_in)},
        )
    os.close(ready_in)
    if select.select([ready], [], [], START_S)[0] and os.read(ready, 16):
        print(f"gflowd is running (PID: {process.pid})")
        return 0
    raise GflowError(_last_line(log_file) or "gflowd did not start", hint=f"its log is {log_file}")


def _start_words(values: dict[str, Any]) -> list[str]:
    words = []
    for option in START:
        if option.name in values:
            words.append(f"--{option.name}" if option.is_flag else f"--{option.name}={values[option.name]}")
    return words


def _down(values: dict[str, Any]) -> int:
    try:
        status = call.get("/status")
    except (ConnectionError, Unreachable):
        print("gflowd is not running")
        return 0
    running = status["running"]
    if "kill-jobs" in values:
        _kill_jobs()
        running = 0
    _terminate(status["pid"], signal.SIGUSR2 if "again" in values else signal.SIGTERM)
    left = f"; {running} running job{'s go' if running > 1 else ' goes'} on" if running else ""
    print(f"gflowd is down{left}")
    return 0


def _kill_jobs() -> None:
    """Let nothing more start, end what runs, and wait until it is gone. What waits goes on waiting."""
    call.post("/drain", {"on": True})
    running = [str(job["id"]) for job in call.get("/jobs", states="Running")["jobs"]]
    if running:
        call.post("/jobs/cancel", {"jobs": running, "now": True})
    patience = time.monotonic() + START_S
    while call.get("/status")["running"]:
        if time.monotonic() > patience:
            raise GflowError("some jobs do not end", hint="gqueue shows them; they may hang in the kernel")
        time.sleep(0.05)


def _terminate(pid: int, number: int) -> None:
    """End exactly this process and wait for it."""
    pidfd = os.pidfd_open(pid)
    signal.pidfd_send_signal(pidfd, number)
    if not select.select([pidfd], [], [], START_S)[0]:
        raise GflowError(f"gflowd (PID {pid}) does not stop")
    os.close(pidfd)


def _restart(values: dict[str, Any]) -> int:
    """Replace the daemon; what the old one was started with holds unless said otherwise."""
    try:
        kept, _ = parse(call.get("/status")["flags"], OPTIONS)
    except (ConnectionError, Unreachable):
        kept = {}
    _down({"again": True})
    return _up(kept | values)


def _status(values: dict[str, Any]) -> int:
    try:
        return call.show("/status", as_json="json" in values)
    except (ConnectionError, Unreachable):
        if "json" in values:
            raise Unreachable(hint="start it with: gflowd up") from None
        print("Status: Not running\nStart it with: gflowd up")
        return 3


def _backup(values: dict[str, Any]) -> int:
    return call.show_answer("POST", "/backup", b"{}", as_json="json" in values)


def _restore(backup: str) -> int:
    """Put a backup in the database's place, with no daemon running."""
    from gflow.daemon import lock
    from gflow.daemon.settings import from_environment
    from gflow.store.keeping import restore
    from gflow.store.places import first_free_number

    settings = from_environment()
    source = Path(backup).resolve()
    if not source.is_file():
        raise UsageError(f"there is no file {backup}")
    held = lock.take(settings.data)
    kept = restore(source, settings.database, first_free_number(settings.data))
    os.close(held)
    print(f"restored {source}" + (f"; what was there is now {kept}" if kept else ""))
    return 0


def _last_line(path: str) -> str:
    with open(path, errors="replace") as file:
        said = [line for line in file.read().splitlines() if line.startswith("gflowd: ")]
    return said[-1].removeprefix("gflowd: ") if said else ""
