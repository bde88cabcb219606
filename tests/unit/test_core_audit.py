"""One request about many jobs makes one audit entry."""

import pytest

from gflow.core.model import AuditEntry
from gflow.core.queries.audit_log import FEW, group_entries, of_job, spread, spread_all
from tests.unit.builders import job_key


def lines(keys, what="updated", detail="priority = 5"):
    return [AuditEntry(1.0, key, 1000, "cli", what, detail) for key in keys]


JOBS = [job_key(number) for number in (*range(3, 30), 40, 50, 51)]
TASKS = [job_key(60, task) for task in (*range(10), 20)]


@pytest.mark.parametrize("what", ["held", "released", "updated"])
@pytest.mark.parametrize("detail", ["", "priority = 5", "comment = 3 jobs 1-2: no\nother line: x"])
def test_many_equal_lines_become_one_that_names_the_jobs(what, detail):
    told = lines(JOBS + TASKS, what, detail)
    (line,) = group_entries(told)
    assert line.key is None
    assert line.detail.startswith("41 jobs 3-29,40,50-51,60_0-60_9,60_20")
    assert spread(line) == told
    for key in JOBS + TASKS:
        assert of_job(line, key) == told[0]._replace(key=key)
    for key in (job_key(2), job_key(30), job_key(60), job_key(60, 11), job_key(5, 1)):
        assert of_job(line, key) is None


def test_few_lines_and_those_of_other_things_stay():
    few = lines(JOBS[:FEW])
    others = [*lines(JOBS, "started", ""), AuditEntry(1.0, None, None, "daemon", "gpu", "20 jobs 1-20: no")]
    assert group_entries(few + others) == few + others
    assert [one for line in others for one in spread(line)] == others
    assert of_job(others[-1], job_key(3)) is None


def test_line_of_many_stands_where_the_first_of_them_did():
    before, after = lines([job_key(1)], "cancel", ""), lines([job_key(2)], "started", "")
    told = group_entries(before + lines(JOBS) + after)
    assert [line.what for line in told] == ["cancel", "updated", "started"]


def test_spread_ends_with_a_whole_line():
    (line,) = group_entries(lines(JOBS))
    found = spread_all([(7, line), (8, line), (9, line)], len(JOBS) + 1)
    assert [number for number, _, _ in found] == [7] * len(JOBS) + [8] * len(JOBS)
    assert [number for number, _, is_last in found if is_last] == [7, 8]
