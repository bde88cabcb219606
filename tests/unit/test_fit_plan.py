"""Plans, from a model whose memory is a straight line."""

from __future__ import annotations

import json

import msgspec
import pytest

from gflow.errors import Refused, UsageError
from gflow.ml.fit.batch_scaling import BatchScaling
from gflow.ml.fit.catalogue import Gpu, find_gpu
from gflow.ml.fit.cuda.allocation_trace import AllocationTrace, Request, replay
from gflow.ml.fit.cuda.allocator import Allocator
from gflow.ml.fit.fits import largest_batch
from gflow.ml.fit.formula import FormulaRun
from gflow.ml.fit.plan import Plan, PlanRequest, Way, _kinds, plan, read
from gflow.ml.fit.recipe import Recipe
from gflow.ml.fit.sharding import SHARDING, Shaping, Sharing, blocks_of, extras, per_gpu_bytes
from gflow.ml.fit.speed import Work, work_of

GIB = 1 << 30


class Line:
    """Weights, gradients and optimizer of `states` GiB, and so many GiB per example."""

    def __init__(self, states, example, confidence="high", flops=1e12):
        self.states, self.example, self.confidence, self.flops = states, example, confidence, flops
        self.doubts = []
        self.asked = []

    def needed(self, batch, way, cap=None):
        sharing, eight_bit, _ = way
        self.asked.append((batch, sharing, eight_bit))
        quarter = self.states / 4
        weights, gradients, states = quarter, quarter, 2 * quarter * (0.25 if eight_bit else 1)
        if sharing.sharding != "none":
            states /= sharing.gpus
        if sharing.sharding in ("zero2", "fsdp"):
            gradients /= sharing.gpus
        if sharing.sharding == "fsdp":
            weights /= sharing.gpus
        states = 0 if sharing.offload else states
        size = int((weights + gradients + states + batch * self.example) * GIB)
        return None if cap is not None and size > cap else size

    def work(self, batch):
        return Work(batch * self.flops, batch * self.example * GIB, 100, self.states * GIB, 1e9)


def planned(states, example, recomputed, gpu, gpus, batch, confidence="high"):
    runs = {False: Line(states, example, confidence), True: Line(states, recomputed, confidence, 1.33e12)}
    return plan(runs, PlanRequest(find_gpu(gpu), gpus, batch, 2048, "bf16"))


def test_small_model_is_planned_without_techniques():
    way = planned(4, 0.1, 0.05, "H200", 1, 32).chosen
    assert (way.micro_batch, way.accumulate) == (32, 1)
    assert not (way.checkpointing or way.eight_bit or way.offload)


def test_the_effective_batch_is_kept():
    for gpus in (1, 2, 3, 8):
        found = planned(4, 1, 0.2, "A100-40GB", gpus, 48)
        for way in (found.chosen, *found.alternatives):
            assert way.micro_batch * way.accumulate * way.gpus == 48


def test_three_gpus_are_all_used_when_they_divide_the_batch():
    found = planned(4, 0.1, 0.05, "A100-40GB", 3, 48)
    assert (found.chosen.gpus, found.chosen.micro_batch) == (3, 16)
    assert {way.gpus for way in found.ways} <= {1, 2, 3}
    assert planned(4, 0.1, 0.05, "A100-40GB", 3, 32).chosen.gpus == 2


def test_nothing_in_the_plan_is_larger_than_the_card():
    found = planned(60, 2, 0.5, "A100-80GB", 4, 64)
    assert all(way.share <= 0.95 for way in (found.chosen, *found.alternatives))
    speeds = [way.relative_speed for way in found.ways]
    assert max(speeds) == 1 and found.chosen.relative_speed > 0.8


def test_alternatives_are_distinct_and_sorted_by_speed():
    found = planned(10, 1.5, 0.2, "A100-80GB", 1, 64)
    ways = [found.chosen, *found.alternatives]
    assert len({(way.checkpointing, way.eight_bit, way.offload) for way in ways}) == len(ways) == 6
    speeds = [way.relative_speed for way in ways]
    assert speeds == sorted(speeds, reverse=True)
    plain = next(way for way in ways if not (way.checkpointing or way.eight_bit or way.offload))
    assert plain.micro_batch == 32, "the largest that fits"


