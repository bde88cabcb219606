"""Memory against the batch, with the limits of cards."""

from __future__ import annotations

import sys

import pytest

from gflow.cli.tools import fit
from gflow.errors import Refused
from gflow.ml.fit.chart import chart
from gflow.text.fit import chart_page

GIB = 1 << 30
CARDS = {"small": 10 * GIB, "like it": int(10.5 * GIB), "large": 40 * GIB}


class Line:
    def needed(self, batch, way, cap=None):
        return batch * GIB


def test_batches_double_until_the_largest_card_is_full():
    found = chart(Line(), CARDS, GIB)
    assert [(point.batch, point.bytes // GIB) for point in found.points] == [
        (1, 2), (2, 3), (4, 5), (8, 9), (16, 17), (32, 33), (64, 65),
    ]  # fmt: skip
    assert [(limit.gpus, limit.batch) for limit in found.limits] == [
        (["small", "like it"], 8),
        (["large"], 32),
    ]


def test_even_a_card_that_is_too_small_has_a_few_points():
    found = chart(Line(), {"tiny": GIB}, GIB)
    assert [point.batch for point in found.points] == [1, 2, 4, 8]
    assert found.limits[0].batch == 0


@pytest.mark.parametrize("width", [0, 40, 200])
def test_terminal_chart(width):
    lines = chart_page(chart(Line(), CARDS, GIB), width).splitlines()
    head, rows, legend = lines[0], lines[1:8], lines[9:]
    assert max(map(len, lines[:8])) <= max(40, width or 80)
    assert [head.index(name) for name in "ab"] == sorted(head.index(name) for name in "ab")
    for row, fits in zip(rows, [True] * 4 + [False] * 3, strict=True):
        assert (row.index("●") <= head.index("a")) == fits, "left of its limit is what fits"
    assert legend == ["a   10.0 GiB  batch 8 fits: small, like it", "b   40.0 GiB  batch 32 fits: large"]


def test_a_card_that_nothing_fits_on_says_so():
    assert "nothing fits: tiny" in chart_page(chart(Line(), {"tiny": GIB}, GIB))


def test_plot_without_matplotlib_is_refused_first(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Refused, match="needs matplotlib"):
        fit.run(["--params", "1B", "--plot", str(tmp_path / "a.png")])


def test_names_of_cards_that_are_near_stand_on_both_sides():
    from gflow.ml.fit.chart import LEFT, RIGHT, Limit, _sides

    limits = [Limit([], size, 0) for size in (100, 110, 120, 200)]
    assert _sides(limits) == [RIGHT, LEFT, RIGHT, RIGHT]
    assert _sides([]) == []
