"""A long submission is decoded in pieces, and means what it means when it is decoded at once."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.errors import UsageError
from gflow.wire import requests
from gflow.wire.requests import BATCH, RawSubmitRequest, decode

PIECE = 64
NASTY = st.sampled_from(["}, {", '"jobs": [', "},{", "]}", '\\"jobs\\":[', "{", "ä", "x" * 40])
JOBS = st.lists(
    st.fixed_dictionaries(
        {"command": st.lists(NASTY), "options": st.dictionaries(NASTY, st.lists(st.just({}))), "cwd": NASTY}
    )
)


@pytest.fixture(autouse=True)
def pieces(monkeypatch):
    """Small pieces; the number of bytes in each."""
    sizes, decode_raws = [], requests._decode_raws

    def counted(text):
        sizes.append(len(text))
        return decode_raws(text)

    monkeypatch.setattr(requests, "_PIECE", PIECE)
    monkeypatch.setattr(requests, "_PAUSE_S", 0)
    monkeypatch.setattr(requests, "_decode_raws", counted)
    monkeypatch.setattr(requests, "LARGE", 0)
    return sizes


def content(request):
    return request.token, request.environ, list(map(bytes, request.jobs))


@given(JOBS, st.sampled_from([None, (",", ":")]), st.permutations(["token", "jobs", "environ"]))
def test_pieces_mean_what_the_whole_means(jobs, separators, order):
    request = {"token": "t", "environ": "QT0x", "jobs": jobs}
    body = json.dumps({name: request[name] for name in order}, separators=separators).encode()
    whole = msgspec.json.decode(body, type=RawSubmitRequest)
    assert content(decode(body, RawSubmitRequest)) == content(whole)


@pytest.mark.parametrize("separators", [None, (",", ":")])
def test_no_piece_is_much_longer_than_meant(pieces, separators):
    jobs = [{"command": ["echo", str(number)], "cwd": "/"} for number in range(1000)]
    body = json.dumps({"token": "t", "jobs": jobs}, separators=separators).encode()
    found = decode(body, RawSubmitRequest)
    assert [json.loads(bytes(raw)) for raw in found.jobs] == jobs
    assert len(pieces) > len(body) / (3 * PIECE) and max(pieces) < 2 * PIECE


def test_refusals_are_those_of_the_whole():
    job = json.dumps({"command": ["true"], "cwd": "/"})
    jobs = ", ".join([job] * 50)
    for body in (
        f'{{"token": "t", "jobs": [{jobs}, {job[:-1]}, {jobs}]}}',
        f'{{"token": "t", "jobs": [{jobs}], "more": 1}}',
        f'{{"token": "t", "more": {{"jobs": [{jobs}]}}, "jobs": []}}',
        f'{{"jobs": [{jobs}]}}',
        f'{{"token": "t", "jobs": [{jobs}, {jobs}',
        f'{{"token": "t", "jobs": [{jobs},, {jobs}]}}',
    ):
        with pytest.raises(UsageError) as refused:
            decode(body.encode(), RawSubmitRequest)
        with pytest.raises(msgspec.MsgspecError) as whole:
            msgspec.json.decode(body.encode(), type=RawSubmitRequest)
        assert str(whole.value) in refused.value.message


def test_too_many_jobs_are_refused():
    body = b'{"token": "t", "jobs": [' + b"{}, " * BATCH + b"{}]}"
    with pytest.raises(UsageError, match="length <= 100000"):
        decode(body, RawSubmitRequest)
