"""gflow fit --infer: predict the memory of serving a model."""

from __future__ import annotations

import json
import sys
from typing import Any

from gflow.errors import UsageError


def serve(values: dict[str, Any]) -> int:
    from gflow.ml.fit import formula, serving

    names = {
        "bits": "bits",
        "context": "context",
        "concurrency": "concurrency",
        "tensor-parallel": "tensor_parallel",
    }
    settings = {field: values[name] for name, field in names.items() if name in values}
    if "params" in values:
        found = serving.by_count(formula.count(values["params"]), **settings)
    elif "hf" in values:
        from gflow.ml.fit.models.hf_config import read

        found = serving.by_config(read(values["hf"]), **settings)
    else:
        raise UsageError("which model is to be served?", hint="--hf config.json, or --params 7B")
    if "json" in values:
        import msgspec

        print(json.dumps(msgspec.to_builtins(found), indent=2))
        return 0
    from gflow.text.fit import serving_page

    sys.stdout.write(serving_page(found, settings.get("tensor_parallel", 1)))
    return 0
