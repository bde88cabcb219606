# ruff: noqa: E501
"""Diagnosis of running jobs: facts in, verdict and findings out."""

from __future__ import annotations

import pytest

from gflow.client.job_processes import ProcessTimes, compare
from gflow.diagnosis.log_text import Frame
from gflow.diagnosis.rules.rule import Confidence
from gflow.diagnosis.slow_runs.run_facts import GpuUse, ProcessUse, RunFacts, StackUse, StepUse
from gflow.diagnosis.slow_runs.run_verdict import judge
from gflow.diagnosis.slow_runs.signs import spell_s
from gflow.diagnosis.slow_runs.slow_rules import RULES, Verdict
from gflow.diagnosis.slow_runs.stack_samples import activity_of, parse_raw, summarize

GPU = GpuUse(
    0, 81920, memory_mib=60000, busy=97.0, busy_most=100, samples=40, power_w=600, power_limit_w=700,
    power_usual_w=700, clock_mhz=1900, clock_most_mhz=1980,
)  # fmt: skip
MAIN = ProcessUse(100, "python", "main", cpu=100, busiest="python", busiest_cpu=99)
WORKER = ProcessUse(200, "pt_data_worker", "worker", cpu=98, busiest="pt_data_worker", busiest_cpu=98)
SHELL = ProcessUse(99, "bash", "main", waits_in="do_wait", state="S")
LINE = Frame("/home/u/train.py", 41, "step", "total += loss.item()")
HEALTHY = RunFacts(
    "7", age_s=300, gpu_count=1, gpus=(GPU,), processes=(MAIN,), cpus=8, log_age_s=4,
    stack=StackUse(50, {"sync": 0.8, "forward": 0.2}, {"sync": LINE}),
    steps=StepUse(300, 1000, age_s=1, usual_s=1.0, earlier_s=0.98, now_s=0.97),
)  # fmt: skip


def gpu(**changed) -> tuple[GpuUse, ...]:
    return (GPU._replace(**changed),)


def main(**changed) -> tuple[ProcessUse, ...]:
    return (MAIN._replace(**changed),)


def stack(**shares: float) -> StackUse:
    return StackUse(50, {name.replace("_", "-"): share for name, share in shares.items()}, {})


NO_STACK = StackUse(missing="py-spy is not installed")
IDLE_GPU = gpu(busy=12.0, power_w=120)
DEAD_GPU = gpu(busy=0.0, power_w=75)
QUIET = main(cpu=0.5, busiest_cpu=0.5)
LATE = StepUse(300, 1000, age_s=200, usual_s=1.0)
THREE_WORKERS = (*main(cpu=20, busiest_cpu=15), WORKER, WORKER._replace(pid=201), WORKER._replace(pid=202))
TWO_GPUS = (GPU, GPU._replace(number=1, busy=0.0, busy_most=0, memory_mib=0))

# A job with simulated GPUs: nothing is known about their use.
BLIND = {"gpus": (), "steps": None, "stack": NO_STACK}

