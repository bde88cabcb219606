"""gflow scale: which sizes, what a run's meter tells, how well it scales, and what is in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gflow.cli.tools import scale
from gflow.errors import UsageError
from gflow.ml.scale.analysis import analyse, kind_of, mark_of
from gflow.ml.scale.measurement import Measurement, from_clock, from_meter
from gflow.ml.scale.runner import ScaleRequest, command
from gflow.ml.scale.sizes import Size, sizes_of
from gflow.ml.train.metering import PRINTED, Meter, printed_lines
from gflow.text.scaling import scaling_page


def one(gpus: int, rate: float, batch: float | None = None, **more) -> Measurement:
    step = None if batch is None else batch / rate
    return Measurement(
        size=Size(1, gpus),
        source="gflow.train",
        samples_per_s=rate,
        seconds=1.0,
        samples=int(rate),
        step_s=step,
        effective_batch=batch,
        **more,
    )


def test_sizes_are_sorted_and_each_is_there_once():
    assert [size.shape for size in sizes_of("4,1,1", "n2_gpu2,n1_gpu1", "")] == [
        "n1_gpu1",
        "n1_gpu4",
        "n2_gpu2",
    ]
    assert [size.what for size in sizes_of("", "", "1,2")] == ["1 process", "2 processes"]
    assert Size(2, 4).what == "8 GPUs on 2 nodes"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "1"], "two sizes"),
        (["--gpus", "1,x"], "'x' is no number"),
        (["--gpus", "0,1"], "'0' is no number"),
        (["--gpus", "1,2", "--processes", "1,2"], "without GPUs"),
        (["--shape", "n1_gpu0,n2_gpu1"], "no GPU in it"),
        (["--shape", "n1_gpu1,n2_gpu1"], "several nodes need a cluster"),
        (["--gpus", "1,2", "--samples", "x"], "not a number of samples"),
        (["--gpus", "1,2", "--samples", "5/day"], "not a number of samples"),
        (["--gpus", "1,2", "--direct", "--on", "slurm"], "cannot be combined with --on"),
        (["--gpus", "1,2", "--direct", "--job", "--time 1"], "cannot be combined with --job"),
        (["--gpus", "1,2", "--plot", "a.txt"], "not an image file"),
    ],
)
def test_refusals_before_anything_runs(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GFLOW_JOB_ID", raising=False)
    with pytest.raises(UsageError, match=said):
        scale.run([*words, "--", sys.executable])
    assert os.listdir(tmp_path) == []


def meter(ticks: list[tuple[float, int, int]], facts: dict | None = None) -> str:
    lines = [{"at": at, "step": step, "samples": samples} for at, step, samples in ticks]
    return "".join(json.dumps(line) + "\n" for line in [*lines, *([{"facts": facts}] if facts else [])])


def test_a_script_s_own_words_count_after_the_warm_up():
    text = meter([(0.0, 1, 8), (100.0, 3, 24), (101.0, 5, 40), (103.0, 9, 72)]) + '{"at": 10'
    found = from_meter(Size(1, 2), text, warmup=2)
    assert (found.samples_per_s, found.step_s, found.effective_batch) == (16.0, 0.5, 8.0)
    assert found.source == "train.report"
    assert from_meter(Size(1, 2), text, warmup=8) is None
    assert from_meter(Size(1, 2), "", warmup=1) is None


def test_meter_file_of_gflow_train():
    facts = {
        "data_s": 0.01,
        "exchange_s": 0.02,
        "exchange_bytes": 5,
        "processes": 2,
        "cores": 4,
        "device": "cpu",
    }
    found = from_meter(Size(1, 2), meter([(1.0, 5, 50), (3.0, 25, 250)], facts), warmup=5)
    assert (found.source, found.samples_per_s, found.data_s) == ("gflow.train", 100.0, 0.01)


def test_a_meter_writes_what_is_read(tmp_path):
    kept = Meter(str(tmp_path / "m"), 1, 1.0)
    for step in range(1, 4):
        kept.tick(step, step * 8, always=True)
    kept.tick(4, 32)  # too soon after the last one
    found = from_meter(Size(1, 1), (tmp_path / "m").read_text(), warmup=1)
    assert (found.samples, found.effective_batch) == (8, 8.0)
    Meter(str(tmp_path / "nowhere" / "m"), 1, 1.0).tick(1, 1)  # never fails


def test_run_without_a_shared_folder_prints_its_meter(capfd):
    kept = Meter(PRINTED, 1, 1.0)
    print("epoch 1 of 3", end="", flush=True)
    for step in range(1, 4):
        kept.tick(step, step * 8, always=True)
    kept.facts({"cores": 4})
    text = printed_lines(capfd.readouterr().out + '{"loss": 1}\n{"at": 1')
    assert text.count("\n") == 4
    found = from_meter(Size(1, 1), text, warmup=1)
    assert (found.samples, found.cores) == (16, 4)
    words = command(ScaleRequest(("train.py",), "/nowhere", is_elsewhere=True), Size(2, 1), "/nowhere/m", 0)
    assert words[0] == "env" and "GFLOW_METER=-" in words
    assert words[-5:] == ["gflow", "launch", "--gpus", "1", "train.py"]


@pytest.mark.parametrize(("part", "mark"), [(0.95, "good"), (0.949, "fair"), (0.85, "fair"), (0.849, "poor")])
def test_efficiency_marks(part, mark):
    assert mark_of(part) == mark


def test_speed_up_and_efficiency_against_the_smallest():
    rows = analyse([one(2, 100.0), one(4, 180.0), one(8, 320.0)]).rows
    assert [(row.speedup, round(row.efficiency, 3)) for row in rows] == [(1.0, 1.0), (1.8, 0.9), (3.2, 0.8)]


@pytest.mark.parametrize(
    ("batches", "kind"),
    [
        ((32, 32, 31.9), "strong"),
        ((32, 64, 128), "weak"),
        ((32, 48, 128), "mixed"),
        ((None, 2, 2), "unknown"),
    ],
)
def test_weak_and_strong(batches, kind):
    found = [one(gpus, 10.0, batch) for gpus, batch in zip((1, 2, 4), batches, strict=True)]
    assert kind_of(found, "unknown") == kind


def named(base: Measurement, most: Measurement, control: Measurement | None = None) -> str:
    return analyse([base, most], control).bottleneck.name


def test_the_bottleneck_is_what_explains_the_time_that_is_lost():
    base = one(1, 100.0, 10, data_s=0.001)  # 100 ms a step; on 4 GPUs 40 samples should take as long
    slow = {"device": "cuda", "processes": 4, "cores": 8}
    assert named(base, one(4, 396.0, 40, data_s=0.001, **slow)) == "none"
    # 200 ms instead of 100: who has taken them?
    assert named(base, one(4, 200.0, 40, data_s=0.09, exchange_s=0.01, **slow)) == "data loading"
    assert named(base, one(4, 200.0, 40, data_s=0.001, exchange_s=0.08, **slow)) == "communication"
    assert named(base, one(4, 200.0, 40, data_s=0.001, exchange_s=0.03, **slow)) == "not known"
    assert named(base, one(4, 200.0, 40, **slow)) == "not known"
    assert named(base, one(4, 200.0, **slow)) == "not known"


def test_a_small_batch_is_named_only_if_it_was_tried():
    base, most = one(1, 100.0, 40), one(4, 200.0, 40, exchange_s=0.01)  # 10 samples on each: 200 ms, not 100
    assert named(base, most) == "not known"
    assert named(base, most, control=one(1, 55.0, 10)) == "batch too small"
    assert named(base, most, control=one(1, 99.0, 10)) == "not known"


def test_more_processes_than_cores_cannot_scale():
    crowded = one(4, 200.0, 40, device="cpu", processes=4, cores=2, exchange_s=0.2)
    assert named(one(1, 100.0, 10), crowded) == "CPU cores"
    beside_others = one(2, 100.0, 20, device="cpu", processes=2, cores=2, load=7.5)
    assert "other work keeps the 2 cores" in analyse([one(1, 100.0, 10), beside_others]).bottleneck.why
    assert (
        named(one(1, 100.0, 10), one(2, 100.0, 20, device="cuda", processes=2, cores=2, load=7.5))
        == "not known"
    )


def test_more_than_there_can_be_is_called_so():
    assert "more than there can be" in analyse([one(1, 10.0, 1), one(2, 40.0, 2)]).bottleneck.why


def test_the_page_says_what_was_measured_and_how():
    found = analyse([from_clock(Size(1, 1), 100, 10.0), from_clock(Size(2, 1), 100, 8.0)], declared="strong")
    text = scaling_page(found, 5)
    assert "by wall time of each whole run, including startup and loading" in text
    assert "strong scaling" in text and "62%" in text and "poor" in text
    assert "Bottleneck: not known: only the whole time of each run was measured." in text
    large = [one(gpus, 123456.0 * gpus, 4096 * gpus, data_s=0.01234, exchange_s=0.0999) for gpus in (1, 128)]
    for page in (scaling_page(found, 5, 80), scaling_page(analyse(large), 5, 80)):
        assert max(map(len, page.splitlines())) <= 80


def test_run_command_has_meter_variables():
    words = command(ScaleRequest(("train.py",), "/f", seconds=3), Size(2, 4), "/f/m", 64)
    assert words[0] == "env" and {"GFLOW_METER=/f/m", "GFLOW_METER_SECONDS=3"} <= set(words)
    assert "GFLOW_EFFECTIVE_BATCH=64" in words
    assert words[-4:] == ["launch", "--gpus", "4", "train.py"]


SCRIPT = """
import os, time
from gflow.ml.train.progress import report
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
for step in range(1, 13):
    time.sleep(0.15)
    if rank == 0:
        report(step, samples=step * 8 * world)
