"""Jobs and GPUs of the daemon, fetched in threads: at each event, and every few seconds for readings."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gflow.client import http
from gflow.errors import GflowError
from gflow.job_states import FINAL_NAMES
from gflow.tui.job_rows import Listing, count_tasks

# Events after which the list changes. Each has one name here: others only repeat it.
EVENTS = (
    "job_submitted", "job_updated", "job_started", "job_completed", "job_failed", "job_timeout",
    "job_cancelled", "job_retried", "job_requeued", "job_held", "job_released", "job_cancel_asked",
    "job_gpu_idle", "job_gpu_used", "gpu_health_changed", "manual_gpu_override_changed", "drain_changed",
    "reservation_created", "reservation_changed", "reservation_cancelled",
)  # fmt: skip
# Seconds between two looks: at readings and progress, or if nothing runs and nothing is measured.
LOOK_S, QUIET_S = 2.0, 10.0
# Events within this time cause one look.
TOGETHER_S = 0.25
# Between two looks pass at least so many times the seconds that a look takes, but no more than MOST_REST_S.
REST, MOST_REST_S = 20.0, 30.0
MOST_RUNNING, MOST_WAITING, MOST_ENDED = "500", "300", 100
AWAY = (OSError, GflowError, ValueError)


class View(NamedTuple):
    """What the daemon said last. `away`: since when it does not answer; empty: it does."""

    listing: Listing = Listing()
    gpus: tuple[Mapping[str, Any], ...] = ()
    drained: str | None = None
    version: str = ""
    away: str = ""
    problem: str = ""


def _total(answer: Mapping[str, Any], kind: str) -> int:
    """The number of jobs of this kind, with each waiting task of an array; asked if not all are listed."""
    jobs = answer["jobs"]
    return count_tasks(jobs) if answer["total"] <= len(jobs) else int(http.get("/status")[kind])


def _add_starts(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The jobs with `expected_at`, when each is expected to start, where that is known."""
    found = http.get("/starts", limit=MOST_WAITING)["starts"]
    starts = {str(one["id"]): one["expected_at"] for one in found}
    return [job | {"expected_at": starts.get(str(job["id"]))} for job in jobs]


class QueueFeed:
    """Publishes a view whenever something changed."""

    def __init__(self) -> None:
        self.publish: Callable[[View], None] = lambda view: None
        # Whether there is room for the expected starts of waiting jobs.
        self.has_starts = False
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._ended: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._has_past = False
        self._rest_s = 0.0
        self._view = View()

    def start(self) -> None:
        threading.Thread(target=self._run, name="queue", daemon=True).start()
        threading.Thread(target=self._listen, name="events", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self._changed.set()

    def look(self) -> None:
        """Fetch again soon."""
        self._changed.set()

    def load(self) -> View:
        """Fetch everything now. Keeps the last view, marked, while the daemon does not answer."""
        began = time.monotonic()
        try:
            if not self._has_past:
                self._load_past()
            self._view = self._fetch()
        except AWAY as error:
            self._has_past = False
            away = self._view.away or time.strftime("%H:%M:%S")
            self._view = self._view._replace(away=away, problem=str(error))
        self._rest_s = min(MOST_REST_S, REST * (time.monotonic() - began))
        return self._view

    def _fetch(self) -> View:
        info = http.get("/info")
        running = http.get("/jobs", states="Running", limit=MOST_RUNNING)
        waiting = http.get("/jobs", states="Queued,Hold", limit=MOST_WAITING)
        if self.has_starts and 0 < waiting["total"] <= len(waiting["jobs"]):  # of a long queue they cost much
            waiting["jobs"] = _add_starts(waiting["jobs"])
        with self._lock:
            ended = tuple(reversed(self._ended.values()))
        totals = _total(running, "running"), _total(waiting, "waiting")
        listing = Listing(running["jobs"], waiting["jobs"], ended, *totals)
        drained = (info["reason"] or "") if info["drained"] else None
        return View(listing, tuple(info["gpus"]), drained, self._view.version)

    def _load_past(self) -> None:
        """The version of the daemon, and the jobs that ended in the last day."""
        version = str(http.get("/status")["version"])
        past = http.get("/jobs", completed="1", since="24h", limit=f"-{MOST_ENDED}")["jobs"]
        with self._lock:
            self._ended.clear()
            for job in sorted(past, key=lambda job: str(job["finished_at"])):
                self._ended[str(job["id"])] = job
        self._has_past = True
        self._view = self._view._replace(version=version)

    def _run(self) -> None:
        while not self._closed.is_set():
            began = time.monotonic()
            if self._changed.wait(self.pause_s()):
                self._closed.wait(max(TOGETHER_S, self._rest_s - (time.monotonic() - began)))
            self._changed.clear()
            if not self._closed.is_set():
                self.publish(self.load())

    def pause_s(self) -> float:
        """Seconds until the next look if there is no event."""
        view = self._view
        has_readings = bool(view.listing.running) or any("utilisation" in gpu for gpu in view.gpus)
        usual = LOOK_S if has_readings or view.away else QUIET_S
        return max(usual, self._rest_s)

    def _listen(self) -> None:
        from gflow.client.stream import events

        while not self._closed.is_set():
            try:
                for event in events(EVENTS):
                    self.note(event)
                    if self._closed.is_set():
                        return
            except AWAY:
                time.sleep(1.0)

    def note(self, event: Mapping[str, Any]) -> None:
        """Take one event of the stream: keep the job if it ended, and fetch again soon."""
        job = event.get("job")
        # An array is listed by its tasks.
        if job is not None and job["state"] in FINAL_NAMES and job["tasks"] is None:
            with self._lock:
                self._ended[str(job["id"])] = job
                self._ended.move_to_end(str(job["id"]))
                while len(self._ended) > MOST_ENDED:
                    self._ended.popitem(last=False)
        self._changed.set()
