"""Progress reports and stop requests for training loops of other libraries, each imported on first use.

trainer = transformers.Trainer(…, callbacks=[train.callbacks.transformers()])
trainer = lightning.Trainer(callbacks=[train.callbacks.lightning()])
accelerator = accelerate.Accelerator(log_with=train.callbacks.accelerate())
for batch in train.callbacks.tqdm(loader): …
"""

from __future__ import annotations

from typing import Any

from gflow.ml.train.progress import Reporter
from gflow.ml.train.stop import Stop


def transformers() -> Any:
    """Callback for transformers.Trainer: reports progress; on a stop request it saves and ends training."""
    from transformers import TrainerCallback

    class Gflow(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.stop, self.reporter = Stop(), Reporter()
            self.logged: dict[str, Any] = {}

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.stop.listen()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            self.logged |= _metrics(logs or {})

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
            if state.is_world_process_zero:
                self.reporter.note(
                    state.global_step,
                    steps=state.max_steps,
                    epoch=int(state.epoch or 0),
                    epochs=int(args.num_train_epochs) if args.max_steps <= 0 else 0,
                    samples=state.global_step * args.train_batch_size * args.world_size
                    * args.gradient_accumulation_steps,
                    final=state.global_step >= state.max_steps,
                    **self.logged,
                )  # fmt: skip
            if _any_rank(self.stop.is_asked):
                control.should_save = control.should_training_stop = True
            return control

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.stop.close()

        @property
        def stopped(self) -> bool:
            """Whether training ended on a stop request. The script should then exit with code 75."""
            return bool(self.stop.reason)

    return Gflow()


def lightning() -> Any:
    """Callback for Lightning: reports progress; on a stop request it saves `last.ckpt` and ends training."""
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError:
        from pytorch_lightning import Callback

    class Gflow(Callback):  # type: ignore[misc]
        def __init__(self, folder: str = "") -> None:
            self.stop, self.reporter, self.folder = Stop(), Reporter(), folder

        def on_train_start(self, trainer: Any, module: Any) -> None:
            # Not chained: Lightning's own handler ends training with an error after the batch.
            self.stop.listen(chained=False)

        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            total = trainer.estimated_stepping_batches
            if trainer.is_global_zero:
                self.reporter.note(
                    trainer.global_step,
                    steps=int(total) if total != float("inf") else 0,
                    epoch=trainer.current_epoch,
                    epochs=max(0, trainer.max_epochs or 0),
                    loss=loss,
                )
            if trainer.strategy.reduce_boolean_decision(self.stop.is_asked, all=False):
                trainer.save_checkpoint(f"{self.folder or trainer.default_root_dir}/last.ckpt")
                trainer.should_stop = True

        def on_train_end(self, trainer: Any, module: Any) -> None:
            self.stop.close()

        @property
        def stopped(self) -> bool:
            return bool(self.stop.reason)

    return Gflow()


def accelerate() -> Any:
    """Tracker for accelerate: `accelerator.log({"loss": …}, step=…)` reports progress."""
    from accelerate.tracking import GeneralTracker

    class Gflow(GeneralTracker):  # type: ignore[misc]
        name = "gflow"
        requires_logging_directory = False
        main_process_only = True

        def __init__(self) -> None:
            super().__init__()
            self.reporter, self.steps = Reporter(), 0

        @property
        def tracker(self) -> Any:
            return self.reporter

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            self.steps = int(values.get("steps", 0) or 0)

        def log(self, values: dict[str, Any], step: int | None = None, **more: Any) -> None:
            self.reporter.note(step or 0, steps=self.steps, **_metrics(values))

    return Gflow()


def tqdm(*words: Any, **options: Any) -> Any:
    """A tqdm bar that reports its steps to gflow."""
    from tqdm.auto import tqdm as bar

    reporter = Reporter()

    class Gflow(bar):  # type: ignore[misc]
        def update(self, n: Any = 1) -> Any:
            shown = super().update(n)
            reporter.note(int(self.n), steps=int(self.total or 0))
            return shown

        def __iter__(self) -> Any:
            for count, item in enumerate(super().__iter__(), start=1):
                yield item
                reporter.note(count, steps=int(self.total or 0), final=count == self.total)

    return Gflow(*words, **options)


# Names that mean something else in a report.
NOT_METRICS = frozenset({"step", "steps", "epoch", "epochs", "samples", "final"})


def _metrics(values: dict[str, Any]) -> dict[str, Any]:
    """The logged values that are metrics."""
    return {name: value for name, value in values.items() if name not in NOT_METRICS}


def _any_rank(request: bool) -> bool:
    """Whether any rank requests it."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return request
    import torch

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    tensor = torch.tensor([int(request)], device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return bool(tensor.item())