def test_a_larger_batch_that_fits_is_not_passed_over():
    asked = Line(10, 1.5)
    plan({False: asked}, PlanRequest(find_gpu("A100-80GB"), 1, 64, 2048, "bf16", has_states=False))
    assert [batch for batch, sharing, _ in asked.asked if not sharing.offload] == [64, 32]


def test_states_too_large_for_one_card_are_sharded():
    found = planned(120, 0.5, 0.2, "H100-80GB", 8, 64)
    assert found.chosen.sharding in ("zero1", "zero2", "fsdp")
    assert found.chosen.gpus == 8


def test_impossible_plan_is_refused_with_the_minimum():
    with pytest.raises(Refused, match="it needs at least"):
        planned(500, 0.5, 0.2, "T4", 1, 8)


def test_a_model_that_cannot_be_checkpointed():
    found = plan({False: Line(10, 1)}, PlanRequest(find_gpu("A100-80GB"), 1, 64, 2048, "bf16"))
    assert not any(way.checkpointing for way in (found.chosen, *found.alternatives))


def test_rules_on_top_lower_confidence_and_say_so():
    alone, two, rough = (
        planned(4, 0.1, 0.05, "H200", gpus, 8, word)
        for gpus, word in ((1, "high"), (2, "high"), (2, "rough"))
    )
    assert (alone.confidence, alone.doubts) == ("high", [])
    assert two.confidence == "medium" and "several GPUs" in two.doubts[0]
    assert rough.confidence == "rough"


@pytest.mark.parametrize("bend", [0, 7, 90, -60])
@pytest.mark.parametrize("true", [0, 1, 2, 7, 100, 1000])
def test_the_largest_batch_is_found_in_few_runs(true, bend, monkeypatch):
    runs = []

    class Steady:
        def __init__(self, batch):
            runs.append(batch)
            self.size = 1000 + batch * 10 + bend * batch // 100

    monkeypatch.setattr("gflow.ml.fit.fits.fits", lambda trace, room: trace.size <= room)
    monkeypatch.setattr(
        "gflow.ml.fit.fits.evaluate", lambda trace: type("Found", (), {"peak_allocated_bytes": trace.size})
    )
    room = 1000 + 10 * true + 5
    true = next(batch for batch in range(2000, -1, -1) if Steady(batch).size <= room or not batch)
    runs.clear()
    assert largest_batch(Steady, room) == true
    assert len(runs) <= 14
    if not bend:
        assert len(runs) <= 5


def test_a_good_guess_saves_runs(monkeypatch):
    runs = []

    def record(batch):
        runs.append(batch)
        return batch

    monkeypatch.setattr("gflow.ml.fit.fits.fits", lambda batch, room: batch <= room)
    assert largest_batch(record, 311, guess=315) == 311
    assert runs[0] == 315 and len(runs) <= 6
    assert largest_batch(record, 3, guess=2) == 3
    assert largest_batch(record, 1, guess=2) == 1
    assert largest_batch(record, 0, guess=2) == 0


def test_plan_for_a_user_defined_gpu():
    gpu = Gpu(name="x", architecture="hopper", memory_gib=8, bandwidth=0, bf16=0, fp32=0)
    assert plan({False: Line(2, 0.1)}, PlanRequest(gpu, 1, 8, 512, "bf16")).chosen.bytes < 8 * GIB


@pytest.mark.parametrize(
    ("sharding", "parameters", "gradients", "states"),
    [("none", 1, 1, 1), ("zero1", 1, 1, 4), ("zero2", 1, 4, 4), ("fsdp", 4, 4, 4)],
)
def test_sharding_divides_parameters_gradients_and_states(sharding, parameters, gradients, states):
    def left(kind, phase):
        return 4096 / per_gpu_bytes(Request(4096, kind, phase, 0, "", ""), 4096, Sharing(4, sharding))

    assert left("parameters", "model") == parameters
    assert left("gradients", "backward") == gradients
    assert left("optimizer", "optimizer") == left("", "optimizer") == states
    assert left("", "backward") == left("batch", "forward") == 1


def test_offloaded_states_are_gone():
    away = Sharing(1, "none", offload=True)
    assert per_gpu_bytes(Request(4096, "optimizer", "optimizer", 0, "", ""), 4096, away) == 0
    assert per_gpu_bytes(Request(4096, "gradients", "backward", 0, "", ""), 4096, away) == 4096


