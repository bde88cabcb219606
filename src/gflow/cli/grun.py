"""grun: a job in the foreground. Its output here, its exit code ours, Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

from gflow.client import call, fast
from gflow.client.describing import describe
from gflow.client.logs import Tail
from gflow.client.waiting import exit_code_of, wait_for
from gflow.errors import GflowError, UsageError
from gflow.options.parse import parse
from gflow.options.table import CAPTURE, COMMON, JOB, SLURM

OPTIONS = tuple(
    option for option in JOB + CAPTURE if option.name not in ("array", "param", "param-file", "hold")
)
ABOUT = """Run a command as a job, in the foreground: its output comes here, and its exit code is grun's.

Ctrl-C cancels the job as gcancel does; a second one kills it at once. The options are those of gbatch.
Its input is empty; a job outlives a terminal that is closed, and gjob attach shows it again."""
EXAMPLES = """grun --gpus 1 python evaluate.py
grun --gpus 1 --time 10 nvidia-smi
grun --gpus 2 'python a.py && python b.py' > result.txt"""
LOOK_S = 0.05
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
    body = fast.submission(os.urandom(16).hex(), describe(values, command))
    # Ctrl-C from here on is about a job that may exist already: it counts when the job's id is known.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    status, headers, content = fast.deliver(body, "/jobs", "application/json")
    if status >= 400:
        raise call.refusal(headers, content, "application/json")
    return Foreground(str(call.parsed(content)["jobs"][0]["id"])).show()


class Foreground:
    """A job that somebody sits in front of."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._interrupts = self._obeyed = 0
        self._ended = threading.Event()
        self._final: dict[str, Any] = {}
        self._trouble: Exception | None = None
        self._told = ""

    def show(self) -> int:
        """Print what it writes until it is over; its exit code."""
        signal.signal(signal.SIGINT, self._interrupted)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        threading.Thread(target=self._wait, daemon=True).start()
        tail = Tail(str(call.get(call.job_path(self._job, "/log"))["path"]))
        looks = 0
        while True:
            over = self._ended.is_set()  # asked before reading: what is read afterwards is the rest
            for chunk in tail.new(0.0 if over else 1.0):
                fast.write(1, chunk)
            if over:
                break
            self._obey()
            looks += 1
            if looks * LOOK_S >= QUIET_S:
                looks = 0
                self._explain()
            self._ended.wait(LOOK_S)
        if self._trouble is not None:
            raise self._trouble
        self._say_how()
        return exit_code_of(self._final)

    def _wait(self) -> None:
        try:
            self._final = wait_for(self._job)
        except Exception as error:  # told by the thread that prints
            self._trouble = error
        finally:
            self._ended.set()

    def _explain(self) -> None:
        """Why it has not started, once for each reason."""
        with suppress(GflowError, ConnectionError):
            job = call.get(call.job_path(self._job))["jobs"][0]
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
            call.post("/jobs/cancel", {"jobs": [self._job], "now": now})
        except (GflowError, ConnectionError) as error:
            _say(str(error))

    def _say_how(self) -> None:
        """What the exit code alone would not tell."""
        if self._final["state"] != "Finished":
            reason = f": {self._final['reason']}" if self._final["reason"] else ""
            _say(f"job {self._job} ended as {self._final['state']}{reason}")


def _say(text: str) -> None:
    sys.stderr.write(f"grun: {text}\n")
    sys.stderr.flush()
