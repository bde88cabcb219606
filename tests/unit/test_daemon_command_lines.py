"""The bounds of command lines that the daemon reads."""

import time

import pytest

from gflow.daemon.api.command_lines import (
    MOST_VARIABLES,
    MOST_WORD_BYTES,
    MOST_WORDS,
    read_call,
    translate,
)
from gflow.errors import UsageError

# Far more than a line takes, and less than other clients notice.
LONGEST_S = 0.05


def body(program, words, variables=(), count=None):
    """The body of a request of a thin client."""
    fields = (program, "token", "/", "18", "-1", "-1", "0", "2" * 16, str(count or len(words)))
    return "\0".join((*fields, *words, *variables, "")).encode()


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["x"] * (MOST_WORDS + 1), []),
        (["x" * MOST_WORD_BYTES], []),
        (["true"], ["A=1"] * (MOST_VARIABLES + 1)),
        (["\udcff"], []),
    ],
    ids=["words", "bytes", "variables", "encoding"],
)
def test_command_line_above_a_bound_is_left_to_the_client(words, variables):
    data = body("gbatch", [], count=len(words)) + b"".join(
        one.encode(errors="surrogateescape") + b"\0" for one in (*words, *variables)
    )
    assert read_call(data) is None


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["x"] * MOST_WORDS, []),
        (["x" * (MOST_WORD_BYTES - 1)], []),
        (["true"], ["A=1"] * MOST_VARIABLES),
    ],
    ids=["words", "bytes", "variables"],
)
def test_command_line_at_a_bound_is_read(words, variables):
    call = read_call(body("gbatch", words, variables))
    assert (call.words, call.environ.count(b"\0")) == (words, len(variables))


@pytest.mark.parametrize("count", [-1, 2])
def test_wrong_number_of_words_is_refused(count):
    with pytest.raises(UsageError):
        read_call(body("gqueue", [], count=count))


def longest(word, parts):
    """As many of these parts as a word may have."""
    return word + (parts * MOST_WORD_BYTES)[: MOST_WORD_BYTES - len(word) - 400].rstrip(",-%=:")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("gbatch", [longest("--array=", "1,3-9999,"), "true"]),
        ("gbatch", ["--param", longest("x=", "1,"), "true"]),
        ("gbatch", [*["--param", "x=1:999999"] * 127, "true"]),
        ("gbatch", [longest("--depends-on=", "afterok:1,"), "true"]),
        ("gbatch", ["-" * 60] * MOST_WORDS),
        ("gbatch", ["true", *["--gpus"] * (MOST_WORDS - 1)]),
        ("gbatch", [longest("", "( $")]),
        ("gqueue", [longest("--jobs=", "1-9,")]),
        ("gqueue", [longest("-o", "%.18i ")]),
        ("gqueue", [longest("-f", "JOBID,")]),
        ("gqueue", ["--no-such-option"] * MOST_WORDS),
        ("gjob", ["show", *["1-9"] * (MOST_WORDS - 1)]),
        ("gjob", ["hold", longest("", "1-9,")]),
        ("gcancel", [longest("--state=", "R,"), "1"]),
        ("gcancel", ["-n" + "*a" * 20] * MOST_WORDS),
    ],
)
def test_longest_command_lines_are_read_in_milliseconds(program, words):
    call = read_call(body(program, words, ["A=" + "x" * 500] * 9999))
    assert call is not None
    taken = []
    for _ in range(3):
        before = time.thread_time()
        try:
            translate(call, lambda: "ann")
        except UsageError:
            pass
        taken.append(time.thread_time() - before)
    assert min(taken) < LONGEST_S
