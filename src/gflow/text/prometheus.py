"""The Prometheus text format (0.0.4): metric families with help and type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]
ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Page:
    """Collects metric families."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, about: str, samples: Iterable[tuple[Labels, float]]) -> None:
        """Add a counter or gauge. A family without samples is left out."""
        found = [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
        if found:
            self._head(name, kind, about)
            self._lines += found

    def one(self, name: str, kind: str, about: str, value: float) -> None:
        self.family(name, kind, about, [({}, value)])

    def histogram(
        self,
        name: str,
        about: str,
        several: Iterable[tuple[Labels, Sequence[float], Sequence[int], float]],
    ) -> None:
        """Add a histogram. `several`: labels, upper bounds, counts per bucket (not cumulative), and sum."""
        self._head(name, "histogram", about)
        for labels, bounds, counts, total in several:
            below = 0
            for bound, count in zip((*map(_number, bounds), "+Inf"), counts, strict=True):
                below += count
                self._lines.append(f"{name}_bucket{_labels({**labels, 'le': bound})} {below}")
            self._lines.append(f"{name}_sum{_labels(labels)} {_number(total)}")
            self._lines.append(f"{name}_count{_labels(labels)} {below}")

    def _head(self, name: str, kind: str, about: str) -> None:
        self._lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]

    def text(self) -> str:
        return "".join(line + "\n" for line in self._lines)


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(ESCAPES)}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
