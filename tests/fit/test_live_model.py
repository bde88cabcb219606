"""Predictions for a model of the caller and an example of its batches."""

from __future__ import annotations

from collections import UserDict

import pytest

from gflow import fit
from gflow.errors import UsageError
from gflow.ml.fit.recipe import Recipe

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gflow.ml.fit.models.live_model import LiveModel  # noqa: E402

SMALL = {"model_type": "llama", "vocab_size": 1000, "hidden_size": 128, "intermediate_size": 256,
         "num_hidden_layers": 2, "num_attention_heads": 4}  # fmt: skip


class Tagger(torch.nn.Module):
    """Returns scores, not a loss; embeds words, so that its shapes do not depend on weights alone."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(1000, 64)
        self.norm = torch.nn.BatchNorm1d(64)
        self.scores = torch.nn.Linear(64, 10)

    def forward(self, words):
        return self.scores(self.norm(self.embed(words).mean(1)))


def make(batch):
    """The same as a function of the batch size."""
    return Tagger(), lambda: (
        torch.empty(batch, 32, dtype=torch.long),
        torch.empty(batch, dtype=torch.long),
    )


@pytest.mark.parametrize("wrapped", [False, True])
def test_model_and_example_of_the_caller_are_predicted_and_stay_as_they_are(wrapped):
    tagger = Tagger().eval()
    words, targets = torch.randint(0, 1000, (8, 32)), torch.randint(0, 10, (8,))
    tagger(words).sum().backward()
    state = {name: value.clone() for name, value in tagger.state_dict().items()}
    grads = [one.grad.clone() for one in tagger.parameters()]
    numbers, identities = torch.get_rng_state(), [*map(id, tagger.parameters())]

    given = torch.nn.DataParallel(torch.compile(tagger)) if wrapped else tagger
    found = fit.estimate(model=given, example=[words, targets], precision="fp16", gpu="T4")

    assert [*map(id, tagger.parameters())] == identities and not tagger.training
    assert all(torch.equal(state[name], value) for name, value in tagger.state_dict().items())
    assert all(map(torch.equal, grads, (one.grad for one in tagger.parameters())))
    assert torch.equal(torch.get_rng_state(), numbers) and type(words) is torch.Tensor
    assert tagger(words).shape == (8, 10)

    assert found == fit.estimate(py=make, batch=8, precision="fp16", gpu="T4")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: torch.nn.DataParallel(torch.compile(model)),
        lambda model: torch.compile(torch.nn.DataParallel(model)),
    ],
)
def test_wrappers_of_a_model_are_taken_off_in_any_order(wrap):
    assert str(LiveModel(wrap(Tagger()), torch.zeros(1, 32, dtype=torch.long))) == "Tagger"


def test_example_has_the_batch_that_is_asked_for():
    words = torch.randint(0, 1000, (2, 32))
    live = {"model": Tagger(), "example": (words, torch.zeros(2, dtype=torch.long)), "optimizer": "sgd"}
    assert (
        fit.estimate(**live, batch=64)
        == fit.estimate(py=make, batch=64, optimizer="sgd")
        != fit.estimate(**live)
    )
    settings = {"gpu": "T4", "optimizer": "sgd"}
    assert fit.largest(**{**live, **settings}) == fit.largest(py=make, **settings) > 1000
    assert fit.plan(**{**live, **settings}) == fit.plan(py=make, **settings)
    assert fit.pick(**live).fits == fit.pick(py=make, batch=2, optimizer="sgd").fits


def test_example_is_a_mapping_or_a_tensor_and_step_is_the_callers():
    words = torch.zeros(2, 64, dtype=torch.long)
    whole = fit.estimate(hf=SMALL, batch=2, seq=64)
    config = {name: value for name, value in SMALL.items() if name != "model_type"}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    again = fit.estimate(model=llama, example=UserDict(input_ids=words, labels=words))
    assert again.total_params == whole.total_params
    assert again.peak_allocated_bytes == pytest.approx(whole.peak_allocated_bytes, rel=0.01)

    class Summed(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).sum()

    assert fit.estimate(model=Summed(64, 64), example=torch.zeros(4, 64)).total_params == 64 * 65
    seen = []

    def step(model, batch, optimizer):
        seen.append(model(batch).sum().backward())
        optimizer.step()
        optimizer.zero_grad()

    assert (
        fit.estimate(model=torch.nn.Linear(64, 8), example=torch.zeros(4, 64), step=step).total_params == 520
    )
    assert seen


def test_recipe_replaces_what_the_example_tells_of_the_training():
    live = {
        "model": Tagger(),
        "example": (torch.zeros(2, 32, dtype=torch.long), torch.zeros(2, dtype=torch.long)),
    }
    found = fit.estimate(**live, recipe=Recipe(batch=64, optimizer="SGD"))
    assert found == fit.estimate(**live, batch=64, optimizer="sgd")
    with pytest.raises(UsageError, match="recipe cannot be combined with batch"):
        fit.estimate(**live, recipe=Recipe(), batch=64)


def test_model_in_16_bit_is_predicted_in_16_bit():
    example = torch.zeros(4, 32, dtype=torch.long), torch.zeros(4, dtype=torch.long)
    half = fit.estimate(model=Tagger().to(torch.bfloat16), example=example)
    assert half == fit.estimate(model=Tagger(), example=example, precision="bf16-pure")
    assert half != fit.estimate(model=Tagger(), example=example)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"model": torch.nn.Linear(1, 1)}, "a model needs an example"),
        ({"example": torch.zeros(1)}, "a model needs an example"),
        ({"model": torch.nn.Linear(1, 1), "example": {"text": "words"}}, "has no tensor with a batch"),
        ({"model": torch.optim.SGD, "example": torch.zeros(1)}, "is no torch.nn.Module"),
        ({"model": torch.nn.Linear(1, 1), "example": torch.zeros(1), "seq": 8}, "seq=: the example tells it"),
        (
            {"model": torch.nn.Linear(1, 1), "example": torch.zeros(1), "hf": SMALL},
            "hf=: one model at a time",
        ),
    ],
)
def test_incomplete_or_contradictory_models_are_refused(keywords, message):
    with pytest.raises(UsageError, match=message):
        fit.estimate(**keywords)
