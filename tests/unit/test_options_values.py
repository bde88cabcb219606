import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.errors import UsageError
from gflow.options.table import GBATCH, Option
from gflow.options.values import (
    NAME_LENGTH,
    READERS,
    TEN_YEARS_S,
    is_job_reference,
    read,
)
from gflow.text.durations import clock

COUNT = Option("count", "count", "", low=0, high=255)
TIME = Option("time", "duration", "", low=1)
NAME = Option("name", "name", "")
TEXT = Option("text", "text", "")
FLAG = Option("flag", "flag", "")
DEPENDS = Option("depends-on", "depends", "")

MINUTE, HOUR, DAY = 60, 3600, 86400


def refusal(option, value):
    with pytest.raises(UsageError) as caught:
        read(option, value)
    return caught.value


# ---------------------------------------------------------------- every kind


@pytest.mark.parametrize("option", GBATCH, ids=lambda option: option.name)
def test_every_option_has_a_reader(option):
    assert option.kind in READERS


@pytest.mark.parametrize("value", [None, {"a": []}], ids=str)
@pytest.mark.parametrize("option", GBATCH, ids=lambda option: option.name)
def test_json_of_the_wrong_kind_is_refused_by_name(option, value):
    assert f"--{option.name} " in refusal(option, value).message


@given(st.text())
def test_any_text_is_read_or_refused_and_nothing_else(text):
    for option in GBATCH:
        try:
            read(option, text)
        except UsageError as error:
            assert error.message.isprintable(), "a refusal must not move the cursor of whoever reads it"


# ---------------------------------------------------------------- durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1", MINUTE),
        ("30", 30 * MINUTE),
        ("90", 90 * MINUTE),
        ("0:01", 1),
        ("5:30", 5 * MINUTE + 30),
        ("90:00", 90 * MINUTE),
        ("4:00:00", 4 * HOUR),
        ("04:00:00", 4 * HOUR),
        ("100:00:00", 100 * HOUR),
        ("1-02:00:00", DAY + 2 * HOUR),
        ("0-00:00:01", 1),
        (" 30 ", 30 * MINUTE),
        ("3660-00:00:00", TEN_YEARS_S),
    ],
)
def test_duration_as_text(text, seconds):
    assert read(TIME, text) == seconds


def test_duration_as_a_json_number_is_seconds():
    assert read(TIME, 90) == 90


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "abc",
        "-5",
        "+5",
        "5m",
        "1.5",
        "1:99:99",
        "0:60",
        "1:60:00",
        "1:2:3:4",
        ":",
        "5:",
        ":30",
        "1-",
        "-1:00",
        "1-2",
        "1-02:00",
        "1--02:00:00",
        "a-02:00:00",
        "1-2-02:00:00",
        "1_000",
        "\u0663\u0660",  # 30 in Arabic digits
        "9" * 19,
        1.5,
        True,
        [30],
    ],
)
def test_duration_that_is_not_one_is_refused_with_the_spellings(value):
    error = refusal(TIME, value)
    assert "does not understand" in error.message
    assert "1-02:00:00" in error.hint


@pytest.mark.parametrize("value", ["0", "0:00", "0-00:00:00", 0, -1])
def test_duration_of_nothing_is_refused(value):
    assert "longer than zero" in refusal(TIME, value).message


@pytest.mark.parametrize("value", ["3660-00:00:01", "9" * 18, TEN_YEARS_S + 1])
def test_duration_beyond_ten_years_is_refused(value):
    assert "under ten years" in refusal(TIME, value).message


@given(st.integers(1, TEN_YEARS_S))
def test_a_duration_as_we_print_it_reads_back(seconds):
    assert read(TIME, clock(seconds)) == seconds


# ---------------------------------------------------------------- counts


@pytest.mark.parametrize(
    ("value", "number"), [("0", 0), ("255", 255), ("+7", 7), ("007", 7), ("-0", 0), (0, 0), (255, 255)]
)
def test_count_within_bounds(value, number):
    assert read(COUNT, value) == number


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("-1", "--count must be at least 0, not -1"),
        (-1, "--count must be at least 0, not -1"),
        ("256", "--count must be at most 255, not 256"),
        (256, "--count must be at most 255, not 256"),
        ("", "--count takes a whole number, not ''"),
        ("two", "--count takes a whole number, not 'two'"),
        ("2.0", "--count takes a whole number, not '2.0'"),
        (2.0, "--count takes a whole number, not '2.0'"),
        (True, "--count takes a whole number, not 'True'"),
        ("1e3", "--count takes a whole number, not '1e3'"),
        ("0x10", "--count takes a whole number, not '0x10'"),
        ("1_0", "--count takes a whole number, not '1_0'"),
        (" 1", "--count takes a whole number, not ' 1'"),
        ("--1", "--count takes a whole number, not '--1'"),
        ("+", "--count takes a whole number, not '+'"),
        ("\u0663", r"--count takes a whole number, not '\u0663'"),
        ("\u00b2", r"--count takes a whole number, not '\xb2'"),
        ("a\x1b[2J", r"--count takes a whole number, not 'a\x1b[2J'"),
    ],
)
def test_count_refusals_say_what_was_written(value, message):
    assert refusal(COUNT, value).message == message


