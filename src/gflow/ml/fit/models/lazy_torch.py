"""A process that does nothing but predict: it leaves unloaded what that does not need.

Loading takes most of the time of a prediction. Nothing is compiled here and no picture is read, but
PyTorch loads its compiler in every optimizer's step, and transformers loads torchvision. Only programs of
ours call this: in somebody's own process everything stays as it is.
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

COMPILER = "torch._dynamo"


def load(*, transformers: bool, is_ours: bool) -> None:
    """PyTorch, and transformers without torchvision if that is what builds the model.

    `is_ours`: the model is no code of the user's, who may compile it. What is not installed is left to
    whoever needs it.
    """
    was_enabled = gc.isenabled()
    gc.disable()  # a hundred thousand functions and classes come, and none of them goes
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
        # What Python and transformers take for "is not installed"; `torchvision_models` takes it away again.
        sys.modules["torchvision"] = None  # type: ignore[assignment]


def _leave_out_compiler(torch: Any) -> None:
    spec = None if COMPILER in sys.modules else find_spec(COMPILER)
    if spec is not None:
        module = module_from_spec(spec)
        module.__class__ = Compiler
        sys.modules[COMPILER] = torch._dynamo = module


class Compiler(ModuleType):
    """`torch._dynamo` before its own code has run. Its parts can be imported one by one; the few answers that
    every training step asks for are here, and whoever asks for more gets the real thing."""

    def graph_break(self, *_: Any, **__: Any) -> None:
        """There is no graph to break."""

    def disable(self, function: Any = None, *_: Any, **__: Any) -> Any:
        """The function as it is: nobody would compile it."""
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
    """torchvision's models. Its compiled operators may be missing (there are builds for GPUs only); no
    classifier needs them, so their registrations are passed over. transformers loads it as well, if it is
    there, and would fail for the same reason."""
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
            f"torchvision cannot be loaded: {error}", hint="pip install torchvision pillow"
        ) from None
    finally:
        torch.library.register_fake = register
    return torchvision.models


def load_torchvision() -> None:
    """Before transformers does, which does not bear a build without its operators."""
    if find_spec("torchvision") is not None:  # neither missing nor left out
        torchvision_models()
