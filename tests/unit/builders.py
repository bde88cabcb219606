"""Jobs in one line, and hypothesis strategies that follow the model when it grows."""

from __future__ import annotations

import enum
import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

from gflow.core.ids import TASK_MAX, JobKey, job_key
from gflow.core.model import FINAL, ArrayProgress, Job, JobState, Spec
from gflow.core.reasons import Reason, parse
from gflow.core.task_set import parse_tasks

UIDS = {"root": 0, "ann": 1001, "bob": 1002}
NOON = 1_750_000_000.0
PENDING = ["", "3", "4-60", "0-90:10", "1,3,5-7"]


def spec(**fields: Any) -> Spec:
    return Spec(**{"command": ("true",), "cwd": "/work", "retry_delay_s": 0} | fields)


def job(number: int = 1, *, task: int | None = None, user: str = "ann", **fields: Any) -> Job:
    """A job of `user`; fields of the spec and of the job alike. Its state fills in what it needs.

    A reason may be given as its text.
    """
    asked = {name: fields.pop(name) for name in Spec.__struct_fields__ if name in fields}
    state = fields.get("state", JobState.QUEUED)
    fields["reason"] = parse(str(fields.get("reason", "")))
    usual: dict[str, Any] = {"submitted_at": NOON}
    if state is JobState.RUNNING:
        usual |= {"attempt": 1, "started_at": NOON + 10}
        usual |= {"started_boot": (fields.get("started_at") or NOON + 10) - NOON}
    if state in FINAL:
        usual |= {"finished_at": NOON + 100}
        began, over = fields.get("started_at"), fields.get("finished_at", NOON + 100)
        usual |= {"ran_s": None if began is None or over is None else max(0.0, over - began)}
    return Job(key=job_key(number, task), spec=spec(**asked), uid=UIDS[user], user=user, **usual | fields)


def running(number: int = 1, *gpu_ids: int, **fields: Any) -> Job:
    return job(number, gpus=len(gpu_ids), gpu_ids=gpu_ids, state=JobState.RUNNING, **fields)


def ended(number: int = 1, state: JobState = JobState.FINISHED, **fields: Any) -> Job:
    return job(number, state=state, **fields)


# ---------------------------------------------------------------- strategies

keys = st.builds(job_key, st.integers(1, 10**12 - 1), st.none() | st.integers(0, TASK_MAX))
# What SQLite, JSON and every peer can hold.
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(0, 2**53),
    float: st.floats(0, 4e9),
    str: st.text(max_size=30),
    JobKey: keys,
    Reason: st.text(max_size=30).map(parse),
    type(None): st.none(),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a field of this type."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    if kind is ArrayProgress:
        return any_struct(ArrayProgress, pending=st.sampled_from(PENDING).map(parse_tasks))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return any_struct(kind)
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return st.one_of(*map(values_of, arguments))
    if typing.get_origin(kind) is tuple and arguments[1:] == (...,):
        return st.lists(values_of(arguments[0]), max_size=4).map(tuple)
    if typing.get_origin(kind) is dict:
        return st.dictionaries(*map(values_of, arguments), max_size=4)
    return st.from_type(kind)


def any_struct(kind: type[msgspec.Struct], **known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Any value of a struct, every field filled, also fields that are added later."""
    hints = typing.get_type_hints(kind)
    fields = {name: known.get(name, values_of(hints[name])) for name in kind.__struct_fields__}
    return st.builds(kind, **fields)
