"""Models from a Hugging Face configuration, built without downloading weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from gflow.errors import Refused, UsageError, did_you_mean
from gflow.ml.fit.models.lazy_torch import load_torchvision
from gflow.ml.fit.models.workload import Workload, adapt, pictures, weight_dtype, words
from gflow.ml.fit.recipe import Recipe

# Tasks by name. A model without a named architecture gets the first one that transformers offers for it.
TASKS = {
    "speech": "AutoModelForSpeechSeq2Seq",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "mlm": "AutoModelForMaskedLM",
    "causal": "AutoModelForCausalLM",
    "image": "AutoModelForImageClassification",
    "audio": "AutoModelForAudioClassification",
    "sequence": "AutoModelForSequenceClassification",
}
# A configuration without any of these keys does not define the size of the model.
SIZES = ("hidden_size", "n_embd", "d_model", "dim", "hidden_sizes", "embed_dim", "text_config", "encoder",
         "vision_config", "depths", "encoder_hidden_size", "embedding_size", "n_layer",
         "hidden_dim")  # fmt: skip
# PyTorch's messages on various platforms when host memory is exhausted.
NO_MEMORY = ("can't allocate memory", "not enough memory")


def workload(given: dict[str, Any], recipe: Recipe, task: str = "") -> Workload:
    load_torchvision()
    import transformers

    transformers.logging.set_verbosity_error()
    config = configuration(given)
    kind = task or _task(config)
    if kind not in TASKS:
        raise UsageError(f"unknown task {kind!a}", hint=f"one of {', '.join(TASKS)}")
    model = _build(config, kind, recipe)
    doubts = (*_other_than_named(given, model), *_without_pictures(kind, config))
    if recipe.lora:
        adapt(model, recipe)
    model.train()
    batches = _batches(kind, config, recipe)
    return Workload(model, batches, lambda net, batch: net(**batch).loss, doubts=doubts)


def _other_than_named(given: dict[str, Any], model: Any) -> tuple[str, ...]:
    """A doubt if the trained class is not the named one: a bare encoder (`CLIPModel`) has no loss."""
    named, trained = (given.get("architectures") or [""])[0], type(model).__name__
    if named in ("", trained):
        return ()
    return (
        f"the configuration names {named}, and {trained} was trained instead (change it with --task or --py)",
    )


def _without_pictures(kind: str, config: Any) -> tuple[str, ...]:
    if kind in ("image", "audio", "speech") or getattr(config, "vision_config", None) is None:
        return ()
    return (
        "the batch has no pictures: of the vision part, only the weights are counted (--py can train both)",
    )


def configuration(given: dict[str, Any]) -> Any:
    import transformers

    kind = given.get("model_type")
    known = transformers.CONFIG_MAPPING
    if not kind:
        raise UsageError("the configuration names no model_type", hint="give the config.json of a model")
    if kind not in known:
        raise Refused(
            f"transformers {transformers.__version__} knows no model of type {kind!a}",
            hint=did_you_mean(kind, known, "use --py with a function that builds it"),
        )
    if not any(name in given for name in SIZES):
        raise UsageError(
            f"the configuration of {kind!a} says nothing about its size",
            hint="its defaults would be a guess; give the model's own config.json",
        )
    settings = {
        key: value
        for key, value in given.items()
        if key not in ("model_type", "auto_map", "quantization_config")
    }
    try:
        config = known[kind](**settings)
    except Exception as error:
        raise Refused(f"transformers refuses this configuration: {_in_one_line(error)}") from None
    config.use_cache = False
    return config


def _task(config: Any) -> str:
    """Derive the task from the named architecture, or from what transformers offers for this model type."""
    named = (getattr(config, "architectures", None) or [""])[0]
    for words_in, kind in (
        ("ForConditionalGeneration", "speech" if hasattr(config, "num_mel_bins") else "seq2seq"),
        ("ForSequenceClassification", "sequence"),
        ("ForSequenceClassification", "audio"),
        ("ForMaskedLM", "mlm"),
        ("ForCausalLM", "causal"),
        ("LMHeadModel", "causal"),
        ("ForImageClassification", "image"),
        ("ForAudioClassification", "audio"),
    ):
        if named.endswith(words_in) and _is_offered(kind, config):
            return kind
    for kind in TASKS:
        if _is_offered(kind, config):
            return kind
    raise Refused(
        f"a model of type {config.model_type!a} is made for no task that gflow can train",
        hint=f"tasks: {', '.join(TASKS)}; otherwise use --py",
    )


def _is_offered(kind: str, config: Any) -> bool:
    import transformers

    return type(config) in getattr(transformers, TASKS[kind])._model_mapping


def _build(config: Any, kind: str, recipe: Recipe) -> Any:
    import transformers

    auto = getattr(transformers, TASKS[kind])
    if type(config) not in auto._model_mapping:
        fitting = [
            name for name in TASKS if type(config) in getattr(transformers, TASKS[name])._model_mapping
        ]
        raise UsageError(
            f"transformers has no {config.model_type} for the task {kind!a}",
            hint=f"--task {', '.join(fitting)}" if fitting else "use --py with a function that builds it",
        )
    offered = auto._model_mapping[type(config)]
    if isinstance(offered, tuple) and not config.architectures:
        # Several models for one task and none is named: the first is the standard one.
        config.architectures = [offered[0].__name__]
    from gflow.ml.fit.models.model_builder import without_values

    with without_values():
        try:
            # A copy: a rejected attention implementation would stay in the configuration.
            wanted = copy.deepcopy(config)
            model = auto.from_config(wanted, attn_implementation=recipe.attention, dtype=weight_dtype(recipe))
        except ValueError as error:
            if "attention" not in str(error) and "attn" not in str(error):
                raise Refused(f"transformers cannot build this model: {_in_one_line(error)}") from None
            # Not every model supports both implementations: use its default.
            model = auto.from_config(config, dtype=weight_dtype(recipe))
        except (TypeError, KeyError, RuntimeError, AttributeError) as error:
            if any(words in str(error) for words in NO_MEMORY):
                raise _too_large(auto, config) from error
            raise Refused(f"transformers cannot build this model: {_in_one_line(error)}") from None
        model = model.to(weight_dtype(recipe))
    if recipe.checkpointing:
        try:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        except ValueError as error:
            raise Refused(str(error)) from None
    return model


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _too_large(auto: Any, config: Any) -> Refused:
    """Return the error for a model that does not fit into host memory, with its size counted on `meta`."""
    import torch

    with torch.device("meta"):
        size = 4 * sum(parameter.numel() for parameter in auto.from_config(config).parameters())
    return Refused(
        f"the model is too large for this machine's memory: its weights alone are {size / 1e12:.1f} TB",
        hint="check the sizes in the configuration; --params answers by a formula, which may be off by half",
    )


def _batches(kind: str, config: Any, recipe: Recipe) -> Callable[[], Any]:
    batch, length = recipe.batch, recipe.sequence
    dtype = weight_dtype(recipe)
    text = getattr(config, "get_text_config", lambda: config)()
    vocabulary = getattr(text, "vocab_size", None) or 2
    _check_length(kind, text, length)
    target = recipe.target or max(1, length // 4)
    most_frames = getattr(config, "max_source_positions", 1500)

    def causal() -> Any:
        tokens = words(vocabulary, batch, length)
        return {"input_ids": tokens, "labels": tokens}

    def seq2seq() -> Any:
        return {"input_ids": words(vocabulary, batch, length), "labels": words(vocabulary, batch, target)}

    def sequence() -> Any:
        return {"input_ids": words(vocabulary, batch, length), "labels": words(config.num_labels, batch)}

    def image() -> Any:
        side = recipe.image or getattr(config, "image_size", None) or 224
        high, wide = side if isinstance(side, list | tuple) else (side, side)
        shape = (batch, getattr(config, "num_channels", 3), high, wide)
        return {"pixel_values": pictures(*shape, dtype=dtype), "labels": words(config.num_labels, batch)}

    def speech() -> Any:
        wanted = recipe.target or min(128, getattr(config, "max_target_positions", 448))
        bands = getattr(config, "input_feat_per_channel", None)
        # Speech2Text takes any number of frames, Whisper always 30 seconds.
        shape = (length, bands) if bands else (getattr(config, "num_mel_bins", 80), 2 * most_frames)
        features = pictures(batch, *shape, dtype=dtype)
        return {"input_features": features, "labels": words(vocabulary, batch, wanted)}

    def audio() -> Any:
        return {
            "input_values": pictures(batch, length, dtype=dtype),
            "labels": words(config.num_labels, batch),
        }

    makers = {"causal": causal, "mlm": causal, "seq2seq": seq2seq, "sequence": sequence, "image": image,
              "speech": speech, "audio": audio}  # fmt: skip
    return makers[kind]


def _check_length(kind: str, text: Any, length: int) -> None:
    """Refuse a sequence longer than the learned position embeddings: it would fail on the GPU as well."""
    most = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    if (
        kind in ("causal", "mlm", "sequence")
        and isinstance(most, int)
        and 0 < most < length
        and not hasattr(text, "rope_theta")
        and not hasattr(text, "rope_parameters")
    ):
        raise UsageError(
            f"a sequence of {length} is longer than the model's {most} positions", hint=f"--seq {most}"
        )