def test_a_refusal_quotes_only_the_start_of_a_long_value():
    assert len(refusal(COUNT, "9" * 5000).message) < 120


@given(st.integers())
def test_count_is_the_number_or_a_refusal_exactly_at_the_bounds(number):
    if 0 <= number <= 255:
        assert read(COUNT, number) == read(COUNT, str(number)) == number
    else:
        refusal(COUNT, number)
        refusal(COUNT, str(number))


# ---------------------------------------------------------------- names and texts


@pytest.mark.parametrize(
    "name",
    ["a", "train-7b", "two words", "--gpus", "a" * NAME_LENGTH, "d\u00e9j\u00e0", "\u8a13\u7df4", "50%;#'\""],
)
def test_name_on_one_line_is_kept_as_it_is(name):
    assert read(NAME, name) == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "must not be empty"),
        ("   ", "must not be empty"),
        ("\n", "must not be empty"),
        ("a\nb", "printable text on one line"),
        ("a\tb", "printable text on one line"),
        ("a\rb", "printable text on one line"),
        ("a\0b", "printable text on one line"),
        ("\x1b[31mred", "printable text on one line"),
        ("a\u202eb", "printable text on one line"),  # turns the rest of the line around
        ("a\u200bb", "printable text on one line"),  # takes no room
        ("a\ud800b", "printable text on one line"),  # no UTF-8 for it
        ("a" * (NAME_LENGTH + 1), f"at most {NAME_LENGTH} characters, not {NAME_LENGTH + 1}"),
        ("a" * 5000, f"at most {NAME_LENGTH} characters, not 5000"),
    ],
)
def test_name_that_would_break_a_listing_is_refused(name, message):
    error = refusal(NAME, name)
    assert message in error.message
    assert error.message.isprintable()


def test_name_of_another_type_is_not_called_empty():
    assert "empty" not in refusal(NAME, 5).message


def test_text_is_anything_without_nul():
    assert read(TEXT, "a\nb") == "a\nb"
    assert "takes text" in refusal(TEXT, "a\0b").message
    assert "takes text" in refusal(TEXT, 7).message


@pytest.mark.parametrize("value", [True, False])
def test_flag_is_a_boolean(value):
    assert read(FLAG, value) is value


@pytest.mark.parametrize("value", ["true", "", 1])
def test_flag_takes_no_value(value):
    assert refusal(FLAG, value).message == "--flag takes no value"


# ---------------------------------------------------------------- job references

REFERENCES = ["0", "17", "42_3", "42_0", "@", "@~0", "@~1", "@~999"]
NO_REFERENCES = [
    "",
    " ",
    "abc",
    "-1",
    "+1",
    "1.5",
    "_",
    "42_",
    "_3",
    "42_3_1",
    "42_x",
    "42_[1-3]",
    "@~",
    "@1",
    "@x",
    "@~x",
    "@~-1",
    "@~1_0",
    "@@",
    "~1",
    "\u0663",
    "@~\u0663",
    "9" * 19,
]


@pytest.mark.parametrize("text", REFERENCES)
def test_job_reference(text):
    assert is_job_reference(text)
    assert read(DEPENDS, text) == (text,)


@pytest.mark.parametrize("text", NO_REFERENCES)
def test_what_is_no_job_reference_is_refused_with_the_spellings(text):
    assert not is_job_reference(text)
    assert "@~1" in refusal(DEPENDS, text).hint


@pytest.mark.parametrize(
    ("value", "references"),
    [
        (17, ("17",)),
        ("1,2", ("1", "2")),
        (" 1 , @ ", ("1", "@")),
        (["1", "42_3"], ("1", "42_3")),
        ([1, "@~2"], ("1", "@~2")),
        (("1", "2"), ("1", "2")),
    ],
)
def test_several_job_references(value, references):
    assert read(DEPENDS, value) == references


@pytest.mark.parametrize("value", [True, 1.5, [], ["1", None], ["1", ["2"]], "1,,2", ",", "1,", "1;2"])
def test_one_bad_reference_refuses_all(value):
    refusal(DEPENDS, value)


@given(st.lists(st.sampled_from(REFERENCES), min_size=1))
def test_references_survive_text_and_json_alike(references):
    assert read(DEPENDS, ",".join(references)) == read(DEPENDS, references) == tuple(references)


@given(st.text(alphabet="@~_0123456789, x", max_size=12))
def test_what_is_read_as_references_consists_of_references(text):
    try:
        references = read(DEPENDS, text)
    except UsageError:
        return
    assert references
    assert all(map(is_job_reference, references))
