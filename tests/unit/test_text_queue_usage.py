"""Columns of gqueue about progress and usage, and its last line."""

from gflow.core.model import Moment
from gflow.store.samples import Batch, Mean, OfJob, Samples, usage_of_jobs
from gflow.text.queue import DEFAULT, nothing_active, row_maker, totals_line, with_progress

from .builders import running

NOW = Moment(wall=0.0, boot=0.0)


def test_progress_stands_before_the_reason():
    assert with_progress(DEFAULT, has_loss=True)[-4:] == ("PROGRESS", "ETA", "LOSS", "NODELIST(REASON)")
    assert with_progress(DEFAULT, has_loss=False)[-3:] == ("PROGRESS", "ETA", "NODELIST(REASON)")


def test_usage_columns():
    job = running(7, 0)
    job.peak_kib = 3 << 20
    names = ("MAXRSS", "GPU%", "GPUMEM")
    assert row_maker(names, NOW)((job, None)) == ["3 GiB", "-", "-"]
    assert row_maker(names, NOW, None, {job.key: (86.6, 20480)})((job, None)) == ["3 GiB", "87%", "20 GiB"]
    assert row_maker(names, NOW, None, {job.key: (None, 0)})((job, None)) == ["3 GiB", "-", "-"]


def test_usage_is_that_of_the_latest_attempt(tmp_path):
    path = tmp_path / "samples.db"
    assert usage_of_jobs(path, ["7"]) == {}
    samples = Samples(path)
    totals = [
        OfJob("7", attempt, gpu, Mean(0, 60, busy, 100, mib, None, None, None, 0))
        for attempt, gpu, busy, mib in [(1, 0, 10.0, 9000), (2, 0, 80.0, 2000), (2, 1, 90.0, 3000)]
    ]
    samples.write(Batch([], [], totals))
    samples.close()
    assert usage_of_jobs(path, ["7", "8"]) == {"7": (85.0, 3000)}


def test_the_last_line():
    assert totals_line(3, 12, 8, 4) == "3 running, 12 waiting; 4 of 8 GPUs in use\n"
    assert totals_line(0, 1, 0, 0) == "0 running, 1 waiting\n"
    assert nothing_active(3) == "no active jobs; 3 ended today: gqueue -a\n"
    assert nothing_active(3, 1) == "no active jobs; 3 ended today, 1 failed: gqueue -a\n"
