"""`Answer`: what a command prints with --json, as a dictionary whose entries are attributes too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gflow.ml.fit.catalogue import Gpu
from gflow.ml.fit.fits import verdicts
from gflow.ml.fit.report import Estimate

if TYPE_CHECKING:
    from gflow.ml.fit.cuda.allocation_trace import AllocationTrace


class Answer(dict[str, Any]):
    """A dictionary for JSON. `answer.confidence` is `answer["confidence"]`, also in nested entries."""

    @classmethod
    def of(cls, value: Any) -> Any:
        """Return structs and dictionaries as answers, also within lists."""
        return _wrapped(msgspec.to_builtins(value))

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the answer has no {name!r}: it has {', '.join(self)}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]


def _wrapped(value: Any) -> Any:
    if isinstance(value, dict):
        return Answer({key: _wrapped(one) for key, one in value.items()})
    return [_wrapped(one) for one in value] if isinstance(value, list) else value


def estimate_answer(found: Estimate, trace: AllocationTrace | None, gpus: dict[str, Gpu]) -> Answer:
    """The estimate, its main figures in GB under conventional names, and whether it fits on GPUs."""
    answer: Answer = Answer.of({**msgspec.to_builtins(found), **found.in_gb()})
    answer["gpus"] = Answer.of(verdicts(found, trace, gpus))
    return answer
