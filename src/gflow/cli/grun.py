"""grun: run a job in the foreground: show its output, return its exit code, cancel it on Ctrl-C."""

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
from gflow.client.wait import describe_end, exit_code_of, wait_for
from gflow.errors import GflowError, UsageError
from gflow.job_states import WAITING_NAMES
from gflow.options.commands.grun_options import OPTIONS
from gflow.options.job_options import COMMON, SLURM
from gflow.options.parse import parse

ABOUT = """Run a command as a job in the foreground: grun shows its output and returns its exit code.

Ctrl-C cancels the job as gcancel does; a second Ctrl-C kills it. The options are those of gbatch.
Its standard input is empty. The job keeps running if the terminal is closed; gjob attach shows it again.

With --pty the job runs on this terminal and receives all keys, including Ctrl-C and Ctrl-Z. When the terminal
is closed, the job gets HUP; with --detachable it keeps running, Ctrl-\\ detaches, gjob attach returns."""
EXAMPLES = """grun --gpus 1 python evaluate.py
grun --gpus 1 --time 10 nvidia-smi
grun --gpus 1 --pty bash                 # a shell on a GPU
grun --gpus 1 --pty --detachable python  # terminal closed? gjob attach @
grun --gpus 2 'python a.py && python b.py' > result.txt"""
# Seconds of waiting before the reason is printed; it is printed again whenever it changes.
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
        raise UsageError(
            "--detachable requires --pty", hint="without --pty the job keeps running anyway: gjob attach"
        )
    if "pty" in values and not (os.isatty(0) and os.isatty(1)):
        raise UsageError(
            "--pty needs a terminal on standard input and output", hint="without it, grun shows the output"
        )
    body = hot_path.submission(os.urandom(16).hex(), describe(values, command))
    # From here on the job may exist: block Ctrl-C until its id is known.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    status, headers, content = hot_path.deliver(body, "/jobs", "application/json")
    if status >= 400:
        raise http.refusal(headers, content, "application/json")
    hot_path.print_note(headers, "grun")
    foreground = Foreground(str(http.parse_json(content)["jobs"][0]["id"]))
    return foreground.attach(is_detachable=is_detachable) if "pty" in values else foreground.show()


class Foreground:
    """A job in the foreground: forwards its output and handles Ctrl-C."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._interrupts = self._handled = 0
        self._looks = 0
        self._shown_reason = ""

    def show(self) -> int:
        """Print the job's output until it ends; return its exit code."""
        signal.signal(signal.SIGINT, self._on_interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        path = str(http.get(http.job_path(self._job, "/log"))["path"])
        final = follow(self._job, path, between=self._poll)
        self._report_end(final)
        return exit_code_of(final)

    def attach(self, *, is_detachable: bool) -> int:
        """Connect this terminal to the job until it ends; return its exit code."""
        from gflow.cli.common import terminal

        signal.signal(signal.SIGINT, self._on_interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if not is_detachable:
            signal.signal(signal.SIGHUP, self._on_hangup)
        sock = terminal.connect(self._job, between=self._poll)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if sock is not None and not terminal.attach_to("grun", self._job, sock, is_host=not is_detachable):
            return 0
        final = wait_for(self._job)
        self._report_end(final)
        return exit_code_of(final)

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        """The terminal was closed before the job started: cancel the job."""
        with suppress(GflowError, ConnectionError):
            http.post("/jobs/cancel", {"jobs": [self._job], "now": True})
        raise SystemExit(128 + number)

    def _poll(self) -> None:
        self._handle_interrupts()
        self._looks += 1
        if self._looks * LOOK_AGAIN_S >= QUIET_S:
            self._looks = 0
            self._explain()

    def _explain(self) -> None:
        """Print why the job has not started, once for each reason."""
        with suppress(GflowError, ConnectionError):
            job = http.get(http.job_path(self._job))["jobs"][0]
            reason = f"job {self._job} waits: {job['reason'] or 'its turn in the queue'}"
            if job["state"] in WAITING_NAMES and reason != self._shown_reason:
                self._shown_reason = reason
                _say(reason)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Only counts: a signal handler runs at any point of the program, possibly with its locks held."""
        self._interrupts += 1

    def _handle_interrupts(self) -> None:
        """Cancel the job after the first Ctrl-C and kill it after the second."""
        if self._handled == min(self._interrupts, 2):
            return
        self._handled = min(self._interrupts, 2)
        now = self._handled > 1
        _say(f"killing job {self._job}" if now else f"cancelling job {self._job}; Ctrl-C again kills it")
        try:
            http.post("/jobs/cancel", {"jobs": [self._job], "now": now})
        except (GflowError, ConnectionError) as error:
            _say(str(error))

    def _report_end(self, final: dict[str, Any]) -> None:
        """Print the state and reason of a job that did not finish."""
        if text := describe_end(final):
            _say(text)


def _say(text: str) -> None:
    sys.stderr.write(f"grun: {text}\n")
    sys.stderr.flush()
