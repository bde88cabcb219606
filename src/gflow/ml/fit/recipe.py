"""Training options of a prediction, validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gflow.errors import UsageError, did_you_mean, unknown
from gflow.options.commands.fit_options import RECIPE
from gflow.options.values import read

PRECISIONS = ("fp32", "bf16", "fp16", "bf16-pure", "fp16-pure")
ATTENTION = ("sdpa", "eager")
QUANTIZE = (0, 4, 8)
# Option values and their classes; any other name is looked up in torch.optim unchanged.
OPTIMIZERS = {
    "adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "adafactor": "Adafactor", "adagrad": "Adagrad",
    "adamax": "Adamax", "nadam": "NAdam", "radam": "RAdam", "rmsprop": "RMSprop", "rprop": "Rprop",
    "adadelta": "Adadelta", "asgd": "ASGD", "lion": "Lion", "muon": "Muon",
}  # fmt: skip
MOST_BATCH = 1 << 20
MOST_SEQUENCE = 1 << 24


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train."""

    batch: int = 1
    sequence: int = 512
    # Length of the target sequence of a seq2seq model; 0: a quarter of `sequence`.
    target: int = 0
    # Side of an image in pixels; 0: the model's default.
    image: int = 0
    precision: str = "fp32"
    optimizer: str = "AdamW"
    optimizer_options: dict[str, Any] = {}
    accumulate: int = 1
    checkpointing: bool = False
    clip: float | None = None
    attention: str = "sdpa"
    # Rank of the low-rank adapters; 0: all weights are trained.
    lora: int = 0
    # Bits of the base weights under adapters: 4 or 8; 0: as given by the precision.
    quantize: int = 0
    channels_last: bool = False
    # The allocator's setting expandable_segments:True.
    expandable_segments: bool = False
    steps: int = 3

    def __post_init__(self) -> None:
        kind, options = optimizer(self.optimizer)
        msgspec.structs.force_setattr(self, "optimizer", kind)
        msgspec.structs.force_setattr(self, "optimizer_options", options | self.optimizer_options)
        _among("precision", self.precision, PRECISIONS)
        _among("attention", self.attention, ATTENTION)
        _within("batch", self.batch, MOST_BATCH)
        _within("sequence", self.sequence, MOST_SEQUENCE)
        _within("accumulate", self.accumulate, 1 << 16)
        if self.quantize not in QUANTIZE:
            raise UsageError(f"weights of {self.quantize} bit are not known", hint="--quantize 4, or 8")
        if self.quantize and not self.lora:
            raise UsageError("quantised weights cannot be trained", hint="put adapters on them: --lora 16")
        if self.clip is not None and not self.clip > 0:
            raise UsageError(f"gradients cannot be clipped to {self.clip}", hint="--clip 1.0")


# Fields of a recipe that have another name than their option.
RENAMED = {"seq": "sequence", "target_seq": "target", "attn": "attention"}
OPTIONS = {RENAMED.get(name, name): option for option in RECIPE for name in [option.name.replace("-", "_")]}


def recipe_of(settings: Mapping[str, Any]) -> Recipe:
    """The recipe of options by name (`target-seq`, `target_seq`) or field, read as `gflow fit` reads them."""
    fields: dict[str, Any] = {}
    for name, value in settings.items():
        spelled = name.replace("-", "_")
        field = RENAMED.get(spelled, spelled)
        if field not in Recipe.__struct_fields__:
            raise unknown("option", name, [*RENAMED, *Recipe.__struct_fields__])
        fields[field] = _read(field, value)
    return Recipe(**{field: value for field, value in fields.items() if value is not None})


def _read(field: str, value: Any) -> Any:
    """The value of a field, checked by the table of options; None: the default."""
    if value is None or value == getattr(DEFAULTS, field):
        return None
    if field == "clip":
        return _norm(value)
    return read(OPTIONS[field], value) if field in OPTIONS else value


def _norm(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"--clip takes a number, not {value!a}", hint="--clip 1.0") from None


def optimizer(name: str) -> tuple[str, dict[str, Any]]:
    """Parse `adamw`, `adamw-fused` or `sgd:momentum=0.9` into the class in torch.optim and its options."""
    word, _, settings = name.partition(":")
    word, _, variant = word.partition("-")
    options: dict[str, Any] = {}
    if variant in ("fused", "foreach"):
        options[variant] = True
    elif variant == "loop":
        options["foreach"] = False
    elif variant == "8bit":
        word = _eight_bit(word)
    elif variant:
        raise UsageError(
            f"unknown variant {variant!a} of an optimizer",
            hint="adamw-fused, adamw-foreach, adamw-loop, adamw-8bit",
        )
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        options[key] = _value(value)
    known = OPTIMIZERS.get(word.lower())
    if known is None and not word[:1].isupper():
        raise UsageError(
            f"unknown optimizer {word!a}",
            hint=did_you_mean(word, OPTIMIZERS, "one of " + ", ".join(OPTIMIZERS)),
        )
    return known or word, options


def _eight_bit(word: str) -> str:
    if word.lower() not in ("adam", "adamw"):
        raise UsageError(f"{word!a} has no states in 8 bit", hint="adamw-8bit, or adam-8bit")
    return f"{OPTIMIZERS[word.lower()]}8bit"


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text.lower())
    except msgspec.DecodeError:
        raise UsageError(f"{text!a} is neither a number nor true or false", hint="sgd:momentum=0.9") from None


def _among(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(
            f"unknown {what} {value!a}", hint=did_you_mean(value, known, f"one of {', '.join(known)}")
        )


def _within(what: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise UsageError(f"a {what} of {value} is not possible", hint=f"from 1 to {most}")


DEFAULTS = Recipe()
