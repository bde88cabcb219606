"""Reasons: the text of every kind, its way back, and that the engine decides by kinds alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gflow
from gflow.core.ids import job_key
from gflow.core.reasons import NO_REASON, Reason, ReasonKind, parse
from gflow.targets.local import gpu_leases
from gflow.targets.outcome import OUT_OF_MEMORY, deferred

CORE = Path(gflow.__file__).parent / "core"
# Every kind with the text that databases, the API and shims of earlier releases have.
TEXTS = {
    "": NO_REASON,
    "JobHeldUser": Reason(ReasonKind.HELD),
    "RequeueLoop": Reason(ReasonKind.REQUEUE_LOOP),
    "Requeued": Reason(ReasonKind.REQUEUED),
    "Retry": Reason(ReasonKind.RETRY),
    "Warned": Reason(ReasonKind.WARNED),
    "Preempted": Reason(ReasonKind.PREEMPTED),
    "Preempted: 42": Reason(ReasonKind.PREEMPTED, job=job_key(42)),
    "Preempted: 42_3": Reason(ReasonKind.PREEMPTED, job=job_key(42, 3)),
    "Preempted: the machine is reclaimed": Reason(ReasonKind.PREEMPTED, "the machine is reclaimed"),
    "Reservation: GPU 0 reserved for bob": Reason(ReasonKind.RESERVED, "GPU 0 reserved for bob"),
    "IdleGPU: GPU 1 not used for 3 h": Reason(ReasonKind.IDLE_GPUS, "GPU 1 not used for 3 h"),
    "StoppedEarly: loss 3.1 > 2 at step 500": Reason(ReasonKind.STOPPED_EARLY, "loss 3.1 > 2 at step 500"),
    "GpuMemory: used 9 GiB of 8 GiB": Reason(ReasonKind.GPU_MEMORY, "used 9 GiB of 8 GiB"),
    "TimeLimit": Reason(ReasonKind.TIME_LIMIT),
    "CancelledByUser": Reason(ReasonKind.CANCELLED_BY_USER),
    "CancelledByUser: root": Reason(ReasonKind.CANCELLED_BY_USER, "root"),
    "CancelledThere": Reason(ReasonKind.CANCELLED_THERE),
    "ExitCode:2": Reason(ReasonKind.EXIT_CODE, "2"),
    "Signal:9": Reason(ReasonKind.SIGNAL, "9"),
    "OutOfMemory: used 9 MiB of 8 MiB": Reason(ReasonKind.OUT_OF_MEMORY, "used 9 MiB of 8 MiB"),
    "StartFailed: Slurm: Invalid qos": Reason(ReasonKind.START_FAILED, "Slurm: Invalid qos"),
    "StartFailed": Reason(ReasonKind.START_FAILED),
    "Lost": Reason(ReasonKind.LOST),
    "Reboot": Reason(ReasonKind.REBOOT),
    "NodeFail": Reason(ReasonKind.NODE_FAIL),
    "DependencyFailed:42": Reason(ReasonKind.DEPENDENCY_FAILED, job=job_key(42)),
    "DependencyFailed:42_0": Reason(ReasonKind.DEPENDENCY_FAILED, job=job_key(42, 0)),
    "DependencyFailed:another job": Reason(ReasonKind.DEPENDENCY_FAILED, "another job"),
    "TasksFailed:3": Reason(ReasonKind.TASKS_FAILED, "3"),
    "TasksCancelled:3": Reason(ReasonKind.TASKS_CANCELLED, "3"),
    "Leased": Reason(ReasonKind.LEASED),
    "Deferred": Reason(ReasonKind.DEFERRED),
    "Deferred: Too many open files": Reason(ReasonKind.DEFERRED, "Too many open files"),
    "Recalled": Reason(ReasonKind.WITHDRAWN),
    "Priority: others are before it": Reason(ReasonKind.OTHER, "Priority: others are before it"),
    "JobHeldUser: it is held in Slurm": Reason(ReasonKind.OTHER, "JobHeldUser: it is held in Slurm"),
    "Other": Reason(ReasonKind.OTHER, "Other"),
}


@pytest.mark.parametrize(("text", "reason"), TEXTS.items())
def test_the_text_of_each_kind_and_its_way_back(text, reason):
    assert str(reason) == text
    assert parse(text) == reason
    assert bool(reason) == bool(text)


def test_the_table_has_every_kind():
    assert {reason.kind for reason in TEXTS.values()} == set(ReasonKind)


codes = st.sampled_from([kind.value for kind in ReasonKind])


@given(st.text(max_size=30) | st.builds("{}{}{}".format, codes, st.sampled_from([":", ": "]), st.text()))
@example("Preempted: 007")
@example("DependencyFailed: 1")
@example("StartFailed:no space")
def test_a_stored_text_is_kept_to_the_letter(text):
    """Only a code without the detail that its colon announces loses the colon."""
    reason = parse(text)
    assert str(reason) in (text, text.rstrip().removesuffix(":"))
    assert parse(str(reason)) == reason


@pytest.mark.parametrize(
    ("text", "code", "explanation"),
    [
        ("Priority: others: all", "Priority", "others: all"),
        ("Submitted", "Submitted", ""),
        ("ExitCode:2", "ExitCode", "2"),
        ("Preempted: 42", "Preempted", "42"),
        ("", "", ""),
    ],
)
def test_code_and_explanation(text, code, explanation):
    assert (parse(text).code, parse(text).explanation) == (code, explanation)


def test_reasons_of_shims_are_parsed():
    assert parse(gpu_leases.LEASED).kind is ReasonKind.LEASED
    assert parse(deferred("no memory").problem) == Reason(ReasonKind.DEFERRED, "no memory")
    assert parse(f"{OUT_OF_MEMORY}: used 9 MiB of 8 MiB").kind is ReasonKind.OUT_OF_MEMORY
    folder = Path(gpu_leases.__file__).parent
    for kind, path in [
        (ReasonKind.START_FAILED, "shim/shim.py"),
        (ReasonKind.START_FAILED, "native/launch.c"),
        (ReasonKind.DEFERRED, "native/main.c"),
    ]:
        assert f'"{kind.value}: ' in (folder / path).read_text(), path


# ---------------------------------------------------------------- no text is parsed

TEXT_METHODS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "split"}


def _is_reason(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in ("reason", "problem")


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_the_engine_parses_no_reason(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in TEXT_METHODS:
            assert not _is_reason(node.value), f"{path.name}:{node.lineno}: a reason is parsed as text"
        if isinstance(node, ast.Compare) and _is_reason(node.left):
            texts = [one for one in node.comparators if isinstance(one, ast.Constant)]
            assert not texts, f"{path.name}:{node.lineno}: a reason is compared with a text"
