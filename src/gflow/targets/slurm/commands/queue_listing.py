"""The active Slurm jobs of an account, for users to read: also jobs that gflow did not submit. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gflow.targets.slurm.commands.identities import MARK

# Comments and names may hold any character, so they come last.
LISTING_FORMAT = "%i|%T|%M|%l|%D|%P|%b|%R|%k|%j"
NOTHING = frozenset({"(null)", "N/A", ""})


class ListedJob(NamedTuple):
    """One line of squeue: a job, a task of an array, or its tasks that wait (`123_[4-9]`)."""

    id: str
    state: str
    time: str
    time_limit: str
    node_count: str
    partition: str
    gres: str
    # Its nodes, or in brackets why it waits.
    place: str
    comment: str
    name: str

    @property
    def nodes(self) -> int:
        return int(self.node_count)

    @property
    def number(self) -> str:
        """The id of the job, or of the array that it belongs to."""
        return self.id.partition("_")[0]


class Submitter(NamedTuple):
    """What submitted a job: gflow, other_gflow or slurm. `label`: its job, if it is one of this daemon."""

    by: str
    label: str = ""


def parse_listing(text: str) -> list[ListedJob]:
    """Parse the output of squeue; malformed lines are skipped."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|", 9)]
        if len(fields) == 10 and fields[4].isdecimal():
            plain = ["" if field in NOTHING else field for field in fields]
            found.append(ListedJob(*plain))
    return found


def submitter_of(listed: ListedJob, daemon: str, numbers: Mapping[str, str]) -> Submitter:
    """Who submitted a job. `numbers`: labels of this daemon's jobs by Slurm's number, for sites that rewrite
    the comment of a job."""
    words = listed.comment.split(":")
    if listed.comment.startswith(MARK) and len(words) == 4:
        if words[1] != daemon:
            return Submitter("other_gflow")
        return Submitter("gflow", _label(words[2].rpartition(".")[0], listed.id))
    if listed.number in numbers:
        return Submitter("gflow", _label(numbers[listed.number], listed.id))
    return Submitter("slurm")


def _label(label: str, id: str) -> str:
    """The label of a task, if the Slurm job is a task of a whole array."""
    task = id.partition("_")[2]
    return f"{label}_{task}" if task.isdecimal() and "_" not in label else label
