"""The gradients of a step and the optimizers that use them: clipping, loss scaling, losses not finite."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from gflow.errors import GflowError, UsageError, unknown
from gflow.ml.train.checkpoint.run_state import RunState
from gflow.ml.train.data.data_sharding import Share
from gflow.ml.train.ranks import Ranks

ON_NAN = ("warn", "skip", "stop")


class GradientStep:
    """Computes gradients batch by batch, and steps the optimizers at the end of each step."""

    def __init__(self, state: RunState, ranks: Ranks, clip: float | None, on_nan: str) -> None:
        if on_nan not in ON_NAN:
            raise unknown("on_nan", on_nan, ON_NAN)
        self._state, self._ranks = state, ranks
        self._clip, self._on_nan = clip, on_nan
        self.grad_norm: torch.Tensor | None = None
        # Called at the end of each step, before a checkpoint is written.
        self.hooks: list[Callable[[], object]] = []
        self._share: Share | None = None
        # Whether `backward` names the optimizers of the current step, and whether their step was skipped.
        self._is_named = self._is_skipped = self._is_stepped = self._is_finished = False
        self._has_checked_parameters = False
        # Whether a loss of the current step is not finite, and the same of the previous step, with the event
        # after which it can be read without waiting for the GPU.
        self._is_bad: torch.Tensor | None = None
        self._was_bad: tuple[torch.Tensor, Any] | None = None
        self._bad_steps = 0

    # ------------------------------------------------------------ a batch

    def backward(
        self,
        loss: torch.Tensor | Callable[[], torch.Tensor],
        share: Share | None,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        share = self._accept(share, optimizer)
        if not isinstance(loss, torch.Tensor):
            self._step_with_closure(loss, share, optimizer)
            return
        optimizers = self._state.optimizers if optimizer is None else [optimizer]
        if any(isinstance(one, torch.optim.LBFGS) for one in optimizers):
            raise UsageError(
                "LBFGS computes the loss several times in a step",
                hint="run.backward(lambda: loss_of(batch))",
            )
        self._note_loss(loss)
        weighted = loss * share.weight
        scaler = self._state.scaler
        with self._only(optimizer):
            (weighted if scaler is None else scaler.scale(weighted)).backward()
        if share.ends_step:
            self._step(optimizers)
            if optimizer is None:
                self.finish()

    def _accept(self, share: Share | None, optimizer: torch.optim.Optimizer | None) -> Share:
        """Refuse calls that would train nothing, or something else than intended."""
        if share is None:
            raise UsageError("run.backward must be called inside a loop over run.batches")
        registered = self._state.optimizers
        if not registered or (optimizer is not None and all(optimizer is not one for one in registered)):
            raise UsageError(
                "the optimizer is not registered" if registered else "this run has no optimizer",
                hint="optimizer = run.optimizer(torch.optim.AdamW(model.parameters()))",
            )
        if share is self._share and not (self._is_named and optimizer is not None):
            raise UsageError(
                "run.backward was called twice for one batch",
                hint="add the losses, or name the optimizer of each one: run.backward(loss, optimizer)",
            )
        self._share, self._is_named = share, optimizer is not None
        return share

    @contextmanager
    def _only(self, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
        """Keep the gradients of all parameters that the optimizer does not train as they are."""
        if optimizer is None:
            yield
            return
        own = {id(one) for one in parameters_of([optimizer])}
        every = [*self._state.parameters(), *parameters_of(self._state.optimizers)]
        others = [one for one in every if id(one) not in own]
        before = [one.grad for one in others]
        for one in others:
            one.grad = None
        yield
        for one, gradient in zip(others, before, strict=True):
            one.grad = gradient

    def _step_with_closure(
        self, closure: Callable[[], torch.Tensor], share: Share, optimizer: torch.optim.Optimizer | None
    ) -> None:
        """Step an optimizer that computes the loss itself, as LBFGS does."""
        chosen = optimizer or self._state.optimizers[0]
        has_one = optimizer is not None or len(self._state.optimizers) == 1
        if share.weight != 1.0 or self._state.scaler is not None or self._ranks.world > 1 or not has_one:
            raise UsageError(
                "a function instead of a loss needs one process, one batch per step, one optimizer, no fp16",
                hint="Run(accumulate=1)",
            )

        def evaluate() -> torch.Tensor:
            chosen.zero_grad(set_to_none=True)
            loss = closure()
            loss.backward()
            self._clip_gradients([chosen])
            return loss

        self._note_loss(chosen.step(evaluate))
        chosen.zero_grad(set_to_none=True)
        self._is_stepped, self._is_skipped = True, self._is_not_finite()
        self.finish()

    # ------------------------------------------------------------ the end of a step

    def _step(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        state, scaler = self._state, self._state.scaler
        self._check_parameters()
        self._is_stepped, self._is_skipped = True, self._is_not_finite()
        if not self._is_skipped:
            for optimizer in optimizers if scaler is not None and self._clip is not None else ():
                scaler.unscale_(optimizer)
            self._clip_gradients(optimizers)
            # With fp16 the scaler looks for infinities.
            if scaler is None and self._on_nan != "warn":
                self._is_skipped = self._is_refused(not bool(self.grad_norm.isfinite()))  # type: ignore[union-attr]
        for optimizer in () if self._is_skipped else optimizers:
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
        for optimizer in optimizers if self._is_named else state.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def finish(self) -> None:
        """End a step after all its optimizers: scaler and schedulers."""
        if not self._is_stepped:
            return
        self._is_stepped, self._is_finished = False, not self._is_skipped
        if self._is_skipped:
            return
        state, scaler = self._state, self._state.scaler
        before = scaler.get_scale() if scaler is not None else 0.0
        if scaler is not None:
            scaler.update()
        # The scaler skips a step whose gradients overflowed and lowers the scale; the schedule stays.
        if scaler is None or scaler.get_scale() >= before:
            for scheduler in state.schedulers:
                if not isinstance(scheduler, ReduceLROnPlateau):  # the script steps it, with its metric
                    scheduler.step()

    def call_hooks(self) -> None:
        """Call the hooks, unless the step was skipped."""
        is_finished, self._is_finished = self._is_finished, False
        for hook in self.hooks if is_finished else ():
            hook()

    def _clip_gradients(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        if self._clip is None and self._on_nan == "warn":
            return
        named = parameters_of(optimizers) if self._is_named else self._state.parameters()
        self.grad_norm = nn.utils.clip_grad_norm_(named, float("inf") if self._clip is None else self._clip)

    def _check_parameters(self) -> None:
        """Warn at the first step if gradients are computed that no optimizer uses."""
        if self._has_checked_parameters or self._is_named:
            return
        self._has_checked_parameters = True
        known = {id(one) for one in parameters_of(self._state.optimizers)}
        unused = [one for one in self._state.parameters() if one.grad is not None and id(one) not in known]
        if unused:
            self._say(f"{len(unused)} parameters have gradients and belong to no optimizer of this run")

    # ------------------------------------------------------------ losses that are not finite

    def _note_loss(self, loss: Any) -> None:
        is_bad = ~torch.isfinite(torch.as_tensor(loss).detach()).all()
        self._is_bad = is_bad if self._is_bad is None else self._is_bad | is_bad

    def _is_not_finite(self) -> bool:
        """Whether the step is to be skipped for its loss. The default, a warning, never waits for the GPU."""
        is_bad, self._is_bad = self._is_bad, None
        if is_bad is None:
            return False
        if self._on_nan != "warn":
            return self._is_refused(bool(is_bad))
        if not is_bad.is_cuda:
            self._count_bad(bool(is_bad))
            return False
        if self._was_bad is not None and self._was_bad[1].query():
            self._count_bad(bool(self._was_bad[0]))
            self._was_bad = None
        if self._was_bad is None:
            event = torch.cuda.Event()
            self._was_bad = (is_bad.to("cpu", non_blocking=True), event)
            event.record()
        return False

    def _is_refused(self, is_bad: bool) -> bool:
        if not self._ranks.is_any(is_bad):
            return False
        if self._on_nan == "stop":
            raise GflowError(
                'the loss or its gradient is not finite (on_nan="stop")',
                hint="the last checkpoint is from before this step; lower the learning rate, or clip",
            )
        self._count_bad(True)
        return True

    def _count_bad(self, is_bad: bool) -> None:
        self._bad_steps += is_bad
        if is_bad and self._bad_steps in (1, 10, 100, 1000):
            done = "skipped" if self._on_nan == "skip" else "so far"
            self._say(f"the loss is not finite: {self._bad_steps} step{'s' * (self._bad_steps > 1)} {done}")

    def _say(self, text: str) -> None:
        if self._ranks.is_first:
            sys.stderr.write(f"gflow: {text}\n")


def parameters_of(optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
    return [one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]]
