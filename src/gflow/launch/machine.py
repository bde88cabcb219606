"""What this machine has for the processes of a launch."""

from __future__ import annotations

import os


def gpus_there() -> tuple[int, str]:
    """How many GPUs the processes can have, and who has them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    whose = "the job has" if "GFLOW_JOB_ID" in os.environ else "CUDA_VISIBLE_DEVICES names"
    if visible is not None:
        return len([one for one in visible.split(",") if one.strip() not in ("", "-1")]), whose
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount()), "this machine has"
    except pynvml.NVMLError:
        return 0, "this machine has"
