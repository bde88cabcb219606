"""gflow spot watch: run a command on a spot instance and stop it when the cloud reclaims the instance."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from types import FrameType
from typing import Any

from gflow.errors import UsageError, did_you_mean
from gflow.options.commands.spot_options import OPTIONS
from gflow.options.parse import parse

ABOUT = """Run a command on a spot instance. When the cloud announces that it reclaims the instance, the
command gets a stop request: the file $GFLOW_STOP_FILE appears and TERM is sent to its process group. A script
that uses gflow.train then saves a checkpoint and exits with code 75, and a job with --requeue is requeued.

The metadata services of AWS, Google and Azure are polled, if they answer. gflow spot returns the exit code of
the command."""
EXAMPLES = """gflow spot watch -- python train.py
gflow spot watch -- gflow launch train.py
gbatch --requeue --gpus 4 gflow spot watch -- gflow launch train.py"""


def run(words: list[str]) -> int:
    command = next((word for word in words if not word.startswith("-")), "")
    if command not in ("", "watch"):
        raise UsageError(
            f"gflow spot has no command {command!a}",
            hint=did_you_mean(command, ["watch"], "gflow spot watch"),
        )
    values, rest = parse(
        [word for at, word in enumerate(words) if at or word != "watch"], OPTIONS, until_word=True
    )
    if "help" in values or not command:
        from gflow.options import help

        sys.stdout.write(help.render("gflow spot watch [options] -- COMMAND…", ABOUT, OPTIONS, EXAMPLES))
        return 0 if "help" in values else 2
    if not rest:
        raise UsageError("there is no command to run", hint="gflow spot watch -- python train.py")
    from gflow.cloud import bases_of, responding_clouds

    clouds = responding_clouds(bases_of(values["cloud"]) if values.get("cloud") else {})
    if not clouds:
        sys.stderr.write("gflow spot: no metadata service answers, so there is nothing to watch\n")
    return WatchedCommand(rest, clouds, float(values.get("every", 5))).run()


class WatchedCommand:
    """A command, and a thread that polls for termination notices."""

    def __init__(self, command: list[str], clouds: list[Any], every_s: float) -> None:
        self._command = command
        self._clouds = clouds
        self._every_s = every_s
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        # In a job, use the stop file of the job, which gflow may create as well.
        self._own = "" if os.environ.get("GFLOW_STOP_FILE") else tempfile.mkdtemp(prefix="gflow-spot-")
        self._stop_file = os.environ.get("GFLOW_STOP_FILE") or os.path.join(self._own, "stop")

    def run(self) -> int:
        try:
            self._process = subprocess.Popen(
                self._command, env=os.environ | {"GFLOW_STOP_FILE": self._stop_file}, process_group=0
            )
        except OSError as error:
            raise UsageError(f"{self._command[0]}: {error.strerror}") from None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._forward)
        if self._clouds:
            threading.Thread(target=self._watch, daemon=True).start()
        code = self._process.wait()
        self._over.set()
        if self._own:
            if os.path.exists(self._stop_file):
                os.unlink(self._stop_file)
            os.rmdir(self._own)
        return 128 - code if code < 0 else code

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _watch(self) -> None:
        from gflow.cloud import watch

        notice = watch(self._clouds, self._over.wait, self._every_s)
        if notice is None or self._process is None:
            return
        left = "" if notice.left_s is None else f" in {notice.left_s:.0f} s"
        sys.stderr.write(
            f"gflow spot: {notice.cloud} will reclaim this machine{left} ({notice.what}): stopping\n"
        )
        open(self._stop_file, "a").close()
        self._forward(signal.SIGTERM, None)
