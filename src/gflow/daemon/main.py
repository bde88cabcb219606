"""Start, serve, stop. The order of the first steps is a safety property; see `run`."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from gflow.core.effects import Effect
from gflow.core.events import Exited, GpusSeen, LeasesSeen
from gflow.core.model import JobState
from gflow.core.state import State
from gflow.daemon import clock, lock
from gflow.daemon.api.app import make_app
from gflow.daemon.api.server import bind, serve
from gflow.daemon.context import Context
from gflow.daemon.keeper import keep
from gflow.daemon.leases import LeaseWatch
from gflow.daemon.loop import Loop, reload
from gflow.daemon.perform import Performer
from gflow.daemon.settings import Settings
from gflow.errors import GflowError, ReadOnly
from gflow.faults import point
from gflow.store.places import first_free_number
from gflow.store.sqlite import SqliteStore
from gflow.targets.local.leases import LEASED
from gflow.targets.local.target import Ended, LocalTarget, Run

log = logging.getLogger("gflow.daemon")
LoopFactory = Callable[..., Loop]


def run(settings: Settings, loop_class: LoopFactory = Loop) -> int:
    """The daemon in the foreground, until TERM or INT. Returns its exit code."""
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    os.umask(0o077)
    gc.disable()  # until the queue is loaded: it is all there to stay
    try:
        held = lock.take(settings.data)
        asyncio.run(_serve(settings, loop_class))
    except GflowError as error:
        sys.stderr.write(f"gflowd: {error.message}\n" + (f"{error.hint}\n" if error.hint else ""))
        return error.exit_code
    os.close(held)
    return 0


async def _serve(settings: Settings, loop_class: LoopFactory) -> None:
    loop: Loop

    def on_end(ended: Ended) -> None:
        end, (key, attempt) = ended.end, ended.run
        if end.problem == LEASED:
            # First, so that the next round does not choose the same GPU again.
            job = loop.state.jobs.get(key)
            leases.look(lost=job.gpu_ids if job else ())
        loop.post(
            lambda at: Exited(
                at=at, key=key, attempt=attempt, code=end.code, signal=end.signal, problem=end.problem
            )
        )

    # The zygote first: nothing that is opened later can reach a job.
    target = LocalTarget(settings.run_dir, on_end)
    target.open()
    store = SqliteStore(settings.database)
    settings.logs.mkdir(mode=0o700, exist_ok=True)
    state = reload(State(cpus=settings.cpus, memory_mib=settings.memory_mib), store)
    if state.next_number == 1:  # a new database beside old logs: those numbers were given out
        state.next_number = first_free_number(settings.data)

    def perform(effects: list[Effect]) -> None:
        performer(effects)

    loop = loop_class(state, store, perform, paranoid=settings.paranoid)
    leases = LeaseWatch(
        settings.gpus,
        running=lambda index: index in loop.state.holders,
        report=lambda foreign: loop.post(lambda at: LeasesSeen(at=at, foreign=foreign)),
    )
    performer = Performer(settings, store, target, leases, lambda: loop.state, on_end)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)

    leases.look()
    with suppress(ReadOnly):  # the disk may be full already: the loop heals by itself
        await loop.ask(lambda at: GpusSeen(at=at, gpus=settings.gpus))
    adopt(loop, target, performer)
    target.warm_up()
    listener = bind(settings.socket)
    server = await serve(
        listener, make_app(Context(settings, loop, store, target, clock.now().boot, stopped))
    )
    _write_address(settings)
    _spare_the_collector()
    _say_ready()
    keeper = asyncio.ensure_future(keep(settings))
    await stopped.wait()
    keeper.cancel()
    server.close()
    settings.socket.unlink(missing_ok=True)
    target.close()
    store.close()


def adopt(loop: Loop, target: LocalTarget, performer: Performer) -> None:
    """Take over the jobs of an earlier daemon: watch, settle, or start what never started."""
    running = [job for job in loop.state.jobs.values() if job.state is JobState.RUNNING and not job.is_array]
    for job in running:
        run = Run(job.key, job.attempt)
        point("adopt.before")
        if not target.adopt(run):
            performer.start(job)
        if job.stopping is not None:
            target.stop(run, now=False)
    names = {Run(job.key, job.attempt).name for job in running}
    target.forget_others(names)
    loop.arm()


def _write_address(settings: Settings) -> None:
    """Tell clients where we listen: their XDG_RUNTIME_DIR may differ from ours."""
    path = settings.data / "address"
    temporary = path.with_suffix(".new")
    temporary.write_text(str(settings.socket))
    temporary.rename(path)


def _spare_the_collector() -> None:
    """What is loaded now stays, and a job is no cycle: look for garbage rarely.

    By default ten thousand new jobs would have the whole queue searched several times.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


def _say_ready() -> None:
    """Tell `gflowd up` that we serve, through the descriptor it left us."""
    fd = os.environ.pop("GFLOW_READY_FD", "")
    if fd:
        os.write(int(fd), b"ready\n")
        os.close(int(fd))