def trace_of(*parameters):
    trace = AllocationTrace()
    for name, size in parameters:
        trace.requests.append(Request(size, "parameters", "model", 0, "", name))
    trace.parameters = trace.learned = sum(size for _, size in parameters) // 4
    return trace


def test_sharding_buffers_are_added():
    trace = trace_of(
        ("model.layers.0.a", 400), ("model.layers.0.b", 200), ("model.layers.1.a", 400), ("head", 80)
    )
    assert blocks_of(trace) == (600, 80)
    assert extras(trace, Sharing()) == []
    assert extras(trace, Sharing(4)) == extras(trace, Sharing(4, "zero1")) == [1080]
    assert extras(trace, Sharing(4, "zero2")) == [1200]
    assert extras(trace, Sharing(4, "fsdp")) == [1200, 80, 1200]


def test_size_alone_has_the_same_rules():
    run = FormulaRun(7 * 10**9, Recipe(precision="bf16-pure", sequence=2048))
    plain = run.needed(1, Shaping())
    sizes = [run.needed(1, Shaping(Sharing(8, sharding))) for sharding in SHARDING]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > plain > sizes[1]
    assert run.needed(1, Shaping(Sharing(offload=True))) < plain
    assert run.needed(1, Shaping(eight_bit=True)) < plain
    assert run.needed(1, Shaping(), plain) == plain
    assert run.needed(1, Shaping(), plain - 1) is None


class Recorded:
    """Runs of a model with one weight of 400 MiB, its states, and 1.2 GiB per example."""

    def __init__(self, bend=0):
        self.batches = []
        self.bend = bend

    def __call__(self, batch):
        self.batches.append(batch)
        trace = AllocationTrace()
        trace.learned = trace.parameters = 100 << 20
        trace.request(400 << 20, "", "parameters")
        for step in range(2):
            trace.mark("forward", step)
            held = [trace.request(batch * (300 << 20), "mm") for _ in range(4)]
            if batch >= 4:
                trace.release(trace.request(batch << 20, "scratch", "workspace"))
            if batch == 4 and self.bend:
                trace.release(trace.request(1 << 20, "extra"))
            trace.mark("optimizer", step)
            if not step:
                trace.request(800 << 20, "", "optimizer")
            trace.release(trace.request(400 << 20, ""))
            for number in held:
                trace.release(number)
        trace.flops = batch * 10
        return trace


@pytest.mark.parametrize("batch", [1, 2, 3, 16, 100])
def test_a_run_for_any_batch_is_the_run_itself(batch):
    record = Recorded()
    run = BatchScaling(record)
    truth = Recorded()(batch)
    assert run.is_linear, "though scratch comes with larger batches"
    found = run.needed(batch, Shaping())
    assert found == pytest.approx(replay(truth, Allocator()).peak_reserved, rel=0.005)
    assert run.work(batch) == work_of(truth)
    assert record.batches == [2, 4]
    assert run.needed(batch, Shaping(), found) == found
    assert run.needed(batch, Shaping(), found // 2) is None


def test_runs_that_differ_in_kind_are_run_one_by_one():
    record = Recorded(bend=1)
    run = BatchScaling(record)
    assert run.needed(16, Shaping()) == replay(Recorded()(16), Allocator()).peak_reserved
    assert record.batches == [2, 4, 16]


def test_plan_has_low_confidence_when_reserved_memory_is_in_doubt():
    def record(batch):
        trace = Recorded()(batch)
        trace.reserved_doubts.add("adapters")
        return trace

    run = BatchScaling(record)
    assert (run.confidence, run.doubts) == ("low", ["adapters"])
    for gpus in (1, 2):
        found = plan({False: run}, PlanRequest(find_gpu("A100-80GB"), gpus, 8, 64, "bf16"))
        assert found.confidence == "low" and "adapters" in found.doubts


def test_states_in_8_bit_and_shares_are_smaller():
    run = BatchScaling(Recorded())
    plain = run.needed(8, Shaping())
    assert plain - run.needed(8, Shaping(eight_bit=True)) >= 590 << 20
    assert run.needed(8, Shaping(Sharing(8, "zero1"))) < plain
    assert run.needed(8, Shaping(Sharing(offload=True))) < plain


def test_excluded_techniques_are_not_planned():
    runs = {False: Line(10, 1.5), True: Line(10, 0.2, flops=1.33e12)}
    for word, name in (("8-bit", "eight_bit"), ("offload", "offload")):
        found = plan(runs, PlanRequest(find_gpu("A100-80GB"), 2, 64, 2048, "bf16", without=frozenset({word})))
        assert not any(getattr(way, name) for way in (found.chosen, *found.alternatives))
    found = plan(
        runs, PlanRequest(find_gpu("A100-80GB"), 2, 64, 2048, "bf16", without=frozenset({"sharding"}))
    )
    assert {way.sharding for way in (found.chosen, *found.alternatives)} == {"none"}


def written(tmp_path, found):
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(found))
    return str(path)


