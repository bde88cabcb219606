"""Evidence of failed jobs besides their logs: GPU events, memory, disks, earlier attempts, other jobs."""

from __future__ import annotations

import pytest

from gflow.core.ids import JobKey
from gflow.core.model import JobState
from gflow.daemon.api.end_facts import OtherEnd, is_of_earlier
from gflow.daemon.execution.log_diagnosis import look_at_disks, read_end, read_plan
from gflow.diagnosis.circumstances import BatchPlan, Circumstances, Disk, GpuFault, GpuUse, RunsOnGpu
from gflow.diagnosis.cuda_oom import advise, parse_cuda_oom
from gflow.diagnosis.diagnose import diagnose
from gflow.diagnosis.finding import JobFacts
from gflow.diagnosis.job_end import batch_of, circumstances_of
from gflow.store import samples
from gflow.targets.file_rights import OWN_FILES
from gflow.text.diagnosis import diagnosis_page

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.15 GiB of which 1.10 GiB is free. Process 77 has 20.00 GiB memory in use. Including non-PyTorch "
    "memory, this process has 58.05 GiB memory in use. Of the allocated memory 50.20 GiB is allocated by "
    "PyTorch, and 7.00 GiB is reserved by PyTorch but unallocated."
)
OLD_OOM = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.76 GiB total capacity; "
    "13.46 GiB already allocated; 11.75 MiB free; 13.80 GiB reserved in total by PyTorch)"
)
FULL_OOM = OOM.replace("7.00 GiB is reserved", "100.00 MiB is reserved").replace(
    "Process 77 has 20.00 GiB memory in use. ", ""
)
KILLED = JobFacts("9", "Failed", "Signal", "9", None, 9)


def first(facts: JobFacts, text: str, around: Circumstances):
    return diagnose(facts, text, around).findings[0]


def test_figures_of_an_oom_are_read() -> None:
    oom = parse_cuda_oom(OOM)
    assert (oom.tried, oom.free, oom.unused) == (2048.0, 1126.4, 7168.0)
    assert oom.others == ((77, 20480.0),) and oom.is_fragmented
    old = parse_cuda_oom(OLD_OOM)
    assert (old.total, old.free) == (pytest.approx(15114.24), 11.75)
    assert old.unused == pytest.approx(0.34 * 1024) and old.is_fragmented


def test_figures_are_in_the_finding() -> None:
    found = first(JobFacts(exit_code=1), OOM, Circumstances(gpus=(GpuUse(2, 59443, 81050),)))
    assert found.figures["tried_mib"] == 2048.0 and found.figures["others_mib"] == 20480.0
    assert found.support[0].text == "peak of the job on GPU 2: 58.0 GiB of 79.2 GiB"
    assert "other processes (77) hold 20.0 GiB" in found.advice[0]
    assert "expandable_segments:True" in found.advice[1]


def test_fragments_and_limits_are_said_instead_of_a_full_gpu() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity "
        "of 139.80 GiB of which 119.79 GiB is free. Including non-PyTorch memory, this process has 20.01 GiB "
        "memory in use. 20.00 GiB allowed; Of the allocated memory 10.66 GiB is allocated by PyTorch, and "
        "8.84 GiB is reserved by PyTorch but unallocated."
    )
    assert "no piece of 4.0 GiB: 8.8 GiB" in first(JobFacts(exit_code=1), text, Circumstances()).summary
    limited = first(JobFacts(exit_code=1), text.replace("8.84", "1.84"), Circumstances())
    assert limited.summary == "The process needed 4.0 GiB more than it may use of the GPU."
    assert "may use 20.0 GiB of the GPU" in limited.advice[0]
    assert "ran out of memory" in first(JobFacts(exit_code=1), OLD_OOM, Circumstances()).summary


def test_the_message_of_an_illegal_access_is_the_evidence() -> None:
    text = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    text += "Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com for more information.\n"
    assert first(JobFacts(exit_code=1), text, Circumstances()).evidence.line == 0


