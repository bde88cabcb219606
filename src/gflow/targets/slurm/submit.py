"""The clerk submits: each bid once, and again only when Slurm is known not to have it."""

from __future__ import annotations

import logging
import os

from gflow.targets.port import End, Launch
from gflow.targets.slurm import slurm_cli
from gflow.targets.slurm.tracker import (
    LOOK_S,
    Candidate,
    SlurmSubmission,
    Stage,
    Tracker,
    environment_of,
    text_of,
)

log = logging.getLogger("gflow.slurm")
AGAIN_S = 3.0


def submit_all(books: Tracker) -> None:
    """Whatever Slurm does not have yet."""
    for errand in list(books.errands.values()):
        for bid in errand.bids:
            again = not bid.sent_at or books.clock() - bid.sent_at > AGAIN_S
            if bid.stage is Stage.NEW and again and not books.is_down:
                _submit(books, errand, bid)
        if errand.refusal and all(bid.stage is Stage.REFUSED for bid in errand.bids):
            _fail(books, errand)


def _submit(books: Tracker, errand: SlurmSubmission, bid: Candidate) -> None:
    launch, spec = errand.launch, errand.launch.job.spec
    tag = errand.tag(books.daemon, bid.number)
    script = text_of(launch, bid, books.cluster, str(books.desk.folder), tag)
    if problem := _made_folders(launch):
        bid.stage, errand.refusal = Stage.REFUSED, f"StartFailed: {problem}"
        return
    books.desk.put(errand.run.name, "asked")
    bid.stage = Stage.UNSURE
    said = books.slurm.submit(script, environment_of(launch), spec.cwd, spec.umask)
    if said.ok:
        bid.stage, bid.id, bid.sent_at = Stage.SENT, said.text, books.clock()
        books.sight_errand(errand, "Submitted", bid.id)
        books.within(LOOK_S)
        books.pause = 0.0
    elif said.unsure:
        books.went_down(said.error)
    elif books.is_shaky:
        bid.stage, bid.sent_at = Stage.NEW, books.clock()
    else:
        bid.stage = Stage.REFUSED
        errand.refusal = f"StartFailed: Slurm: {slurm_cli.complaint(said.error)}"
        log.warning("%s: %s", errand.run.name, errand.refusal)


def _fail(books: Tracker, errand: SlurmSubmission) -> None:
    """Slurm refused it, so nothing of it ever runs."""
    for unit in list(errand.units.values()):
        if not books.withdraw(unit):
            return
    if errand.is_array:
        books.end_errand(errand)
    else:
        books.end(errand.units[errand.run.name], End(None, None, errand.refusal))


def _made_folders(launch: Launch) -> str:
    """Make the folders of its logs. What cannot be made is a problem that Slurm would not name."""
    for path in {launch.log, launch.error_log}:
        folder = os.path.dirname(path)
        try:
            if "%" not in folder.replace("%%", ""):
                os.makedirs(folder.replace("%%", "%"), exist_ok=True)
        except OSError as error:
            return f"no log at {path}: {error.strerror}"
    return ""
