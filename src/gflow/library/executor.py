"""An executor as in concurrent.futures that runs function calls as jobs."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor as FuturesExecutor
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Unpack

from gflow.client.stream import events
from gflow.client.wait import wait_for
from gflow.errors import GflowError
from gflow.job_states import END_EVENTS, JobState
from gflow.library.calls import MAP, each, new_folder, take_outcome, write_call, write_map
from gflow.library.job import Job, JobFailed
from gflow.library.jobs import submit
from gflow.library.submit_keywords import SubmitKeywords

T = TypeVar("T")
STARTED = JobState.RUNNING.row.event


class JobFuture(Future[T]):
    """The future of a call, with its job; None while `max_workers` delays the submission."""

    job: Job | None = None

    def cancel(self) -> bool:
        """Cancel the job unless it has started. (`future.job.cancel()` cancels a running one.)"""
        if self.job is not None and not self.running() and not self.done():
            with suppress(GflowError):
                self.job.cancel()
        return super().cancel()


class Call(NamedTuple):
    """A call whose future is not done."""

    future: JobFuture[Any]
    folder: Path
    name: str
    options: dict[str, Any]


class Executor(FuturesExecutor):
    """Runs functions as jobs. The options are those of `gbatch` and apply to each job.

    `max_workers` limits the jobs of `submit`, and of each `map`, that exist at once; None: no limit.

    >>> with gflow.Executor(gpus=1, time="1:00:00") as executor:
    ...     future = executor.submit(train, lr=0.1)
    ...     print(future.result())
    """

    def __init__(self, max_workers: int | None = None, **options: Unpack[SubmitKeywords]) -> None:
        if max_workers is not None and max_workers < 1:
            raise ValueError("max_workers must be at least 1")
        self._options = dict[str, Any](options)
        self._most = max_workers
        self._lock = threading.Lock()
        self._active: dict[str, Call] = {}
        self._waiting: deque[Call] = deque()
        self._folders: list[Path] = []
        self._count = 0
        self._is_shut = False
        self._idle = threading.Condition(self._lock)
        self._watcher: threading.Thread | None = None

    # ------------------------------------------------------------ submission

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> JobFuture[T]:
        """Run the function call as a job."""
        with self._lock:
            self._check_open()
            folder = self._folder()
            self._count += 1
            name = str(self._count)
        write_call(folder, name, fn, args, kwargs)
        future: JobFuture[T] = JobFuture()
        with self._lock:
            self._watch()
            self._waiting.append(Call(future, folder, name, self._named(fn)))
            self._launch()
        if future.done() and (refusal := future.exception()) is not None:
            raise refusal  # nothing was submitted
        return future

    def _launch(self) -> None:
        """Submit calls up to `max_workers`.

        The caller holds the lock: a job must be registered before its events are handled.
        """
        while self._waiting and (self._most is None or len(self._active) < self._most):
            one = self._waiting.popleft()
            if one.future.cancelled():
                one.future.set_running_or_notify_cancel()
                continue
            try:
                one.future.job = submit(_worker(one.folder, one.name), **one.options)
            except Exception as refusal:
                _fail(one.future, refusal)
            else:
                self._active[one.future.job.id] = one

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """Apply the function to all items, as the tasks of one array. Yields results in order.

        A task runs `chunksize` items, which pays off for functions that are faster than the start of a job.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        end = None if timeout is None else time.monotonic() + timeout
        items = list(zip(*iterables, strict=False))
        named = self._named(fn)
        if chunksize == 1:
            return _results(self._submit_all(fn, items, named), end)
        chunks = [(items[at : at + chunksize],) for at in range(0, len(items), chunksize)]
        lists = _results(self._submit_all(partial(each, fn), chunks, named), end)
        return chain.from_iterable(lists)

    def _submit_all(
        self, fn: Callable[..., T], items: list[tuple[Any, ...]], named: dict[str, Any]
    ) -> list[JobFuture[T]]:
        with self._lock:
            self._check_open()
        if not items:
            return []
        folder = self._new_folder()
        count = write_map(folder, fn, items)
        cap = f"%{self._most}" if self._most else ""
        futures: list[JobFuture[T]] = []
        with self._lock:
            self._watch()
            options = named | {"array": f"0-{count - 1}{cap}"}
            array = submit(_worker(folder), **options)
            for number in range(count):
                future: JobFuture[T] = JobFuture()
                future.job = Job(f"{array.id}_{number}")
                self._active[future.job.id] = Call(future, folder, f"{MAP}-{number}", options)
                futures.append(future)
        return futures

    def _named(self, fn: Callable[..., Any]) -> dict[str, Any]:
        return {"name": getattr(fn, "__name__", type(fn).__name__)} | self._options

    def _check_open(self) -> None:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def _folder(self) -> Path:
        if not self._folders:
            self._folders.append(new_folder())
        return self._folders[0]

    def _new_folder(self) -> Path:
        folder = new_folder()
        with self._lock:
            self._folder()
            self._folders.append(folder)
        return folder

    # ------------------------------------------------------------ events

    def _watch(self) -> None:
        """Start the thread that receives the events of all jobs, from now on."""
        if self._watcher is None:
            stream = events((STARTED, *sorted(END_EVENTS)))
            next(stream)  # connected: later events are received
            self._watcher = threading.Thread(target=self._listen, args=(stream,), daemon=True)
            self._watcher.start()

    def _listen(self, stream: Iterator[dict[str, Any]]) -> None:
        try:
            for event in stream:
                if event["event"] == "missed":
                    self._poll_jobs()
                else:
                    self._handle_event(str(event.get("job_id")), event["event"], event.get("job"))
        except Exception as error:  # the daemon does not come back: fail all futures
            with self._lock:
                left = [*self._active.values(), *self._waiting]
                self._active.clear()
                self._waiting.clear()
                self._idle.notify_all()
            for one in left:
                _fail(one.future, error)

    def _poll_jobs(self) -> None:
        """Query each job, after events were missed."""
        with self._lock:
            known = list(self._active)
        for job in known:
            with suppress(TimeoutError):
                self._handle_event(job, "job_completed", wait_for(job, 0.001))

    def _handle_event(self, job: str, event: str, shown: dict[str, Any] | None) -> None:
        with self._lock:
            one = self._active.get(job)
        if one is not None and event == STARTED:
            _begin(one.future)
        elif event in END_EVENTS:
            ended = [(job, one)] if one is not None else self._never_started(job)
            for name, over in ended:
                settle(over, shown if over is one else None)
                with self._lock:
                    self._active.pop(name, None)
                    self._launch()
                    self._idle.notify_all()

    def _never_started(self, array: str) -> list[tuple[str, Call]]:
        """Tasks of an ended array without an event of their own: they never started."""
        with self._lock:
            return [item for item in self._active.items() if item[0].startswith(array + "_")]

    # ------------------------------------------------------------ shutdown

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further calls; with `wait`, wait for all to end. Otherwise jobs outlive the program."""
        with self._lock:
            self._is_shut = True
            left = [*self._waiting, *self._active.values()]
        if cancel_futures:
            for one in left:
                one.future.cancel()
            with self._lock:
                self._launch()  # drops calls that were cancelled before their submission
        if not wait:
            return
        with self._idle:
            self._idle.wait_for(lambda: not self._active and not self._waiting)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)


def map(
    fn: Callable[..., T],
    *iterables: Iterable[Any],
    max_workers: int | None = None,
    **options: Unpack[SubmitKeywords],
) -> list[T]:
    """Apply the function to all items, each as a job: `gflow.map(train, [0.1, 0.01], gpus=1)`."""
    with Executor(max_workers, **options) as executor:
        return list(executor.map(fn, *iterables))


def _worker(folder: Path, name: str | None = None) -> list[str]:
    words = [sys.executable, "-m", "gflow.library.worker", str(folder)]
    return words if name is None else [*words, name]


def _results(futures: list[JobFuture[T]], end: float | None) -> Iterator[T]:
    """Yield the results in order. Closing the generator cancels the remaining futures."""
    futures.reverse()
    try:
        while futures:
            left = None if end is None else max(0.0, end - time.monotonic())
            yield futures.pop().result(left)
    finally:
        for future in futures:
            future.cancel()


def _begin(future: JobFuture[Any]) -> None:
    if not future.running() and not future.done():  # a retry starts a second time
        future.set_running_or_notify_cancel()


def settle(one: Call, shown: dict[str, Any] | None) -> None:
    """Set the result or exception of a future from the outcome of its job."""
    future = one.future
    assert future.job is not None
    if future.cancelled():
        future.set_running_or_notify_cancel()
        return
    if future.done():
        return
    try:
        outcome = take_outcome(one.folder, one.name)
    except Exception as error:  # it refers to a name that this program cannot import
        _fail(future, error)
        return
    if outcome is None:
        _fail(future, JobFailed(shown or future.job.info()))
    elif (raised := outcome.raised()) is not None:
        _fail(future, raised)
    else:
        _begin(future)
        future.set_result(outcome.value)


def _fail(future: JobFuture[Any], error: BaseException) -> None:
    _begin(future)
    if not future.done():
        future.set_exception(error)
