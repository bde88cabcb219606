"""The route that lists what happened to the GPUs: faults, drains, slow clocks, spot notices."""

from __future__ import annotations

import logging
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gflow.core.model import AuditEntry
from gflow.core.policy import Drained
from gflow.daemon.api.handlers.gpus import throttle_reasons
from gflow.daemon.api.request import caller, context_of, query_of, while_connected
from gflow.daemon.api.response import answer
from gflow.daemon.api.visibility import Viewer, viewer_of
from gflow.daemon.auth.users import user_name
from gflow.diagnosis.xids import CARD_FAULTS, LASTING_FAULTS, PROGRAM_FAULTS
from gflow.gpu.health import BRAKE, HEAT
from gflow.options.lists import parse_indices
from gflow.store.samples import faults_of, slowed_spans
from gflow.wire.answers.gpus import GpuEvent, GpuEventKind, GpuEventsAnswer
from gflow.wire.encoding import rfc3339
from gflow.wire.queries import GpuEventsQuery

log = logging.getLogger("gflow.api")
# Kinds of audit entries, and how many of them are read.
KINDS = ("gpu", "drained", "spot notice", "allowed_gpus")
MOST = 1000
# Throttle reasons that are no normal operation, unlike the power limit; spans nearer than this are one.
ABNORMAL = 0x08 | HEAT | BRAKE
GAP_S = 600
# Errors that leave a GPU usable.
PASSING_ERRORS = {
    f"Xid {number}": meaning
    for number, meaning in (CARD_FAULTS | PROGRAM_FAULTS).items()
    if number not in LASTING_FAULTS
}
_GPU = re.compile(r"GPU (\d+): (.*)", re.DOTALL)


async def list_events(request: Request) -> Response:
    """What happened to the GPUs: faults, drains, slow clocks; the newest first."""
    context, (uid, _) = context_of(request), caller(request)
    since = time.time() - query_of(request, GpuEventsQuery).hours * 3600
    viewer, samples = viewer_of(request), context.settings.samples
    entries = context.threads.read(
        uid, context.store.reader, lambda reader: reader.machine_entries(KINDS, MOST)
    )
    found = list(events_of(await while_connected(request, entries), viewer, since))
    try:
        gpus = sorted(context.loop.state.machine.gpus)
        found += await while_connected(request, context.threads.run(uid, _from_samples, samples, gpus, since))
    except sqlite3.Error as error:
        log.warning("the GPU samples cannot be read: %s", error)
    found.sort(key=lambda one: one.at, reverse=True)
    lines = "".join(f"{one.at} {_spell(one.gpus)}: {one.text}\n" for one in found)
    data = GpuEventsAnswer(since=rfc3339(since), events=found)
    return answer(request, lambda: data, lambda: lines or "Nothing happened to the GPUs.\n")


def _from_samples(samples: Path, gpus: list[int], since: float) -> list[GpuEvent]:
    """Slow times, and errors that leave a GPU usable. Those that block one are in the audit log."""
    errors = [
        GpuEvent(at=rfc3339(float(one.at)), kind="error", gpus=[one.gpu], text=f"{one.text}: {meaning}")
        for one in faults_of(samples, gpus, since, time.time())
        if (meaning := PASSING_ERRORS.get(one.text)) is not None
    ]
    return errors + [
        GpuEvent(
            at=rfc3339(start),
            until=rfc3339(end),
            kind="slowed",
            gpus=[gpu],
            text=f"slowed by {', '.join(throttle_reasons(bits))}",
        )
        for gpu, start, end, bits in slowed_spans(samples, since, ABNORMAL, GAP_S)
    ]


def events_of(entries: Iterable[AuditEntry], viewer: Viewer, since: float) -> Iterator[GpuEvent]:
    """The events of audit entries since a time. Earlier entries tell what was drained before."""
    before = Drained()
    for line in entries:
        by = viewer.redact_user(user_name(line.uid)) if line.uid is not None else None
        if line.what == "drained":
            now = msgspec.json.decode(line.detail, type=Drained)
            made, before = list(_drain_changes(before, now)), now
        else:
            made = [_event(line)]
        if line.at >= since:
            for one in made:
                one.at, one.by, one.text = rfc3339(line.at), by, viewer.redact_text(one.text)
                yield one


def _event(line: AuditEntry) -> GpuEvent:
    """The event of an entry that is not about a drain; its time and its user are added later."""
    if line.what == "gpu" and (match := _GPU.fullmatch(line.detail)):
        kind: GpuEventKind = "available" if match[2] == "available" else "blocked"
        return GpuEvent(at="", kind=kind, gpus=[int(match[1])], text=match[2])
    if line.what == "allowed_gpus":
        text = "all GPUs may be used" if line.detail == "all" else f"only GPU {line.detail} may be used"
        return GpuEvent(at="", kind="restricted", gpus=list(parse_indices(line.detail) or ()), text=text)
    return GpuEvent(at="", kind="spot", gpus=[], text=f"spot notice: {line.detail}")


def _drain_changes(before: Drained, now: Drained) -> Iterator[GpuEvent]:
    if now.everything is not None and now.everything != before.everything:
        yield GpuEvent(
            at="", kind="drained", gpus=[], text=_because("the machine is drained", now.everything)
        )
    elif now.everything is None and before.everything is not None:
        yield GpuEvent(at="", kind="resumed", gpus=[], text="the machine is resumed")
    for index in sorted(now.gpus.keys() - before.gpus.keys()):
        yield GpuEvent(at="", kind="drained", gpus=[index], text=_because("drained", now.gpus[index]))
    if gone := sorted(before.gpus.keys() - now.gpus.keys()):
        yield GpuEvent(at="", kind="resumed", gpus=gone, text="resumed")


def _because(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what


def _spell(gpus: list[int]) -> str:
    return f"GPU {','.join(map(str, gpus))}" if gpus else "machine"