def test_a_plan_is_read_again(tmp_path):
    found = planned(60, 2, 0.5, "A100-80GB", 4, 64)
    assert read(written(tmp_path, found)) == found


@pytest.mark.parametrize(
    ("precision", "gpus", "sharding", "told"),
    [
        ("bf16", 1, "none", {"precision": "bf16", "strategy": "auto"}),
        ("bf16-pure", 2, "none", {"precision": "bf16-pure", "strategy": "ddp"}),
        ("fp16", 8, "fsdp", {"precision": "fp16", "strategy": "fsdp"}),
    ],
)
def test_plan_sets_the_options_of_a_run(precision, gpus, sharding, told):
    way = Way(micro_batch=4, accumulate=2, checkpointing=True, sharding=sharding, eight_bit=False,
              offload=False, gpus=gpus)  # fmt: skip
    found = Plan(gpu="H200", precision=precision, effective_batch=8 * gpus, sequence=512, confidence="high",
                 chosen=way, alternatives=[], clip=1.0)  # fmt: skip
    rest = {"effective_batch": 8 * gpus, "gradient_checkpointing": True, "clip": 1.0}
    assert found.run == told | rest
    assert found.micro_batch == 4


@pytest.mark.parametrize(
    ("sharding", "tools"), [("fsdp", []), ("none", ["DeepSpeed"]), ("zero2", ["DeepSpeed"])]
)
def test_run_offloads_what_fsdp_shards(sharding, tools):
    way = Way(micro_batch=4, accumulate=1, checkpointing=False, sharding=sharding, eight_bit=False,
              offload=True, gpus=2)  # fmt: skip
    assert way.tools == tools
    found = Plan(gpu="H200", precision="bf16", effective_batch=8, sequence=512, confidence="high",
                 chosen=way, alternatives=[])  # fmt: skip
    if tools:
        with pytest.raises(Refused, match="needs DeepSpeed"):
            _ = found.run
    else:
        assert found.run["offload"] and found.run["strategy"] == "fsdp"


@pytest.mark.parametrize(("precision", "expected"), [("bf16", True), ("fp16", False)])
def test_plan_offloads_no_shards_with_fp16(precision, expected):
    request = PlanRequest(find_gpu("H200"), 2, 8, 512, precision)
    ways = [way for way in _kinds([False], request) if way.offload and way.gpus == 2]
    assert any(way.sharding == "fsdp" for way in ways) == expected
    assert any(way.sharding == "zero2" for way in ways)


def test_plan_unsupported_by_gflow_train_is_refused():
    found = planned(10, 1, 0.2, "A100-80GB", 1, 64)
    narrow = next(way for way in found.alternatives if way.eight_bit)
    with pytest.raises(Refused, match="this plan needs bitsandbytes"):
        _ = msgspec.structs.replace(found, chosen=narrow).run
    with pytest.raises(Refused, match="weights in fp16"):
        _ = msgspec.structs.replace(found, precision="fp16-pure").run


