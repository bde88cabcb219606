"""`Run`: a training run that stops on request, writes checkpoints and resumes from them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch
from torch import nn

from gflow.errors import UsageError
from gflow.ml.launch import plan
from gflow.ml.train import devices, parallel
from gflow.ml.train.checkpoint import rng
from gflow.ml.train.checkpoint.checkpoint_dir import CheckpointError, Superseded
from gflow.ml.train.checkpoint.checkpointer import Checkpointer
from gflow.ml.train.checkpoint.run_state import RunState
from gflow.ml.train.data.data_loader import Loader
from gflow.ml.train.data.data_sharding import Share
from gflow.ml.train.data.position import Position, iterate_foreign_loader
from gflow.ml.train.progress import Reporter
from gflow.ml.train.ranks import Ranks
from gflow.ml.train.stop import Stop
from gflow.ml.train.stopwatch import stopwatch

# EX_TEMPFAIL of sysexits.h. gflow requeues a job with --requeue that exits with this code.
UNFINISHED = 75
SAVE, STOP = 1, 2


class Run:
    """One training run. Every process (rank) of the run has its own instance.

    `checkpoints`: the checkpoint directory; without one nothing is saved. `precision`: fp32, bf16 or fp16
    (with a gradient scaler). An optimizer step takes `accumulate` batches, or as many as `effective_batch`
    samples need on the number of GPUs in use. `strategy`: ddp or fsdp, used if there are several processes.
    A checkpoint is written every `every_steps` steps or `every_s` seconds, whichever comes first, and when
    the run stops: on SIGTERM, on gflow's stop file, or `margin_s` before the time limit.
    """

    def __init__(
        self,
        checkpoints: str | os.PathLike[str] | None = None,
        *,
        device: str | torch.device | None = None,
        precision: str = "fp32",
        accumulate: int = 1,
        effective_batch: int | None = None,
        clip: float | None = None,
        gradient_checkpointing: bool = False,
        strategy: str = "auto",
        every_steps: int | None = None,
        every_s: float = 600.0,
        keep: int = 3,
        background: bool = True,
        margin_s: float | None = None,
        seed: int = 0,
    ) -> None:
        asked = plan.effective_batch(os.environ)  # the submitted job overrides the script
        if accumulate < 1:
            raise UsageError(f"accumulate={accumulate}: it must be at least 1")
        self.device = devices.pick(device)
        self._dtype = devices.precision_of(precision, self.device)
        self.ranks = Ranks(self.device)
        self.stop = Stop(margin_s).listen()
        self.place = Position()
        self.seed = seed
        # Why the run stopped early; empty while it runs and after a complete run.
        self.stopped = ""
        self.grad_norm: torch.Tensor | None = None
        self._accumulate, self._effective = accumulate, asked or effective_batch
        self._clip, self._recompute, self._strategy = clip, gradient_checkpointing, strategy
        self._every_steps, self._every_s = every_steps, every_s
        self._state = RunState(self.device)
        if precision == "fp16":
            self._state.scaler = torch.amp.GradScaler(self.device.type)
        self._stopwatch = stopwatch(self.device, self.ranks)
        self._checkpointer: Checkpointer | None = None
        if checkpoints is not None and self._stopwatch is None:  # a measured run writes no checkpoints
            self._checkpointer = Checkpointer(checkpoints, keep=keep, background=background, ranks=self.ranks)
        self._saved_step = -1
        self._saved_at = self._step_began = time.monotonic()
        self._share: Share | None = None
        self._warm = False
        self._reporter = Reporter(metered=False)
        # Total steps and samples per epoch (0 if unknown), number of epochs, and the last logged loss.
        self._steps = self._samples = self._epochs = 0
        self._loss: Any = None
        # Samples per step: in the current loader, and in the attempt that wrote the checkpoint.
        self.effective_batch = 0
        self._previous_effective = 0
        self._planned_batch: int | None = None
        # Each rank has its own random stream.
        rng.seed_all(seed + self.ranks.rank)

    @classmethod
    def planned(
        cls, plan: str | None = None, checkpoints: str | os.PathLike[str] | None = None, **more: Any
    ) -> Run:
        """Create a run from a file written by `gflow plan --out`.

        The plan sets precision, effective batch, checkpointing, strategy and the batch of `run.loader`.
        Without a file name, the plan of `gflow launch --plan` is used.
        """
        from gflow.ml.fit import plan as planning

        path = plan or os.environ.get("GFLOW_PLAN", "")
        if not path:
            raise UsageError("there is no plan", hint="gflow launch --plan plan.json train.py")
        found = planning.read(path)
        run = cls(checkpoints, **{**found.run, **more})
        run._planned_batch = found.micro_batch
        return run

    # ------------------------------------------------------------ model, optimizer, data

    def model(self, model: nn.Module) -> nn.Module:
        """Move the model to the device and wrap it for DDP or FSDP. Create the optimizer after this call."""
        model = model.to(self.device)
        if self._recompute:
            parallel.recompute(model)
        self._state.model = parallel.parallelize(model, self._strategy, self.ranks, self.device, self._dtype)
        return self._state.model

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Register an optimizer. `backward` steps it at the end of each step."""
        self._state.optimizers.append(optimizer)
        return optimizer

    def scheduler(self, scheduler: Any) -> Any:
        """Register a learning-rate scheduler. It is stepped after the optimizer, once per step."""
        self._state.schedulers.append(scheduler)
        return scheduler

    def keep(self, name: str, thing: Any) -> Any:
        """Add another object with `state_dict` and `load_state_dict` to the checkpoints."""
        self._state.others[name] = thing
        return thing

    def loader(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        **options: Any,
    ) -> Loader:
        """Create a loader of this rank's batches of a dataset.

        `batch_size` defaults to the one of the plan. `options` are those of PyTorch's DataLoader.
        """
        batch_size = self._planned_batch if batch_size is None else batch_size
        if batch_size is None:
            raise UsageError("run.loader needs a batch size", hint="run.loader(dataset, 32)")
        world = self.ranks.world
        effective = self._effective or batch_size * world * self._accumulate
        return Loader(
            dataset,
            batch_size,
            effective,
            seed=self.seed,
            world=world,
            rank=self.ranks.rank,
            shuffle=shuffle,
            drop_last=drop_last,
            **options,
        )

    # ------------------------------------------------------------ iteration

    def batches(self, loader: Any, epochs: int = 1) -> Iterator[Any]:
        """Yield batches on the device, from the current position to the end of the last epoch.

        The iteration ends early if the run is asked to stop. A loader of `run.loader` resumes at the
        position directly; any other loader is replayed up to it.
        """
        place = self.place
        self._step_began = time.monotonic()
        self._count_steps(loader, epochs)
        while place.epoch < epochs:
            for batch, share in self._epoch(loader):
                self._share = share
                if self._state.model is not None:
                    parallel.exchange_gradients(self._state.model, share.ends_step)
                yield move_to_device(batch, self.device)
                place.batches += 1
                place.samples = share.done
                if share.ends_step and self._end_step():
                    return
            place.next_epoch()
        self._share = None
        self._report(final=True)
        self._finish_measurement()
        if self._checkpointer is not None:
            self.save(wait=True)

    def _epoch(self, loader: Any) -> Iterator[tuple[Any, Share]]:
        if isinstance(loader, Loader):
            found = loader.epoch(self.place.epoch, self.place.samples)
        else:
            found = iterate_foreign_loader(loader, self.place, self._accumulate, self.device)
        return found if self._stopwatch is None else self._stopwatch.count_batches(found)

    def _end_step(self) -> bool:
        """End a step: save if a checkpoint is due. Return whether to stop; all ranks get the same answer."""
        self.place.step += 1
        self._report()
        now = time.monotonic()
        if self._warm:  # the first step of a process is slower: it loads and compiles
            self.stop.record_duration(now - self._step_began)
        self._warm = True
        asked = self.stop.is_asked or self._is_measurement_done()
        agreed = self.ranks.agree(STOP if asked else SAVE if self._is_save_due(now) else 0)
        if agreed == STOP:
            self.stopped = self.stop.reason or ("another rank" if self._stopwatch is None else "measured")
            self._report(final=True)
            self._finish_measurement()
            if self._checkpointer is not None:
                self.save(wait=True)
        elif agreed == SAVE or (self._every_steps and self.place.step % self._every_steps == 0):
            self._save_periodically()
        self._step_began = time.monotonic()
        return agreed == STOP

    def _is_measurement_done(self) -> bool:
        return self._stopwatch is not None and self._stopwatch.step(self.place.step, self._samples_done())

    def _finish_measurement(self) -> None:
        if self._stopwatch is not None:
            self._stopwatch.finish(self.place.step, self._samples_done(), self._state.model)

    def _samples_done(self) -> int:
        """Samples of all ranks since the start of training; of this process if the epoch size is unknown."""
        if self._samples:
            return self.place.epoch * self._samples + self.place.samples
        return self._stopwatch.counted if self._stopwatch is not None else 0

    def _is_save_due(self, now: float) -> bool:
        return (
            self._checkpointer is not None and self.ranks.is_first and now - self._saved_at >= self._every_s
        )

    @property
    def should_stop(self) -> bool:
        """Whether a custom loop should save and exit. Read it once per step on all ranks; all get the same
        answer.
        """
        return self.ranks.agree(STOP if self.stop.is_asked else 0) == STOP

    # ------------------------------------------------------------ progress

    def log(self, loss: Any = None, **metrics: Any) -> None:
        """Report the current loss and other metrics, numbers or tensors, for `gqueue` and `gjob`.

        It costs microseconds, never blocks and never fails. Steps and epochs are reported without it.
        """
        self._loss = loss
        self._reporter.keep_metrics(metrics)

    def _count_steps(self, loader: Any, epochs: int) -> None:
        self._epochs = epochs
        if isinstance(loader, Loader):
            self._choose_effective_batch(loader)
            self._steps, self._samples = loader.steps * epochs, len(loader.dataset)
        elif hasattr(loader, "__len__"):
            self._steps = -(-len(loader) // self._accumulate) * epochs

    def _choose_effective_batch(self, loader: Loader) -> None:
        """Keep the effective batch of the checkpoint, also on another number of GPUs, unless the script sets
        one. Print the result.
        """
        is_restored = self._effective is None and self._previous_effective not in (0, loader.effective)
        if is_restored:
            loader.effective = self._previous_effective
        self.effective_batch = loader.effective
        if self.ranks.is_first:
            note = ", as before" if is_restored else ""
            sys.stderr.write(f"gflow: {loader.made_of()}{note}\n")

    def _report(self, *, final: bool = False) -> None:
        place = self.place
        if self.ranks.is_first:
            self._reporter.note(
                place.step,
                steps=self._steps,
                epoch=place.epoch,
                epochs=self._epochs,
                samples=self._samples_done(),
                loss=self._loss,
                final=final,
            )

    # ------------------------------------------------------------ a step

    def autocast(self) -> AbstractContextManager[Any]:
        """Context manager that computes in the run's precision: `with run.autocast(): loss = …`."""
        found: AbstractContextManager[Any] = torch.autocast(
            self.device.type, self._dtype, enabled=self._dtype is not None
        )
        return found

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of this batch's mean loss. At the end of a step, clip, step and zero them."""
        share = self._share
        if share is None:
            raise UsageError("run.backward must be called inside a loop over run.batches")
        weighted = loss * share.weight
        scaler = self._state.scaler
        (weighted if scaler is None else scaler.scale(weighted)).backward()
        if share.ends_step:
            self._step()

    def _step(self) -> None:
        state, scaler = self._state, self._state.scaler
        if self._clip is not None and state.model is not None:
            for optimizer in state.optimizers if scaler is not None else ():
                scaler.unscale_(optimizer)
            self.grad_norm = nn.utils.clip_grad_norm_(state.model.parameters(), self._clip)
        before = scaler.get_scale() if scaler is not None else 0.0
        for optimizer in state.optimizers:
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        for optimizer in state.optimizers:
            optimizer.zero_grad(set_to_none=True)
        # The scaler skips a step whose gradients overflowed and lowers the scale; the schedule stays.
        if scaler is None or scaler.get_scale() >= before:
            for scheduler in state.schedulers:
                scheduler.step()

    # ------------------------------------------------------------ checkpoints

    def save(self, *, wait: bool = False) -> None:
        """Write a checkpoint of the current step, unless there is one. In the background, unless `wait`."""
        if self._checkpointer is None:
            raise UsageError("this run has no folder for checkpoints", hint='Run("checkpoints")')
        if self._saved_step != self.place.step:
            state, sharded = self._state.capture()
            mine = {"random": rng.states(self.device), "place": self.place.mine()}
            self._checkpointer.save(
                self.place.step,
                {**state, "place": self.place.common() | {"effective": self.effective_batch}},
                mine,
                sharded=sharded,
                wait=wait,
            )
            self._saved_step, self._saved_at = self.place.step, time.monotonic()
        if wait:
            self._checkpointer.wait()
        self.stop.record_duration(self._checkpointer.slowest_s)

    def _save_periodically(self) -> None:
        """Save without ending the run on an error such as a full disk: the previous checkpoint remains."""
        if self._checkpointer is None:
            return
        try:
            self.save()
        except Superseded:
            raise
        except CheckpointError as error:
            self._saved_at = time.monotonic()
            sys.stderr.write(f"gflow: {error.message}; training goes on\n")

    def resume(self) -> int:
        """Load the newest complete checkpoint. Return its step, or 0 if there is none.

        Call it after the model, the optimizer and all other objects to restore are registered.
        """
        loaded = self._checkpointer.load() if self._checkpointer is not None else None
        if loaded is None or self._checkpointer is None:
            return 0
        self._state.restore(loaded, self._checkpointer)
        self.place.restore(loaded.state["place"], loaded.mine and loaded.mine["place"])
        self._previous_effective = loaded.state["place"].get("effective", 0)
        if loaded.mine is not None:
            rng.restore(loaded.mine["random"], self.device)
        else:  # the checkpoint was written by fewer ranks
            rng.seed_all(self.seed + self.ranks.rank + 1_000_003 * self.place.step)
        self._saved_step, self._saved_at = self.place.step, time.monotonic()
        return self.place.step

    # ------------------------------------------------------------ the end

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the program with code 75 if training stopped early."""
        self.close(failed=kind is not None)
        if kind is None and self.stopped:
            sys.stderr.write(f"gflow: stopped at step {self.place.step} ({self.stopped})\n")
            raise SystemExit(UNFINISHED)

    def close(self, *, failed: bool = False) -> None:
        """Wait for a checkpoint in progress, and leave the process group."""
        if self._checkpointer is not None and not failed:
            self._checkpointer.wait()
        self.ranks.close(failed=failed)
        self.stop.close()


def move_to_device(batch: Any, device: torch.device) -> Any:
    """Return the batch with its tensors on the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return type(batch)({key: move_to_device(one, device) for key, one in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_to_device(one, device) for one in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move_to_device(one, device) for one in batch)
    return batch
