"""Progress reports to the daemon. They never block and never fail; at most one datagram per second is sent.

The last step is sent at once, and the latest report at the exit of the process. Outside of a job nothing is
sent. Nothing here needs PyTorch.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from gflow.metric_names import MOST_METRICS, is_metric_name
from gflow.ml.launch.heartbeat import Heartbeat
from gflow.ml.train.metering import meter_of

EVERY_S = 1.0
# On a cluster reports are lines of a file: its suffix, seconds between them, and the size at which it is
# emptied.
FILE = ".progress"
EVERY_FILE_S = 5.0
MOST_BYTES = 1 << 19
# Send timeout of the final report if the daemon's socket queue is full, as a struct timeval.
LAST_WORD = struct.pack("ll", 1, 0)
# Weight of a new speed measurement in the moving average.
FRESH = 0.3


class _Report(NamedTuple):
    """The arguments of `Reporter.note`, and when it was called."""

    at: float
    step: int
    steps: int
    epoch: int
    epochs: int
    samples: int
    loss: Any


class Reporter:
    """Sends the progress of a job to the daemon."""

    def __init__(
        self, environ: Mapping[str, str] | None = None, every_s: float | None = None, *, metered: bool = True
    ) -> None:
        """`metered`: under `gflow scale`, also write the reports to the meter file."""
        environ = os.environ if environ is None else environ
        self._path = environ.get("GFLOW_PROGRESS", "")
        usual_s = EVERY_FILE_S if self._path.endswith(FILE) else EVERY_S
        self._every_s = usual_s if every_s is None else every_s
        attempt = environ.get("GFLOW_ATTEMPT", "")
        self._about = {
            "job": environ.get("GFLOW_JOB_ID", ""),
            "attempt": int(attempt) if attempt.isdecimal() else 0,
        }
        self._sock: socket.socket | None = None
        self._address = ""
        self._due = 0.0
        # The latest report, if it or one of its values was not sent yet, and the process that made it.
        self._pending: _Report | None = None
        self._pid = 0
        self._sent_step = -1
        self._last: tuple[float, int, int] | None = None
        self._steps_per_s = self._samples_per_s = 0.0
        self._meter = meter_of(environ) if metered else None
        self.heartbeat = Heartbeat(environ)
        # Folder in which the run takes requests for profiles; empty: it takes none.
        self.profile_dir = ""
        # The latest value of each metric, and values that are being copied from the GPU.
        self._metrics: dict[str, Any] = {}
        self._coming: dict[str, Any] = {}

    def note(
        self,
        step: int,
        *,
        steps: int = 0,
        epoch: int = 0,
        epochs: int = 0,
        samples: int = 0,
        loss: Any = None,
        final: bool = False,
        **metrics: Any,
    ) -> None:
        """Report progress. `samples`: used by this process so far. `loss` and `metrics`: numbers or tensors.

        A metric keeps its value until it is reported again.
        """
        self.heartbeat.beat()
        if self._meter is not None:
            self._meter.tick(step, samples, always=final)
        now = time.monotonic()
        if not self._path:
            return
        is_last = 0 < steps == step != self._sent_step
        self.keep_metrics(metrics)
        self._pending = _Report(now, step, steps, epoch, epochs, samples, _detached(loss))
        if now >= self._due or final or is_last:
            self._due = now + self._every_s
            self._send_pending(wait=final or is_last)
        if self._pid != os.getpid():
            self._pid = os.getpid()
            atexit.register(self.flush)

    def keep_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Keep these values for the next report. Invalid names, and those above the limit, are ignored."""
        for name, value in metrics.items():
            if name in self._metrics or (len(self._metrics) < MOST_METRICS and is_metric_name(name)):
                self._metrics[name] = _detached(value)

    def flush(self) -> None:
        """Send the latest report if it was held back. A forked child does not send its parent's."""
        if self._pending is not None and self._pid == os.getpid():
            with suppress(Exception):  # a GPU that failed: the process is ending anyway
                self._send_pending(wait=True)

    def _send_pending(self, *, wait: bool) -> None:
        report, self._pending = self._pending, None
        assert report is not None
        self._sent_step = report.step
        self._measure(report.at, report.step, report.samples)
        said: dict[str, Any] = {
            "step": report.step,
            "steps": report.steps,
            "epoch": report.epoch,
            "epochs": report.epochs,
        }
        values = {"loss": report.loss, **self._metrics}
        numbers = {name: self._number(name, value, wait=wait) for name, value in values.items()}
        metrics = {name: number for name, number in numbers.items() if number is not None}
        if nan := [name for name, number in metrics.items() if not math.isfinite(number)]:
            said["nan"] = nan
        metrics = {name: number for name, number in metrics.items() if name not in nan}
        if "loss" in metrics:
            said["loss"] = metrics.pop("loss")
        if metrics:
            said["metrics"] = metrics
        if self._samples_per_s:
            said["samples_per_s"] = round(self._samples_per_s, 3)
        if report.steps and self._steps_per_s:
            said["left_s"] = round(max(0, report.steps - report.step) / self._steps_per_s, 3)
        if self.profile_dir:
            said["profile_dir"] = self.profile_dir
        self._send(said, wait=wait)
        if self._coming:  # some of its values were not sent yet
            self._pending = report

    def _measure(self, now: float, step: int, samples: int) -> None:
        before, self._last = self._last, (now, step, samples)
        if before is None or now <= before[0] or step <= before[1]:
            return
        seconds = now - before[0]
        self._steps_per_s = _smooth(self._steps_per_s, (step - before[1]) / seconds)
        if samples > before[2]:
            self._samples_per_s = _smooth(self._samples_per_s, (samples - before[2]) / seconds)

    def _number(self, name: str, value: Any, *, wait: bool) -> float | None:
        """Return the value as a number, or None. A GPU tensor is copied asynchronously and reported
        the next time: reading it at once would block until the GPU has finished its queue."""
        if getattr(value, "is_cuda", False) and not wait:
            coming = self._coming.get(name)
            self._coming[name] = value.to("cpu", non_blocking=True)
            value = coming
        elif name in self._coming:
            del self._coming[name]
        if value is None:
            return None
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):  # a text, or a tensor with several elements
            return None

    def update(self, values: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        """Report these values; what the job reported earlier stays. Without a limit of one a second."""
        given = {**values, **metrics}
        nan = [name for name, value in given.items() if not math.isfinite(value)]
        fields = {name: value for name, value in values.items() if name not in nan}
        said: dict[str, Any] = {**fields, "only": list(fields)}
        said["metrics"] = {name: value for name, value in metrics.items() if name not in nan}
        self._send(said | ({"nan": nan} if nan else {}), wait=True)

    def _send(self, said: dict[str, Any], *, wait: bool) -> None:
        """Send a datagram. With `wait`, block up to `LAST_WORD` if the queue is full; else drop it."""
        with suppress(OSError, ValueError):  # no listener, or its queue is full
            if self._path.endswith(FILE):
                _append(self._path, json.dumps(self._about | said).encode() + b"\n")
                return
            if self._sock is None:
                folder = os.open(os.path.dirname(self._path), os.O_PATH | os.O_CLOEXEC)
                self._address = f"/proc/self/fd/{folder}/{os.path.basename(self._path)}"
                self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, LAST_WORD)
            self._sock.setblocking(wait)
            self._sock.sendto(json.dumps(self._about | said).encode(), self._address)


def _append(path: str, line: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(fd).st_size > MOST_BYTES:
            os.ftruncate(fd, 0)
        os.write(fd, line)
    finally:
        os.close(fd)


_reporter: Reporter | None = None


def report(step: int, **more: Any) -> None:
    """Report progress from any script: `report(step, steps=1000, loss=0.3, accuracy=0.9)`."""
    global _reporter
    if _reporter is None:
        _reporter = Reporter()
    _reporter.note(step, **more)


def _detached(value: Any) -> Any:
    """The value without its graph: a pending tensor must not keep the activations of its step in memory."""
    return value.detach() if hasattr(value, "detach") else value


def _smooth(old: float, new: float) -> float:
    return new if not old else old + FRESH * (new - old)