# Changes to the healthy run -> verdict, first cause, confidence (None: not compared).
TABLE = {
    "healthy": ({}, "fine", None, None),
    "healthy without py-spy": ({"stack": NO_STACK}, "fine", None, None),
    "healthy, 62 % busy": ({"gpus": gpu(busy=62.0), "stack": stack(forward=0.2, sync=0.1)}, "fine", None, None),
    "a step that is nine times late": ({"steps": StepUse(300, 0, age_s=89, usual_s=10.0), "gpus": DEAD_GPU,
        "stack": NO_STACK, "processes": main(busiest_cpu=30)}, "slow", "gpu-underused", None),
    "young": ({"age_s": 19.0, "gpus": DEAD_GPU, "processes": QUIET}, "starting", None, None),
    "imports": ({"stack": stack(importing=0.6), "gpus": DEAD_GPU}, "starting", None, None),
    "compiles": ({"stack": stack(compiling=0.6), "gpus": IDLE_GPU}, "starting", None, None),
    # Stuck.
    "stopped": ({"processes": main(is_stopped=True, cpu=0.0)}, "stuck", "stopped", "certain"),
    "stopped and young": ({"processes": main(is_stopped=True), "age_s": 2.0}, "stuck", "stopped", "certain"),
    "stopped below a shell": ({"processes": (SHELL, *main(is_stopped=True, cpu=0.0)), "age_s": 2.0},
        "stuck", "stopped", "certain"),
    "stopped before it took CPU time": ({"processes": (SHELL, *main(is_stopped=True, role="other"))},
        "stuck", "stopped", "certain"),
    "stopped below a shell whose wait is hidden": (
        {"processes": (SHELL._replace(waits_in=""), *main(is_stopped=True))}, "stuck", "stopped", "certain"),
    "a helper is stopped": ({"processes": (MAIN, SHELL, MAIN._replace(role="other", is_stopped=True))},
        "fine", None, None),
    "one rank is stopped": ({"processes": (MAIN, MAIN._replace(pid=101, is_stopped=True)), "ranks": 2},
        "stuck", "stopped", "likely"),
    "only a worker is stopped": ({"processes": (MAIN, WORKER._replace(is_stopped=True))}, "fine", None, None),
    "no step, no CPU, no GPU": ({"steps": LATE, "gpus": DEAD_GPU, "processes": QUIET}, "stuck", "stalled", "likely"),
    "no step, but CPU": ({"steps": LATE, "gpus": DEAD_GPU}, "stuck", "stalled", "possible"),
    "no step while the GPU evaluates": ({"steps": LATE}, "fine", None, None),
    "no step, usual one takes 30 s": ({"steps": LATE._replace(usual_s=30.0), "stack": stack(forward=1.0)},
        "fine", None, None),
    "no sign of life": ({"steps": None, "gpus": DEAD_GPU, "processes": QUIET, "log_age_s": 90.0},
        "stuck", "no-activity", "possible"),
    "no sign of life for long": ({"steps": None, "gpus": DEAD_GPU, "processes": QUIET, "log_age_s": 7000.0,
        "age_s": 8000.0}, "stuck", "no-activity", "likely"),
    "quiet for a short time": ({"steps": None, "gpus": (), "processes": QUIET, "log_age_s": 40.0, "stack": NO_STACK},
        "unknown", None, None),
    "quiet, but it writes": ({"steps": None, "gpus": (), "processes": main(cpu=0.5, busiest_cpu=0.5, written_mb_s=3.0), "log_age_s": 90.0,
        "stack": NO_STACK}, "unknown", None, None),
    "quiet, but in a container": ({"steps": None, "gpus": (), "processes": QUIET, "log_age_s": 90.0, "stack": NO_STACK,
        "has_container": True}, "unknown", None, None),
    "hung file system": ({"processes": main(cpu=0.0, busiest_cpu=0.0, io_wait=1.0, waits_in="nfs_wait"), "gpus": DEAD_GPU},
        "stuck", "hung-io", "likely"),
    "missing rank": ({"ranks": 4, "gpus": gpu(busy=100.0, power_w=180), "steps": LATE},
        "stuck", "communication-hang", "likely"),
    "missing rank, seen in the log": ({"ranks": 4, "gpus": gpu(busy=100.0, power_w=180), "steps": None, "log_age_s": 700.0,
        "age_s": 8000.0}, "stuck", "communication-hang", "likely"),
    "ranks that spin and print": ({"ranks": 4, "gpus": gpu(busy=100.0, power_w=180), "steps": None, "log_age_s": 30.0,
        "stack": NO_STACK}, "slow", "communication", "possible"),
    "missing rank, seen in the stack": ({"ranks": 4, "gpus": (), "stack": stack(communication=0.95), "steps": LATE,
        "processes": QUIET}, "stuck", "communication-hang", "likely"),
    "stalled, with some communication": ({"ranks": 4, "gpus": (), "stack": stack(communication=0.5), "steps": LATE,
        "processes": QUIET}, "stuck", "stalled", "likely"),
    "communication that takes CPU": ({"ranks": 4, "gpus": (), "stack": stack(communication=0.95), "steps": LATE},
        "slow", "communication", "likely"),
    "late step on simulated GPUs, CPU busy": ({"gpus": (), "steps": LATE, "stack": NO_STACK}, "fine", None, None),
    "late step on simulated GPUs, little CPU": ({"gpus": (), "steps": LATE, "processes": main(cpu=10, busiest_cpu=10)},
        "stuck", "stalled", "possible"),
    "quiet, but steps are reported": ({"gpus": DEAD_GPU, "processes": QUIET, "log_age_s": 90.0,
        "steps": StepUse(3, age_s=10.0)}, "slow", "sync", None),
    # Slow.
    "swapping": ({"processes": main(swap_mib=900, major_faults_s=400.0)}, "slow", "swapping", "likely"),
    "swapped out and never read": ({"processes": main(swap_mib=900)}, "fine", None, None),
    "other process": ({"gpus": gpu(others=("process 9 (eve, python)",))}, "slow", "other-process", "likely"),
    "heat": ({"gpus": gpu(slowed=(("heat (driver)", 0.9),), clock_mhz=1100)}, "slow", "throttled-heat", "likely"),
    "heat for a moment": ({"gpus": gpu(slowed=(("heat (driver)", 0.2),))}, "fine", None, None),
    "bad supply": ({"gpus": gpu(slowed=(("hardware slowdown", 1.0),))}, "slow", "throttled-hardware", "likely"),
    "lowered power limit": ({"gpus": gpu(slowed=(("its power limit", 1.0),), power_limit_w=300, power_w=300,
        clock_mhz=1300)}, "slow", "power-limit", "likely"),
    "low clock at the usual limit": ({"gpus": gpu(slowed=(("its power limit", 1.0),), clock_mhz=1000)},
        "slow", "power-limit", "likely"),
    "usual limit": ({"gpus": gpu(slowed=(("its power limit", 1.0),), power_w=700, clock_mhz=1500)},
        "fine", "power-cap", "certain"),
    "DataParallel in the stack": ({"gpu_count": 2, "gpus": (GPU, GPU._replace(number=1)),
        "stack": stack(data_parallel=0.7)}, "slow", "data-parallel", "likely"),
    "DataParallel in the script": ({"gpu_count": 2, "gpus": (GPU, GPU._replace(number=1)), "data_parallel": LINE},
        "slow", "data-parallel", "likely"),
    "DataParallel on one GPU": ({"data_parallel": LINE}, "fine", None, None),
    "one of two GPUs": ({"gpu_count": 2, "gpus": TWO_GPUS}, "slow", "unused-gpus", "likely"),
    "second GPU was used before": ({"gpu_count": 2, "gpus": (GPU, TWO_GPUS[1]._replace(busy_most=80))}, "fine", None, None),
    "busy workers": ({"gpus": IDLE_GPU, "processes": THREE_WORKERS, "stack": stack(workers=0.8)},
        "slow", "augmentation", "likely"),
    "busy workers without py-spy": ({"gpus": IDLE_GPU, "processes": THREE_WORKERS, "stack": NO_STACK},
        "slow", "augmentation", "likely"),
    "busy workers that keep up": ({"processes": THREE_WORKERS, "stack": stack(workers=0.1, sync=0.8)}, "fine", None, None),
    "workers that wait": ({"gpus": IDLE_GPU, "stack": stack(workers=0.8),
        "processes": (MAIN, WORKER._replace(cpu=10, read_mb_s=90.0))}, "slow", "data-storage", "likely"),
    "workers in state D": ({"gpus": IDLE_GPU, "stack": stack(workers=0.8),
        "processes": (MAIN, WORKER._replace(cpu=10, io_wait=0.4))}, "slow", "data-storage", "likely"),
    "workers that sleep": ({"gpus": IDLE_GPU, "stack": stack(workers=0.8), "processes": (MAIN, WORKER._replace(cpu=10))},
        "slow", "data-storage", "possible"),
    "loading in the main process": ({"gpus": IDLE_GPU, "stack": stack(loading=0.7)}, "slow", "data-loading", "likely"),
    "loading without py-spy": ({"gpus": IDLE_GPU, "stack": NO_STACK}, "slow", "data-loading", "possible"),
    "loading on simulated GPUs": ({"gpus": (), "stack": stack(loading=0.7)}, "slow", "data-loading", "likely"),
    "loading without a GPU": ({"gpus": (), "gpu_count": 0, "stack": stack(loading=0.7)}, "fine", None, None),
    "collectives of ranks without GPUs": ({"ranks": 2, "gpus": (), "gpu_count": 0,
        "stack": stack(communication=0.5)}, "slow", "communication", "likely"),
    "ranks without GPUs that compute": ({"ranks": 2, "gpus": (), "gpu_count": 0, "stack": stack(backward=0.9)},
        "fine", None, None),
    "collectives": ({"ranks": 2, "gpus": gpu(busy=50.0), "stack": stack(communication=0.5)},
        "slow", "communication", "likely"),
    "collectives in threads": ({"ranks": 2, "gpus": gpu(busy=50.0), "stack": stack(backward=0.5, sync=0.4),
        "processes": main(communication_cpu=60.0)}, "slow", "communication", "likely"),
    "DDP over gloo": ({"ranks": 2, "gpus": gpu(busy=50.0), "stack": stack(backward=0.5),
        "processes": main(communication_cpu=15.0)}, "slow", "communication", "likely"),
    "DDP with little exchange": ({"ranks": 2, "gpus": gpu(busy=50.0), "stack": stack(backward=0.5),
        "processes": main(communication_cpu=5.0)}, "slow", "gpu-underused", None),
    "exchange in the background": ({"ranks": 2, "gpus": gpu(busy=50.0), "stack": stack(backward=0.1, forward=0.8),
        "processes": main(communication_cpu=15.0)}, "slow", "gpu-underused", None),
    "collectives that spin": ({"ranks": 8, "gpus": gpu(busy=100.0, power_w=180), "stack": NO_STACK},
        "slow", "communication", "possible"),
    "one rank": ({"gpus": gpu(busy=50.0), "stack": stack(communication=0.5)}, "slow", "gpu-underused", None),
    "sync each step": ({"gpus": gpu(busy=50.0, power_w=250)}, "slow", "sync", "likely"),
    "sync, 20 to 30 % of the samples": ({"gpus": gpu(busy=50.0), "stack": stack(sync=0.25)}, "slow", "sync", "possible"),
    "copies": ({"gpus": gpu(busy=50.0), "stack": stack(copies=0.5)}, "slow", "host-copies", "likely"),
    "PCIe traffic": ({"gpus": gpu(busy=50.0, received_mb_s=20000.0), "stack": NO_STACK}, "slow", "host-copies", "possible"),
    "small batch": ({"gpus": gpu(busy=50.0, memory_mib=2000), "stack": stack(forward=0.4, backward=0.3)},
        "slow", "small-batch", "likely"),
    "small kernels back to back": ({"gpus": gpu(busy=95.0, power_w=180, memory_mib=2000), "stack": stack(forward=0.6)},
        "slow", "small-batch", "likely"),
    "small batch without py-spy": ({"gpus": gpu(busy=50.0, memory_mib=2000), "stack": NO_STACK},
        "slow", "small-batch", "possible"),
    "small memory, host idle": ({"gpus": gpu(busy=50.0, memory_mib=2000), "stack": stack(forward=0.6),
        "processes": main(cpu=10, busiest_cpu=10)}, "slow", "gpu-underused", None),
    "small memory, host waits": ({"gpus": gpu(busy=50.0, memory_mib=2000), "stack": stack(forward=0.1, waiting=0.9)},
        "slow", "gpu-underused", None),
    "small model that saturates": ({"gpus": gpu(memory_mib=2000)}, "fine", None, None),
    "memory is full": ({"gpus": gpu(busy=50.0), "stack": stack(forward=0.6)}, "slow", "gpu-underused", None),
    "server": ({"gpus": IDLE_GPU, "stack": stack(network=0.9)}, "slow", "network", "likely"),
    "checkpoint": ({"gpus": IDLE_GPU, "stack": stack(saving=0.9)}, "slow", "saving", "possible"),
    "own code": ({"gpus": IDLE_GPU, "stack": stack(program=0.9)}, "slow", "host-code", "likely"),
    "own code on simulated GPUs": ({"gpus": (), "stack": stack(program=0.9)}, "fine", None, None),
    "CPU without output on simulated GPUs": (BLIND | {"log_age_s": 240.0}, "unknown", None, None),
    "CPU with output on simulated GPUs": (BLIND | {"log_age_s": 0.1}, "fine", None, None),
    "output on simulated GPUs, little CPU": (BLIND | {"log_age_s": 0.1, "processes": QUIET}, "fine", None, None),
    "output only at its start": (BLIND | {"log_age_s": 15.0, "processes": QUIET, "age_s": 30.0}, "unknown", None, None),
    "steps on simulated GPUs, no output": (BLIND | {"log_age_s": None, "steps": StepUse(30, age_s=9.0), "processes": QUIET},
        "fine", None, None),
    "CPU job that prints": ({"gpu_count": 0, "gpus": (), "stack": NO_STACK, "steps": None, "processes": QUIET,
        "log_age_s": 0.9}, "fine", None, None),
    "idle GPU that prints": ({"gpus": DEAD_GPU, "stack": NO_STACK, "steps": None, "log_age_s": 0.1, "processes": QUIET},
        "slow", "gpu-underused", None),
    "storage": ({"gpus": IDLE_GPU, "processes": main(io_wait=0.7, cpu=20, busiest_cpu=20), "stack": NO_STACK},
        "slow", "waiting-for-io", "likely"),
    "no CPU": ({"gpus": gpu(busy=70.0), "stack": NO_STACK, "processes": main(cpu_wait=0.5, busiest_cpu=45)},
        "slow", "cpu-contention", "likely"),
    "slower than before": ({"steps": StepUse(300, 1000, usual_s=0.5, earlier_s=0.4, now_s=1.0)}, "slow", "slowed-down",
        "possible"),
    "resumed: the mean since the start misleads": ({"steps": StepUse(5000, usual_s=0.01, now_s=1.0)}, "fine", None, None),
    # CPU jobs and clusters.
    "CPU job": ({"gpu_count": 0, "gpus": (), "stack": NO_STACK, "steps": None}, "fine", None, None),
    "no permission": ({"gpus": (), "processes": (), "stack": StackUse(), "steps": None}, "unknown", None, None),
    "cluster": ({"processes": (), "stack": StackUse(), "steps": None, "is_remote": True}, "unknown", None, None),
    "cluster, idle GPU at one moment": ({"processes": (), "stack": StackUse(), "steps": None, "is_remote": True,
        "gpus": (GpuUse(0, 81920, 60000, 3, samples=1),)}, "unknown", None, None),
    "cluster, no step": ({"processes": (), "stack": StackUse(), "steps": LATE, "is_remote": True,
        "gpus": (GpuUse(0, 81920, 60000, 0, samples=1),)}, "stuck", "stalled", "possible"),
    "cluster, no step, nothing known": ({"processes": (), "stack": StackUse(), "steps": LATE, "is_remote": True, "gpus": ()},
        "unknown", None, None),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_facts_lead_to_verdict_and_cause(name: str) -> None:
    changes, verdict, cause, sure = TABLE[name]
    found = judge(HEALTHY._replace(**changes))
    first = found.findings[0] if found.findings else None
    assert (found.verdict.value, first and first.cause) == (verdict, cause), found
    assert sure is None or (first and first.confidence is Confidence[sure.upper()]), found


def test_every_rule_is_named_in_the_table() -> None:
    assert {rule.cause for rule in RULES} == {cause for _, _, cause, _ in TABLE.values()} - {None}


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row[2]])
def test_finding_has_figures_advice_and_experiment(name: str) -> None:
    for one in judge(HEALTHY._replace(**TABLE[name][0])).findings:
        assert one.figures and one.advice and one.experiment
        text = one.summary + "".join(one.advice) + one.experiment + "".join(one.figures)
        assert "{" not in text and "<" not in text


