import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.errors import UsageError
from gflow.gpu.simulated import MOST, simulated_gpus


@pytest.mark.parametrize(
    ("text", "gigabytes"),
    [
        ("1x80G", [80]),
        ("4x80G", [80] * 4),
        ("2x80G,2x24G", [80, 80, 24, 24]),
        (" 1x80g , 1X24 ", [80, 24]),
        ("0x80G,1x24G", [24]),
        (f"{MOST}x1G", [1] * MOST),
    ],
)
def test_simulated_gpus_as_requested(text, gigabytes):
    assert [gpu.memory_mib for gpu in simulated_gpus(text)] == [size * 1024 for size in gigabytes]


def test_ten_thousand_gpus_may_be_simulated():
    assert len(simulated_gpus("9999x80G,1x24G")) == 10_000


def test_simulated_gpus_say_that_they_are():
    gpus = simulated_gpus("2x80G,1x24G")
    assert all(gpu.simulated and "simulated" in gpu.uuid and "Simulated" in gpu.model for gpu in gpus)
    assert [gpu.model for gpu in gpus] == ["Simulated 80 GB", "Simulated 80 GB", "Simulated 24 GB"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "x",
        "4x",
        "x80G",
        "4x0G",
        "-1x80G",
        "4x-80G",
        "4x80M",
        "4x80GG",
        "4x8.5G",
        "4x80G,",
        ",4x80G",
        "4x80G;2x24G",
        "4 x 80G",
        "four",
        "\u00b2x80G",
        "\x1b[2J",
        "0x80G",
        f"{MOST + 1}x1G",
        f"{MOST}x1G,1x1G",
        "9" * 18 + "x1G",
        pytest.param("9" * 5000 + "x1G", id="5000 digits of GPUs"),
        pytest.param("1x" + "9" * 5000 + "G", id="5000 digits of memory"),
    ],
)
def test_invalid_simulated_gpus_are_refused(text):
    with pytest.raises(UsageError, match="--simulate-gpus") as caught:
        simulated_gpus(text)
    assert caught.value.message.isprintable()


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 200)), min_size=1, max_size=8))
def test_simulated_gpus_have_distinct_numbers_and_uuids(kinds):
    gpus = simulated_gpus(",".join(f"{count}x{size}G" for count, size in kinds))
    assert [gpu.index for gpu in gpus] == list(range(sum(count for count, _ in kinds)))
    assert len({gpu.uuid for gpu in gpus}) == len(gpus)


@given(st.text(max_size=20) | st.text("0123456789xgG, ", max_size=20))
def test_any_text_gives_gpus_or_a_refusal(text):
    try:
        assert 1 <= len(simulated_gpus(text)) <= MOST
    except UsageError:
        pass
