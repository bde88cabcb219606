"""Lazy import of PyTorch for a process that only predicts: unneeded parts are not imported.

Imports take most of the time of a prediction. Nothing is compiled and no image is read, but PyTorch imports
its compiler in every optimizer step, and transformers imports torchvision. Only gflow's own commands call
this: the process of a user's script is not changed.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

from gflow.errors import Refused
from gflow.install_hint import packages_hint

COMPILER = "torch._dynamo"


def load(*, transformers: bool, is_ours: bool) -> None:
    """Import PyTorch; with `transformers`, also transformers without torchvision.

    `is_ours`: the model is not user code, which might compile it. Missing packages are ignored here and
    reported by the code that needs them.
    """
    was_enabled = gc.isenabled()
    gc.disable()  # the imports create about 100,000 objects and no garbage
    try:
        if find_spec("torch") is None:
            return
        import torch

        if is_ours:
            _leave_out_compiler(torch)
        if transformers:
            _leave_out_torchvision()
            if find_spec("transformers") is not None:
                import_module("transformers.modeling_utils")
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _leave_out_torchvision() -> None:
    if "torchvision" not in sys.modules:
        # None means "not installed" to Python and transformers; `torchvision_models` removes it again.
        sys.modules["torchvision"] = None  # type: ignore[assignment]


def _leave_out_compiler(torch: Any) -> None:
    spec = None if COMPILER in sys.modules else find_spec(COMPILER)
    if spec is not None:
        module = module_from_spec(spec)
        module.__class__ = Compiler
        sys.modules[COMPILER] = torch._dynamo = module


class Compiler(ModuleType):
    """`torch._dynamo` before its code has run. Submodules can be imported one by one. The functions that
    every training step calls are defined here; any other attribute loads the real module."""

    def graph_break(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is no graph."""

    def disable(self, function: Any = None, *_: Any, **__: Any) -> Any:
        """Return the function unchanged: nothing is compiled."""
        return function if function is not None else _as_it_is

    def assume_constant_result(self, function: Any) -> Any:
        return function

    def allow_in_graph(self, function: Any) -> Any:
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__spec__ is None or self.__spec__.loader is None:
            raise AttributeError(name)
        if find_spec(f"{COMPILER}.{name}") is not None:
            return import_module(f"{COMPILER}.{name}")
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def _as_it_is(function: Any) -> Any:
    return function


def torchvision_models() -> Any:
    """Import torchvision.models, tolerating missing compiled operators (some builds are for GPUs only).

    No classifier needs them, so failing registrations are skipped. transformers imports torchvision as well,
    and would fail for the same reason.
    """
    if sys.modules.get("torchvision", ...) is None:
        del sys.modules["torchvision"]  # see `load`
    import torch

    register = torch.library.register_fake

    def tolerant(name: str, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        def wrap(function: Any) -> Any:
            try:
                return register(name, *args, **kwargs)(function)
            except RuntimeError:
                return function

        return wrap

    torch.library.register_fake = tolerant
    try:
        import torchvision.models
    except ImportError as error:
        raise Refused(
            f"torchvision cannot be loaded: {error}", hint=packages_hint("torchvision", "pillow")
        ) from None
    finally:
        torch.library.register_fake = register
    return torchvision.models


def load_torchvision() -> None:
    """Import torchvision before transformers does, which fails with a build without compiled operators."""
    if find_spec("torchvision") is not None:  # neither missing nor left out
        torchvision_models()
