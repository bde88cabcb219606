"""Profiles of a running training run on request: the torch profiler over the next steps of the first rank.

Without a request it costs a comparison per step, and a look for the request folder five times a second.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from gflow.ml.train import profile_files as files

# Seconds between two looks for a request.
LOOK_S = 0.2
# Rows of PyTorch's tables, and the most operators of the answer.
ROWS = 100
MOST_OPERATORS = 1000
# Allocations that a memory snapshot keeps.
MOST_ALLOCATIONS = 100_000


class StepProfiler:
    """Takes requests for profiles at the end of each step. No error of it ends the run."""

    def __init__(self, folder: str, device: torch.device) -> None:
        self.folder = folder
        self._device = device
        self._due = 0.0
        self._recording: Recording | None = None

    def step(self, step: int, now: float) -> None:
        """End a step: look for a request, or go on with the one in progress. `now`: monotonic time."""
        if self._recording is None:
            if now < self._due:
                return
            self._due = now + LOOK_S
            if not os.path.exists(self.folder):
                return
        self._try(self._go_on, step)

    def close(self) -> None:
        """End a recording early: the run has ended."""
        if self._recording is not None:
            self._try(self._finish)

    def _go_on(self, step: int) -> None:
        if self._recording is None:
            self._begin(step)
        elif self._recording.is_withdrawn:
            self._drop()
        elif self._recording.step():
            self._finish()

    def _begin(self, step: int) -> None:
        request = files.read_json(self.folder, files.REQUEST)
        if request is None or os.path.exists(os.path.join(self.folder, files.ANSWER)):
            return  # its folder is being removed, or it is answered
        steps = max(1, min(int(request.get("steps", 1)), files.MOST_STEPS))
        self._recording = Recording(self.folder, self._device, step, steps)
        self._recording.start(with_snapshot=bool(request.get("memory")))

    def _finish(self) -> None:
        if self._recording is not None:
            self._recording.write()
        self._drop()

    def _drop(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.close()

    def _try(self, act: Callable[..., None], *arguments: Any) -> None:
        """Call `act`. An error becomes the answer to the request, and training goes on."""
        try:
            act(*arguments)
        except Exception as error:
            if self._recording is not None and not self._recording.is_withdrawn:
                self._recording.answer_error(error)
            self._drop()


class Recording:
    """A profile in the making: one step to warm up, then the recorded steps."""

    def __init__(self, folder: str, device: torch.device, step: int, steps: int) -> None:
        # Through its descriptor: a later request has a folder of the same name.
        self._fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._folder, self._device, self._steps = f"/proc/self/fd/{self._fd}", device, steps
        # The last step before the recorded ones, and how many are recorded; -1: warming up.
        self._before = step + 1
        self._done = -1
        self._profiler: Any = None
        self._is_stopped = False
        self._wants_snapshot = self._has_snapshot = False

    def start(self, *, with_snapshot: bool) -> None:
        from torch.profiler import ProfilerActivity, profile, schedule

        if torch.autograd._profiler_enabled():  # a second one would end it
            raise RuntimeError("the script has a profiler of its own running")
        self._wants_snapshot = with_snapshot and self._is_cuda
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self._is_cuda else [])
        rounds = schedule(wait=0, warmup=1, active=self._steps, repeat=1)
        profiler = profile(activities=activities, schedule=rounds, profile_memory=True)
        profiler.start()
        self._profiler = profiler
        self._say("warm-up")

    @property
    def _is_cuda(self) -> bool:
        return bool(self._device.type == "cuda")

    @property
    def is_withdrawn(self) -> bool:
        """Whether the request was removed."""
        return not os.path.exists(os.path.join(self._folder, files.REQUEST))

    def step(self) -> bool:
        """End a step. Return whether all steps are recorded."""
        if self._is_cuda and self._done in (-1, self._steps - 1):  # the GPU's work of each step counts to it
            torch.cuda.synchronize(self._device)
        if self._done < 0:
            self._start_snapshot()
        self._profiler.step()
        self._done += 1
        self._say("recording")
        return self._done >= self._steps

    def _start_snapshot(self) -> None:
        if self._wants_snapshot:
            torch.cuda.memory._record_memory_history(max_entries=MOST_ALLOCATIONS, stacks="python")
            self._has_snapshot = True

    def stop(self) -> None:
        """Stop recording."""
        if self._profiler is None or self._is_stopped:
            return
        self._is_stopped = True
        if self._has_snapshot:
            torch.cuda.memory._record_memory_history(enabled=None)
        self._profiler.stop()

    def close(self) -> None:
        """Stop, whatever state an error may have left the profiler in, and leave the folder."""
        try:
            self.stop()
        except Exception as error:
            sys.stderr.write(f"gflow: the profiler could not be stopped ({error})\n")
        os.close(self._fd)

    def answer_error(self, error: Exception) -> None:
        files.write_json(self._folder, files.ANSWER, {"error": f"{type(error).__name__}: {error}"})
        sys.stderr.write(f"gflow: no profile was made ({error}); training goes on\n")

    def write(self) -> None:
        """Stop recording and write the results, the answer last."""
        began = time.monotonic()
        self._say("writing")
        notes = []
        if self._has_snapshot:
            torch.cuda.memory._dump_snapshot(os.path.join(self._folder, files.SNAPSHOT))
        self.stop()
        if self._done < 1:
            raise RuntimeError("the run ended before a step was recorded")
        if self._done < self._steps:
            notes.append(f"the run ended after {self._done} of {self._steps} steps")
        self._profiler.export_chrome_trace(os.path.join(self._folder, files.TRACE))
        averages = self._profiler.key_averages()
        with open(os.path.join(self._folder, files.TABLES), "w", encoding="utf-8") as file:
            file.write(self._tables(averages))
        answer = {
            "first_step": self._before + 1,
            "steps": self._done,
            "device": self._device_name(),
            "operators": _operators(averages),
            "memory": self._memory(),
            "has_snapshot": self._has_snapshot,
            "notes": notes,
            "write_s": round(time.monotonic() - began, 3),
        }
        files.write_json(self._folder, files.ANSWER, answer)

    def _say(self, phase: str) -> None:
        state = {"phase": phase, "done": max(0, self._done), "steps": self._steps}
        files.write_json(self._folder, files.STATE, state)

    def _tables(self, averages: Any) -> str:
        """PyTorch's tables, by time and by memory."""
        of = "cuda" if self._is_cuda else "cpu"
        titles = {f"self_{of}_time_total": "time", f"self_{of}_memory_usage": "memory"}
        return "".join(
            f"Operators by {what}\n{averages.table(sort_by=key, row_limit=ROWS)}\n"
            for key, what in titles.items()
        )

    def _device_name(self) -> str:
        return torch.cuda.get_device_name(self._device) if self._is_cuda else "CPU"

    def _memory(self) -> dict[str, int] | None:
        """Bytes of the CUDA allocator: now, and the peaks of the run so far."""
        if not self._is_cuda:
            return None
        cuda = torch.cuda
        return {
            "allocated": cuda.memory_allocated(self._device),
            "reserved": cuda.memory_reserved(self._device),
            "peak_allocated": cuda.max_memory_allocated(self._device),
            "peak_reserved": cuda.max_memory_reserved(self._device),
        }


def _operators(averages: Any) -> list[dict[str, Any]]:
    """Time in microseconds and memory in bytes of each operator, without what it calls; longest first."""
    rows = [
        {
            "name": one.key,
            "calls": one.count,
            "cpu_us": round(one.self_cpu_time_total, 1),
            "gpu_us": round(_of_device(one, "time_total"), 1),
            "cpu_bytes": one.self_cpu_memory_usage,
            "gpu_bytes": int(_of_device(one, "memory_usage")),
        }
        for one in averages
        if one.device_type == torch.autograd.DeviceType.CPU and not one.key.startswith("ProfilerStep")
    ]
    return sorted(rows, key=lambda row: -(row["gpu_us"] or row["cpu_us"]))[:MOST_OPERATORS]


def _of_device(one: Any, what: str) -> float:
    """A figure of the GPU. Its name depends on the version of PyTorch."""
    return float(getattr(one, f"self_device_{what}", None) or getattr(one, f"self_cuda_{what}", 0) or 0)


def step_profiler(device: torch.device) -> StepProfiler | None:
    """The profiler of a run; None outside of a job."""
    folder = files.request_folder()
    return StepProfiler(folder, device) if folder else None
