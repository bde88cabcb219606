"""Reader for Hugging Face model configurations."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from gflow.errors import UsageError

# The name of a model on the Hugging Face Hub: owner and model.
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)


def read(path: str) -> dict[str, Any]:
    """Read a configuration from config.json, its directory, or the local cache of a model on the Hub."""
    file = Path(path)
    if file.is_dir():
        file /= "config.json"
    elif not file.exists() and _HUB_NAME.fullmatch(path):
        file = _cached(path)
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


def _cached(name: str) -> Path:
    """Find config.json of a model in the local cache of huggingface_hub, which gflow does not download to."""
    model = _hub_cache() / f"models--{name.replace('/', '--')}"
    snapshots = sorted(model.glob("snapshots/*/config.json"), key=lambda file: file.stat().st_mtime)
    try:
        revision = (model / "refs/main").read_text().strip()
    except OSError:
        revision = ""
    for file in (model / "snapshots" / revision / "config.json", *reversed(snapshots)):
        if file.is_file():
            return file
    raise UsageError(
        f"there is no file {name}, and no config.json of it in the Hugging Face cache",
        hint=f"hf download {name} config.json puts it there; gflow fit downloads nothing",
    )


def _hub_cache() -> Path:
    """The cache directory, by the variables of huggingface_hub."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    return Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