def test_plan_takes_the_fastest_way_that_gflow_train_carries_out():
    asked = {False: Line(150, 1), True: Line(150, 0.25)}
    request = PlanRequest(find_gpu("A100-80GB"), 4, 64, 2048, "bf16")
    found = plan(asked, request)
    fastest = max(found.ways, key=lambda way: way.relative_speed)
    assert fastest.tools == ["DeepSpeed"] and not found.chosen.tools
    assert found.run["strategy"] == "fsdp"
    plain = [way.relative_speed for way in found.ways if not way.tools]
    assert found.chosen.relative_speed == max(plain)
    # Another way by its number; the numbers stay.
    other = plan(asked, request._replace(take=2))
    assert other.chosen == found.alternatives[0] and other.ways == found.ways
    with pytest.raises(UsageError, match=f"there is no way 90: {len(found.ways)} fit"):
        plan(asked, request._replace(take=90))
    without = plan(asked, request._replace(without=frozenset({"zero1", "zero2"})))
    assert {way.sharding for way in without.ways} <= {"none", "fsdp"}
    only = plan(asked, request._replace(without=frozenset({"fsdp"})))
    assert only.chosen.tools and only.chosen.relative_speed == 1


def test_bf16_is_refused_on_a_gpu_without_it():
    assert find_gpu("T4", "fp16").name == "T4"
    with pytest.raises(UsageError, match="V100-16GB has no bf16"):
        find_gpu("V100-16GB", "bf16-pure")
    with pytest.raises(UsageError) as refusal:
        find_gpu("a100")
    assert refusal.value.hint == "did you mean A100-40GB or A100-80GB?"


def test_submit_line_of_a_plan_carries_it_out(capsys, tmp_path):
    """The job gets the memory of the plan; its run the plan itself, if gflow.train carries it out."""
    from gflow.cli.tools.plan import run

    def line(*words):
        assert run(["--params", "7B", "-p", "bf16", "--json", *words]) == 0
        plan = json.loads(capsys.readouterr().out)
        return plan["command"], plan["chosen"]

    command, chosen = line("--on", "2xH200")
    assert chosen["gpus"] == 2 and command.endswith("M gflow launch train.py")
    assert command.startswith(f"gbatch --gpus 2 --gpu-memory {-(-chosen['bytes'] // 2**20)}M ")
    command, chosen = line("--on", "H200")
    assert command.endswith("M python train.py")
    path = str(tmp_path / "my plan.json")
    command, _ = line("--on", "2xH200", "--out", path)
    assert command == (
        f"gbatch --gpus 2 --gpu-memory auto --fit '{path}' gflow launch --plan '{path}' train.py"
    )
    command, chosen = line("--on", "2xA100-80GB", "--out", path, "--without", "fsdp,zero1")
    assert chosen["sharding"] == "zero2" or chosen["eight_bit"] or chosen["offload"]
    assert "--fit" in command and "--plan" not in command and command.endswith(" train.py")


def test_plan_for_this_machine_knows_its_gpus(monkeypatch, capsys):
    """Without --on: figures, architecture and bf16 are those of the catalogue, memory that of the machine."""
    from gflow.cli.tools.plan import run
    from gflow.client import http

    def planned_on(model, memory_mib, *words):
        card = {"model": model, "memory_mib": memory_mib}
        monkeypatch.setattr(http, "get", lambda path: {"gpus": [card, {**card, "memory_mib": 1 << 20}]})
        assert run(["--params", "125M", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)

    with pytest.raises(UsageError, match="Tesla T4 has no bf16"):
        planned_on("Tesla T4", 15_360, "-p", "bf16")
    assert planned_on("Tesla T4", 15_360, "-p", "fp16")["gpu"] == "Tesla T4"

    def speed_of_fsdp(model):
        plan = planned_on(model, 81_920, "--without", "zero1,zero2,8-bit,offload,checkpointing")
        return next(way["relative_speed"] for way in plan["alternatives"] if way["sharding"] == "fsdp")

    assert speed_of_fsdp("NVIDIA L40S") < speed_of_fsdp("NVIDIA A100-SXM4-80GB"), "that has NVLink"
    whole = planned_on("NVIDIA H100 NVL", 95_830)["chosen"]
    assert whole["bytes"] / whole["share"] == pytest.approx(95_830 << 20, rel=0.05)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"chosen": 7}'])
def test_invalid_plan_file_is_refused(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="is not a plan"):
        read(str(path))
    with pytest.raises(UsageError, match="cannot be read"):
        read(str(tmp_path / "nothing"))


