"""`Run`: a training run that stops on request, writes checkpoints and resumes from them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import nn

from gflow.errors import GflowError, UsageError, unknown
from gflow.ml.launch import plan
from gflow.ml.train import devices, parallel
from gflow.ml.train.checkpoint import rng
from gflow.ml.train.checkpoint.checkpoint_dir import Superseded
from gflow.ml.train.checkpoint.checkpointer import Checkpointer
from gflow.ml.train.checkpoint.cpu_copy import check_state
from gflow.ml.train.checkpoint.remote_dir import open_directory
from gflow.ml.train.checkpoint.run_state import MODEL, RunState
from gflow.ml.train.checkpoint.weights import whole_weights, write_weights
from gflow.ml.train.data.batch_content import move_to_device
from gflow.ml.train.data.data_loader import Loader
from gflow.ml.train.data.data_sharding import Share
from gflow.ml.train.data.foreign_loader import is_undivided, iterate_foreign_loader, length_of
from gflow.ml.train.data.position import Position
from gflow.ml.train.gradient_step import GradientStep
from gflow.ml.train.oom_report import report_oom
from gflow.ml.train.progress import Reporter
from gflow.ml.train.ranks import Ranks, end_after_traceback
from gflow.ml.train.step_profiler import StepProfiler, step_profiler
from gflow.ml.train.stop import Stop
from gflow.ml.train.stopwatch import stopwatch

# EX_TEMPFAIL of sysexits.h. gflow requeues a job with --requeue that exits with this code.
UNFINISHED = 75
SAVE, STOP = 1, 2


class Run:
    """One training run. Every process (rank) of the run has its own instance.

    `checkpoints`: the checkpoint directory, which may be remote (`s3://bucket/run`); without one nothing is
    saved. `precision`: fp32, bf16, fp16 (with
    a gradient scaler) or bf16-pure (weights, gradients and optimizer states in bf16). An optimizer step takes
    `accumulate` batches, or as many as `effective_batch` samples need on the number of GPUs in use.
    `strategy`: ddp or fsdp, used if there are several processes. `offload`: with fsdp, weights, gradients and
    optimizer states are kept in CPU memory, where the optimizer steps.
    A checkpoint is written every `every_steps` steps or `every_s` seconds, whichever comes first, and when
    the run stops: on SIGTERM, on Ctrl-C, on gflow's stop file, or `margin_s` before the time limit. A rank
    that waits longer than `timeout_s` (300) for the others fails. `on_nan`: at a loss that is not finite,
    warn, skip the step, or stop the run. `expandable_segments`: the setting of PyTorch's allocator against
    fragmentation.
    """

    # A save that the script asked for within the loop (save or wait), and its score.
    _save_asked: str = ""
    _score: float | None = None
    # Called at the end of each epoch.
    _epoch_hooks: list[Callable[[], object]]
    _loaders: list[Loader]

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
        offload: bool = False,
        every_steps: int | None = None,
        every_s: float = 600.0,
        keep: int = 3,
        keep_best: int = 0,
        background: bool = True,
        margin_s: float | None = None,
        timeout_s: float | None = None,
        on_nan: str = "warn",
        expandable_segments: bool = False,
        seed: int = 0,
    ) -> None:
        asked = plan.effective_batch(os.environ)  # the submitted job overrides the script
        if accumulate < 1:
            raise UsageError(f"accumulate={accumulate}: it must be at least 1")
        self.device = devices.pick(device, expandable=expandable_segments)
        self._dtype, self._pure_dtype = devices.precision_of(precision, self.device)
        self.ranks = Ranks(self.device, timeout_s)
        self.stop = Stop(margin_s).listen()
        self.place = Position()
        # Why the run stopped early; empty while it runs and after a complete run.
        self.seed, self.stopped = seed, ""
        self._accumulate, self._effective = accumulate, asked or effective_batch
        self._recompute, self._strategy = gradient_checkpointing, strategy
        self._offload = parallel.check_offload(
            offload, strategy, precision, self.device.type == "cpu", self.ranks.world
        )
        self._every_steps, self._every_s = every_steps, every_s
        self._state = RunState(self.device)
        if precision == "fp16":
            self._state.scaler = torch.amp.GradScaler(self.device.type)
        self._gradients = GradientStep(self._state, self.ranks, clip, on_nan)
        self._stopwatch = stopwatch(self.device, self.ranks)
        self._checkpointer: Checkpointer | None = None
        if checkpoints is not None and self._stopwatch is None:  # a measured run writes no checkpoints
            directory = open_directory(checkpoints, keep=keep, keep_best=keep_best)
            self._checkpointer = Checkpointer(
                checkpoints, background=background, ranks=self.ranks, directory=directory
            )
        self._saved_step = -1
        self._saved_at = self._step_began = time.monotonic()
        self._share: Share | None = None
        self._is_training = self._warm = self._resumed = self._is_entered = False
        self._loaders, self._epoch_hooks = [], []
        self._reporter = Reporter(metered=False)
        self._profiler: StepProfiler | None = None
        if self.ranks.is_first and self._stopwatch is None and (made := step_profiler(self.device)):
            self._profiler, self._reporter.profile_dir = made, made.folder
        # Total steps and samples per epoch (0 if unknown), number of epochs, and the last logged loss. The
        # size of the data, in samples or batches: now, and in the checkpoint until it was compared.
        self._steps = self._samples = self._epochs = self._data_size = self._previous_data = 0
        self._loss: Any = None
        # Samples per step: in the current loader, and in the attempt that wrote the checkpoint.
        self.effective_batch = self._previous_effective = 0
        self._planned_batch: int | None = None
        # Samples in a batch of the loader that trains, before the loop of the first one; 0: none was made.
        self._batch = 0
        report_oom(self._state, lambda: self._batch)
        self._introduce()
        # Each rank has its own random stream.
        rng.seed_all(seed + self.ranks.rank)

    def _introduce(self) -> None:
        if self.ranks.is_first and self.device.type == "cuda":
            sys.stderr.write(f"gflow: {devices.describe(self.device, self.ranks.world)}\n")
        if self.ranks.world > 1:
            end_after_traceback()

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

    def model(
        self, model: nn.Module, name: str = MODEL, *, layers: parallel.Layers | None = None
    ) -> nn.Module:
        """Move the model to the device and wrap it for DDP or FSDP. Create the optimizer after this call.

        Each model after the first one needs a name, for the checkpoints. `layers`: the classes of the modules
        that FSDP shards and gradient checkpointing recomputes one by one; by default the members of its lists
        of modules.
        """
        parallel.check_layers(model, layers)
        # An offloaded model may be larger than the GPU: FSDP moves it layer by layer.
        model = model.to("cpu" if self._offload else self.device, self._pure_dtype)
        if self._recompute:
            parallel.recompute(model, layers)
        model = parallel.parallelize(
            model,
            self._strategy,
            self.ranks,
            self.device,
            self._dtype,
            layers=layers,
            offload=self._offload,
        )
        self._state.add_model(name, model)
        return model

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the script's own module of a model that `run.model` or torch.compile has wrapped, for its
        methods and attributes. FSDP shards a model without wrapping it.
        """
        return parallel.original(model)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Register an optimizer. `backward` steps it at the end of each step."""
        check_state(optimizer.state_dict(), ("optimizer",))
        self._state.optimizers.append(optimizer)
        return optimizer

    def scheduler(self, scheduler: Any) -> Any:
        """Register a learning-rate scheduler. It is stepped after the optimizer, once per step; but a
        ReduceLROnPlateau is stepped by the script, with its metric.
        """
        check_state(scheduler.state_dict(), ("scheduler",))
        self._state.schedulers.append(scheduler)
        return scheduler

    def keep(self, name: str, thing: Any) -> Any:
        """Add another object with `state_dict` and `load_state_dict` to the checkpoints."""
        if not hasattr(thing, "state_dict") or not hasattr(thing, "load_state_dict"):
            raise UsageError(
                f"run.keep({name!r}): a {type(thing).__name__} has no state_dict and load_state_dict"
            )
        check_state(thing.state_dict(), (name,))
        self._state.others[name] = thing
        return thing

    def on_step(self, hook: Callable[[], object]) -> Callable[[], object]:
        """Call a function at the end of each step, before a checkpoint is written: for averages of weights,
        whose state `keep` saves, and for validation. `run.place.step` counts the step.
        """
        self._gradients.hooks.append(hook)
        return hook

    def on_epoch(self, hook: Callable[[], object]) -> Callable[[], object]:
        """Call a function at the end of each epoch, for validation. `run.save` in it saves at once.

        `run.place.epoch` counts the epochs before this one.
        """
        self._epoch_hooks.append(hook)
        return hook

    def print(self, *words: Any) -> None:
        """Print on the first rank."""
        if self.ranks.is_first:
            sys.stdout.write(" ".join(map(str, words)) + "\n")
            sys.stdout.flush()

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
        self._batch = self._batch or batch_size
        world = self.ranks.world
        effective = self._effective or batch_size * world * self._accumulate
        loader = Loader(
            dataset,
            batch_size,
            effective,
            seed=self.seed,
            world=world,
            rank=self.ranks.rank,
            shuffle=shuffle,
            drop_last=drop_last,
            device=self.device,
            dtype=self._pure_dtype,
            **options,
        )
        self._loaders.append(loader)
        return loader

    def gather(self, values: Any) -> Any:
        """Return the values of all ranks on all ranks: for evaluation, one value for each sample of a batch.

        Samples that a loader of `run.loader` repeats to give all ranks a batch are left out. Several tensors
        are given as a tuple, list or dictionary.
        """
        if isinstance(values, dict):
            return {name: self.gather(one) for name, one in values.items()}
        if isinstance(values, (tuple, list)):
            return type(values)(self.gather(one) for one in values)
        values = torch.atleast_1d(values.detach())
        for loader in self._loaders:
            if loader.counted is not None:
                values = values[: loader.counted]
        return torch.cat(self.ranks.gather(values.cpu())).to(self.device)

    # ------------------------------------------------------------ iteration

    def batches(self, loader: Any, epochs: int = 1) -> Iterator[Any]:
        """Yield batches on the device, from the current position to the end of the last epoch.

        The iteration ends early if the run is asked to stop: a checkpoint is written, and the program ends
        with code 75 at the end of `with run`, or here if the run is not used so. A loader of `run.loader`
        resumes at the position directly; any other loader is replayed up to it.
        """
        self._require_resume()
        if self._is_training:
            raise UsageError(
                "a loop over run.batches is running",
                hint="for validation iterate over the loader itself: for batch in run.loader(data, 64)",
            )
        self._is_training = True
        try:
            with nullcontext() if self._checkpointer is None else self.stop.catch_interrupt():
                yield from self._train(loader, epochs)
        finally:
            self._is_training, self._share = False, None
        if self.stopped and not self._is_entered:
            self.close()
            self._exit_unfinished()

    def _train(self, loader: Any, epochs: int) -> Iterator[Any]:
        place = self.place
        self._step_began = time.monotonic()
        self._count_steps(loader, epochs)
        for optimizer in self._state.optimizers:
            if callable(prepare := getattr(optimizer, "train", None)):  # a schedule-free optimizer
                prepare()
        while place.epoch < epochs:
            for batch, share in self._epoch(loader):
                self._share = share
                for model in self._state.models.values():
                    parallel.exchange_gradients(model, share.ends_step)
                yield move_to_device(batch, self.device, self._pure_dtype)
                place.batches += not share.is_repeated
                place.samples = share.done
                if share.ends_step and self._end_step():
                    return
            self._end_epoch()
        self._report(final=True)
        self._finish_measurement()
        if self._checkpointer is not None:
            self._save(wait=True)

    def _end_epoch(self) -> None:
        for hook in self._epoch_hooks:
            hook()
        self.place.next_epoch()
        if self._save_asked == "wait":
            self._save(wait=True)
        elif self._save_asked:
            self._save_periodically()

    def _epoch(self, loader: Any) -> Iterator[tuple[Any, Share]]:
        if isinstance(loader, Loader):
            found = loader.epoch(self.place.epoch, self.place.samples)
        else:
            found = iterate_foreign_loader(loader, self.place, self.ranks, self.device, self._is_enough)
        return found if self._stopwatch is None else self._stopwatch.count_batches(found)

    def _is_enough(self, batches: int, samples: int) -> bool:
        """Whether so many batches and samples of this rank make a step, with a loader of the script's own."""
        if self._effective is not None:
            return samples * self.ranks.world >= self._effective
        return batches >= self._accumulate

    def _end_step(self) -> bool:
        """End a step: save if a checkpoint is due. Return whether to stop; all ranks get the same answer."""
        self._gradients.finish()
        self.place.step += 1
        self._gradients.call_hooks()
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
                self._save(wait=True)
        elif self._save_asked == "wait":
            self._save(wait=True)
        elif agreed == SAVE or self._save_asked or self._is_step_to_save():
            self._save_periodically()
        if self._profiler is not None:
            self._profiler.step(self.place.step, now)
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

    def _is_step_to_save(self) -> bool:
        return bool(self._every_steps) and self.place.step % (self._every_steps or 1) == 0

    def _is_save_due(self, now: float) -> bool:
        return (
            self._checkpointer is not None and self.ranks.is_first and now - self._saved_at >= self._every_s
        )

    @property
    def should_stop(self) -> bool:
        """Whether a custom loop should save and exit. Read it once per step on all ranks; all get the same
        answer.
        """
        if self.ranks.agree(STOP if self.stop.is_asked else 0) == STOP:
            self.stopped = self.stop.reason or "another rank"
        return bool(self.stopped)

    # ------------------------------------------------------------ progress

    def log(self, loss: Any = None, **metrics: Any) -> None:
        """Report the current loss and other metrics, numbers or tensors, for `gqueue` and `gjob`.

        It costs microseconds, never blocks and never fails. Steps and epochs are reported without it.
        """
        self._loss = self._loss if loss is None else loss
        self._reporter.keep_metrics(metrics)

    def _count_steps(self, loader: Any, epochs: int) -> None:
        self._epochs = epochs
        if isinstance(loader, Loader):
            self._choose_effective_batch(loader)
            self._batch = loader.batch_size
            self._steps, self._samples = loader.steps * epochs, len(loader.dataset)
            self._compare_data(self._samples, "samples")
        elif count := length_of(loader):
            self._steps = 0 if self._effective else -(-count // self._accumulate) * epochs
            self._compare_data(count, "batches")
        if self.ranks.is_first and self.ranks.world > 1 and is_undivided(loader):
            sys.stderr.write(
                f"gflow: each of the {self.ranks.world} processes goes over all samples of this DataLoader; "
                "run.loader(dataset, batch_size) or a DistributedSampler divides them\n"
            )

    def _compare_data(self, size: int, unit: str) -> None:
        """Warn if the data have another size than those of the checkpoint."""
        before, self._previous_data, self._data_size = self._previous_data, 0, size
        if self.ranks.is_first and before not in (0, size):
            sys.stderr.write(
                f"gflow: the data had {before} {unit} when the checkpoint was written, and have {size} now: "
                "this epoch repeats or misses some\n"
            )

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
        self._reporter.heartbeat.beat()
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

    def backward(
        self,
        loss: torch.Tensor | Callable[[], torch.Tensor],
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        """Compute the gradients of this batch's mean loss. At the end of a step, clip, step and zero them.

        With an `optimizer`, the loss trains only its parameters and steps only it; each loss of a batch names
        its own. For an optimizer that computes the loss several times (LBFGS), give a function that does.
        """
        self._gradients.backward(loss, self._share, optimizer)

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """The norm of the gradients of the last step, before clipping; None without `clip`."""
        return self._gradients.grad_norm

    # ------------------------------------------------------------ checkpoints

    def save(self, *, wait: bool = False, score: float | None = None) -> None:
        """Write a checkpoint of the current step, unless there is one. In the background, unless `wait`.

        In a loop over `run.batches` it is written at the end of the step, where a run can resume. The
        `keep_best` checkpoints with the highest `score` are kept. All ranks call it.
        """
        if self._checkpointer is None:
            raise UsageError("this run has no folder for checkpoints", hint='Run("checkpoints")')
        self._require_resume()
        self._score = score if score is None else float(score)
        if self._is_training:
            self._save_asked = "wait" if wait else "save"
        else:
            self._save(wait=wait)

    def _save(self, *, wait: bool = False) -> None:
        assert self._checkpointer is not None
        score, self._score, self._save_asked = self._score, None, ""
        # The background save of this step may have failed.
        has_failed = wait and self._checkpointer.join()
        if has_failed or self._saved_step != self.place.step or score is not None:
            state, sharded = self._state.capture()
            mine = {"random": rng.states(self.device), "place": self.place.mine()}
            more = {"effective": self.effective_batch, "data": self._data_size}
            self._checkpointer.save(
                self.place.step,
                {**state, "place": self.place.common() | more},
                mine,
                sharded=sharded,
                about={} if score is None else {"score": score},
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
            self._save()
        except Superseded:
            raise
        except GflowError as error:
            self._saved_at = time.monotonic()
            if self.ranks.is_first:
                sys.stderr.write(f"gflow: {error.message}; training goes on\n")

    def _require_resume(self) -> None:
        """Refuse to mix two histories: a folder with checkpoints is continued, or another one is used."""
        found = None if self._checkpointer is None else self._checkpointer.found_step
        if found is not None and not self._resumed:
            assert self._checkpointer is not None
            raise UsageError(
                f"{self._checkpointer.directory.folder} has a checkpoint of step {found}, and this run does "
                "not resume from it",
                hint="call run.resume() before the loop, or give the run another folder to begin again",
            )

    def export(self, path: str | os.PathLike[str], name: str = MODEL) -> None:
        """Write the weights of a model to a file: in the safetensors format if its name ends so, else in
        PyTorch's. Sharded weights are put together. All ranks call it.
        """
        if name not in self._state.models:
            raise unknown("model", name, self._state.models)
        weights = whole_weights(self._state.models[name])
        if self.ranks.is_first:
            write_weights(os.fspath(path), weights)

    def resume(self) -> int:
        """Load the newest complete checkpoint. Return its step, or 0 if there is none.

        Call it after the model, the optimizer and all other objects to restore are registered.
        """
        self._resumed = True
        loaded = self._checkpointer.load() if self._checkpointer is not None else None
        if loaded is None or self._checkpointer is None:
            return 0
        self._state.restore(loaded, self._checkpointer)
        self.place.restore(loaded.state["place"], loaded.mine and loaded.mine["place"])
        self._previous_effective = loaded.state["place"].get("effective", 0)
        self._previous_data = self._data_size = loaded.state["place"].get("data", 0)
        if loaded.mine is not None:
            rng.restore(loaded.mine["random"], self.device)
        else:  # the checkpoint was written by fewer ranks
            rng.seed_all(self.seed + self.ranks.rank + 1_000_003 * self.place.step)
        self._checkpointer.drop_fetched()
        self._saved_step, self._saved_at = self.place.step, time.monotonic()
        return self.place.step

    # ------------------------------------------------------------ the end

    def __enter__(self) -> Run:
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the program with code 75 if training stopped early."""
        self.close(failed=kind is not None)
        if kind is None and self.stopped:
            self._exit_unfinished()

    def _exit_unfinished(self) -> NoReturn:
        sys.stderr.write(f"gflow: stopped at step {self.place.step} ({self.stopped})\n")
        raise SystemExit(UNFINISHED)

    def close(self, *, failed: bool = False) -> None:
        """Wait for a checkpoint in progress, and leave the process group."""
        if self._profiler is not None:
            self._profiler.close()
        try:
            if self._checkpointer is not None:
                self._checkpointer.close(failed=failed)
        finally:
            self.ranks.close(failed=failed)
            self.stop.close()