def test_young_job_says_when_to_ask_again() -> None:
    found = judge(HEALTHY._replace(age_s=8.0))
    assert found.verdict is Verdict.STARTING and found.ask_again_s == 17.0
    assert "not enough samples" in found.summary


SUMMARIES = {
    "CPU without output on simulated GPUs":
        "busy on the CPU: 100 % of one core, no output for 4 min; whether it uses its GPU is not known",
    "CPU with output on simulated GPUs": "it writes output: last line 0.1 s ago",
    "steps on simulated GPUs, no output": "it makes progress: last step 9 s ago",
    "CPU job": "nothing slows it down",
    "healthy": "nothing slows it down",
    "quiet for a short time": "it does little: CPU 0 % of one core, no output for 40 s",
    "no permission": "neither its processes nor its GPUs can be observed",
}  # fmt: skip


@pytest.mark.parametrize("name", SUMMARIES)
def test_summary_says_what_is_known(name: str) -> None:
    assert judge(HEALTHY._replace(**TABLE[name][0])).summary == SUMMARIES[name]


# Seconds after which another answer is possible; None: more samples give the same one.
@pytest.mark.parametrize(("name", "seconds"), [
    ("CPU without output on simulated GPUs", None), ("CPU with output on simulated GPUs", None),
    ("no permission", None), ("quiet, but in a container", None), ("quiet, but it writes", None),
    ("quiet for a short time", 21.0), ("output only at its start", 46.0), ("healthy", None),
])  # fmt: skip
def test_asking_again_is_advised_only_where_the_answer_may_change(name: str, seconds: float | None) -> None:
    assert judge(HEALTHY._replace(**TABLE[name][0])).ask_again_s == seconds