def test_expandable_segments_are_not_advised_twice() -> None:
    around = Circumstances(allocator="max_split_size_mb:512,expandable_segments:True")
    (_, pieces, *_) = first(JobFacts(exit_code=1), OOM, around).advice
    assert "although expandable_segments is set" in pieces


def test_the_batch_of_the_plan_is_advised() -> None:
    around = Circumstances(batch=64, plan=BatchPlan("p.json", 16), predicted_mib=40960)
    found = first(JobFacts(exit_code=1), FULL_OOM, around)
    assert found.advice[0].startswith("use the batch of the plan, 16 on each GPU")
    assert found.support[0].text == "gflow fit predicted 40.0 GiB"


def test_without_a_plan_the_largest_batch_is_not_guessed() -> None:
    advice = advise(parse_cuda_oom(FULL_OOM), Circumstances(batch=64), "")
    assert advice == [
        "halve the batch of 64 and accumulate over two; gflow fit predicts the largest that fits"
    ]
    assert advise(parse_cuda_oom(FULL_OOM), Circumstances(), "") == []


def test_memory_without_the_batch_tells_whether_any_fits() -> None:
    line = "gflow.train: out of GPU memory with a batch of 64; 10.00 GiB do not depend on it"
    assert advise(parse_cuda_oom(FULL_OOM), Circumstances(), line)[0].startswith(
        "all but 10.0 GiB depends on"
    )
    none = advise(parse_cuda_oom(FULL_OOM), Circumstances(), line.replace("10.00", "50.00"))
    assert "no batch fits" in none[0]


def test_a_plan_is_read_from_the_command(tmp_path) -> None:
    (tmp_path / "p.json").write_text('{"chosen": {"micro_batch": 16}}')
    assert read_plan(["gflow", "launch", "--plan", "p.json", "t.py"], str(tmp_path), OWN_FILES) == (
        "p.json",
        16,
    )
    (tmp_path / "p.json").write_text("[]")
    assert read_plan(["gflow launch --plan=p.json t.py"], str(tmp_path), OWN_FILES) is None
    assert read_plan(["python", "t.py", "--plan"], str(tmp_path), OWN_FILES) is None


def test_a_tensor_larger_than_the_gpu_is_no_matter_of_the_batch() -> None:
    text = FULL_OOM.replace("Tried to allocate 2.00 GiB", "Tried to allocate 200.00 GiB")
    assert "larger than the GPU" in advise(parse_cuda_oom(text), Circumstances(), "")[0]


def test_kill_at_the_memory_limit_is_certain_and_far_below_it_possible() -> None:
    near = first(KILLED, "", Circumstances(peak_mib=4000, limit_mib=4096))
    assert (near.cause, near.confidence.name) == ("host-oom", "CERTAIN")
    assert near.support[0].source == "memory"
    far = first(KILLED, "", Circumstances(peak_mib=100, limit_mib=4096))
    assert far.confidence.name == "POSSIBLE"
    alone = first(KILLED, "", Circumstances(peak_mib=100, host_mib=65536))
    assert alone.confidence.name == "POSSIBLE" and alone.support[0].text.endswith("; the job has no limit")
    assert first(KILLED, "", Circumstances(peak_mib=64000, host_mib=65536)).confidence.name == "CERTAIN"


def test_sampled_peak_below_what_the_process_had_is_no_evidence() -> None:
    peaks = {mib: Circumstances(gpus=(GpuUse(0, mib, 81_000),)) for mib in (18_432, 59_000)}
    texts = {mib: [one.text for one in first(JobFacts(), OOM, peak).support] for mib, peak in peaks.items()}
    assert texts == {18_432: [], 59_000: ["peak of the job on GPU 0: 57.6 GiB of 79.1 GiB"]}


def test_advice_to_ask_for_gpus_is_for_jobs_without() -> None:
    text = "AssertionError: Torch not compiled with CUDA enabled"
    advice = [diagnose(JobFacts("7", has_gpus=has), text).findings[0].advice for has in (False, True)]
    assert advice[0][0].endswith("gjob redo 7 --gpus 1") and advice[1] == advice[0][1:]


