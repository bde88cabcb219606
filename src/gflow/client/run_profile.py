"""Ask a running `gflow.train` run for a profile, and wait for it. The files bypass the daemon."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gflow.client import http
from gflow.errors import Refused, Unreachable, UsageError
from gflow.job_states import FINAL_NAMES
from gflow.ml.train import profile_files as files

STEPS = 5
# Seconds without a sign of the run after which the request is withdrawn.
PATIENCE_S = 120.0
LOOK_S = 0.1
# Seconds between two looks at the state of the job.
JOB_S = 1.0

# Gets the phase (waiting, warm-up, recording, writing), the steps recorded so far and their number.
OnState = Callable[[str, int, int], None]


class Profile:
    """A profile that a run has made: its folder, and what the run says about it."""

    def __init__(self, job: str, folder: str, answer: dict[str, Any]) -> None:
        self.job = job
        self.folder = folder
        self.answer = answer

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    @property
    def trace(self) -> str:
        """The path of the Chrome trace."""
        return self.path(files.TRACE)


def make_profile(
    place: dict[str, Any],
    *,
    steps: int = STEPS,
    memory: bool = False,
    patience_s: float = PATIENCE_S,
    on_state: OnState | None = None,
) -> Profile:
    """Ask a run for a profile of its next steps. `place`: the answer of `GET /jobs/{job}/profile`.

    Raises Refused if the run cannot make it or does not answer. Nothing is left behind then.
    """
    if not 1 <= steps <= files.MOST_STEPS:
        raise UsageError(f"a profile has 1 to {files.MOST_STEPS} steps, not {steps}")
    job, folder = str(place["job_id"]), place["path"]
    lock = _place_request(job, folder, {"steps": steps, "memory": memory})
    try:
        answer = _wait(job, folder, steps, patience_s, on_state or (lambda *state: None))
        if "error" in answer:
            raise Refused(f"job {job} could not make a profile: {answer['error']}")
        return Profile(job, _keep(job, folder, answer["first_step"]), answer)
    finally:
        _withdraw(folder)
        os.close(lock)


def _place_request(job: str, folder: str, request: dict[str, Any]) -> int:
    """Create the folder with the request in it; returns the descriptor that locks it."""
    draft = f"{folder}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(folder), 0o700, exist_ok=True)
        os.mkdir(draft, 0o700)
    except OSError as error:
        raise Refused(
            f"the request cannot be written to {os.path.dirname(folder)}: {error.strerror}"
        ) from error
    files.write_json(draft, files.REQUEST, request)
    lock = os.open(os.path.join(draft, files.REQUEST), os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        _remove_abandoned(folder)
        os.rename(draft, folder)
    except OSError:  # another command has placed its request
        shutil.rmtree(draft, ignore_errors=True)
        os.close(lock)
        raise Refused(
            f"another profile of job {job} is being made", hint="try again when it is complete"
        ) from None
    return lock


def _remove_abandoned(folder: str) -> None:
    """Remove the request of a command that was killed: its lock is free."""
    try:
        held = os.open(os.path.join(folder, files.REQUEST), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _withdraw(folder)
    finally:
        os.close(held)


def _withdraw(folder: str) -> None:
    """Remove the request. It is renamed first, so that the run cannot add files meanwhile."""
    gone = f"{folder}.{os.getpid()}.old"
    with suppress(FileNotFoundError):
        os.rename(folder, gone)
        while os.path.exists(gone):  # again, if the run has just added a file
            shutil.rmtree(gone, ignore_errors=True)


def _keep(job: str, folder: str, first_step: int) -> str:
    """Move a complete profile to its own folder; returns it."""
    base = os.path.join(os.path.dirname(folder), f"{job}-step{first_step}")
    for name in (files.REQUEST, files.STATE):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
    for number in range(1, 1000):
        kept = base if number == 1 else f"{base}-{number}"
        if not os.path.exists(kept):
            os.rename(folder, kept)
            return kept
    raise Refused(f"there are too many profiles of job {job}", hint=f"remove some of {base}*")


def _wait(job: str, folder: str, steps: int, patience_s: float, on_state: OnState) -> dict[str, Any]:
    """Wait for the answer of the run."""
    seen: tuple[str, int] = ("waiting", 0)
    heard_at = asked_at = time.monotonic()
    on_state(*seen, steps)
    while True:
        answer = files.read_json(folder, files.ANSWER)
        if answer is not None:
            return answer
        now = time.monotonic()
        state = files.read_json(folder, files.STATE)
        if state is not None and (state["phase"], state["done"]) != seen:
            seen, heard_at = (state["phase"], state["done"]), now
            on_state(*seen, steps)
        if now - asked_at >= JOB_S:
            asked_at = now
            _check_job(job)
        if now - heard_at > patience_s:
            raise Refused(_silence(job, seen, steps, patience_s), hint=f"gjob log {job}, gjob why {job}")
        time.sleep(LOOK_S)


def _check_job(job: str) -> None:
    with suppress(ConnectionError, Unreachable):  # the run does not need the daemon
        state = http.get(http.job_path(job))["jobs"][0]["state"]
        if state in FINAL_NAMES:
            raise Refused(f"job {job} ended before its profile was complete: {state}")


def _silence(job: str, seen: tuple[str, int], steps: int, patience_s: float) -> str:
    if seen[0] == "waiting":
        return f"job {job} did not end a step within {patience_s:g} s, so no profile was made"
    where = "while it wrote the profile" if seen[0] == "writing" else f"after {seen[1]} of {steps} steps"
    return f"job {job} gave no sign for {patience_s:g} s {where}, so there is no profile"
