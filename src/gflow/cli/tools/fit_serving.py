"""gflow fit --infer: predict the memory of serving a model."""

from __future__ import annotations

import json
import sys
from typing import Any


def serve(values: dict[str, Any]) -> int:
    from gflow.ml.fit.serving import OPTIONS, estimate_serving

    named = {name.replace("-", "_"): value for name, value in values.items()}
    settings = {name: value for name, value in named.items() if name in OPTIONS}
    found = estimate_serving(hf=values.get("hf"), params=values.get("params"), **settings)
    if "json" in values:
        import msgspec

        print(json.dumps(msgspec.to_builtins(found), indent=2))
        return 0
    from gflow.text.fit import serving_page

    sys.stdout.write(serving_page(found, settings.get("tensor_parallel", 1)))
    return 0
