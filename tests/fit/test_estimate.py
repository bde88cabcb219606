"""Predictions of whole runs, held to what an H200 measured (torch 2.11) and to what must hold of any."""

from __future__ import annotations

import json

import pytest

from gflow.errors import Refused, UsageError
from gflow.fit import estimate
from gflow.ml.fit.estimate import record
from gflow.ml.fit.recipe import Recipe
from gflow.ml.fit.report import evaluate, fits

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
}
SMALL = {"model_type": "llama", "vocab_size": 1000, "hidden_size": 128, "intermediate_size": 256,
         "num_hidden_layers": 2, "num_attention_heads": 4}  # fmt: skip


# Peak allocated and reserved, as measured.
@pytest.mark.parametrize(
    ("settings", "allocated", "reserved"),
    [
        ({"batch": 8, "sequence": 512}, 8385154048, 9076473856),
        (
            {"batch": 16, "sequence": 1024, "precision": "bf16", "optimizer": "adamw-fused"},
            24797216768,
            25650266112,
        ),
    ],
)
def test_gpt2_as_measured(settings, allocated, reserved):
    found = estimate(hf=GPT2, **settings)
    assert found.peak_allocated_bytes == pytest.approx(allocated, rel=0.003)
    assert found.peak_reserved_bytes == pytest.approx(reserved, rel=0.01)
    assert (found.peak_phase, found.peak_step) == ("backward", 2)


def test_the_parts_make_the_whole():
    found = estimate(hf=SMALL, batch=2, sequence=64)
    assert sum(found.breakdown.values()) == found.peak_allocated_bytes
    assert found.peak_allocated_bytes <= found.peak_reserved_bytes < found.process_bytes
    assert found.total_params == found.trainable_params == sum(p.numel() for p in _llama().parameters())


def _llama():
    import transformers

    config = {key: value for key, value in SMALL.items() if key != "model_type"}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))


def test_a_second_run_in_one_process_is_like_the_first():
    first, second = (estimate(hf=GPT2, batch=1, sequence=64) for _ in range(2))
    assert first == second


def test_memory_savings_lower_the_peak():
    plain = estimate(hf=SMALL, batch=8, sequence=512).peak_allocated_bytes
    for saving in ({"checkpointing": True}, {"precision": "bf16-pure"}, {"batch": 4}, {"lora": 4}):
        assert estimate(**{"hf": SMALL, "batch": 8, "sequence": 512, **saving}).peak_allocated_bytes < plain


def test_a_card_is_large_enough_or_not():
    trace = record(hf=SMALL, recipe=Recipe(batch=8, sequence=512))
    found = estimate(hf=SMALL, batch=8, sequence=512)
    assert fits(trace, found.peak_reserved_bytes)
    assert not fits(trace, found.peak_allocated_bytes - (1 << 20))


def test_python_answers_what_the_command_prints(capsys, tmp_path):
    from gflow.cli.tools.fit import run
    from gflow.fit import largest

    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    words = ["--hf", str(tmp_path), "--seq", "512", "--optimizer", "sgd", "--json"]
    settings = {"hf": tmp_path, "seq": 512, "optimizer": "sgd"}
    assert run([*words, "--gpu", "T4", "--largest", "--chart"]) == 0
    found = estimate(**settings, gpu="T4", largest=True, chart=True)
    assert found == json.loads(capsys.readouterr().out)
    assert found.fits is True and found.largest_batch == largest(**settings, gpu="T4") > 1
    assert run([*words, "--cap", "1G", "--batch", "16"]) == 0
    found = estimate(**settings, cap="1G", batch=16)
    assert found == json.loads(capsys.readouterr().out)
    assert found.fits is False and found.would_fit


def test_prediction_from_python_leaves_imports_of_the_script_alone(monkeypatch):
    """Only a command may replace PyTorch's compiler and leave out torchvision."""
    from gflow import fit
    from gflow.ml.fit.models import lazy_torch

    monkeypatch.setattr(lazy_torch, "load", lambda **_: pytest.fail("this process is a script"))
    settings = {"hf": SMALL, "seq": 64, "gpu": "T4"}
    estimate(**settings)
    assert fit.plan(**settings, effective_batch=2).chosen.micro_batch == 2
    assert fit.pick(hf=SMALL, seq=64, gpu="T4").cheapest.gpu == "T4"


def test_user_model_is_estimated():
    def make(batch):
        model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
        return model, (torch.randn(batch, 1024), torch.zeros(batch, dtype=torch.long))

    found = estimate(py=make, batch=64, optimizer="SGD")
    weights = 4 * (1024 * 1024 + 1024 + 1024 * 10 + 10)
    assert weights <= found.breakdown["parameters"] <= weights + (1 << 20)


