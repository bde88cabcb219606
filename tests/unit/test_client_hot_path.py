import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from gflow.client import http
from gflow.client.hot_path import join_chunks, read_body, write


@pytest.mark.parametrize(
    ("headers", "content", "body"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3", b"abc", b"abc"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx: y", b"", b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3", b"abcd", b"abc"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked", b"0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK", b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n", b"abc0123456789"),
        (b"HTTP/1.1 200 OK", b"5\r\na\r\nbc\r\n0\r\n\r\n", b"a\r\nbc"),
    ],
)
def test_a_whole_answer(headers, content, body):
    assert read_body(headers, content) == body


@pytest.mark.parametrize(
    ("headers", "content"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: " + size, b"abc")
        for size in (b"4", b"-1", b"abc", b"", b"+3", b"1_1")
    ]
    + [(b"", b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"[:cut]) for cut in range(16)],
)
def test_an_answer_that_was_cut_off_is_not_taken_for_whole(headers, content):
    with pytest.raises(ConnectionResetError):
        read_body(headers, content)


def test_write_waits_when_pipe_is_full_and_does_not_block():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data = bytes(1 << 20)
    with open(reader, "rb") as file, ThreadPoolExecutor() as pool:
        received = pool.submit(file.read)
        try:
            write(writer, data)
        finally:
            os.close(writer)
        assert received.result() == data


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
