"""Output of gctl: GPUs, drains, limits, quotas, reservations and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gflow.core.model import Job
from gflow.errors import clean
from gflow.text.gpus import NONE, drained_note
from gflow.text.table import Sheet, clock, moment, table
from gflow.wire.answers.daemon import NewTokenAnswer, TokenView
from gflow.wire.answers.gpus import GpuLine
from gflow.wire.answers.quotas import QuotaAnswer, QuotaLine, ReservationAnswer


def allowed_line(allowed: Sequence[int] | None) -> str:
    if allowed is None:
        return "New jobs may use all GPUs.\n"
    if not allowed:
        return "New jobs may use no GPU.\n"
    return f"New jobs may use only {named(sorted(set(allowed)))}; running jobs keep theirs.\n"


def show_gpus(lines: Sequence[GpuLine], drained: str | None) -> str:
    """One line per GPU: index, status and notes, separated by tabs, so that `cut` can split them."""
    text = "".join(f"{line.index}\t{line.status}\t{'; '.join(line.notes)}".rstrip() + "\n" for line in lines)
    return (text or NONE) + drained_note(drained)


def drain_line(gpus: Sequence[int] | None, reason: str, *, on: bool, left: Sequence[int] = ()) -> str:
    """What a drain or a resume did. `left`: GPUs that are still drained, each by itself."""
    why = f" ({reason})" if reason else ""
    if gpus is None:
        return f"No new jobs start{why}; running jobs continue.\n" if on else _resumed(left)
    verb = "get" if len(gpus) > 1 else "gets"
    return f"{named(gpus)} {verb} no new jobs{why}.\n" if on else f"{named(gpus)} {verb} jobs again.\n"


def _resumed(left: Sequence[int]) -> str:
    if not left:
        return "Jobs start again.\n"
    verb = "stay" if len(left) > 1 else "stays"
    indices = ",".join(map(str, left))
    return f"Jobs start again. {named(left)} {verb} drained (gctl resume --gpu {indices}).\n"


def named(gpus: Sequence[int]) -> str:
    """`GPU 3`, `GPUs 1,3`."""
    return f"GPU{'s' if len(gpus) > 1 else ''} {','.join(map(str, gpus))}"


def limit_line(jobs: Sequence[Job], limit: int) -> str:
    what = f"of array {jobs[0].label}'s tasks" if jobs[0].is_array else f"of these {len(jobs)} jobs"
    return f"At most {limit} {what} may run at once.\n" if limit else f"Any number {what} may run at once.\n"


LIMITS = (
    ("max_running_jobs", "running_jobs"),
    ("max_running_gpus", "running_gpus"),
    ("max_queued_jobs", "queued_jobs"),
)
# Columns of a timeline.
SLOTS = 48


def quota_page(lines: Sequence[QuotaLine], *, may_set: bool) -> str:
    """One line per quota: used/limit, `-` for no limit. `may_set`: whether the user may make quotas."""
    if not lines:
        how = " gctl quota set --user ann --max-running-gpus 4 makes one." if may_set else ""
        return f"There are no quotas.{how}\n"
    sheet = Sheet(("SCOPE", "NAME", "RUNNING", "GPUS", "QUEUED"))
    for line in lines:
        cells = [_cell(line, limit, used) for limit, used in LIMITS]
        sheet.add((line.scope, line.name or "(default)", *cells))
    return "".join(sheet.lines())


def _cell(line: QuotaLine, limit: str, used: str) -> str:
    most = "-" if getattr(line, limit) is None else str(getattr(line, limit))
    return f"{getattr(line, used)}/{most}" if line.name else most


def quota_line(now: QuotaAnswer, *, removed: bool) -> str:
    others = f"Each {now.scope} without {'their' if now.scope == 'user' else 'its'} own quota"
    whose = f"{now.scope.capitalize()} {now.name}" if now.name else others
    if removed:
        default = f"There is no default quota for {now.scope}s any more.\n"
        return f"{whose} no longer has a quota.\n" if now.name else default
    words = {
        "max_running_jobs": "running job",
        "max_running_gpus": "GPU",
        "max_queued_jobs": "waiting job",
    }
    limits = ((getattr(now, name), word) for name, word in words.items())
    parts = [f"{limit} {word}{'' if limit == 1 else 's'}" for limit, word in limits if limit is not None]
    return f"{whose} may have at most {', '.join(parts)} at once; running jobs continue.\n"


def reservation_page(views: Sequence[ReservationAnswer]) -> str:
    if not views:
        return "There are no reservations.\n"
    sheet = Sheet(("ID", "USER", "GPUS", "START", "END", "STATUS"))
    for view in views:
        sheet.add(
            (
                str(view.id), view.user, _indices(view), _moment(view.start_time),
                _moment(view.end_time), view.status,
            )
        )  # fmt: skip
    return "".join(sheet.lines())


def reservation_line(view: ReservationAnswer, stops: Sequence[str] = (), *, is_plan: bool = False) -> str:
    """A reservation that was made. `stops`: jobs of other users that are evicted if they run at its start."""
    span = clock(view.end_time - view.start_time)
    jobs = f"Jobs {', '.join(stops)} have" if len(stops) > 1 else f"Job {''.join(stops)} has"
    warning = f"{jobs} them and will be stopped when it begins.\n" if stops else ""
    many = "GPUs" if len(view.gpu_indices) > 1 else "GPU"
    name = "Not reserved yet" if is_plan else f"Reservation {view.id}"
    return (
        f"{name}: {many} {_indices(view)} for {view.user}, "
        f"from {_moment(view.start_time)} for {span}.\n" + warning
    )


def timeline(views: Sequence[ReservationAnswer], span: tuple[float, float]) -> str:
    """One bar per reservation within a time span."""
    begin, end = span[0], max(span[1], span[0] + 1)
    step = (end - begin) / SLOTS
    sheet = Sheet(("ID", "USER", "GPUS", f"{_moment(begin)} to {_moment(end)}, a column is {clock(step)}"))
    for view in views:
        if view.end_time > begin and view.start_time < end and view.status != "cancelled":
            edges = [begin + slot * step for slot in range(SLOTS + 1)]
            bar = "".join(
                "#" if view.start_time < right and left < view.end_time else "."
                for left, right in pairwise(edges)
            )
            sheet.add((str(view.id), view.user, _indices(view), bar))
    return "".join(sheet.lines())


def _indices(view: ReservationAnswer) -> str:
    return ",".join(map(str, view.gpu_indices))


def _moment(seconds: float) -> str:
    return moment(seconds, to_minutes=True)


DAY = len("2026-01-31")


def new_token_text(new: NewTokenAnswer, *, listens: bool) -> str:
    """A new token. The first line is only the token, for scripts."""
    lines = [new.token, f"It is valid until {new.expires_at[:DAY]}. It is not shown again: keep it safe."]
    if not listens:
        lines.append("(The daemon does not listen on a port yet: set daemon.port.)")
    return "".join(line + "\n" for line in lines)


def token_table(tokens: Sequence[TokenView]) -> str:
    if not tokens:
        return "No tokens.\n"
    rows = [(one.id, one.name, one.user, one.made_at[:DAY], one.expires_at[:DAY]) for one in tokens]
    return table(("ID", "NAME", "USER", "CREATED", "EXPIRES"), rows)


def revoked_line(number: str, name: str) -> str:
    return f"Token {number}{f' ({clean(name)})' if name else ''} is revoked.\n"
