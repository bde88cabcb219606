"""The GPU catalogue: gpus.toml of the package, overridden by the user's own file."""

from __future__ import annotations

import os
import re
import tomllib
from importlib import resources
from typing import Any

import msgspec

from gflow.errors import UsageError, did_you_mean
from gflow.ml.fit.cuda.architectures import ARCHITECTURES, Architecture

GIB = 1 << 30
# How much the memory of a GPU may differ from the catalogue's.
MEMORY_SLACK = 0.08
# Compute capability of the first GPUs with bf16.
BF16_SINCE = (8, 0)


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars per GPU and hour, with source and date."""

    price: float
    source: str
    date: str

    @property
    def is_compared(self) -> bool:
        """Whether the price was compared with its source, not noted from memory."""
        return not self.source.startswith("from memory")


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    architecture: str
    memory_gib: float
    bandwidth: float
    bf16: float
    fp32: float
    nvlink: float = 0
    spot: Price | None = None
    hourly: Price | None = None
    # Which figures were verified, and against which source.
    checked: str = ""

    @property
    def card(self) -> Architecture:
        return ARCHITECTURES[self.architecture]

    @property
    def has_bf16(self) -> bool:
        """GPUs before Ampere have no bf16, or only a slow emulation."""
        return self.card.capability >= BF16_SINCE

    @property
    def room(self) -> int:
        """Bytes available to PyTorch's allocator."""
        return int(self.memory_gib * GIB) - self.card.context


def own_file() -> str:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "gflow", "gpus.toml")


def catalogue() -> dict[str, Gpu]:
    """Return all GPUs by name, sorted by memory."""
    found = _entries(resources.files("gflow.ml.fit").joinpath("gpus.toml").read_text(), "gpus.toml")
    path = own_file()
    if os.path.exists(path):
        with open(path) as file:
            found |= _entries(file.read(), path)
    return dict(sorted(found.items(), key=lambda item: (item[1].memory_gib, item[1].bf16)))


def find_gpu(name: str, precision: str = "") -> Gpu:
    """Find a GPU by name, ignoring case: `H200`, `a100-40gb`. `precision`: one that it must have."""
    known = catalogue()
    folded = {key.lower(): gpu for key, gpu in known.items()}
    if name.lower() not in folded:
        variants = [key for key in known if key.lower().startswith(f"{name.lower()}-")]
        other = did_you_mean(name, known, f"one of {', '.join(known)}")
        raise UsageError(
            f"no GPU {name!a} in the catalogue",
            hint=f"did you mean {' or '.join(variants)}?" if variants else other,
        )
    check_precision(folded[name.lower()], precision)
    return folded[name.lower()]


def check_precision(gpu: Gpu, precision: str) -> None:
    """Refuse bf16 on a GPU without it."""
    if precision.startswith("bf16") and not gpu.has_bf16:
        raise UsageError(f"{gpu.name} has no bf16", hint="--precision fp16")


def gpu_named(model: str, memory_gib: float, known: dict[str, Gpu] | None = None) -> Gpu | None:
    """Find a GPU by the model that its driver reports: `NVIDIA A100-SXM4-80GB`; None: there is no such one.

    Of GPUs that differ in memory alone, it is the one nearest to `memory_gib`. A version that the catalogue
    does not have, such as `NVIDIA H100 NVL`, is taken for the one that it has.
    """
    words = words_of(model)
    gpus = [gpu for gpu in (known or catalogue()).values() if words >= words_of(gpu.name) != set()]
    return min(
        gpus, key=lambda gpu: (-len(words_of(gpu.name)), abs(gpu.memory_gib - memory_gib)), default=None
    )


def gpu_of_machine(model: str, memory_gib: float) -> Gpu:
    """A GPU of a machine, with the figures of the catalogue. One that it does not have is like a Hopper."""
    gpu = gpu_named(model, memory_gib)
    if gpu is None:
        return Gpu(name=model, architecture="hopper", memory_gib=memory_gib, bandwidth=0, bf16=0, fp32=0)
    # A driver reports slightly more than PyTorch, which the catalogue has.
    is_same_size = abs(memory_gib / gpu.memory_gib - 1) < MEMORY_SLACK
    return msgspec.structs.replace(
        gpu, name=model, memory_gib=min(memory_gib, gpu.memory_gib) if is_same_size else memory_gib
    )


def words_of(model: str) -> set[str]:
    """The words of a model or of a name of the catalogue, in capitals, without the size of its memory."""
    return {word for word in re.split(r"[^A-Z0-9.]+", model.upper()) if not re.fullmatch(r"\d+GB", word)}


def _entries(text: str, path: str) -> dict[str, Gpu]:
    try:
        tables: dict[str, Any] = tomllib.loads(text)
        return {
            name: _check(msgspec.convert({"name": name, **entry}, Gpu))
            for name, entry in tables.items()
            if isinstance(entry, dict)
        }
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: {error}", hint="see gpus.toml in the package for the form") from None


def _check(gpu: Gpu) -> Gpu:
    if gpu.architecture not in ARCHITECTURES:
        raise msgspec.ValidationError(
            f"{gpu.name}: no architecture {gpu.architecture!a}; one of {', '.join(ARCHITECTURES)}"
        )
    if gpu.memory_gib <= 0:
        raise msgspec.ValidationError(f"{gpu.name}: a GPU without memory")
    return gpu