def test_stuck_run_shows_no_slow_findings() -> None:
    found = judge(HEALTHY._replace(gpus=DEAD_GPU, processes=QUIET, steps=LATE, stack=stack(loading=0.9)))
    assert {one.verdict for one in found.findings} == {Verdict.STUCK}


STUCK_RUN = HEALTHY._replace(gpus=DEAD_GPU, processes=QUIET, steps=None, log_age_s=900.0, age_s=1000.0)
SHELL = MAIN._replace(pid=90, cpu=0.0, command="bash run.sh", state="S", waits_in="do_wait")
SLEEP = MAIN._replace(pid=91, cpu=0.0, command="sleep 600", state="S", waits_in="hrtimer_nanosleep")


def test_stuck_run_names_the_dump_of_its_stack_only_where_it_works() -> None:
    works = StackUse(50, {"sleeping": 1.0}, dump="py-spy dump --pid 100")
    advice = judge(STUCK_RUN._replace(stack=works)).findings[0].advice
    assert advice[0] == "see what it waits for: py-spy dump --pid 100"
    assert "py-spy" not in "".join(judge(STUCK_RUN._replace(stack=NO_STACK)).findings[0].advice)


def test_stuck_run_without_stack_shows_command_and_wait() -> None:
    found = judge(STUCK_RUN._replace(stack=NO_STACK, processes=(SHELL, SLEEP))).findings[0]
    assert found.figures[-1] == "process 91 sleeps in hrtimer_nanosleep: sleep 600"
    alone = judge(STUCK_RUN._replace(stack=NO_STACK, processes=(SHELL,))).findings[0]
    assert alone.figures[-1] == "process 90 sleeps in do_wait: bash run.sh"


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row[1] == "stuck"])
def test_last_advice_about_a_stuck_run_is_to_cancel_it(name: str) -> None:
    assert judge(HEALTHY._replace(**TABLE[name][0])).findings[0].advice[-1] == "or end it: gcancel 7"


