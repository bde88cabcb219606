"""Search for the largest batch that fits: predicted first, then verified on the GPU with complete steps.

The prediction (see `gflow.fit`) is nearly always right: one trial is usual and two are rare, where doubling
or bisection takes about ten. A trial that runs out of memory releases all it allocated. All ranks get the
same answer.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

from gflow.errors import Refused, UsageError
from gflow.ml.fit.batch_scaling import POINTS, BatchScaling
from gflow.ml.fit.catalogue import gpu_named
from gflow.ml.fit.cuda.architectures import HOPPER
from gflow.ml.fit.estimate import record
from gflow.ml.fit.fits import largest_batch
from gflow.ml.fit.models.user_model import build
from gflow.ml.fit.models.user_model import loss as loss_of
from gflow.ml.fit.models.workload import weight_dtype
from gflow.ml.fit.recipe import Recipe, recipe_of
from gflow.ml.fit.sharding import Shaping, Sharing, extras
from gflow.ml.fit.training import NARROW
from gflow.ml.train import memory
from gflow.ml.train.batch_search import Trial, search
from gflow.ml.train.devices import check_bf16


class Found(NamedTuple):
    """Result of the search. `batch` is per rank; `accumulate` of them reach the wanted effective batch."""

    batch: int
    accumulate: int
    effective: int
    predicted: int
    trials: tuple[Trial, ...]
    room: int


def find_batch_size(
    make: Callable[..., Any],
    *,
    wanted: int | None = None,
    cap_bytes: int | None = None,
    margin: float = 0.005,
    multiple: int = 1,
    steps: int = 3,
    cache: str | os.PathLike[str] | None = None,
    ready: Callable[[Any], Any] | None = None,
    **settings: Any,
) -> Found:
    """Find the largest batch for which training fits on this rank's GPU.

    `make(batch)` returns `(model, batch)` or `(model, batch, step)` as for `gflow fit --py`; settings are
    those of a recipe (precision, optimizer, sequence, checkpointing …). `wanted`: the effective batch.
    `cap_bytes`: use at most this much of the GPU's memory. `margin`: fraction of it that stays free.
    `ready(model)` is applied before trials; with several ranks it defaults to DDP, whose buckets are counted.
    The answer is stored in the file `cache`.
    """
    if not torch.cuda.is_available():
        raise Refused("finding a batch size needs a GPU", hint="gflow fit --largest predicts it without one")
    if multiple < 1 or not 0 <= margin < 1:
        raise UsageError(f"multiple={multiple}, margin={margin}: at least 1, and between 0 and 1")
    device = torch.device("cuda", torch.cuda.current_device())
    recipe = recipe_of({"steps": steps, **settings})
    check_bf16(recipe.precision, device)
    free, total = torch.cuda.mem_get_info(device)
    usable = int((free + torch.cuda.memory_reserved(device)) * (1 - margin))
    if cap_bytes:  # no margin: the memory above the cap stays free
        usable = min(usable, cap_bytes)
    name = _cache_key(make, recipe, device, usable, multiple)
    cached = _read_cache(cache, name)
    if cached is None:
        ready = ready or _replica(device)
        predicted, slope = _predict(make, recipe, device, usable, in_buckets=ready is not None)
        torch.cuda.set_per_process_memory_fraction(usable / total, device)
        try:
            batch, trials = search(
                predicted,
                usable,
                slope,
                lambda size: _worst_peak(attempt(make, recipe, size, device, ready), usable),
                multiple,
            )
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, device)
        if not batch:
            raise Refused(
                f"not even a batch of {multiple} fits into {usable / 2**30:.1f} GiB",
                hint="gflow plan says what to switch on: bf16, checkpointing, an 8-bit optimizer, sharding",
            )
        cached = (batch, predicted, trials)
        _write_cache(cache, name, batch, predicted)
    batch, predicted, trials = cached
    world = int(os.environ.get("WORLD_SIZE", "1"))
    accumulate = max(1, -(-wanted // (batch * world))) if wanted else 1
    return Found(batch, accumulate, batch * world * accumulate, predicted, tuple(trials), usable)


def _replica(device: torch.device) -> Callable[[Any], Any] | None:
    """Return the function that wraps a model for DDP; None with a single rank."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return functools.partial(torch.nn.parallel.DistributedDataParallel, device_ids=[device.index])