"""


def scaled(tmp_path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "fails.py").write_text(
        "import os, sys\nsys.exit('so it is' if os.environ['WORLD_SIZE'] != '1' else 0)"
    )
    path = f"{os.path.dirname(sys.executable)}:/usr/bin:/bin"
    return subprocess.run(
        [sys.executable, "-m", "gflow", "gflow", "scale", "--direct", *words],
        cwd=tmp_path,
        env={"PATH": path, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_script_that_reports_is_measured(tmp_path):
    done = scaled(tmp_path, "--processes", "1,2", "--json", "--warmup", "2", "--", "train.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kind"] == "weak"
    assert [row["measured"]["effective_batch"] for row in found["rows"]] == [8.0, 16.0]
    # It sleeps, so two do twice as much as one; a loaded machine may take its time.
    assert 0.5 < found["rows"][1]["efficiency"] < 2
    assert "1 of 2: 1 process" in done.stderr
    assert not [name for name in os.listdir(tmp_path) if "scale" in name]


def test_a_script_that_tells_nothing_needs_its_samples_declared(tmp_path):
    (tmp_path / "quiet.py").write_text("")
    refused = scaled(tmp_path, "--processes", "1,2", "quiet.py")
    assert refused.returncode == 1 and "--samples N" in refused.stderr
    done = scaled(tmp_path, "--processes", "1,2", "--samples", "10/gpu", "quiet.py")
    assert "weak scaling" in done.stdout and "by wall time" in done.stdout


def test_a_run_that_fails_shows_what_it_printed(tmp_path):
    done = scaled(tmp_path, "--processes", "1,2", "--samples", "10", "fails.py")
    assert done.returncode == 1 and done.stdout == ""
    assert "the run with 2 processes failed with code 1" in done.stderr and "so it is" in done.stderr


def test_a_size_that_cannot_run_is_refused_before_anything_runs(tmp_path):
    refused = scaled(tmp_path, "--gpus", "1,4096", "train.py")
    assert refused.returncode == 1 and "--gpus" in refused.stderr and " has " in refused.stderr
    assert "1 of 2" not in refused.stderr
