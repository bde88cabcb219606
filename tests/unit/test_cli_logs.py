"""Reading logs: some lines of them, and a log that is cut while it is followed."""

import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gflow.cli.common import logs
from gflow.cli.common.logs import print_end, print_lines
from gflow.client import logs as tails
from gflow.client.logs import Tail

texts = st.lists(st.sampled_from([b"a", b"\n", b"bcd", b"\0\xff", b"\r"]), max_size=40).map(b"".join)


@pytest.fixture
def printed(monkeypatch):
    """What went to standard output."""
    found = bytearray()
    monkeypatch.setattr(logs.hot_path, "write", lambda fd, data: found.extend(data))
    return found


def in_memory(text):
    fd = os.memfd_create("log")
    os.write(fd, text)
    return fd


@pytest.mark.parametrize("chunk", [1, 2, 3, 64])
@given(text=texts, lines=st.integers(0, 12))
@example(text=b"a\n\n", lines=1)
@example(text=b"a", lines=1)
def test_last_lines_equal_those_of_a_plain_reader(chunk, text, lines):
    found = bytearray()
    fd = in_memory(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "CHUNK", chunk)
        patch.setattr(tails, "CHUNK", chunk)
        patch.setattr(logs.hot_path, "write", lambda fd, data: found.extend(data))
        all_lines = text.splitlines(keepends=True) if b"\r" not in text else _split(text)
        print_lines(f"/proc/self/fd/{fd}", lines, None)
        assert bytes(found) == b"".join(all_lines[:lines])
        found.clear()
        print_lines(f"/proc/self/fd/{fd}", None, lines)
        assert bytes(found) == b"".join(all_lines[-lines:] if lines else [])
    os.close(fd)


def _split(text):
    """Lines end with a newline and nothing else."""
    parts = [part + b"\n" for part in text.split(b"\n")]
    parts[-1] = parts[-1][:-1]
    return [part for part in parts if part]


def test_the_end_of_a_large_log_is_read_from_the_end(tmp_path, printed, monkeypatch):
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(1 << 34)  # a hole: reading all of it takes seconds
        file.seek(0, 2)
        file.write(b"\nlast but one\nlast\n")
    looked = []
    pread = os.pread
    monkeypatch.setattr(
        os, "pread", lambda fd, count, at: looked.append(len(data := pread(fd, count, at))) or data
    )
    print_lines(str(path), None, 2)
    assert printed == b"last but one\nlast\n"
    assert sum(looked) <= 2 * logs.CHUNK


NOTHING_YET = b"\x1b[2mgflow: job 7 has written nothing yet (gjob log -f 7 follows it)\x1b[0m\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"done\n", b"\x1b[2mgflow: job 7 finished after 00:01:12\x1b[0m\n"),
        (b"100%", b"\n\x1b[2mgflow: job 7 finished after 00:01:12\x1b[0m\n"),
        (b"", b"\x1b[2mgflow: job 7 finished after 00:01:12\x1b[0m\n"),
        (b"x\ngflow: job 7 was cancelled by ann\n", b""),
    ],
)
def test_terminal_shows_how_a_job_ended_once(tmp_path, printed, monkeypatch, text, shown):
    path = tmp_path / "log"
    path.write_bytes(text)
    place = {"path": str(path), "job_id": 7, "ended": "finished after 00:01:12"}
    print_end(place)
    assert printed == b"", "it is no terminal"
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    print_end(place)
    assert printed == shown
    print_end(place | {"ended": None})
    assert printed.removeprefix(shown) == (b"" if text else NOTHING_YET)


# ---------------------------------------------------------------- following


def append(path, data):
    with path.open("ab") as file:
        file.write(data)


def cut(path, count):
    """As a rotation does: the first bytes go to `.1`, which gets its name last."""
    data = path.read_bytes()
    new = path.with_name("log.1.new")
    new.write_bytes(data[:count])
    path.write_bytes(data[count:])
    new.rename(path.with_name("log.1"))


@given(st.data())
def test_a_follower_misses_and_repeats_nothing(tmp_path_factory, data):
    """As long as it looks at least once between two cuts."""
    path = tmp_path_factory.mktemp("follow") / "log"
    found, written = bytearray(), bytearray()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tails, "CHUNK", 3)
        tail = Tail(str(path))
        number = 0
        for what in data.draw(st.lists(st.sampled_from(["write", "look", "cut"]), max_size=25)):
            if what == "write":
                number += 1
                append(path, line := f"line {number}\n".encode())
                written += line
            elif what == "look":
                found.extend(b"".join(tail.new(1.0)))
            elif path.exists() and (size := path.stat().st_size):
                found.extend(b"".join(tail.new(1.0)))
                append(path, b"more\n")
                written += b"more\n"
                cut(path, data.draw(st.sampled_from([size, size + 5, (size + 1) // 2])))
        found.extend(b"".join(tail.new(0.0)))
    assert bytes(found) == bytes(written)


def test_truncated_log_is_read_from_the_start(tmp_path, printed):
    path = tmp_path / "log"
    path.write_bytes(b"one two three\n")
    tail = Tail(str(path))
    printed.extend(b"".join(tail.new(60.0)))
    path.write_bytes(b"four\n")
    printed.extend(b"".join(tail.new(60.0)))
    assert printed == b"one two three\n", "it may be on its way to .1"
    printed.extend(b"".join(tail.new(0.0)))
    assert printed == b"one two three\nfour\n"


def test_a_follower_may_begin_near_the_end(tmp_path, printed):
    path = tmp_path / "log"
    path.write_bytes(b"1\n2\n3\n")
    tail = Tail(str(path), last=1)
    printed.extend(b"".join(tail.new(0.0)))
    append(path, b"4\n")
    printed.extend(b"".join(tail.new(0.0)))
    assert printed == b"3\n4\n"