SUCCESS, FAILURE = JobState.FINISHED.value, JobState.FAILED.value


@pytest.mark.parametrize(
    ("at", "earlier", "is_of_earlier_job"),
    [
        (1000, [(FAILURE, 999.9)], True),  # read in the same second as the next job's start
        (1001, [(FAILURE, 999.9)], True),
        (1003, [(FAILURE, 999.9)], False),  # the next job has run for three seconds
        (1001, [(SUCCESS, 999.9)], False),
        (1001, [(FAILURE, 990.0)], False),
        (1001, [], False),
        (1001, [(FAILURE, 1001.5)], False),  # the next job has failed, too
    ],
)
def test_late_report_of_the_driver_belongs_to_the_job_before(at, earlier, is_of_earlier_job) -> None:
    ends = [OtherEnd(JobKey(1 << 32), 0, frozenset({0}), state, when) for state, when in earlier]
    assert is_of_earlier(samples.GpuFault(0, at, "Xid 31"), 1000.0, ends) is is_of_earlier_job
    assert not is_of_earlier(samples.GpuFault(1, at, "Xid 31"), 1000.0, ends)


def test_an_xid_of_the_card_explains_more_than_the_log() -> None:
    events = (GpuFault(3, "2026-01-01T10:00:00Z", "Xid 79"),)
    found = diagnose(
        JobFacts("9", exit_code=1),
        "RuntimeError: CUDA error: an illegal memory access was encountered\n",
        Circumstances(gpu_faults=events),
    ).findings
    assert [one.cause for one in found] == ["gpu-hardware", "illegal-address"]
    assert found[0].evidence.source == "gpu" and "fell off the bus" in found[0].summary
    assert "gctl drain --gpu 3" in found[0].advice[1] and "gjob redo 9" in found[0].advice[0]


def test_an_xid_of_a_program_supports_its_error_and_explains_a_silent_one() -> None:
    around = Circumstances(gpu_faults=(GpuFault(0, "10:00", "Xid 31"),))
    said = first(JobFacts(exit_code=1), "CUDA error: an illegal memory access was encountered\n", around)
    assert [fact.text for fact in said.support] == ["GPU 0, 10:00: Xid 31"]
    silent = first(JobFacts(exit_code=1), "step 1\n", around)
    assert (silent.cause, silent.confidence.name) == ("illegal-address", "LIKELY")


def test_a_full_disk_is_found_without_a_text() -> None:
    around = Circumstances(disks=(Disk("/data", 0.0, 20480.0),))
    assert first(JobFacts(exit_code=None), "", around).cause == "disk-full"
    found = diagnose(JobFacts(exit_code=1), "ModuleNotFoundError: No module named 'a'\n", around).findings
    assert [one.cause for one in found] == ["missing-module", "disk-full"]
    told = first(JobFacts(exit_code=1), "OSError: [Errno 28] No space left on device: 'a'\n", around)
    assert told.support[0].text == "the file system of /data has 0 MiB of 20.0 GiB free now"
    assert diagnose(JobFacts(state="Finished", exit_code=0), "", around).findings == ()
    inodes = Circumstances(disks=(Disk("/data", 500.0, 20480.0, has_files=False),))
    assert "no inode free" in first(JobFacts(exit_code=None), "", inodes).evidence.text


def test_file_systems_are_looked_at_once(tmp_path) -> None:
    (disk,) = look_at_disks([str(tmp_path), str(tmp_path), "/nonexistent", ""], OWN_FILES)
    assert disk.size_mib > disk.free_mib > 0 and not disk.is_full


