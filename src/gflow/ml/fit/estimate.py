"""Recording of the allocation trace of a training run, and the refusals of runs that cannot be recorded."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gflow.errors import Refused, UsageError
from gflow.ml.fit.cuda.architectures import HOPPER, Architecture
from gflow.ml.fit.recipe import Recipe

if TYPE_CHECKING:
    from gflow.ml.fit.cuda.allocation_trace import AllocationTrace
    from gflow.ml.fit.models.workload import Workload


class NeedsTorch(Refused):
    """PyTorch or transformers is not installed."""

    code = "needs_torch"


def record(
    *,
    recipe: Recipe,
    hf: str | dict[str, Any] | None = None,
    tv: str | None = None,
    py: Any = None,
    task: str = "",
    card: Architecture = HOPPER,
) -> AllocationTrace:
    """Record the allocation trace of a run. It can be replayed for several GPUs."""
    check_one_model({"hf": hf, "tv": tv, "py": py})
    config = None
    if hf is not None:
        config = hf if isinstance(hf, dict) else _config(hf)
    _need("torch", *(["transformers"] if config is not None else []))
    try:
        return _run(config, tv, py, task, recipe, card)
    except (Refused, UsageError):
        raise
    except Exception as error:
        raise _refusal(error) from error


def check_one_model(given: dict[str, Any]) -> None:
    """Refuse anything but exactly one model."""
    named = [name for name in ("hf", "tv", "py") if given.get(name) is not None]
    if len(named) > 1:
        raise UsageError(f"one model at a time, not --{' and --'.join(named)}")
    if not named:
        raise UsageError(
            "which model?",
            hint="one of --hf config.json, --tv resnet50, --py module:callable, or --params 7B",
        )


def _config(path: str) -> dict[str, Any]:
    from gflow.ml.fit.models.hf_config import read

    return read(path)


def _run(config: Any, tv: Any, py: Any, task: str, recipe: Recipe, card: Architecture) -> AllocationTrace:
    import warnings

    from gflow.ml.fit import training

    with warnings.catch_warnings(), _quiet("torch._subclasses.fake_tensor"):
        # Warnings of torch and transformers that do not apply to a prediction.
        warnings.simplefilter("ignore")
        return training.record(_workload(config, tv, py, task, recipe), recipe, card)


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Disable a logger: a failing operator is reported in one sentence instead of a logged traceback."""
    logger = logging.getLogger(name)
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


def _workload(config: Any, tv: Any, py: Any, task: str, recipe: Recipe) -> Workload:
    if config is not None:
        from gflow.ml.fit.models import huggingface

        return huggingface.workload(config, recipe, task)
    if tv is not None:
        from gflow.ml.fit.models import vision

        return vision.workload(tv, recipe)
    from gflow.ml.fit.models import user_model

    return user_model.workload(py, recipe) if isinstance(py, str) else user_model.of(py, recipe)


def _need(*modules: str) -> None:
    """Check that modules are installed without importing them: importing transformers takes seconds."""
    from importlib.util import find_spec

    from gflow.install_hint import install_hint

    for module in modules:
        if find_spec(module) is None:
            raise NeedsTorch(
                f"predicting this run needs {module}, which is not installed",
                hint=f"{install_hint('fit')}; --params 7B gives a rough estimate without it",
            )


# Hint for a run that cannot be recorded.
FORMULA = "--params 7B estimates by a formula, which may be off by half"


def _refusal(error: Exception) -> Refused:
    """Describe in one sentence why a run could not be recorded, with the operator that caused it."""
    kind = type(error).__name__
    operator = getattr(error, "func", None)
    first = (str(error).strip() or kind).splitlines()[0]
    where = f" in {notes[0]}" if (notes := getattr(error, "__notes__", [])) else ""
    if "can't allocate memory" in str(error) or isinstance(error, MemoryError):
        return Refused("the model is too large for this machine's memory", hint=FORMULA)
    if kind in ("DynamicOutputShapeException", "DataDependentOutputException"):
        return Refused(
            f"the result of {operator}{where} depends on values, so its memory cannot be known beforehand",
            hint=f"run the model with fixed shapes, or measure one step on a GPU; {FORMULA}",
        )
    if "integer multiplication overflow" in first or "Storage size calculation overflowed" in first:
        return Refused(
            "this batch makes tensors of more numbers than PyTorch can count",
            hint="a smaller --batch or --seq",
        )
    custom = re.search(r"no fake impl registered for <CustomOpDef\(([^)]*)\)>", first)
    unknown = ("UnsupportedOperatorException", "NotImplementedError", "UnsupportedFakeTensorException")
    if custom or kind in unknown:
        return Refused(
            f"no rule for an operator of this model: {custom[1] if custom else operator or first}{where}",
            hint=f"give it a fake implementation (torch.library.register_fake); {FORMULA}",
        )
    return Refused(f"the training step failed: {kind}: {first}", hint="would it run on a GPU as it is?")