def _layers(*layers):
    """A model of these layers; a recurrent one returns its states too."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(layers)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
                x = x[0] if isinstance(x, tuple) else x
            return x.sum()

    return Net()


@pytest.mark.parametrize(
    ("settings", "allocated", "reserved", "doubt"),
    [
        ({"hf": SMALL}, "high", "high", None),
        ({"hf": SMALL, "lora": 4}, "high", "low", "adapters leave fragments"),
        ({"hf": SMALL, "expandable_segments": True}, "high", "low", "expandable segments"),
        ({"py": lambda batch: (_layers(torch.nn.Conv2d(3, 8, 3)), {"x": torch.zeros(batch, 3, 16, 16)})},
         "medium", "low", "cuDNN"),
        ({"py": lambda batch: (_layers(torch.nn.LSTM(8, 8)), {"x": torch.zeros(4, batch, 8)})},
         "medium", "low", "cuDNN"),
    ],
)  # fmt: skip
def test_confidence_is_given_for_each_figure(settings, allocated, reserved, doubt):
    found = estimate(batch=4, seq=32, **settings)
    assert (found.confidence_allocated, found.confidence_reserved) == (allocated, reserved), found.doubts
    assert any(doubt in one for one in found.doubts) if doubt else not found.doubts


def test_expandable_segments_reserve_less_for_the_same_memory():
    plain, grown = (estimate(hf=SMALL, batch=8, seq=512, expandable_segments=on) for on in (False, True))
    assert grown.peak_allocated_bytes == pytest.approx(plain.peak_allocated_bytes, rel=0.01)
    assert grown.peak_allocated_bytes <= grown.peak_reserved_bytes < plain.peak_reserved_bytes


def test_live_model_is_not_changed():
    """A model that exists already: its weights, their values and its mode stay as they are."""
    import torch

    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 64), torch.nn.Linear(64, 10)
    )
    model[2].weight = model[0].weight
    model.eval()
    x, y = torch.randn(4, 64), torch.randint(0, 10, (4,))
    before, weight, state = model(x), model[0].weight, {k: v.clone() for k, v in model.state_dict().items()}
    found = estimate(py=lambda: (model, (x, y)))
    assert model[0].weight is weight is model[2].weight and weight.device.type == "cpu"
    assert not model.training and all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert torch.equal(model(x), before) and weight.grad is None

    def fresh():
        made = torch.nn.Sequential(
            torch.nn.Linear(64, 64),
            torch.nn.BatchNorm1d(64),
            torch.nn.Linear(64, 64),
            torch.nn.Linear(64, 10),
        )
        made[2].weight = made[0].weight
        return made, (x, y)

    assert found.peak_allocated_bytes == estimate(py=fresh).peak_allocated_bytes
    with pytest.raises(Refused, match="exists already and cannot be copied"):
        model.lock = __import__("threading").Lock()
        estimate(py=lambda: (model, (x, y)))


def test_user_step_is_estimated():
    def make():
        model = torch.nn.Linear(64, 8)

        def step(model, batch, optimizer):
            model(batch[0]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return model, (torch.randn(4, 64), torch.zeros(4)), step

    found = estimate(py=make, precision="fp32")
    assert found.breakdown["optimizer"] > 0


def test_shapes_that_follow_from_values_are_refused():
    class Picks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x):
            out = self.layer(x)
            return out[out > 0].sum()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.picks = Picks()

        def forward(self, x):
            return self.picks(x)

    with pytest.raises(Refused, match=r"nonzero\.default in picks depends on values"):
        estimate(py=lambda: (Net(), {"x": torch.randn(4, 8)}))


@pytest.mark.parametrize(
    ("config", "refusal"),
    [
        ({"model_type": "gpt3", "n_embd": 768}, "knows no model of type"),
        ({"model_type": "llama"}, "nothing about its size"),
        ({"hidden_size": 768}, "names no model_type"),
        (SMALL | {"hidden_size": 100, "num_attention_heads": 7}, "(?-s:.*)not a multiple of"),
        (SMALL | {"hidden_size": "big"}, "(?-s:.*)expected int, got str"),
    ],
)
def test_configurations_that_say_too_little(config, refusal):
    with pytest.raises((Refused, UsageError), match=refusal):
        estimate(hf=config)


def test_a_type_with_several_models_for_a_task():
    deit = {"model_type": "deit", "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 3,
            "intermediate_size": 96, "image_size": 32, "patch_size": 16, "num_labels": 10}  # fmt: skip
    assert estimate(hf=deit, batch=2).total_params > 0


def test_positions_end_somewhere():
    with pytest.raises(UsageError, match="longer than the model's 1024 positions"):
        estimate(hf=GPT2, sequence=2048)


@pytest.mark.parametrize(
    "settings", [{"precision": "fp16", "clip": 1.0}, {"accumulate": 3}, {"checkpointing": True}]
)
def test_a_copied_step_is_like_one_that_was_run(settings, monkeypatch):
    copied = estimate(hf=SMALL, batch=4, sequence=256, **settings)
    monkeypatch.setattr("gflow.ml.fit.training.DIFFERENT", 3)
    assert estimate(hf=SMALL, batch=4, sequence=256, **settings) == copied


def test_weights_beyond_a_terabyte_are_refused(monkeypatch):
    monkeypatch.setattr("gflow.ml.fit.training.LARGEST_WEIGHTS", 1000)
    with pytest.raises(Refused, match="the weights alone take"):
        estimate(hf=SMALL, sequence=64)


def test_estimate_leaves_torch_unchanged():
    estimate(hf=SMALL, sequence=64)
    assert not torch.is_autocast_enabled("cuda")
    tensor = torch.randn(3)
    assert type(torch.nn.functional.dropout(tensor)) is torch.Tensor
    assert torch.get_rng_state().numel() > 0


def test_a_run_for_any_batch_is_near_the_run_itself():
    from gflow.ml.fit.batch_scaling import BatchScaling
    from gflow.ml.fit.sharding import Shaping
    from gflow.ml.fit.speed import work_of

    run = BatchScaling(
        lambda batch: record(hf=SMALL, recipe=Recipe(batch=batch, sequence=256, precision="bf16"))
    )
    assert run.is_linear
    trace = record(hf=SMALL, recipe=Recipe(batch=24, sequence=256, precision="bf16"))
    truth = evaluate(trace).peak_reserved_bytes
    assert run.needed(24, Shaping()) == pytest.approx(truth, rel=0.02)
    assert run.work(24).flops == pytest.approx(work_of(trace).flops, rel=0.01)
    assert run.work(24).kernels == work_of(trace).kernels > 100
    weights = sum(p.numel() for p in _llama().parameters())
    assert run.work(1).flops > 6 * (weights - 2 * 1000 * 128) * 256, "products of all weights, three times"


def test_the_short_way_through_optimizers_changes_nothing(monkeypatch):
    short = estimate(hf=SMALL, batch=2, sequence=64, clip=1.0)
    monkeypatch.setattr("gflow.ml.fit.cuda.foreach.run", lambda *_: NotImplemented)
    assert estimate(hf=SMALL, batch=2, sequence=64, clip=1.0) == short


def test_states_in_8_bit():
    plain = estimate(hf=GPT2, batch=1, sequence=64)
    narrow = estimate(hf=GPT2, batch=1, sequence=64, optimizer="AdamW8bit")
    assert narrow.breakdown["optimizer"] == pytest.approx(plain.total_params * 2.03, rel=0.05)
    assert narrow.confidence == "medium" and "8 bit" in narrow.doubts[0]


@pytest.mark.parametrize(("bits", "each"), [(4, 0.5), (8, 1.0)])
def test_weights_below_adapters_in_few_bits(bits, each):
    config = SMALL | {"hidden_size": 512, "intermediate_size": 1024, "vocab_size": 64}
    settings = {"hf": config, "batch": 1, "sequence": 64, "precision": "bf16-pure", "lora": 4}
    plain, narrow = estimate(**settings), estimate(**settings, quantize=bits)
    saved = plain.breakdown["parameters"] - narrow.breakdown["parameters"]
    layers = 2 * (4 * 512 * 512 + 3 * 512 * 1024)
    assert saved == pytest.approx(layers * (2 - each), rel=0.05)
    assert narrow.total_params == plain.total_params
    assert narrow.trainable_params == plain.trainable_params
    assert narrow.confidence == "medium"


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    from gflow.cli.tools.fit import run

    path = tmp_path / "memory.png"
    assert run(["--params", "1B", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="is not an image file"):
        run(["--params", "1B", "--plot", str(tmp_path / "memory.nothing")])


def test_gradients_that_wait_for_further_batches():
    """The rule against the run itself: more weights than activations, so that the gradients matter."""
    from gflow.ml.fit.batch_scaling import BatchScaling
    from gflow.ml.fit.sharding import Shaping

    config = SMALL | {"hidden_size": 1024, "intermediate_size": 2048}
    settings = {"sequence": 512, "precision": "bf16"}
    run = BatchScaling(lambda batch: record(hf=config, recipe=Recipe(batch=batch, **settings)))
    truth = evaluate(record(hf=config, recipe=Recipe(batch=8, accumulate=3, **settings)))
    found = run.needed(8, Shaping(accumulates=True))
    assert found == pytest.approx(truth.peak_reserved_bytes, rel=0.05)
    assert found > run.needed(8, Shaping())


def test_a_model_that_this_machine_cannot_lay_out(monkeypatch):
    import transformers

    def full(*_, **__):
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes"
        )

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_config", full)
    with pytest.raises(Refused, match="too large for this machine"):
        estimate(hf=SMALL)


def test_a_model_beyond_any_machine():
    config = SMALL | {"hidden_size": 1 << 17, "intermediate_size": 1 << 19, "num_hidden_layers": 1000}
    with pytest.raises(Refused, match=r"weights alone are \d{4}\.\d TB"):
        estimate(hf=config)


def test_a_model_without_fused_attention_has_its_own():
    config = {"model_type": "bloom", "vocab_size": 100, "hidden_size": 32, "n_layer": 1, "n_head": 2}
    assert estimate(hf=config, batch=1, sequence=8).confidence == "high"


def test_operator_that_reads_a_value_is_named():
    class Cuts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x, n):
            return self.layer(x)[: n.max().item()]

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cut = Cuts()

        def forward(self, x, n):
            return self.cut(x, n).sum()

    batch = {"x": torch.randn(4, 8), "n": torch.zeros(2, dtype=torch.long)}
    with pytest.raises(Refused, match=r"^cut reads an integer"):
        estimate(py=lambda: (Net(), batch))


def test_an_operator_without_a_rule_is_named(capfd):
    @torch.library.custom_op("gflow_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x):
            return twice(self.layer(x)).sum()

    with pytest.raises(Refused, match="operator of this model: gflow_test::twice") as refusal:
        estimate(py=lambda: (Net(), {"x": torch.randn(4, 8)}))
    assert "off by half" in refusal.value.hint


def test_a_step_that_fails_is_one_sentence(capfd):
    with pytest.raises(Refused, match="the training step failed: RuntimeError"):
        estimate(py=lambda: (torch.nn.Linear(4, 4), (torch.randn(2, 5), torch.zeros(2, 4))))
    with pytest.raises(Refused, match="failed: ZeroDivisionError"):
        estimate(py=lambda: 1 / 0)
    assert capfd.readouterr() == ("", "")


def test_model_other_than_the_named_one_is_a_doubt():
    assert estimate(hf={**SMALL, "architectures": ["LlamaForCausalLM"]}, sequence=8).doubts == []
    found = estimate(hf={**SMALL, "architectures": ["LlamaModel"]}, sequence=8)
    assert found.confidence == "medium"
    assert "names LlamaModel, and LlamaForCausalLM" in found.doubts[0]


def test_a_batch_beyond_counting():
    with pytest.raises(Refused, match="more numbers than PyTorch can count"):
        estimate(hf=SMALL, batch=1 << 20, sequence=1 << 24)


def test_a_task_that_the_model_is_not_made_for():
    with pytest.raises(UsageError, match="no gpt2 for the task 'image'") as refusal:
        estimate(hf=GPT2, task="image")
    assert "causal" in refusal.value.hint


TINY = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"model_type": "roberta", "architectures": ["RobertaForSequenceClassification"]}, "sequence"),
        ({"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForSequenceClassification"]}, "audio"),
        ({"model_type": "gemma3_text", "architectures": ["Gemma3ForConditionalGeneration"]}, "causal"),
        ({"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}, "speech"),
        ({"model_type": "t5", "architectures": ["T5Model"]}, "seq2seq"),
    ],
)
def test_the_task_of_a_model(config, kind):
    from gflow.ml.fit.models.huggingface import _task, configuration

    assert _task(configuration(TINY | config)) == kind


def test_models_without_position_limit_or_with_own_frames():
    xlnet = {
        "model_type": "xlnet",
        "vocab_size": 100,
        "d_model": 32,
        "n_layer": 1,
        "n_head": 2,
        "d_inner": 64,
    }
    assert estimate(hf=xlnet, sequence=8).total_params > 0
    layers = {f"{part}_{what}": value for part in ("encoder", "decoder")
              for what, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 64))}  # fmt: skip
    speech = {"model_type": "speech_to_text", "vocab_size": 100, "d_model": 32, "conv_channels": 32, **layers}
    assert estimate(hf=speech, sequence=64).total_params > 0


def test_vision_model_without_images_is_reported():
    heads = {"head_dim": 16, "num_key_value_heads": 2}
    sight = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = {"model_type": "gemma3", "text_config": TINY | heads, "vision_config": sight}
    assert "no pictures" in estimate(hf=config, sequence=8).doubts[0]


def test_a_mask_that_hides_nothing_is_left_out():
    """OPT makes a mask of ones; transformers drops it when `mask.sum() == mask.numel()`."""
    opt = {"model_type": "opt", "vocab_size": 100, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 1,
           "num_attention_heads": 2, "word_embed_proj_dim": 32, "max_position_embeddings": 512}  # fmt: skip
    trace = record(hf=opt, recipe=Recipe(batch=4, sequence=512, precision="fp16"))
    sizes = [request.size for request in trace.requests if request.kind != "workspace"]
    assert max(sizes) < 4 * 512 * 512
