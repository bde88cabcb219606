"""Public API for training scripts: a run that stops on request, writes checkpoints and resumes from them.

    from gflow import train

    with train.Run("checkpoints") as run:
        model = run.model(Net())
        run.optimizer(torch.optim.AdamW(model.parameters()))
        loader = run.loader(dataset, batch_size=32)
        run.resume()
        for batch in run.batches(loader, epochs=3):
            run.backward(loss_of(model, batch))

PyTorch is imported on first access to one of these names. The extra `train` installs it.
Only names are exported here; the code is in `gflow.ml.train`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gflow.ml.train import callbacks as callbacks
    from gflow.ml.train.batch_size import find_batch_size as find_batch_size
    from gflow.ml.train.checkpoint.checkpoint_dir import CheckpointDirectory as CheckpointDirectory
    from gflow.ml.train.checkpoint.checkpoint_dir import Vault as Vault
    from gflow.ml.train.checkpoint.checkpointer import Checkpointer as Checkpointer
    from gflow.ml.train.progress import report as report
    from gflow.ml.train.run import Run as Run
    from gflow.ml.train.stop import Stop as Stop

_MODULES = {
    "CheckpointDirectory": "checkpoint.checkpoint_dir",
    "Checkpointer": "checkpoint.checkpointer",
    "find_batch_size": "batch_size",
    "Run": "run",
    "report": "progress",
    "Stop": "stop",
    "Vault": "checkpoint.checkpoint_dir",
}


def __getattr__(name: str) -> object:
    if name == "callbacks":
        return __import__("gflow.ml.train.callbacks", fromlist=("callbacks",))
    if name not in _MODULES:
        raise AttributeError(f"module 'gflow.train' has no attribute {name!r}")
    try:
        return getattr(__import__(f"gflow.ml.train.{_MODULES[name]}", fromlist=(name,)), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from gflow.errors import Refused
        from gflow.install_hint import install_hint

        raise Refused(
            "training needs PyTorch, and this Python has none", hint=install_hint("train")
        ) from None


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES, "callbacks"])
