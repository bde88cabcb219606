"""gflow fit --infer: predict the memory of serving a model."""

from __future__ import annotations

import json
import sys
from typing import Any

from gflow.errors import UsageError
from gflow.options.commands.fit_options import SERVING
from gflow.options.job_options import COMMON

# Options of training that say something about serving too.
SHARED = {"hf", "params", "gpu", "quantize", "json", *(option.name for option in (*SERVING, *COMMON))}


def serve(values: dict[str, Any]) -> int:
    from gflow.ml.fit.serving import estimate_serving

    if others := sorted(values.keys() - SHARED):
        raise UsageError(
            f"--{others[0]} is for training, not for --infer",
            hint="--infer takes --bits, --context, --concurrency, --tensor-parallel and --gpu",
        )
    named = {name.replace("-", "_"): value for name, value in values.items()}
    found = estimate_serving(**{name: one for name, one in named.items() if name not in ("infer", "json")})
    if "json" in values:
        print(json.dumps(found, indent=2))
        return 0
    from gflow.text.fit import cards, serving_page

    sys.stdout.write(serving_page(found, values.get("tensor-parallel", 1)))
    if "gpu" in values:
        sys.stdout.write(cards({"gpus": found.gpus}))
    return 0
