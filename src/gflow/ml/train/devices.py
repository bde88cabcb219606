"""Choice of the training device, and a check that it supports the wanted precision."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import torch

from gflow.errors import Refused, UsageError, unknown
from gflow.ml.launch.allocator_setting import OLD, expandable_setting

# Accelerators besides CUDA: of Intel and of Apple.
OTHERS = ("xpu", "mps")
# The type of autocast; None: the model's own type.
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16, "bf16-pure": None}


def pick(wanted: str | torch.device | None = None, *, expandable: bool = False) -> torch.device:
    """Return the wanted device; by default this rank's GPU (CUDA, XPU or MPS), or the CPU if there is none.

    `expandable`: turn on expandable segments of its allocator.
    """
    if expandable:
        _use_expandable_segments()
    if wanted is None:
        if torch.cuda.is_available():
            return _gpu(int(os.environ.get("LOCAL_RANK", "0")))
        if os.environ.get("GFLOW_GPUS", "0") != "0":
            raise Refused(
                f"the job has {os.environ['GFLOW_GPUS']} GPUs, and PyTorch sees none: {_why_none()}"
            )
        return _other_accelerator() or torch.device("cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise UsageError(f"there is no device {str(wanted)!a}", hint="cpu, cuda, cuda:0") from None
    if device.type in ("cpu", "meta"):
        return device
    if device.type != "cuda":
        return _other_accelerator(device)
    if not torch.cuda.is_available():
        raise Refused(f"no {device}: {_why_none()}", hint='device="cpu" trains without a GPU')
    return _gpu(int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index)


def _other_accelerator(wanted: torch.device | None = None) -> Any:
    """Return this rank's accelerator other than CUDA; None, or refuse the wanted one, if there is none."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type not in OTHERS or (wanted is not None and wanted.type != found.type):
        if wanted is None:
            return None
        raise Refused(f"no {wanted}: this PyTorch finds none", hint='device="cpu" trains without a GPU')
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if found.type == "mps":
        if world > 1:
            raise Refused("several processes cannot train on MPS: it has no collectives", hint="one process")
        return found
    index = (
        wanted.index
        if wanted is not None and wanted.index is not None
        else int(os.environ.get("LOCAL_RANK", "0"))
    )
    torch.accelerator.set_device_index(index)
    return torch.device(found.type, index)


def backend_of(device: torch.device) -> str:
    """Return the backends of a process group whose tensors are on the CPU and on this device."""
    backend = {"cuda": "nccl", "xpu": "xccl"}.get(device.type)
    return "gloo" if backend is None else f"cpu:gloo,{device.type}:{backend}"


def _use_expandable_segments() -> None:
    """Turn on expandable segments of the CUDA allocator, before it has reserved memory."""
    if torch.version.cuda is None:
        return
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved():
        raise UsageError(
            "expandable_segments=True comes too late: this process has GPU memory already",
            hint="create the run before the model, or: gflow launch --expandable-segments train.py",
        )
    os.environ.update(expandable_setting(os.environ))
    with suppress(AttributeError, RuntimeError):  # a process that has read the variable before
        torch.cuda.memory._set_allocator_settings(os.environ[OLD])


def describe(device: torch.device, world: int) -> str:
    """Describe the GPU in one line: `NVIDIA H200, 139.8 GiB (138.9 free), CUDA 9.0; PyTorch 2.11.0`."""
    found = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    ranks = f", {world} ranks" if world > 1 else ""
    return (
        f"{found.name}, {total / 2**30:.1f} GiB ({free / 2**30:.1f} free), compute capability "
        f"{found.major}.{found.minor}; PyTorch {torch.__version__}{ranks}"
    )


def _gpu(index: int) -> torch.device:
    count = torch.cuda.device_count()
    if index >= count:
        seen = "one GPU, cuda:0" if count == 1 else f"{count} GPUs, cuda:0 to cuda:{count - 1}"
        raise Refused(
            f"there is no cuda:{index}: this process sees {seen}",
            hint="CUDA_VISIBLE_DEVICES says which; inside a job they are counted from 0",
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def _why_none() -> str:
    if torch.version.cuda is None:
        return "this PyTorch was built without CUDA"
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return "CUDA_VISIBLE_DEVICES is empty, as in a job without --gpus"
    return f"its CUDA {torch.version.cuda} finds no GPU; is the driver new enough (nvidia-smi)?"


def precision_of(name: str, device: torch.device) -> tuple[torch.dtype | None, torch.dtype | None]:
    """Return the autocast type, and the type to which model and batches are converted; None: their own."""
    if name not in PRECISIONS:
        raise unknown("precision", name, PRECISIONS)
    check_bf16(name, device)
    return PRECISIONS[name], torch.bfloat16 if name == "bf16-pure" else None


def check_bf16(precision: str, device: torch.device) -> None:
    """Refuse bf16 on a GPU without it."""
    if not precision.startswith("bf16") or device.type != "cuda":
        return
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        model = torch.cuda.get_device_name(device)
        raise Refused(f"{model} has no bf16 (that came with Ampere)", hint='precision="fp16" works there')
