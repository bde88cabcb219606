"""What every route asks of a request: who is it, and which jobs are meant."""

from __future__ import annotations

from starlette.requests import Request

from gflow.core.engine import resolve
from gflow.core.ids import JobKey, label
from gflow.core.model import SHORT, Job, JobState
from gflow.daemon.context import Context
from gflow.errors import NotFound, UsageError

_STATE_NAMES = {state.value.lower(): state for state in JobState} | {
    short.lower(): state for state, short in SHORT.items()
}


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


def caller(request: Request) -> tuple[int, str]:
    """The caller's uid, and where it calls from, by the kernel's word."""
    state = request.scope["state"]
    return state["uid"], f"pid {state['pid']}"


def keys_of(context: Context, request: Request, texts: list[str]) -> list[JobKey]:
    """The jobs that `texts` mean when this caller says them, each once."""
    uid, _ = caller(request)
    return list(dict.fromkeys(resolve(context.loop.state, uid, text.strip()) for text in texts))


def known(context: Context, key: JobKey) -> Job:
    job = context.job(key)
    if job is None:
        raise NotFound(f"there is no job {label(key)}")
    return job


def one(context: Context, request: Request) -> Job:
    """The job in the request's path."""
    (key,) = keys_of(context, request, [request.path_params["job"]])
    return known(context, key)


def states_of(text: str) -> set[JobState]:
    """States by long or short name."""
    states = set()
    for name in filter(None, (part.strip() for part in text.split(","))):
        state = _STATE_NAMES.get(name.lower())
        if state is None:
            raise UsageError(
                f"unknown state {name!r}", hint="states: " + ", ".join(s.value for s in JobState)
            )
        states.add(state)
    return states


def limit_of(text: str, usual: int) -> int:
    """How many jobs at most; 0: all."""
    if not text:
        return usual
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise UsageError(f"a limit is a whole number, not {text!r}")
    return int(text)
