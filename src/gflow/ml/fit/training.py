"""A standard training loop, run on the fake CUDA device to record its allocation trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from gflow.errors import Refused, UsageError
from gflow.ml.fit import torch_versions
from gflow.ml.fit.cuda import fake_cuda, quantised
from gflow.ml.fit.cuda.allocation_trace import AllocationTrace
from gflow.ml.fit.cuda.architectures import Architecture
from gflow.ml.fit.models.model_builder import to_device
from gflow.ml.fit.models.workload import Workload
from gflow.ml.fit.recipe import Recipe

# Steps to run: the first creates the optimizer's state, the second is like all later ones.
DIFFERENT = 2
LARGEST_WEIGHTS = 10**12
EXPANDABLE = "expandable segments are modelled by the allocator's source, and were not measured"
ADAPTERS = "adapters leave fragments: the reserved memory was up to 16 % off when measured"
NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def record(workload: Workload, recipe: Recipe, card: Architecture) -> AllocationTrace:
    """Run the training steps and return their allocation trace."""
    trace = AllocationTrace()
    _check_size(workload.model)
    with fake_cuda.device(trace, card) as device, _phases(trace), _modules(trace, workload.model):
        model = to_device(workload.model, channels_last=recipe.channels_last)
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not learned:
            raise UsageError("the model has no trainable parameters: none requires a gradient")
        kinds = Kinds(trace, device.tracker)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            kinds.name([tensor], "parameters", name)
        trace.parameters = sum(parameter.numel() for parameter in model.parameters())
        trace.parameters += quantised.numbers(model)
        trace.learned = sum(parameter.numel() for parameter in learned)
        optimizer = _optimizer(recipe, learned)
        trace.torch = str(torch.__version__)
        trace.doubts |= _rules(recipe) | set(workload.doubts) | torch_versions.doubts(trace.torch)
        trace.is_expandable = recipe.expandable_segments
        if trace.is_expandable:
            trace.reserved_doubts.add(EXPANDABLE)
        if card.is_foreign:
            trace.doubts.add("AMD's libraries are predicted by the rules of NVIDIA's")
        if recipe.lora:
            trace.reserved_doubts.add(ADAPTERS)
        trace.mark("forward", 0)
        if workload.step is None:
            _loop(workload, model, optimizer, learned, recipe, kinds)
        else:
            _own_steps(workload, model, optimizer, recipe, kinds)
    return trace


def _check_size(model: Any) -> None:
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if size > LARGEST_WEIGHTS:
        raise Refused(
            f"the weights alone take {size / 1e12:.1f} TB, and no GPU holds a tenth of that",
            hint="check the sizes in the configuration; --params and gflow plan answer for many GPUs",
        )


def _loop(
    workload: Workload, model: Any, optimizer: Any, learned: list[Any], recipe: Recipe, kinds: Kinds
) -> None:
    scaler = torch.amp.GradScaler("cuda", init_scale=128.0) if recipe.precision == "fp16" else None
    narrow = NARROW.get(recipe.precision)
    for step in _steps(recipe, kinds.trace):
        kinds.trace.mark("forward", step)
        for _ in range(recipe.accumulate):
            batch = workload.batch()
            kinds.name(_leaves(batch), "batch")
            with torch.autocast("cuda", dtype=narrow) if narrow else contextlib.nullcontext():
                loss = workload.loss(model, batch)
            if recipe.accumulate > 1:
                loss = loss / recipe.accumulate
            (scaler.scale(loss) if scaler else loss).backward()
            kinds.name((p.grad for p in learned if p.grad is not None), "gradients")
        if scaler and recipe.clip:
            scaler.unscale_(optimizer)
        if recipe.clip:
            torch.nn.utils.clip_grad_norm_(learned, recipe.clip)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        kinds.name(_state(optimizer), "optimizer")
        optimizer.zero_grad(set_to_none=True)


def _steps(recipe: Recipe, trace: AllocationTrace) -> Iterator[int]:
    """Yield the steps to run. Steps after the second are equal to it and copied in the trace."""
    begin = 0
    for step in range(min(recipe.steps, DIFFERENT)):
        begin = len(trace.moves)
        yield step
    for _ in range(recipe.steps - DIFFERENT):
        end = len(trace.moves)
        trace.repeat(begin)
        begin = end
    trace.is_closed = True


def _own_steps(workload: Workload, model: Any, optimizer: Any, recipe: Recipe, kinds: Kinds) -> None:
    for step in _steps(recipe, kinds.trace):
        kinds.trace.mark("forward", step)
        batch = workload.batch()
        kinds.name(_leaves(batch), "batch")
        workload.step(model, batch, optimizer)  # type: ignore[misc]
        kinds.name((p.grad for p in model.parameters() if p.grad is not None), "gradients")
        kinds.name(_state(optimizer), "optimizer")


def _optimizer(recipe: Recipe, learned: list[Any]) -> Any:
    kind = quantised.OPTIMIZERS.get(recipe.optimizer) or getattr(torch.optim, recipe.optimizer, None)
    if kind is None:
        raise UsageError(f"torch {torch.__version__} has no optimizer {recipe.optimizer!a}")
    try:
        return kind(learned, **{"lr": 1e-4, **recipe.optimizer_options})
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{recipe.optimizer} refuses its options: {error}") from None


def _rules(recipe: Recipe) -> set[str]:
    """Return the doubts about rules that were not verified on a GPU."""
    found = {quantised.DOUBTS[recipe.quantize]} if recipe.quantize else set()
    return found | ({quantised.DOUBT_STATES} if recipe.optimizer in quantised.OPTIMIZERS else set())


def _state(optimizer: Any) -> Iterator[Any]:
    for state in optimizer.state.values():
        yield from _leaves(state)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)


class Kinds:
    """Labels allocations with their kind: parameters, gradients, optimizer, batch."""

    def __init__(self, trace: AllocationTrace, tracker: Any) -> None:
        self.trace = trace
        self._tracker = tracker

    def name(self, tensors: Any, kind: str, module: str = "") -> None:
        for tensor in tensors:
            number = self._tracker.track(tensor)
            if number is not None and not self.trace.requests[number].kind:
                self.trace.requests[number].kind = kind
                self.trace.requests[number].module = module


@contextlib.contextmanager
def _phases(trace: AllocationTrace) -> Iterator[None]:
    """Mark the backward and optimizer phases in the trace, also in a user's own step."""
    backward = torch.autograd.backward

    def mark_backward(*args: Any, **kwargs: Any) -> Any:
        trace.mark("backward", trace.step)
        try:
            return backward(*args, **kwargs)
        finally:
            trace.mark("forward", trace.step)

    def before(*_: Any) -> None:
        trace.mark("optimizer", trace.step)

    def after(*_: Any) -> None:
        trace.mark("forward", trace.step)

    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    torch.autograd.backward = mark_backward
    try:
        yield
    finally:
        torch.autograd.backward = backward
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _modules(trace: AllocationTrace, model: Any) -> Iterator[None]:
    """Set `trace.module` to the name of the module that is running."""
    names = {id(module): name for name, module in model.named_modules()}
    stack: list[str] = []

    def enter(module: Any, _: Any) -> None:
        stack.append(trace.module)
        trace.module = names.get(id(module), trace.module)

    def leave(module: Any, _: Any, __: Any) -> None:
        if stack:
            trace.module = stack.pop()

    hooks = [
        torch.nn.modules.module.register_module_forward_pre_hook(enter),
        torch.nn.modules.module.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
