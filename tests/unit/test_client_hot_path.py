import os

import pytest

from gflow.client import hot_path, http
from gflow.client.hot_path import join_chunks, read_body
from gflow.options.job_options import GBATCH
from gflow.options.parse import parse


@pytest.mark.parametrize(
    ("headers", "content", "body"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3", b"abc", b"abc"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx: y", b"", b""),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked", b"0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK", b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n", b"abc0123456789"),
        (b"HTTP/1.1 200 OK", b"5\r\na\r\nbc\r\n0\r\n\r\n", b"a\r\nbc"),
    ],
)
def test_a_whole_answer(headers, content, body):
    assert read_body(headers, content) == body


@pytest.mark.parametrize(
    ("headers", "content"),
    [(b"HTTP/1.1 200 OK\r\ncontent-length: 4", b"abc")]
    + [(b"", b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"[:cut]) for cut in range(16)],
)
def test_an_answer_that_was_cut_off_is_not_taken_for_whole(headers, content):
    with pytest.raises(ConnectionResetError):
        read_body(headers, content)


def test_a_chunk_may_hold_what_looks_like_an_end():
    assert join_chunks(b"7\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n") == b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("Running,PD", "Running,PD"),
        ("NODELIST(REASON)", "NODELIST%28REASON%29"),
        ("a b&c=d%#?/+", "a%20b%26c%3Dd%25%23%3F%2F%2B"),
        ("d\u00e9j\u00e0", "d%C3%A9j%C3%A0"),
        ("\udcff", "%FF"),
        ("\r\nX: y", "%0D%0AX%3A%20y"),
    ],
)
def test_query_values_are_quoted(text, quoted):
    assert http.quote(text) == quoted
    assert http.with_query("/jobs", {"a": text, "b": ""}) == f"/jobs?a={quoted}"


# ---------------------------------------------------------------- values that look like ranges


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("seed=1-10", "gbatch: seed has one value, 1-10; the range is --param seed=1:10\n"),
        ("bs=16..64", "gbatch: bs has one value, 16..64; the range is --param bs=16:64\n"),
        ("bs=16-64,1", ""),
        ("lr=1e-5", ""),
        ("x=-1", ""),
        ("x=a-b", ""),
    ],
)
def test_a_value_that_looks_like_a_range_is_noted_on_a_terminal(monkeypatch, text, note):
    shown = []
    monkeypatch.setattr(hot_path, "write_folded", lambda fd, data: shown.append(data.decode()))
    for is_terminal in (True, False):
        monkeypatch.setattr(hot_path.posix, "isatty", lambda fd, answer=is_terminal: answer)
        hot_path.note_parameters(parse(["--param", text], GBATCH)[0])
    assert shown == ([note] if note else [])


# ---------------------------------------------------------------- options after the command


def note_of(monkeypatch, words, *, is_terminal=True):
    shown = []
    monkeypatch.setattr(hot_path.posix, "isatty", lambda fd: is_terminal)
    monkeypatch.setattr(hot_path.posix, "get_terminal_size", lambda fd: os.terminal_size((200, 40)))
    monkeypatch.setattr(hot_path, "write", lambda fd, data: shown.append((fd, data.decode())))
    hot_path.note_options_of_command(*parse(words.split(), GBATCH, until_word=True))
    return shown


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("python train.py --gpus 1", "--gpus 1 goes to python"),
        ("--name x /usr/bin/python train.py --gpus=2 --lr 1", "--gpus=2 goes to python"),
        ("train.sh --gpus", "--gpus goes to train.sh"),
    ],
)
def test_gpus_after_the_command_are_noted_on_a_terminal(monkeypatch, words, given):
    text = f"gbatch: {given}; the job asks for no GPU. Put options before the command.\n"
    assert note_of(monkeypatch, words) == [(2, text)]
    assert note_of(monkeypatch, words, is_terminal=False) == []


@pytest.mark.parametrize(
    "words",
    [
        "--gpus 1 python train.py --gpus 1",
        "--gres gpu:1 python train.py --gpus 1",
        "--shape big train.sh --gpus 1",
        "--gpus 0 python train.py --gpus 1",
        "python train.py --gpus-per-node 1",
        "python train.py --lr 1",
        "true",
    ],
)
def test_no_note_if_the_job_asks_for_gpus_or_the_word_is_another(monkeypatch, words):
    assert note_of(monkeypatch, words) == []
