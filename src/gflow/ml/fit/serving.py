"""Memory of inference: weights at 16, 8 or 4 bit, and the KV cache."""

from __future__ import annotations

import os
from typing import Any, Unpack

import msgspec

from gflow.errors import UsageError, unknown
from gflow.ml.fit import formula
from gflow.ml.fit.answer import Answer
from gflow.ml.fit.catalogue import Gpu, catalogue, find_gpu
from gflow.ml.fit.cuda.architectures import HOPPER
from gflow.ml.fit.fits import TIGHT, Verdict
from gflow.ml.fit.keywords import ServingKeywords, with_keywords
from gflow.ml.fit.models import hf_config
from gflow.options.commands.fit_options import SERVING
from gflow.options.values import read

BITS = (16, 8, 4)
DEFAULTS = {"bits": 16, "context": 4096, "concurrency": 1, "tensor_parallel": 1}
OPTIONS = {option.name.replace("-", "_"): option for option in SERVING if option.name != "infer"}
# Decoders from this size on share keys and values among query heads (Llama 3, Mistral, Qwen): eight key heads
# of width 128 are assumed. Llama 2 of 7B and 13B does not.
GROUPED_FROM = 3 * 10**9
GROUPED_WIDTH = 8 * 128
# Overhead of scales and zero points: about half a byte per 32 weights.
QUANTISED = 1.06


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on each GPU."""

    weights_bytes: int
    cache_bytes: int
    temporaries_bytes: int
    process_bytes: int
    cache_bytes_per_token: int
    total_params: int
    confidence: str


def serve(
    *,
    parameters: int,
    width: int,
    layers: int,
    cached_width: int,
    vocabulary: int,
    bits: int = DEFAULTS["bits"],
    context: int = DEFAULTS["context"],
    concurrency: int = DEFAULTS["concurrency"],
    tensor_parallel: int = DEFAULTS["tensor_parallel"],
    confidence: str = "rough",
) -> Serving:
    if bits not in BITS:
        raise UsageError(f"weights of {bits} bit are not known", hint="--bits 16, 8 or 4")
    weights = parameters * bits // 8
    if bits < 16:
        weights = int(weights * QUANTISED)
    per_token = 2 * 2 * layers * cached_width
    cache = per_token * context * concurrency
    # Prefill of a full prompt: two tensors of the MLP's hidden width, and the logits.
    temporaries = 2 * context * width * 4 * 2 + concurrency * vocabulary * 4
    own = weights // tensor_parallel + cache // tensor_parallel + temporaries // tensor_parallel
    return Serving(
        weights_bytes=weights // tensor_parallel,
        cache_bytes=cache // tensor_parallel,
        temporaries_bytes=temporaries // tensor_parallel,
        process_bytes=own + HOPPER.context,
        cache_bytes_per_token=per_token,
        total_params=parameters,
        confidence=confidence,
    )


@with_keywords(ServingKeywords, lambda name: DEFAULTS.get(name))
def estimate_serving(**options: Unpack[ServingKeywords]) -> Answer:
    """Predict the memory of serving a model: `estimate_serving(params="7B", bits=4, context=8192)`.

    `hf`: a config.json, its folder, or the configuration as a dictionary. `gpu`: one of the catalogue. The
    other options are those of `gflow fit --infer`: bits (or quantize), context, concurrency,
    tensor_parallel. Returns what `--json` prints.
    """
    chosen: dict[str, Any] = {
        name.replace("-", "_"): value for name, value in options.items() if value is not None
    }
    hf, params, gpu = (chosen.pop(name, None) for name in ("hf", "params", "gpu"))
    if "quantize" in chosen and chosen.setdefault("bits", chosen["quantize"]) != chosen.pop("quantize"):
        raise UsageError("--bits and --quantize are the same when a model is served", hint="--bits 4")
    for name, value in chosen.items():
        if name not in OPTIONS:
            raise unknown("option", name, [*OPTIONS, "quantize"])
        chosen[name] = read(OPTIONS[name], value)
    if params is not None:
        found = by_count(formula.count(str(params)), **chosen)
    elif hf is not None:
        found = by_config(hf if isinstance(hf, dict) else hf_config.read(os.fspath(hf)), **chosen)
    else:
        raise UsageError("which model is to be served?", hint="--hf config.json, or --params 7B")
    gpus = {named.name: named for named in [find_gpu(gpu)]} if gpu else catalogue()
    answer: Answer = Answer.of(found)
    answer["gpus"] = Answer.of([verdict(found, one) for one in gpus.values()])
    if gpu:
        answer["fits"] = answer.gpus[0].fits != "no"
    return answer


def verdict(found: Serving, gpu: Gpu) -> Verdict:
    """Whether the share of each GPU fits on this one."""
    needed = found.process_bytes - HOPPER.context
    state = "yes" if needed <= TIGHT * gpu.room else "tight" if needed <= gpu.room else "no"
    whole = gpu.room + gpu.card.context
    price = gpu.hourly
    return Verdict(
        gpu.name,
        state,
        round((needed + gpu.card.context) / whole, 3),
        price.price if price else None,
        price is None or price.is_compared,
    )


def by_count(parameters: int, **settings: Any) -> Serving:
    """Estimate from a parameter count: a decoder, with grouped heads if it is large."""
    width, depth = formula.shape(parameters)
    cached = min(width, GROUPED_WIDTH) if parameters >= GROUPED_FROM else width
    return serve(parameters=parameters, width=width, layers=depth, cached_width=cached,
                 vocabulary=formula.VOCABULARY, **settings)  # fmt: skip


def by_config(config: dict[str, Any], **settings: Any) -> Serving:
    """Estimate from the sizes in a Hugging Face configuration of a decoder."""
    text = config.get("text_config", config)
    width = text.get("hidden_size") or text.get("n_embd") or text.get("d_model")
    layers = text.get("num_hidden_layers") or text.get("n_layer") or text.get("num_layers")
    heads = text.get("num_attention_heads") or text.get("n_head") or text.get("num_heads")
    if not (width and layers and heads):
        raise UsageError("the configuration names no width, layers and heads", hint="--infer is for decoders")
    head = text.get("head_dim") or width // heads
    cached = (text.get("num_key_value_heads") or heads) * head
    middle = text.get("intermediate_size") or text.get("n_inner") or text.get("d_ff") or 4 * width
    vocabulary = text.get("vocab_size", formula.VOCABULARY)
    is_gated = "num_key_value_heads" in text or "rms_norm_eps" in text
    experts = text.get("num_local_experts") or text.get("num_experts") or 1
    layer = 2 * width * heads * head + 2 * width * cached + (3 if is_gated else 2) * width * middle * experts
    ties = text.get("tie_word_embeddings", not is_gated)
    parameters = layers * layer + vocabulary * width * (1 if ties else 2)
    return serve(parameters=parameters, width=width, layers=layers, cached_width=cached,
                 vocabulary=vocabulary, confidence="medium", **settings)  # fmt: skip
