"""DeepSpeed configuration from the options of a run. Pure: DeepSpeed itself is not imported."""

from __future__ import annotations

from typing import Any

from gflow.errors import UsageError

STAGES = (0, 1, 2, 3)


def config(
    *,
    stage: int = 2,
    batch: int = 1,
    world: int = 1,
    accumulate: int = 1,
    effective_batch: int | None = None,
    precision: str = "bf16",
    clip: float | None = 1.0,
    offload: str = "none",
) -> dict[str, Any]:
    """Return a configuration for `deepspeed.initialize(config=…)`, Accelerate or transformers.Trainer.

    `stage`: 1 shards the optimizer's state, 2 also gradients, 3 also the parameters. `offload`: move the
    optimizer, or all, to host memory. The effective batch must be a multiple of `batch * world`.
    """
    if stage not in STAGES:
        raise UsageError(f"there is no ZeRO stage {stage}", hint="1, 2 or 3; 0 for none")
    if offload not in ("none", "optimizer", "all") or (offload == "all" and stage != 3):
        raise UsageError(f"offload={offload!r} with stage {stage}", hint="optimizer with 1 to 3, all with 3")
    if precision not in ("fp32", "bf16", "fp16"):
        raise UsageError(f"unknown precision {precision!a}", hint="fp32, bf16 or fp16")
    if effective_batch is not None:
        accumulate, odd = divmod(effective_batch, batch * world)
        if odd or not accumulate:
            raise UsageError(
                f"{effective_batch} samples are not a multiple of {batch} on each of {world} GPUs"
            )
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    if stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    if offload != "none" and stage:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    found: dict[str, Any] = {
        "train_batch_size": batch * world * accumulate,
        "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": accumulate,
        "zero_optimization": zero,
        "bf16": {"enabled": precision == "bf16"},
        # Dynamic loss scale, as in PyTorch's GradScaler.
        "fp16": {"enabled": precision == "fp16", "loss_scale": 0, "initial_scale_power": 16},
    }
    if clip is not None:
        found["gradient_clipping"] = clip
    return found