@pytest.mark.parametrize(
    ("there", "elsewhere", "is_suspect"),
    [((4, 5), (1, 20), True), ((2, 2), (0, 20), False), ((4, 5), (16, 20), False), ((4, 5), (0, 1), False)],
)
def test_a_gpu_is_suspect_if_jobs_fail_there_and_not_elsewhere(there, elsewhere, is_suspect) -> None:
    around = Circumstances(
        on_gpus=(RunsOnGpu(2, there[1], there[0], ("7", "5")),),
        elsewhere=RunsOnGpu(None, elsewhere[1], elsewhere[0]),
    )
    found = diagnose(JobFacts(exit_code=1), "KeyError: 'x'\n", around).findings
    assert [one.cause for one in found if one.cause == "gpu-suspect"] == ["gpu-suspect"] * is_suspect
    assert found[0].cause == "exception"


def test_earlier_attempts_are_told() -> None:
    around = Circumstances(attempts=("ExitCode:1", "ExitCode:1"))
    found = first(JobFacts(exit_code=1), "ModuleNotFoundError: No module named 'a'\n", around)
    assert found.support[-1].text == "2 earlier attempts of the job: all ExitCode:1"


def test_the_page_names_the_source_of_each_fact() -> None:
    job = {"id": 3, "name": "t", "state": "Failed", "reason": "Signal:9"}
    page = diagnosis_page(
        job, diagnose(KILLED, "", Circumstances(peak_mib=4000, limit_mib=4096, attempts=("Signal:9",))), 1, ""
    )
    assert "  memory: peak of the host memory 3.9 GiB of 4.0 GiB asked for\n" in page
    assert "  history: 1 earlier attempt of the job: Signal:9\n" in page


def test_only_the_last_attempt_of_a_log_is_judged(tmp_path) -> None:
    (tmp_path / "log").write_text("CUDA out of memory\ngflow: attempt 2\nstep 1\nKeyError: 'x'\n")
    end = read_end(str(tmp_path / "log"), OWN_FILES)[2]
    assert end.text == "step 1\nKeyError: 'x'\n" and end.first_line == 3


@pytest.mark.parametrize(
    ("command", "parameters", "batch"),
    [
        (["python", "t.py", "--batch-size", "64"], {}, 64),
        (["python", "t.py", "trainer.batch_size=32"], {}, 32),
        (["python t.py --per_device_train_batch_size=8"], {}, 8),
        (["python", "t.py"], {"bs": "16"}, 16),
        (["python", "t.py", "--batch-size", "auto"], {}, 0),
    ],
)
def test_the_batch_is_read_from_the_command(command, parameters, batch) -> None:
    assert batch_of(command, parameters) == batch


def test_answers_of_older_daemons_have_no_facts() -> None:
    job = {"peak_memory_mib": None, "memory_mib": None, "command": [], "parameters": {}}
    job["gpu_memory_predicted_mib"] = None
    assert circumstances_of(job, {}) == Circumstances()


LAUNCHED = """\
Traceback (most recent call last):
  File "train.py", line 9, in main
    dist.all_reduce(x)
RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:32193
gflow launch: rank 2 exited with code 1; the others were stopped
  [2] Traceback (most recent call last):
  [2]   File "train.py", line 5, in load
  [2]     rows["label"]
  [2] KeyError: 'label'
"""


@pytest.mark.parametrize("prefix", ["", "[rank2]: "], ids=["plain", "of torch"])
def test_the_rank_that_gflow_launch_blames_is_explained(prefix: str) -> None:
    found = diagnose(JobFacts(exit_code=1), LAUNCHED.replace("  [2] ", "  [2] " + prefix)).findings
    assert (found[0].cause, found[0].evidence.rank, found[0].frame.code) == ("exception", 2, 'rows["label"]')
    assert "rank-died" in [one.cause for one in found]
    assert "Rank 2 of the launch failed first" in next(
        one.summary for one in found if one.cause == "rank-died"
    )


def test_the_rank_that_torchrun_blames_is_explained() -> None:
    text = "".join(
        f'[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File "t.py", line {rank}, in f\n'
        f"[rank{rank}]:     g()\n[rank{rank}]: {error}\n"
        for rank, error in ((3, "KeyError: 'x'"), (0, "ValueError: a"))
    )
    text += (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026\n  rank      : 3 (local_rank: 3)\n"
    )
    assert first(JobFacts(exit_code=1), text, Circumstances()).evidence.rank == 3
