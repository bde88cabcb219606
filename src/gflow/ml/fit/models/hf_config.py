"""Reader for Hugging Face model configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gflow.errors import UsageError


def read(path: str) -> dict[str, Any]:
    """Read a configuration from config.json or from its directory."""
    file = Path(path)
    if file.is_dir():
        file /= "config.json"
    try:
        config = json.loads(file.read_text())
    except OSError as error:
        raise UsageError(
            f"cannot read {str(file)!a}: {error.strerror}", hint="--hf config.json, or its folder"
        ) from None
    except ValueError:
        raise UsageError(f"{str(file)!a} is not JSON", hint="give the config.json of a model") from None
    if not isinstance(config, dict):
        raise UsageError(f"{str(file)!a} holds no configuration of a model", hint="give its config.json")
    return config