def test_finding_shows_the_line_of_its_activity() -> None:
    found = judge(HEALTHY._replace(gpus=gpu(busy=50.0)))
    assert found.findings[0].frame == LINE


TORCH = "/v/lib/python3.12/site-packages/torch"
STACKS = [
    ("workers", [("/u/t.py", "<module>"), (f"{TORCH}/utils/data/dataloader.py", "_MultiProcessingDataLoaderIter._try_get_data")]),
    ("loading", [("/u/t.py", "<module>"), (f"{TORCH}/utils/data/_utils/fetch.py", "_MapDatasetFetcher.fetch"),
                 ("/u/t.py", "Images.__getitem__", "return x.numpy()")]),
    ("loading", [("/u/t.py", "<module>", "x = Image.open(path)")]),
    ("sync", [("/u/t.py", "<module>", "print(loss.item())")]),
    ("sync", [("/u/t.py", "<module>", "torch.cuda.synchronize()"), (f"{TORCH}/cuda/__init__.py", "synchronize", "return x")]),
    ("copies", [("/u/t.py", "<module>", "x = x.to(device)")]),
    ("forward", [("/u/t.py", "<module>", "y = model(x.to(device)).item()"), (f"{TORCH}/nn/modules/linear.py", "forward", "x")]),
    ("optimizer", [("/u/t.py", "<module>"), (f"{TORCH}/optim/adamw.py", "step", "step = x.item()")]),
    ("backward", [("/u/t.py", "<module>"), (f"{TORCH}/autograd/graph.py", "_engine_run_backward")]),
    ("communication", [("/u/t.py", "<module>"), (f"{TORCH}/distributed/distributed_c10d.py", "all_reduce")]),
    ("data-parallel", [("/u/t.py", "<module>"), (f"{TORCH}/nn/parallel/data_parallel.py", "forward"),
                       (f"{TORCH}/nn/modules/linear.py", "forward")]),
    ("importing", [("<frozen importlib._bootstrap>", "_load"), ("/u/t.py", "<module>")]),
    ("forward", [("/u/t.py", "<module>"), (f"{TORCH}/_dynamo/eval_frame.py", "_fn")]),
    ("program", [("/u/t.py", "<module>", "x = augment(y).to(device)"), ("/u/t.py", "augment", "y *= 2")]),
]  # fmt: skip


