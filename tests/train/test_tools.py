"""Tools around training: memory, profiles, DeepSpeed's configuration, and the examples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gflow.errors import Refused, UsageError  # noqa: E402
from gflow.ml.train import deepspeed, memory  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_largest_tensors():
    kept = torch.zeros(3_000_000)
    view = kept[:10]
    found = memory.largest_tensors(3)
    assert any(one.bytes == 12_000_000 and one.shared == 2 for one in found)
    del kept, view


def test_unused_memory_is_given_back_to_the_gpu(monkeypatch):
    class Node:
        pass

    reserved, gone = [8 << 20], []
    node = Node()
    node.itself, node.gone = node, weakref.finalize(node, gone.append, True)
    del node  # a cycle: only the garbage collector frees it

    def empty_cache() -> None:
        assert gone, "what nobody refers to is collected before"
        reserved.append(3 << 20)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: reserved[-1])
    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    assert memory.release() == 5 << 20


def test_advice_only_where_memory_is_scattered():
    whole = memory.Memory(80, 100, 90, 100, 1, 100)
    assert memory.advice(whole) == ""
    assert "expandable_segments" in memory.advice(whole._replace(allocated=50))
    assert memory.advice(whole._replace(allocated=50, free=50)) == "", "there is room enough"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu():
    for look in (memory.memory, memory.reset_peaks, memory.release):
        with pytest.raises(Refused, match="there is no GPU"):
            look()
    from gflow.train import find_batch_size

    with pytest.raises(Refused, match="needs a GPU"):
        find_batch_size(lambda batch: None)


def test_batch_search_refuses_bf16_on_a_gpu_without_it(monkeypatch):
    from gflow.train import find_batch_size

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    for precision in ("bf16", "bf16-pure"):
        with pytest.raises(Refused, match="Tesla T4 has no bf16"):
            find_batch_size(lambda batch: None, precision=precision)


@pytest.mark.parametrize(
    ("model", "gib", "architecture"),
    [("NVIDIA L40S", 44, "ada"), ("NVIDIA GeForce RTX 5090", 31, "blackwell"), ("Unheard of", 9, "hopper")],
)
def test_batch_search_predicts_for_the_architecture_of_the_gpu(monkeypatch, model, gib, architecture):
    from gflow.ml.fit.recipe import Recipe
    from gflow.ml.train import batch_size

    cards = []

    def record(*, card, **_):
        cards.append(card.name)
        raise Refused("the model depends on tensor values")

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: model)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (gib << 30, gib << 30))
    monkeypatch.setattr(batch_size, "record", record)
    batch_size._predict(None, Recipe(), torch.device("cuda", 0), 1 << 30, in_buckets=False)
    assert cards == [architecture]


def test_batch_search_leaves_a_live_model_alone(monkeypatch):
    """The trials train; a model that exists already is copied for them."""
    from gflow.ml.fit.recipe import Recipe
    from gflow.ml.train import batch_size

    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    model = torch.nn.Linear(4, 1).eval()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    trained = []
    batch_size._steps(
        lambda batch: (model, (torch.randn(batch, 4), torch.ones(batch, 1))),
        Recipe(steps=2, precision="fp32", optimizer="SGD", optimizer_options={"lr": 0.5}),
        2,
        torch.device("cpu"),
        lambda copy: trained.append(copy) or copy,
    )
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())
    assert model.weight.grad is None and not model.training
    assert trained[0] is not model and not torch.equal(trained[0].weight, model.weight)


def test_a_profile(tmp_path):
    layer, inputs = torch.nn.Linear(64, 64), torch.randn(8, 64)
    table = memory.profile(lambda: layer(inputs).sum().backward(), steps=2, trace=tmp_path / "trace.json")
    assert "aten::" in table
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_a_profile_by_memory():
    inputs = torch.randn(512, 512)

    def step() -> None:
        inputs.relu().t().contiguous()
        inputs[:4].sigmoid()

    rows = [line.split()[0] for line in memory.profile(step, by="memory").splitlines() if "aten::" in line]
    assert rows.index("aten::sigmoid") > max(rows.index("aten::clamp_min"), 0)
    with pytest.raises(UsageError, match="unknown order 'size'"):
        memory.profile(step, by="size")


def test_a_named_part_of_a_step_is_a_row_of_the_profile(tmp_path):
    inputs = torch.randn(256, 256)

    def step() -> None:
        with torch.profiler.record_function("my forward"):
            inputs.relu()

    table = memory.profile(step, rows=100, by="memory", trace=tmp_path / "trace.json")
    row = next(line for line in table.splitlines() if "my forward" in line)
    assert "1.25 MB" in row, "the results of five steps"
    assert "my forward" in (tmp_path / "trace.json").read_text()


def test_device_line_names_model_and_memory(monkeypatch):
    from gflow.ml.train import devices

    class Card:
        name, major, minor = "NVIDIA T4", 7, 5

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Card)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (8 << 30, 16 << 30))
    line = devices.describe(torch.device("cuda", 0), 2)
    assert line.startswith("NVIDIA T4, 16.0 GiB (8.0 free), compute capability 7.5; PyTorch 2.")
    assert line.endswith(", 2 ranks")


@pytest.mark.parametrize(
    ("found", "wanted", "rank", "expected"),
    [
        ("xpu", None, "2", "xpu:2"),
        ("xpu", "xpu:1", "2", "xpu:1"),
        ("xpu", "cpu", "0", "cpu"),
        ("mps", None, "0", "mps"),
        ("mps", "mps", "0", "mps"),
        ("privateuseone", None, "0", "cpu"),
    ],
)
def test_accelerators_of_intel_and_apple_are_used(monkeypatch, found, wanted, rank, expected):
    """Doubles for the hardware: only the choice is tested."""
    from gflow.ml.train import devices

    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device(found))
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", rank)
    assert devices.pick(wanted) == torch.device(expected)
    assert chosen == ([torch.device(expected).index] if "xpu" in expected else [])


def test_accelerators_that_are_missing_or_cannot_work_together_are_refused(monkeypatch):
    from gflow.ml.train import devices

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("mps"))
    with pytest.raises(Refused, match="no xpu:0: this PyTorch finds none"):
        devices.pick("xpu:0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(Refused, match="several processes cannot train on MPS"):
        devices.pick("mps")
    backends = [devices.backend_of(torch.device(one)) for one in ("cpu", "cuda", "xpu:1")]
    assert backends == ["gloo", "cpu:gloo,cuda:nccl", "cpu:gloo,xpu:xccl"]


@pytest.mark.parametrize(("kind", "arguments"), [("xpu", 1), ("mps", 0)])
def test_random_numbers_of_an_accelerator_are_saved_and_restored(monkeypatch, kind, arguments):
    from gflow.ml.train.checkpoint import rng

    calls = []

    class Module:
        @staticmethod
        def get_rng_state(*words):
            calls.append(words)
            return torch.tensor([7], dtype=torch.uint8)

        @staticmethod
        def set_rng_state(state, *words):
            calls.append((state.tolist(), *words))

    monkeypatch.setattr(torch, "get_device_module", lambda _: Module)
    device = torch.device(kind, 1) if arguments else torch.device(kind)
    saved = rng.states(device)
    rng.restore(saved, device)
    assert calls == [(device,) * arguments, ([7], *(device,) * arguments)]
    calls.clear()
    rng.restore(saved, torch.device("cpu"))
    assert calls == []


def test_run_turns_on_expandable_segments_before_memory_is_reserved(monkeypatch):
    from gflow.train import Run

    told = []
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setattr(torch.version, "cuda", None)
    Run(device="cpu", expandable_segments=True).close()
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64", "a build for the CPU"
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", told.append)
    Run(device="cpu", expandable_segments=True).close()
    assert told == ["max_split_size_mb:64,expandable_segments:True"]
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == told[0]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 2 << 20)
    with pytest.raises(UsageError, match="expandable_segments=True comes too late"):
        Run(device="cpu", expandable_segments=True)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"stage": 2, "batch": 4, "world": 8, "effective_batch": 64}, {"gradient_accumulation_steps": 2}),
        ({"stage": 1, "batch": 4, "world": 2, "accumulate": 3}, {"train_batch_size": 24}),
        ({"precision": "bf16"}, {"bf16": {"enabled": True}}),
        ({"clip": 0.5}, {"gradient_clipping": 0.5}),
    ],
)
def test_deepspeeds_configuration(options, found):
    assert found.items() <= deepspeed.config(**options).items()


def test_deepspeed_offloading():
    zero = deepspeed.config(stage=3, offload="all")["zero_optimization"]
    assert zero["offload_param"]["device"] == zero["offload_optimizer"]["device"] == "cpu"
    for options in (
        {"stage": 4},
        {"stage": 2, "offload": "all"},
        {"precision": "int8"},
        {"batch": 3, "effective_batch": 10},
    ):
        with pytest.raises(UsageError):
            deepspeed.config(**options)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["cpu.py"], ["ddp.py", "2"], ["fsdp.py", "2"]])
def test_an_example_runs(tmp_path, words):
    name, *processes = words
    launch = ["-m", "gflow", "launch", "--processes", *processes] if processes else []
    done = subprocess.run(
        [sys.executable, *launch, str(EXAMPLES / name)],
        cwd=tmp_path,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "done: step" in done.stdout