def test_fit_suggests_changes_that_fit(capsys):
    from gflow.cli.tools.fit import run

    words = ["--params", "7B", "--precision", "bf16", "--batch", "8", "--gpu"]
    assert run([*words, "A100-80GB", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["fits"] is False
    assert page["would_fit"][0]["eight_bit"]
    assert all(way["micro_batch"] * way["accumulate"] == 8 and way["share"] < 1 for way in page["would_fit"])
    assert run([*words, "B200"]) == 0
    assert capsys.readouterr().out.startswith("it fits\n")
    words[words.index("bf16")] = "fp16"
    assert run([*words, "T4"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("it does not fit\n")
    assert "no technique known to gflow plan makes it fit" in text


def test_the_page_of_a_plan_fits_80_columns_and_names_a_faster_precision(capsys, monkeypatch):
    from gflow.cli.tools.plan import run
    from gflow.client import hot_path

    monkeypatch.setattr(hot_path, "terminal", lambda: {"width": "80"})
    assert run(["--params", "7B", "--on", "4xA100-80GB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line[:1].isdigit() for line in lines) == 6
    assert any("bf16 is faster on this GPU: --precision bf16" in line for line in lines)
    assert run(["--params", "125M", "--on", "A100-80GB", "--precision", "bf16"]) == 0
    text = capsys.readouterr().out
    assert "\n1 take " in text and "\n2 " not in text and "is faster" not in text
    assert run(["--params", "125M", "--on", "T4"]) == 0
    assert "is faster" not in capsys.readouterr().out


def test_python_answers_what_the_commands_print(capsys, tmp_path):
    """Entries of an answer are attributes too, and options have the names and values of the commands."""
    from gflow import fit
    from gflow.cli.tools import fit as fit_command
    from gflow.cli.tools import gpus_catalogue
    from gflow.cli.tools import plan as plan_command

    def printed(run, *words):
        assert run([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    found = fit.estimate(params="7B", precision="bf16", gpu="A100-80GB")
    page = printed(fit_command.run, "--params", "7B", "--precision", "bf16", "--gpu", "A100-80GB")
    assert found == page and found.fits is False and found.would_fit[0].eight_bit
    for size in ("24G", 24 << 10, "160G"):
        words = ("--params", "7B", "--precision", "bf16", "--cap", str(size), "--chart")
        again = fit.estimate(params="7B", precision="bf16", cap=size, chart=True)
        assert again == printed(fit_command.run, *words) and again.fits is (size == "160G")
    assert json.loads(json.dumps(found)) == found and found.gpus[0].gpu == "A100-80GB"
    assert found.breakdown.optimizer == found["breakdown"]["optimizer"]
    with pytest.raises(AttributeError, match="the answer has no 'peak': it has peak_allocated_bytes"):
        found.peak

    path = tmp_path / "plan.json"
    planned = fit.plan(params="7B", gpu="4xA100-80GB", precision="bf16", seq=1024, clip=1.0, out=path,
                       without=["8-bit", "offload"], effective_batch=64)  # fmt: skip
    words = ("--params", "7B", "--on", "4xA100-80GB", "-p", "bf16", "--seq", "1024", "--clip", "1.0",
             "--without", "8-bit,offload", "--effective-batch", "64")  # fmt: skip
    line = printed(plan_command.run, *words)
    assert planned == {name: one for name, one in line.items() if name != "command"}
    assert read(str(path)).chosen.micro_batch == planned.chosen.micro_batch

    assert fit.pick(workload="finetune-7b") == printed(gpus_catalogue.pick, "-w", "finetune-7b")
    chosen = fit.pick(params="1.3B", gpu=["H200", "T4"], precision="fp16", batch=2)
    words = ("--params", "1.3B", "--gpu", "H200,T4", "-p", "fp16", "-b", "2")
    assert chosen == printed(gpus_catalogue.pick, *words)
    with pytest.raises(UsageError, match="finetune-7b has its own --batch"):
        fit.pick(workload="finetune-7b", batch=3)
    with pytest.raises(UsageError, match="unknown option 'gpuss'"):
        fit.pick(gpuss="H200")
    with pytest.raises(UsageError, match=r"which GPUs\?"):
        fit.plan(params="7B")
    with pytest.raises(UsageError, match="--params cannot be combined"):
        fit.largest(params="7B", gpu="H200")
