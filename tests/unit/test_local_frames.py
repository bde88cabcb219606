import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.targets.local.protocol import LENGTH, pack, unpack

messages = st.lists(st.binary(), min_size=1, max_size=5)


@given(st.lists(messages, max_size=5))
def test_messages_come_out_as_they_went_in(sent):
    buffer = bytearray(b"".join(map(pack, sent)))
    assert unpack(buffer) == sent
    assert not buffer


@given(st.lists(messages, max_size=4), st.data())
def test_messages_are_independent_of_chunking(sent, data):
    stream = b"".join(map(pack, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    buffer, received = bytearray(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        buffer += stream[start:end]
        received += unpack(buffer)
    assert received == sent
    assert not buffer


@pytest.mark.parametrize("size", range(len(pack([b"hello"]))))
def test_half_a_message_stays_until_the_rest_comes(size):
    whole = pack([b"hello"])
    buffer = bytearray(whole[:size])
    assert unpack(buffer) == []
    assert buffer == whole[:size]


def test_half_a_message_does_not_hold_up_the_one_before():
    buffer = bytearray(pack([b"1"]) + pack([b"2"])[:-1])
    assert unpack(buffer) == [[b"1"]]
    assert buffer == pack([b"2"])[:-1]


def test_the_length_is_that_of_the_body():
    frame = pack([b"job", b"1"])
    assert int.from_bytes(frame[:LENGTH], "little") == len(frame) - LENGTH
