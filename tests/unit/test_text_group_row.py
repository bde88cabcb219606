"""The line of gqueue for a group."""

import pytest

from gflow.core.forecast.explain import Blocker
from gflow.core.model import Moment
from gflow.core.queries.group_summary import GroupCounts, GroupSummary
from gflow.text.group_row import GroupLine, bar, group_row_maker, group_state
from gflow.text.queue import COLUMNS, DEFAULT, row_maker, with_progress

from .builders import NOON, job, running

NOW = Moment(NOON + 3610, 3610.0)
COUNTS = GroupCounts(running=12, waiting=150, finished=30, failed=8)


def cells(columns, shown, *, why=None, has_one_name=True, **fields):
    usual = {
        "counts": COUNTS,
        "progress": 0.19,
        "left_s": 4800.0,
        "started_at": NOON + 10,
        "finished_at": None,
    }
    line = GroupLine(shown.spec.group, GroupSummary(**usual | fields), has_one_name)
    row = group_row_maker(columns, NOW, {shown.key: line}, row_maker(columns, NOW))
    assert row((job(999), None)) == row_maker(columns, NOW)((job(999), None)), "other jobs are unchanged"
    return row((shown, why))


@pytest.mark.parametrize(
    ("columns", "shown", "more", "row"),
    [
        (DEFAULT, running(116, 0, group=116, name="lr0.1", name_template="lr{lr}"), {},
         ["g116", "lr{lr}", "R", "01:00:00", "1", "12R 150PD 30CD 8F [#-------] 19% 01:20:00 left"]),
        (with_progress(DEFAULT, has_loss=True), running(116, 0, group=116, default_name="train.py"), {},
         ["g116", "train.py", "R", "01:00:00", "1", "19%", "01:20:00", "-", "12R 150PD 30CD 8F [#-------]"]),
        (DEFAULT, job(116, group=116, name="a"),
         {"counts": GroupCounts(waiting=2), "progress": 0.0, "left_s": None, "started_at": None,
          "why": Blocker("Resources"), "has_one_name": False},
         ["g116", "a, …", "PD", "-", "0", "2PD (Resources) [--------] 0%"]),
        (DEFAULT, job(42, task=3, group=-42, name="a"), {"left_s": None},
         ["42", "a", "R", "01:00:00", "0", "12R 150PD 30CD 8F [#-------] 19%"]),
        (("JOBID", "USER", "PARAMS", "COMMAND", "val_loss", "END"),
         job(5, group=5, template=("echo", "{x}"), command=("echo", "1"), parameters=(("x", "1"),)), {},
         ["g5", "ann", "-", "echo '{x}'", "-", "-"]),
    ],
    ids=["sweep", "progress", "waiting", "array", "columns"],
)  # fmt: skip
def test_cells_of_a_group(columns, shown, more, row):
    assert cells(columns, shown, **more) == row


def test_every_column_has_a_cell():
    assert all(isinstance(cell, str) and cell for cell in cells(tuple(COLUMNS), running(1, 0, group=1)))


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        (COUNTS, "Running"),
        (GroupCounts(waiting=1, held=1, failed=1), "Queued"),
        (GroupCounts(held=1, failed=1), "Hold"),
        (GroupCounts(failed=1, finished=5), "Failed"),
        (GroupCounts(finished=5, cancelled=1), "Finished"),
        (GroupCounts(cancelled=1), "Cancelled"),
    ],
)
def test_state_of_a_group(counts, state):
    assert group_state(counts).value == state


@pytest.mark.parametrize(("part", "text"), [(0, "[----]"), (0.3, "[#---]"), (0.999, "[###-]"), (1, "[####]")])
def test_a_bar_is_full_only_at_the_end(part, text):
    assert bar(part, 4) == text
