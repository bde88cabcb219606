"""Samples of one reading per second, and the space they take."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from msgspec.structs import replace

from gflow.core.model import Block
from gflow.daemon.monitors.gpu_samples import History, SampleRetention
from gflow.gpu.aggregation import RunHistory, Stretch
from gflow.gpu.census import Report
from gflow.gpu.port import Card, Sample
from gflow.store.samples import Batch, Mean, OfJob, Samples, faults_of, peaks_of, samples_of
from gflow.text.usage import sparkline, summary, usage_csv, usage_page
from gflow.wire.answers.job_details import UsageAnswer, Used


def sample(busy=50, power=300.0, heat=60):
    return Sample(
        memory_mib=1000, utilisation=busy, power_w=power, temperature=heat, clock_mhz=1200, slowed=1
    )


def test_a_stretch_has_means_and_mosts():
    stretch = Stretch(100)
    for at, busy in enumerate((0, 100, 50)):
        stretch.add(sample(busy, heat=60 + at), 10 * at, 100 + at)
    assert stretch.row(3) == (100, 3, 50, 100, 20, 300, 62, 1200, 0)


def test_missing_meter_has_no_mean():
    stretch = Stretch(0)
    stretch.add(Sample(), 5, 0)
    assert stretch.row(1)[2:4] == (None, None)


def test_samples_are_fine_first_and_coarse_later():
    run = RunHistory(0)
    done = [at for at in range(3 * 3600) if run.add(sample(), 1, at) is not None]
    fine = [at for at in done if at < 60]
    coarse = [at for at in done if at > 1300]
    assert len(fine) == 59 and len(coarse) == pytest.approx((3 * 3600 - 1300) / 60, abs=2)


def test_samples_are_written_read_and_deleted(tmp_path):
    store = Samples(tmp_path / "samples.db")
    mean = Mean(1000, 10, 50.0, 90, 2048, 300.0, 61, 1200.0, 4)
    one = OfJob("42_3", 2, 0, mean, "abc")
    store.write(Batch([(0, mean)], [one], [one]))
    store.write(Batch([], [], [one._replace(mean=mean._replace(memory_mib=4096))]))
    path = tmp_path / "samples.db"
    samples, totals = samples_of(path, "42_3")
    assert samples == [one._replace(kind="")] and totals[0].mean.memory_mib == 4096
    assert samples_of(path, "42") == ([], [])
    assert peaks_of(path, ["abc", "x"]) == {"abc": (4096, 1), "x": (0, 0)}
    store.delete_old(1000 + 3 * 86400, 2, 5)
    assert samples_of(path, "42_3") == ([], totals)


def test_damaged_sample_file_is_replaced(tmp_path):
    path = tmp_path / "samples.db"
    path.write_bytes(b"not a database at all" * 100)
    Samples(path).write(Batch([(0, Mean(1, 1, None, None, 0, None, None, None, 0))], [], []))


def test_a_file_that_is_locked_is_not_damaged(tmp_path, monkeypatch):
    """Nor is one on a full disk: opening it raises an error, and the history stays."""
    path = tmp_path / "samples.db"
    one = OfJob("7", 1, 0, Mean(1, 1, 5.0, 5, 100, 1.0, 1, 1.0, 0))
    with closing(Samples(path)) as written:
        written.write(Batch([], [one], [one]))
    real = sqlite3.connect
    with closing(real(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(
            sqlite3, "connect", lambda *args, **options: real(*args, **options | {"timeout": 0})
        )
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            Samples(path)
    monkeypatch.undo()
    assert samples_of(path, "7") == ([one], [one])


def test_reading_samples_writes_nothing(tmp_path):
    path = tmp_path / "samples.db"
    assert samples_of(path, "7") == ([], [])
    assert not path.exists()
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        samples_of(path, "7")
    assert path.read_bytes() == b"not a database at all" * 100


def test_the_history_of_a_run_from_its_first_look_to_its_end(tmp_path):
    card = Card(uuid="A", number=0, model="", memory_mib=80000, sample=sample(80))
    report = Report(cards={0: card}, used={"7.1": {0: 3000}})
    history = History(tmp_path / "samples.db", SampleRetention(7, 365))
    for at in range(5):
        history.take(report, {0: ("7.1",)}, {"7.1": "kind"}, 5000.0 + at)
    history.take(report._replace(used={}), {}, {}, 5005.0)
    history.close(5006.0)
    samples, totals = samples_of(tmp_path / "samples.db", "7")
    assert [one.mean.at for one in samples] == [5000, 5001, 5002, 5003, 5004]
    assert totals[0].mean[2:5] == (80.0, 80, 3000)
    peaks = peaks_of(tmp_path / "samples.db", ["kind"])
    assert peaks == {"kind": (3000, 1)}, "an end is told without a kind, and it is still of that kind"


def test_a_week_of_eight_gpus_and_their_jobs_is_small(tmp_path):
    """An hour of it, written as it would be; a week is 168 times that at most."""
    store = Samples(tmp_path / "samples.db")
    for at in range(0, 3600, 10):
        mean = Mean(1_800_000_000 + at, 10, 51.3, 90, 20480, 300.7, 61, 1200.1, 4)
        gpus = [(gpu, mean) for gpu in range(8)]
        # A hundred jobs for an hour: half of them are past their first hour, and by the minute then.
        jobs = [OfJob(str(job), 1, job % 8, mean) for job in range(100) if job % 50 == 0 or at % 60 == 0]
        store.write(Batch(gpus, jobs, []))
    store.close()
    week = (tmp_path / "samples.db").stat().st_size * 168
    assert week < 200 << 20, f"{week >> 20} MiB"


def test_sparkline_bars():
    assert sparkline([0, 50, 100], 100) == "▁▅█"
    assert len(sparkline(list(range(1000)), 1000)) == 60
    assert sparkline([0, 0], 0) == "▁▁"


def test_usage_page():
    view = Used(
        at="2026-01-01T00:00:00Z", gpu=0, span_s=10, busy=87.4, busy_most=100, memory_mib=20480,
        power_w=510.2, temperature=61, clock_mhz=1200.0, slowed=["heat (driver)"],
    )  # fmt: skip
    data = UsageAnswer(job=42, predicted_mib=None, samples=[view, view], totals=[view], nodes=None)
    page = usage_page(data)
    assert " ".join(page.splitlines()[1].split()) == "0 10 s 87% 100% 20480 MiB 510 W 61 °C heat (driver)"
    assert "GPU 0 busy    ▇▇" in page
    assert summary([view]) == "87% busy (peak 100%), peak memory 20.0 GiB, 510 W"
    assert (
        usage_csv([view]).splitlines()[1]
        == "2026-01-01T00:00:00Z,0,10,87.4,100,20480,510.2,61,1200.0,heat (driver)"
    )
    assert "no GPU history" in usage_page(replace(data, samples=[], totals=[]))


def test_events_of_gpus_are_recorded_once(tmp_path):
    path = tmp_path / "samples.db"
    history = History(path, SampleRetention(7, 365))
    hot = Report(blocked={1: Block("Unhealthy", "too hot"), 0: Block("Unmanaged", "a process")})
    history.take(Report(xids=((0, 31),)), {}, {}, 5000.0)
    for at in range(3):
        history.take(hot, {}, {}, 5001.0 + at)
    history.close(5006.0)
    assert faults_of(path, (0, 1), 4999.5, 6000.0) == [(0, 5000, "Xid 31"), (1, 5001, "Unhealthy: too hot")]
    assert faults_of(path, (0,), 5001.0, 6000.0) == []
    assert faults_of(tmp_path / "none.db", (0,), 0, 1) == []
