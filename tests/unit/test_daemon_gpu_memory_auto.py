"""`--gpu-memory auto`: from what earlier runs used to what the next one needs."""

from __future__ import annotations

import pytest

from gflow.core.model import Gpu
from gflow.daemon.execution.gpu_memory_auto import auto_memory_note, need_of
from gflow.daemon.monitors.gpu_monitor import kind_of
from gflow.errors import Refused
from gflow.testing import spec

BIG = Gpu(index=0, uuid="A", model="NVIDIA A100", memory_mib=81559)
SMALL = Gpu(index=1, uuid="B", model="RTX 4090", memory_mib=24564)


@pytest.mark.parametrize(
    ("peak", "margin", "asked", "mib"),
    [
        (1000, 10, {}, 1536),
        (20000, 10, {}, 22016),
        (20000, 50, {}, 30208),
        (20000, 0, {}, 20736),
        (80000, 10, {}, 81559),
        (90000, 10, {}, 99072),
        (24000, 10, {"gpu_type": "rtx"}, 24564),
        (24000, 10, {}, 26624),
    ],
)
def test_a_margin_and_no_more_than_a_card_has_on_which_it_ran(peak, margin, asked, mib):
    need = need_of(spec(gpus=1, **asked), peak, 3, (BIG, SMALL), margin)
    assert need.mib == mib
    assert need.origin.startswith("auto: 3 earlier runs used ")


@pytest.mark.parametrize(
    ("predicted", "peak", "mib", "origin"),
    [
        (20000, 0, 22016, "auto: 19.53 GiB were predicted"),
        (20000, 5000, 22016, "auto: 19.53 GiB were predicted, 2 earlier runs used 4.883 GiB at most"),
        (5000, 20000, 22016, "auto: 4.883 GiB were predicted, 2 earlier runs used 19.53 GiB at most"),
        (80000, 0, 81559, "auto: 78.12 GiB were predicted"),
        (1000, 0, 1536, "auto: 1000 MiB were predicted"),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_larger_of_prediction_and_measurement_is_used(predicted, peak, mib, origin, shared):
    need = need_of(spec(gpus=1, shared=shared, predicted_mib=predicted), peak, 2, (BIG, SMALL), 10)
    assert need == (mib, origin)


def test_runs_of_another_plan_are_another_kind():
    kinds = [kind_of(7, spec(gpus=1, predicted_mib=mib)) for mib in (0, 1000, 2000)]
    assert len(set(kinds)) == 3
    assert kind_of(7, spec(gpus=2, predicted_mib=1000)) == kinds[1]


def test_request_without_history():
    need = need_of(spec(gpus=1), 0, 0, (BIG,), 10)
    assert need == (0, "auto: no earlier run of this command is known, so any GPU will do")
    with pytest.raises(Refused, match="its limit cannot be computed"):
        need_of(spec(gpus=1, shared=True), 0, 0, (BIG,), 10)


def test_origin_of_the_value_is_shown():
    one = spec(gpus=1, gpu_memory_mib=1536, gpu_memory_from="auto: the earlier run used 1 GiB at most")
    other = spec(gpus=1, gpu_memory_mib=20480, gpu_memory_from="auto: 2 earlier runs used 19 GiB at most")
    assert auto_memory_note([spec(gpus=1, gpu_memory_mib=5)]) == ""
    told = "--gpu-memory auto: 1.5 GiB on each GPU; the earlier run used 1 GiB at most"
    assert auto_memory_note([one, one]) == told
    assert auto_memory_note([one, other]) == "--gpu-memory auto: 1.5 GiB to 20 GiB; gjob show ID says why"
    assert auto_memory_note([other]).isascii()
