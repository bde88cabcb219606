"""What a training script imports: a run that stops when asked, saves itself, and goes on where it was.

    from gflow import train

    with train.Run("checkpoints") as run:
        model = run.model(Net())
        run.optimizer(torch.optim.AdamW(model.parameters()))
        loader = run.loader(dataset, batch_size=32)
        run.resume()
        for batch in run.batches(loader, epochs=3):
            run.backward(loss_of(model, batch))

PyTorch is loaded when the first of these names is asked for, not before: `gflow[train]` has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gflow.train import callbacks as callbacks
    from gflow.train.batching import find_batch_size as find_batch_size
    from gflow.train.checkpointer import Checkpointer as Checkpointer
    from gflow.train.progress import report as report
    from gflow.train.run import Run as Run
    from gflow.train.stopping import Stop as Stop
    from gflow.train.vault import Vault as Vault

_PLACES = {
    "Checkpointer": "checkpointer",
    "find_batch_size": "batching",
    "Run": "run",
    "report": "progress",
    "Stop": "stopping",
    "Vault": "vault",
}


def __getattr__(name: str) -> object:
    if name == "callbacks":
        return __import__("gflow.train.callbacks", fromlist=("callbacks",))
    if name not in _PLACES:
        raise AttributeError(f"module 'gflow.train' has no attribute {name!r}")
    try:
        return getattr(__import__(f"gflow.train.{_PLACES[name]}", fromlist=(name,)), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from gflow.errors import Refused

        raise Refused(
            "training needs PyTorch, and this Python has none", hint="pip install 'gflow[train]'"
        ) from None


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES, "callbacks"])
