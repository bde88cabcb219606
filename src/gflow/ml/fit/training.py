"""The training step itself: the loop that everybody writes, run on the device made of nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from gflow.errors import Refused, UsageError
from gflow.ml.fit.cuda import fake_cuda, quantised
from gflow.ml.fit.cuda.allocation_trace import AllocationTrace
from gflow.ml.fit.cuda.architectures import Architecture
from gflow.ml.fit.models.model_builder import to_device
from gflow.ml.fit.models.workload import Workload
from gflow.ml.fit.recipe import Recipe

# The first step makes the optimizer's state; the second is the first of the usual ones.
DIFFERENT = 2
LARGEST_WEIGHTS = 10**12
NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def record(workload: Workload, recipe: Recipe, card: Architecture) -> AllocationTrace:
    """Everything that the training does with memory, on a tape."""
    tape = AllocationTrace()
    _check_size(workload.model)
    with fake_cuda.device(tape, card) as device, _phases(tape), _modules(tape, workload.model):
        model = to_device(workload.model, channels_last=recipe.channels_last)
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not learned:
            raise UsageError("nothing in this model learns: no parameter requires a gradient")
        kinds = Kinds(tape, device.watch)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            kinds.name([tensor], "parameters", name)
        tape.parameters = sum(parameter.numel() for parameter in model.parameters())
        tape.parameters += quantised.numbers(model)
        tape.learned = sum(parameter.numel() for parameter in learned)
        optimizer = _optimizer(recipe, learned)
        tape.doubts |= _rules(recipe) | set(workload.doubts)
        tape.mark("forward", 0)
        if workload.step is None:
            _loop(workload, model, optimizer, learned, recipe, kinds)
        else:
            _own_steps(workload, model, optimizer, recipe, kinds)
    return tape


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
    for step in _steps(recipe, kinds.tape):
        kinds.tape.mark("forward", step)
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


def _steps(recipe: Recipe, tape: AllocationTrace) -> Iterator[int]:
    """The steps to run. From the second on all are alike, so further ones are copied on the tape."""
    begin = 0
    for step in range(min(recipe.steps, DIFFERENT)):
        begin = len(tape.moves)
        yield step
    for _ in range(recipe.steps - DIFFERENT):
        end = len(tape.moves)
        tape.repeat(begin)
        begin = end
    tape.is_closed = True


def _own_steps(workload: Workload, model: Any, optimizer: Any, recipe: Recipe, kinds: Kinds) -> None:
    for step in _steps(recipe, kinds.tape):
        kinds.tape.mark("forward", step)
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
    """What is followed by rules that nobody compared with a GPU."""
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
    """Says what the memory behind tensors is for, once that is known."""

    def __init__(self, tape: AllocationTrace, watch: Any) -> None:
        self.tape = tape
        self._watch = watch

    def name(self, tensors: Any, kind: str, module: str = "") -> None:
        for tensor in tensors:
            number = self._watch.saw(tensor)
            if number is not None and not self.tape.requests[number].kind:
                self.tape.requests[number].kind = kind
                self.tape.requests[number].module = module


@contextlib.contextmanager
def _phases(tape: AllocationTrace) -> Iterator[None]:
    """Tells backward and optimizer from the rest, whoever wrote the step."""
    backward = torch.autograd.backward

    def marked(*args: Any, **kwargs: Any) -> Any:
        tape.mark("backward", tape.step)
        try:
            return backward(*args, **kwargs)
        finally:
            tape.mark("forward", tape.step)

    def before(*_: Any) -> None:
        tape.mark("optimizer", tape.step)

    def after(*_: Any) -> None:
        tape.mark("forward", tape.step)

    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    torch.autograd.backward = marked
    try:
        yield
    finally:
        torch.autograd.backward = backward
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _modules(tape: AllocationTrace, model: Any) -> Iterator[None]:
    """Names the module at work."""
    names = {id(module): name for name, module in model.named_modules()}
    stack: list[str] = []

    def enter(module: Any, _: Any) -> None:
        stack.append(tape.module)
        tape.module = names.get(id(module), tape.module)

    def leave(module: Any, _: Any, __: Any) -> None:
        if stack:
            tape.module = stack.pop()

    hooks = [
        torch.nn.modules.module.register_module_forward_pre_hook(enter),
        torch.nn.modules.module.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