@pytest.mark.parametrize(("activity", "frames"), STACKS)
def test_stack_shows_its_activity(activity: str, frames: list[tuple[str, ...]]) -> None:
    assert activity_of([Frame(one[0], 1, one[1], (*one, "")[2]) for one in frames]) == activity


def test_samples_of_the_main_thread_are_counted_with_their_lines() -> None:
    raw = (
        'thread (1): MainThread;<module> (/u/t.py:9);wait (/u/t.py:5) 9\n'
        'thread (1): MainThread;<module> (/u/t.py:9);load (/u/t.py:4) 30\n'
        'thread (1): MainThread;<module> (/u/t.py:9);load (/u/t.py:3) 1\n'
        'thread (2): bg;Thread.run (/usr/lib/python3.12/threading.py:982) 40\n'
        'not a stack\n'
    )  # fmt: skip
    lines = {4: "x.item()", 5: "time.sleep(1)", 3: "x.cpu()"}
    found = summarize(parse_raw(raw), lambda file, line: lines.get(line, ""))
    assert found.samples == 40 and found.shares == {"sleeping": 9 / 40, "sync": 31 / 40}
    assert found.frames["sync"] == Frame("/u/t.py", 4, "load", "x.item()")


@pytest.mark.parametrize(("seconds", "text"), [(0.25, "0.25 s"), (40, "40 s"), (150, "2 min"), (9000, "2 h")])
def test_duration_is_spelled_in_one_unit(seconds: float, text: str) -> None:
    assert spell_s(seconds) == text


@pytest.mark.parametrize(
    ("states", "is_stopped"), [("TTTT", True), ("RRTT", True), ("RTTS", False), ("TTRT", False)]
)
def test_process_is_stopped_if_it_was_so_since_half_of_the_looks(states: str, is_stopped: bool) -> None:
    """A signal takes effect only when the process gets a CPU, which may be late on a busy machine."""
    pid = 1 << 30  # no process has it
    times = {pid: ProcessTimes(1, "python", "T", 1.0, 0, 0, 0, 0, {})}
    (seen,) = compare(times, times, [{pid: (state, "")} for state in states], 2.0)
    assert seen.is_stopped is is_stopped
