"""grun: a job in the foreground. Its output here, its exit code ours, Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any

from gflow.cli.common.logs import follow
from gflow.client import hot_path, http
from gflow.client.logs import LOOK_AGAIN_S
from gflow.client.request_builder import describe
from gflow.client.wait import exit_code_of, wait_for
from gflow.errors import GflowError, UsageError
from gflow.options.parse import parse
from gflow.options.table import CAPTURE, COMMON, JOB, SLURM, Option

DETACHABLE = Option(
    "detachable", "flag", "--pty: the job goes on when this terminal is closed; Ctrl-\\ leaves it"
)
OPTIONS = (
    *(option for option in JOB + CAPTURE if option.name not in ("array", "param", "param-file", "hold")),
    DETACHABLE,
)
ABOUT = """Run a command as a job, in the foreground: its output comes here, and its exit code is grun's.

Ctrl-C cancels the job as gcancel does; a second one kills it at once. The options are those of gbatch.
Its input is empty; a job outlives a terminal that is closed, and gjob attach shows it again.

With --pty it has a terminal, and this is it: keys, also Ctrl-C and Ctrl-Z, are the job's. When the terminal
is closed, the job is hung up; with --detachable it goes on, Ctrl-\\ leaves it, gjob attach comes back."""
EXAMPLES = """grun --gpus 1 python evaluate.py
grun --gpus 1 --time 10 nvidia-smi
grun --gpus 1 --pty bash                 # a shell on a GPU
grun --gpus 1 --pty --detachable python  # closed by mistake? gjob attach @
grun --gpus 2 'python a.py && python b.py' > result.txt"""
# Waiting is said after this long, and again whenever the reason is another one.
QUIET_S = 1.0


def run(words: list[str]) -> int:
    values, command = parse(words, OPTIONS + SLURM + COMMON, until_word=True)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("grun [options] COMMAND… | SCRIPT", ABOUT, OPTIONS, EXAMPLES))
        return 0
    if not command:
        raise UsageError("there is no command to run", hint="grun COMMAND ARGS…")
    is_detachable = values.pop("detachable", False)
    if is_detachable and "pty" not in values:
        raise UsageError("--detachable is for --pty", hint="without it the job goes on anyway: gjob attach")
    if "pty" in values and not (os.isatty(0) and os.isatty(1)):
        raise UsageError(
            "--pty needs a terminal here, too", hint="without it, grun shows what the job writes"
        )
    body = hot_path.submission(os.urandom(16).hex(), describe(values, command))
    # Ctrl-C from here on is about a job that may exist already: it counts when the job's id is known.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    status, headers, content = hot_path.deliver(body, "/jobs", "application/json")
    if status >= 400:
        raise http.refusal(headers, content, "application/json")
    foreground = Foreground(str(http.parsed(content)["jobs"][0]["id"]))
    return foreground.sit(is_detachable=is_detachable) if "pty" in values else foreground.show()


class Foreground:
    """A job that somebody sits in front of."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._interrupts = self._obeyed = 0
        self._looks = 0
        self._told = ""

    def show(self) -> int:
        """Print what it writes until it is over; its exit code."""
        signal.signal(signal.SIGINT, self._interrupted)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        path = str(http.get(http.job_path(self._job, "/log"))["path"])
        final = follow(self._job, path, between=self._look)
        self._say_how(final)
        return exit_code_of(final)

    def sit(self, *, is_detachable: bool) -> int:
        """Be its terminal until it is over; its exit code."""
        from gflow.cli.common import terminal

        signal.signal(signal.SIGINT, self._interrupted)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if not is_detachable:
            signal.signal(signal.SIGHUP, self._hung_up)
        sock = terminal.reached(self._job, between=self._look)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if sock is not None and not terminal.seated("grun", self._job, sock, is_host=not is_detachable):
            return 0
        final = wait_for(self._job)
        self._say_how(final)
        return exit_code_of(final)

    def _hung_up(self, number: int, frame: FrameType | None) -> None:
        """The terminal was closed before the job began: nobody will sit there."""
        with suppress(GflowError, ConnectionError):
            http.post("/jobs/cancel", {"jobs": [self._job], "now": True})
        raise SystemExit(128 + number)

    def _look(self) -> None:
        self._obey()
        self._looks += 1
        if self._looks * LOOK_AGAIN_S >= QUIET_S:
            self._looks = 0
            self._explain()

    def _explain(self) -> None:
        """Why it has not started, once for each reason."""
        with suppress(GflowError, ConnectionError):
            job = http.get(http.job_path(self._job))["jobs"][0]
            reason = f"job {self._job} waits: {job['reason'] or 'its turn comes'}"
            if job["state"] in ("Queued", "Hold") and reason != self._told:
                self._told = reason
                _say(reason)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        """Only counts: this runs in the middle of whatever the program does, with its locks held."""
        self._interrupts += 1

    def _obey(self) -> None:
        """Do what Ctrl-C asked for since the last look."""
        if self._obeyed == min(self._interrupts, 2):
            return
        self._obeyed = min(self._interrupts, 2)
        now = self._obeyed > 1
        _say(f"killing job {self._job}" if now else f"cancelling job {self._job}; Ctrl-C again kills it")
        try:
            http.post("/jobs/cancel", {"jobs": [self._job], "now": now})
        except (GflowError, ConnectionError) as error:
            _say(str(error))

    def _say_how(self, final: dict[str, Any]) -> None:
        """What the exit code alone would not tell."""
        if final["state"] != "Finished":
            reason = f": {final['reason']}" if final["reason"] else ""
            _say(f"job {self._job} ended as {final['state']}{reason}")


def _say(text: str) -> None:
    sys.stderr.write(f"grun: {text}\n")
    sys.stderr.flush()