def _predict(
    make: Any, recipe: Recipe, device: torch.device, usable: int, *, in_buckets: bool
) -> tuple[int, int]:
    """Return the predicted largest batch and the bytes per additional sample.

    (8, 1 GiB) where the model cannot be predicted.
    """
    import msgspec

    gpu = gpu_named(torch.cuda.get_device_name(device), torch.cuda.mem_get_info(device)[1] / 2**30)
    card = gpu.card if gpu else HOPPER

    @functools.cache
    def trace(batch: int) -> Any:
        return record(py=make, recipe=msgspec.structs.replace(recipe, batch=batch), card=card)

    try:
        run = BatchScaling(trace)
        if in_buckets:  # DDP's buckets stay allocated
            usable -= sum(extras(trace(POINTS[0]), Sharing(gpus=2)))
        batch = max(1, largest_batch(trace, usable, run.largest(usable)))
        half = max(1, batch // 2)
        upper, lower = (run.needed(size, Shaping()) or 0 for size in (batch, half))
        return batch, max(1, (upper - lower) // (batch - half)) if half < batch else usable
    except Refused:  # the model depends on tensor values
        return 8, 1 << 30


def attempt(
    make: Any, recipe: Recipe, batch: int, device: torch.device, ready: Callable[[Any], Any] | None = None
) -> int | None:
    """Run complete training steps with this batch. Return the peak in bytes; None if out of memory."""
    clear(device)
    try:
        _steps(make, recipe, batch, device, ready)
        return int(torch.cuda.max_memory_reserved(device))
    except torch.OutOfMemoryError as error:
        # The traceback references the tensors of all frames.
        error.__traceback__ = None
        return None
    finally:
        clear(device)


def clear(device: torch.device) -> None:
    torch.cuda.synchronize(device)
    memory.release(device)
    memory.reset_peaks(device)


def _steps(
    make: Any, recipe: Recipe, batch: int, device: torch.device, ready: Callable[[Any], Any] | None
) -> None:
    """Run a standard training loop on the GPU."""
    made = build(make, batch, recipe.sequence, has_values=True)
    model = made[0].to(device, weight_dtype(recipe)).train()
    if recipe.checkpointing:
        model.gradient_checkpointing_enable()
    model = ready(model) if ready else model
    optimizer = getattr(torch.optim, recipe.optimizer)(
        [one for one in model.parameters() if one.requires_grad], **{"lr": 1e-4, **recipe.optimizer_options}
    )
    scaler = torch.amp.GradScaler("cuda") if recipe.precision == "fp16" else None
    narrow = NARROW.get(recipe.precision)
    for _ in range(recipe.steps):
        inputs = tree_map(
            lambda one: one.to(device) if isinstance(one, torch.Tensor) else one,
            made[1]() if callable(made[1]) else made[1],
        )
        if len(made) == 3:
            made[2](model, inputs, optimizer)
            continue
        with torch.autocast("cuda", narrow, enabled=narrow is not None):
            loss = loss_of(model, inputs)
        (scaler.scale(loss) if scaler else loss).backward()
        if recipe.clip:
            if scaler:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        scaler.step(optimizer) if scaler else optimizer.step()
        if scaler:
            scaler.update()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize(device)


def _worst_peak(peak: int | None, usable: int) -> int | None:
    """Return the largest peak of all ranks; None if one failed or used more than `usable`."""
    import torch.distributed as dist

    worst = usable + 1 if peak is None else peak
    if dist.is_available() and dist.is_initialized():
        tensor = torch.tensor([worst], device="cuda")
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        worst = int(tensor.item())
    return None if worst > usable else worst


# ---------------------------------------------------------------- cache


def _cache_key(make: Any, recipe: Recipe, device: torch.device, usable: int, multiple: int) -> str:
    code = getattr(make, "__code__", None)
    about = (
        getattr(make, "__qualname__", repr(make)),
        None if code is None else code.co_code.hex(),
        repr(recipe),
        torch.cuda.get_device_name(device),
        torch.__version__,
        usable >> 28,
        multiple,
        os.environ.get("WORLD_SIZE", "1"),
    )
    return hashlib.sha256(repr(about).encode()).hexdigest()[:16]


def _read_cache(cache: Any, name: str) -> tuple[int, int, list[Trial]] | None:
    if cache is None:
        return None
    try:
        with open(cache, encoding="utf-8") as file:
            batch, predicted = json.load(file)[name]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return int(batch), int(predicted), []


def _write_cache(cache: Any, name: str, batch: int, predicted: int) -> None:
    if cache is None or os.environ.get("RANK", "0") != "0":
        return
    try:
        with open(cache, encoding="utf-8") as file:
            known = json.load(file)
    except (OSError, ValueError):
        known = {}
    temporary = f"{os.fspath(cache)}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({**known, name: [batch, predicted]}, file)
    os.replace(temporary, cache)
