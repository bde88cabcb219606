"""The run: what a training script holds. It stops when asked, saves itself, and goes on from there."""

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
from gflow.ml.train.checkpoint.run_state import Kept
from gflow.ml.train.data.data_loader import Loader
from gflow.ml.train.data.data_sharding import Share
from gflow.ml.train.data.position import Place, foreign_epoch
from gflow.ml.train.progress import Reporter
from gflow.ml.train.ranks import Ranks
from gflow.ml.train.stop import Stop
from gflow.ml.train.stopwatch import stopwatch

# "Try again later" (sysexits.h): gflow puts a job with --requeue that leaves with it back into the queue.
UNFINISHED = 75
SAVE, STOP = 1, 2


class Run:
    """One training run, in each of its processes.

    `checkpoints`: the folder; without one nothing is saved. `precision`: fp32, bf16 or fp16 (with a scaler).
    `accumulate` batches make a step, or as many as `effective_batch` samples need on however many GPUs there
    are. `strategy`: ddp or fsdp where there are several processes. Saved every `every_steps` steps and
    `every_s` seconds, whichever comes first, and when it is to stop: on TERM, gflow's stop file, `margin_s`
    before a limit.
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
        asked = plan.effective_batch(os.environ)  # whoever submitted the job knows best
        if accumulate < 1:
            raise UsageError(f"accumulate={accumulate}: a step has one batch at least")
        self.device = devices.pick(device)
        self._dtype = devices.precision_of(precision, self.device)
        self.ranks = Ranks(self.device)
        self.stop = Stop(margin_s).listen()
        self.place = Place()
        self.seed = seed
        # Why it stopped before its end; empty while it goes on, and when it came to its end.
        self.stopped = ""
        self.grad_norm: torch.Tensor | None = None
        self._accumulate, self._effective = accumulate, asked or effective_batch
        self._clip, self._recompute, self._strategy = clip, gradient_checkpointing, strategy
        self._every_steps, self._every_s = every_steps, every_s
        self._kept = Kept(self.device)
        if precision == "fp16":
            self._kept.scaler = torch.amp.GradScaler(self.device.type)
        self._watch = stopwatch(self.device, self.ranks)
        self._checkpointer: Checkpointer | None = None
        if checkpoints is not None and self._watch is None:  # what is only measured leaves nothing behind
            self._checkpointer = Checkpointer(checkpoints, keep=keep, background=background, ranks=self.ranks)
        self._saved_step = -1
        self._saved_at = self._step_began = time.monotonic()
        self._share: Share | None = None
        self._warm = False
        self._reporter = Reporter(metered=False)
        # Steps in all and samples in an epoch, if they are known; epochs; the loss that was logged last.
        self._steps = self._samples = self._epochs = 0
        self._loss: Any = None
        # Samples of a step: as the loader has them now, and as an earlier attempt had them.
        self.effective_batch = 0
        self._had_effective = 0
        self._planned_batch: int | None = None
        # Every rank draws numbers of its own.
        rng.seed_all(seed + self.ranks.rank)

    @classmethod
    def planned(
        cls, plan: str | None = None, checkpoints: str | os.PathLike[str] | None = None, **more: Any
    ) -> Run:
        """A run as a file of `gflow plan --out` says: precision, effective batch, checkpointing, strategy,
        and the batch of `run.loader`. Without a file, the one of `gflow launch --plan`.
        """
        from gflow.ml.fit import plan as planning

        path = plan or os.environ.get("GFLOW_PLAN", "")
        if not path:
            raise UsageError("there is no plan", hint="gflow launch --plan plan.json train.py")
        found = planning.read(path)
        run = cls(checkpoints, **{**found.run, **more})
        run._planned_batch = found.micro_batch
        return run

    # ------------------------------------------------------------ what it consists of

    def model(self, model: nn.Module) -> nn.Module:
        """The model on its device, as one of several replicas or shards. Make the optimizer after this."""
        model = model.to(self.device)
        if self._recompute:
            parallel.recompute(model)
        self._kept.model = parallel.spread(model, self._strategy, self.ranks, self.device, self._dtype)
        return self._kept.model

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Stepped by `backward` at the end of each step."""
        self._kept.optimizers.append(optimizer)
        return optimizer

    def scheduler(self, scheduler: Any) -> Any:
        """Stepped after the optimizer, once a step."""
        self._kept.schedulers.append(scheduler)
        return scheduler

    def keep(self, name: str, thing: Any) -> Any:
        """Anything else with `state_dict` and `load_state_dict` that belongs into the checkpoints."""
        self._kept.others[name] = thing
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
        """Batches of a dataset for this rank (a plan knows their size); `options` are those of PyTorch's
        DataLoader.
        """
        batch_size = self._planned_batch if batch_size is None else batch_size
        if batch_size is None:
            raise UsageError("run.loader wants a batch size", hint="run.loader(dataset, 32)")
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

    # ------------------------------------------------------------ going through the data

    def batches(self, loader: Any, epochs: int = 1) -> Iterator[Any]:
        """Batches on the device, from where training is to the end of the last epoch; fewer if it is to stop.

        A loader of `run.loader` is taken up where it was at once; any other is gone through again up to
        there.
        """
        place = self.place
        self._step_began = time.monotonic()
        self._count(loader, epochs)
        while place.epoch < epochs:
            for batch, share in self._epoch(loader):
                self._share = share
                if self._kept.model is not None:
                    parallel.exchange_gradients(self._kept.model, share.ends_step)
                yield moved(batch, self.device)
                place.batches += 1
                place.samples = share.done
                if share.ends_step and self._end_step():
                    return
            place.next_epoch()
        self._share = None
        self._report(final=True)
        self._measured()
        if self._checkpointer is not None:
            self.save(wait=True)

    def _epoch(self, loader: Any) -> Iterator[tuple[Any, Share]]:
        if isinstance(loader, Loader):
            found = loader.epoch(self.place.epoch, self.place.samples)
        else:
            found = foreign_epoch(loader, self.place, self._accumulate, self.device)
        return found if self._watch is None else self._watch.through(found)

    def _end_step(self) -> bool:
        """A step is done. Save if that is due; whether to stop, which all ranks decide alike."""
        self.place.step += 1
        self._report()
        now = time.monotonic()
        if self._warm:  # the first step of a process loads and builds things, and says nothing about the next
            self.stop.took(now - self._step_began)
        self._warm = True
        asked = self.stop.is_asked or self._is_measured()
        agreed = self.ranks.agree(STOP if asked else SAVE if self._is_time(now) else 0)
        if agreed == STOP:
            self.stopped = self.stop.reason or ("another rank" if self._watch is None else "measured")
            self._report(final=True)
            self._measured()
            if self._checkpointer is not None:
                self.save(wait=True)
        elif agreed == SAVE or (self._every_steps and self.place.step % self._every_steps == 0):
            self._save_on_the_way()
        self._step_began = time.monotonic()
        return agreed == STOP

    def _is_measured(self) -> bool:
        return self._watch is not None and self._watch.step(self.place.step, self._samples_done())

    def _measured(self) -> None:
        if self._watch is not None:
            self._watch.finish(self.place.step, self._samples_done(), self._kept.model)

    def _samples_done(self) -> int:
        """Of all ranks, in this process's life at least."""
        if self._samples:
            return self.place.epoch * self._samples + self.place.samples
        return self._watch.counted if self._watch is not None else 0

    def _is_time(self, now: float) -> bool:
        return (
            self._checkpointer is not None and self.ranks.is_first and now - self._saved_at >= self._every_s
        )

    @property
    def should_stop(self) -> bool:
        """For loops of your own, once a step on all ranks: whether to save and leave. All get the same
        answer.
        """
        return self.ranks.agree(STOP if self.stop.is_asked else 0) == STOP

    # ------------------------------------------------------------ how far it is

    def log(self, loss: Any = None) -> None:
        """The loss of now, a number or a tensor, for `gqueue` and `gjob`. Costs microseconds; never waits or
        fails.

        How far training is they see without it.
        """
        self._loss = loss

    def _count(self, loader: Any, epochs: int) -> None:
        self._epochs = epochs
        if isinstance(loader, Loader):
            self._settle_effective(loader)
            self._steps, self._samples = loader.steps * epochs, len(loader.dataset)
        elif hasattr(loader, "__len__"):
            self._steps = -(-len(loader) // self._accumulate) * epochs

    def _settle_effective(self, loader: Loader) -> None:
        """A run that goes on has as many samples in a step as before, also on another number of GPUs, unless
        the script names a number; say what it is.
        """
        kept = self._effective is None and self._had_effective not in (0, loader.effective)
        if kept:
            loader.effective = self._had_effective
        self.effective_batch = loader.effective
        if self.ranks.is_first:
            again = ", as before" if kept else ""
            sys.stderr.write(f"gflow: {loader.made_of()}{again}\n")

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
        """Compute in the run's precision: `with run.autocast(): loss = …`."""
        found: AbstractContextManager[Any] = torch.autocast(
            self.device.type, self._dtype, enabled=self._dtype is not None
        )
        return found

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of this batch's mean loss; at the end of a step also clip, step and forget them."""
        share = self._share
        if share is None:
            raise UsageError("run.backward belongs into a loop over run.batches")
        weighted = loss * share.weight
        scaler = self._kept.scaler
        (weighted if scaler is None else scaler.scale(weighted)).backward()
        if share.ends_step:
            self._step()

    def _step(self) -> None:
        kept, scaler = self._kept, self._kept.scaler
        if self._clip is not None and kept.model is not None:
            for optimizer in kept.optimizers if scaler is not None else ():
                scaler.unscale_(optimizer)
            self.grad_norm = nn.utils.clip_grad_norm_(kept.model.parameters(), self._clip)
        before = scaler.get_scale() if scaler is not None else 0.0
        for optimizer in kept.optimizers:
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        for optimizer in kept.optimizers:
            optimizer.zero_grad(set_to_none=True)
        # A step with gradients that overflowed was none: the scale is halved and the schedule waits.
        if scaler is None or scaler.get_scale() >= before:
            for scheduler in kept.schedulers:
                scheduler.step()

    # ------------------------------------------------------------ checkpoints

    def save(self, *, wait: bool = False) -> None:
        """A checkpoint of now, unless there is one. In the background, unless `wait`."""
        if self._checkpointer is None:
            raise UsageError("this run has no folder for checkpoints", hint='Run("checkpoints")')
        if self._saved_step != self.place.step:
            state, sharded = self._kept.state()
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
        self.stop.took(self._checkpointer.slowest_s)

    def _save_on_the_way(self) -> None:
        """A disk that is full now is no reason to lose what was computed: the last good checkpoint stays."""
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
        """Take up the newest checkpoint that is whole; the step it is of, 0 if there is none.

        Call it when model, optimizer and whatever else is kept are there.
        """
        loaded = self._checkpointer.load() if self._checkpointer is not None else None
        if loaded is None or self._checkpointer is None:
            return 0
        self._kept.set_back(loaded, self._checkpointer)
        self.place.set_back(loaded.state["place"], loaded.mine and loaded.mine["place"])
        self._had_effective = loaded.state["place"].get("effective", 0)
        if loaded.mine is not None:
            rng.set_back(loaded.mine["random"], self.device)
        else:  # more ranks than there were
            rng.seed_all(self.seed + self.ranks.rank + 1_000_003 * self.place.step)
        self._saved_step, self._saved_at = self.place.step, time.monotonic()
        return self.place.step

    # ------------------------------------------------------------ the end

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the program with code 75 if training stopped before its end."""
        self.close(failed=kind is not None)
        if kind is None and self.stopped:
            sys.stderr.write(f"gflow: stopped at step {self.place.step} ({self.stopped})\n")
            raise SystemExit(UNFINISHED)

    def close(self, *, failed: bool = False) -> None:
        """Wait for what is being saved, and leave the group of ranks."""
        if self._checkpointer is not None and not failed:
            self._checkpointer.wait()
        self.ranks.close(failed=failed)
        self.stop.close()


def moved(batch: Any, device: torch.device) -> Any:
    """A batch with its tensors on the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return type(batch)({key: moved(one, device) for key, one in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(one, device) for one in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(moved(one, device) for one in batch)
    return batch
