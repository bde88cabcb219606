from datetime import datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.core.task_set import parse_tasks
from gflow.errors import UsageError
from gflow.options.job_options import GBATCH, SLURM, Option
from gflow.options.values import (
    ARRAY_LAST,
    ARRAY_TASKS,
    MOST_MIB,
    NAME_LENGTH,
    READERS,
    TEN_YEARS_S,
    is_job_reference,
    read,
    read_extension,
)
from gflow.text.table import clock

COUNT = Option("count", "count", "", low=0, high=255)
TIME = Option("time", "duration", "", low=1)
LIMIT = next(option for option in GBATCH if option.name == "time")
NAME = Option("name", "name", "")
TEXT = Option("text", "text", "")
FLAG = Option("flag", "flag", "")
DEPENDS = Option("depends-on", "depends", "")
GRACE = Option("grace", "seconds", "", low=0)
MEMORY = Option("memory", "size", "", low=1)
ARRAY = Option("array", "array", "")
BEGIN = Option("begin", "time", "")
SIGNAL = Option("signal", "signal", "")

MINUTE, HOUR, DAY = 60, 3600, 86400


def refusal(option, value):
    with pytest.raises(UsageError) as caught:
        read(option, value)
    return caught.value


# ---------------------------------------------------------------- every kind


# Slurm's are translated into others, which are read.
READ = [option for option in GBATCH if option not in SLURM]


@pytest.mark.parametrize("option", READ, ids=lambda option: option.name)
def test_every_option_has_a_reader(option):
    assert option.kind in READERS


@pytest.mark.parametrize("value", [None, {"a": []}], ids=str)
@pytest.mark.parametrize("option", READ, ids=lambda option: option.name)
def test_json_of_the_wrong_kind_is_refused_by_name(option, value):
    assert f"--{option.name} " in refusal(option, value).message


@given(st.text())
def test_any_text_is_read_or_refused_and_nothing_else(text):
    for option in READ:
        try:
            read(option, text)
        except UsageError as error:
            assert error.message.isprintable(), "a refusal must not move the cursor of the terminal"


WRITTEN = {
    "count": "7",
    "duration": "1:30",
    "seconds": "1:30",
    "size": "1.5G",
    "patterns": "runs/**,*.csv",
    "need": "auto",
    "prediction": "plan.json",
    "array": "0-9:3,12%2",
    "time": "2026-12-24T08:00Z",
    "name": "a b",
    "text": "a",
    "depends": "1,@~2",
    "signal": "USR1@30",
    "path": "out/%j.log",
    "flag": True,
    "retry": "oom,exit:75,signal:KILL",
    "rules": "loss>2 at step 5, acc is NaN",
    "emails": "ann@example.org",
    "events": "failed,job_started",
    "params": "lr=0.1,0.2",
    "target": "gilbreth",
    "shapes": "n1_gpu4,4x1",
    "shape": "4x1",
    "sbatch": "--licenses=matlab:2",
    "arguments": "--ckpt '{latest}'",
}


@pytest.mark.parametrize("option", READ, ids=lambda option: option.name)
def test_client_values_read_back_in_the_daemon(option):
    once = read(option, WRITTEN[option.kind])
    assert read(option, msgspec.json.decode(msgspec.json.encode(once))) == once


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("USR1@60", (10, 60)),
        ("SIGTERM@120", (15, 120)),
        ("usr2", (12, 60)),
        ("10@5", (10, 5)),
        ([10, 5], (10, 5)),
        ("B:USR1@60", (-10, 60)),
        ([-10, 5], (-10, 5)),
    ],
)
def test_warnings_are_a_signal_and_how_long_before(text, warning):
    option = next(option for option in GBATCH if option.name == "signal")
    assert read(option, text) == warning


@pytest.mark.parametrize("text", ["", "KILLL@3", "USR1@x", "0@5", "65@1", [0, 5], [10, -1], [10], 5, None])
def test_invalid_warning_is_refused(text):
    option = next(option for option in GBATCH if option.name == "signal")
    with pytest.raises(UsageError):
        read(option, text)


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
        ("1-2", DAY + 2 * HOUR),  # as Slurm has it
        ("1-02:30", DAY + 2 * HOUR + 1800),
        ("0-00:00:01", 1),
        (" 30 ", 30 * MINUTE),
        ("3660-00:00:00", TEN_YEARS_S),
        ("2h", 2 * HOUR),
        ("90m", 90 * MINUTE),
        ("45s", 45),
        ("1d", DAY),
        ("1w", 7 * DAY),
        ("2h30m", 2 * HOUR + 30 * MINUTE),
        ("1d2h3m4s", DAY + 2 * HOUR + 3 * MINUTE + 4),
        ("2H", 2 * HOUR),
        ("90min", 90 * MINUTE),
        ("1hour", HOUR),
        ("2hours30minutes", 2 * HOUR + 30 * MINUTE),
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
        "5x",
        "h",
        "2h30",
        "30m2h",
        "2h2h",
        "2 h",
        "1.5h",
        "-2h",
        "1-2h",
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


@pytest.mark.parametrize("value", ["0", "0:00", "0-00:00:00", 0, "UNLIMITED", "infinite"])
def test_a_time_limit_of_zero_is_none(value):
    assert read(LIMIT, value) == 0


def test_a_time_limit_is_not_negative():
    assert "cannot be negative" in refusal(LIMIT, -1).message


@pytest.mark.parametrize("value", ["3660-00:00:01", "9" * 18, TEN_YEARS_S + 1])
def test_duration_beyond_ten_years_is_refused(value):
    assert "under ten years" in refusal(TIME, value).message


@given(st.integers(1, TEN_YEARS_S))
def test_a_duration_as_we_print_it_reads_back(seconds):
    assert read(TIME, clock(seconds)) == seconds


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("30", 30), ("0", 0), (30, 30), ("1:30", 90), ("1:00:00", HOUR), ("1-00:00:00", DAY), ("007", 7)],
)
def test_seconds_where_a_bare_number_is_seconds(value, seconds):
    assert read(GRACE, value) == seconds


@pytest.mark.parametrize("text", ["2h", "90m", "1d", "2h30m", "1:30:00", "1-02:00:00", "5:30", "1w"])
def test_a_duration_with_a_unit_means_the_same_in_every_option(text):
    from gflow.options.commands.gctl_options import RESERVE
    from gflow.options.times import parse_since, parse_time

    seconds = read(TIME, text)
    durations = [option for option in (*GBATCH, *RESERVE) if option.kind in ("duration", "seconds", "change")]
    assert len(durations) > 5
    assert {read(option, text) for option in durations} == {seconds}
    assert read_extension("+" + text, TIME) == seconds
    now = datetime(2026, 11, 16, 12)
    assert parse_time("now+" + text, now) == now.timestamp() + seconds
    assert read(SIGNAL, f"USR1@{text}") == (10, seconds)
    if ":" not in text:  # a clock is a time of day there
        assert parse_since(text, now) == now.timestamp() - seconds
        assert parse_time(text, now) == now.timestamp() + seconds


@pytest.mark.parametrize(("option", "unit"), [("time", "minutes"), ("grace", "seconds")])
def test_the_error_states_the_unit_of_a_plain_number(option, unit):
    found = next(one for one in GBATCH if one.name == option)
    assert f"30 ({unit})" in refusal(found, "soon").hint
    assert f"({unit})" in found.help


@pytest.mark.parametrize("value", ["", "-5", "5x", "1.5", 1.5, True, "0:60", "9" * 19, "9" * 18, -1])
def test_seconds_that_are_none_are_refused(value):
    assert "--grace " in refusal(GRACE, value).message


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("value", "mib"),
    [
        ("1", 1),
        ("512", 512),
        (512, 512),
        ("512M", 512),
        ("20G", 20 * 1024),
        ("1.5G", 1536),
        ("2T", 2 * 1024**2),
        ("20g", 20 * 1024),
        ("20GB", 20 * 1024),
        ("20GiB", 20 * 1024),
        ("0.5G", 512),
        ("00.25G", 256),
        ("2048K", 2),
        ("1025K", 2),  # rounded up: what was asked for is there
        ("1K", 1),
        ("1.0001M", 2),
        ("0.1G", 103),
        (" 8G ", 8 * 1024),
        (str(MOST_MIB), MOST_MIB),
        ("1024T", MOST_MIB),
    ],
)
def test_size_is_read(value, mib):
    assert read(MEMORY, value) == mib


@pytest.mark.parametrize("value", ["0", "0G", "0.0G", 0, -1])
def test_size_of_nothing_is_refused(value):
    assert "--memory must be at least 1M" in refusal(MEMORY, value).message


@pytest.mark.parametrize("value", ["1025T", MOST_MIB + 1, "9" * 18 + "T"])
def test_size_beyond_all_machines_is_refused(value):
    assert "under a pebibyte" in refusal(MEMORY, value).message


NO_SIZES = "G 1X 1XB GG 1GG 1G5 1.G .5G 1.5.5G -1G +1G 1e3 1,5G 1_0G 0x10 all \u0663G".split()


@pytest.mark.parametrize("value", [*NO_SIZES, "", " ", "1 G", "9" * 19, 1.5, True, [20]])
def test_size_that_is_none_is_refused_with_the_spellings(value):
    error = refusal(MEMORY, value)
    assert "--memory does not understand" in error.message
    assert "1.5G" in error.hint


@pytest.mark.parametrize("value", ["512B", "16I", "20iB"])
def test_size_in_bytes_is_not_taken_for_megabytes(value):
    refusal(MEMORY, value)


@given(st.integers(1, 1 << 20))
def test_a_size_is_the_same_in_every_unit(gib):
    assert read(MEMORY, f"{gib}G") == read(MEMORY, f"{gib * 1024}M") == read(MEMORY, f"{gib * 1024**2}K")


# ---------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1-10", "1-10"),
        ("0-90:10", "0-90:10"),
        ("0-95:10", "0-90:10"),
        ("0-9:10", "0"),
        ("1-10:1", "1-10"),
        ("1,3,5-7", "1,3,5-7"),
        ("5-7,3,1", "1,3,5-7"),
        ("7", "7"),
        (7, "7"),
        ("3-3", "3"),
        ("007", "7"),
        (" 1-3 , 5 ", "1-3,5"),
        ("1-10%4", "1-10%4"),
        ("1,3%1", "1,3%1"),
        (f"1-{ARRAY_TASKS}", f"1-{ARRAY_TASKS}"),
        (f"0-{ARRAY_LAST}:100", f"0-{ARRAY_LAST}:100"),
        (str(ARRAY_LAST), str(ARRAY_LAST)),
    ],
)
def test_array_is_read(value, text):
    assert read(ARRAY, value) == text


NO_ARRAYS = (
    "5-1 1-10:0 1- -5 1-2-3 1:2 1-10: :2 1,,2 1, , a-b 1-10% %4 1-10%0 1-10%-1 1-10%x 1-10%4%4 1-10%4,5 "
    "1.5 \u0663 [1-3] 1_0"
).split()


def test_an_interleaved_array_stays_short():
    assert len(read(ARRAY, "0-99998:2,1-99999:2")) < 100


@pytest.mark.parametrize("value", [*NO_ARRAYS, "", " ", "1 - 3", "9" * 19, True, 1.5, [1, 2], -5])
def test_array_that_is_none_is_refused_with_the_spellings(value):
    error = refusal(ARRAY, value)
    assert "--array does not understand" in error.message
    assert "0-90:10" in error.hint


@pytest.mark.parametrize(
    "value", ["1-10000000", f"0-{ARRAY_TASKS}", "0-99999,100000", "9" * 18 + ",1-" + "9" * 18]
)
def test_an_array_of_too_many_tasks_is_refused_at_once(value):
    assert refusal(ARRAY, value).message == "--array may have at most 100,000 tasks"


@pytest.mark.parametrize("value", [str(ARRAY_LAST + 1), "1-3,2000000", "2000000,1-3", "0-1000100:100"])
def test_an_array_that_counts_too_far_is_refused(value):
    assert refusal(ARRAY, value).message == "--array: task numbers may be at most 1,000,000"


@pytest.mark.parametrize(
    "value", ["1,1", "1-10,5", "5,1-10", "1-10,10-20", "0-10:2,3-9:3", "1-3,1-3", "01,1"]
)
def test_a_task_named_twice_is_refused(value):
    assert refusal(ARRAY, value).message == "--array names a task twice"


def test_a_hundred_ranges_may_interleave():
    combed = [f"{first}-{first + 2000}:1000" for first in range(101)]
    assert read(ARRAY, ",".join(combed[:100])) == ",".join(combed[:100])
    assert refusal(ARRAY, ",".join(combed)).message == "--array has more than 100 interleaved ranges"
    behind = [f"{first}-{first + 2}:2,{first + 1}-{first + 3}:2" for first in range(0, 4000, 10)]
    assert read(ARRAY, ",".join(behind)) == ",".join(behind), "two at any place"


parts = st.tuples(st.integers(0, 40), st.integers(0, 10), st.integers(1, 4))


@given(st.lists(parts, min_size=1, max_size=4))
def test_an_array_is_its_tasks_each_once(made):
    spelled = ",".join(f"{low}-{low + count}:{step}" for low, count, step in made)
    tasks = [task for low, count, step in made for task in range(low, low + count + 1, step)]
    if len(set(tasks)) < len(tasks):
        assert "twice" in refusal(ARRAY, spelled).message
    else:
        assert [*parse_tasks(read(ARRAY, spelled))] == sorted(tasks)


# ---------------------------------------------------------------- times


@pytest.mark.parametrize("value", [1_800_000_000, 1_800_000_000.5])
def test_a_time_as_a_json_number_is_seconds_since_1970(value):
    assert read(BEGIN, value) == value


def test_a_time_as_text():
    assert read(BEGIN, "2026-12-24T08:00Z") == 1_798_099_200.0


@pytest.mark.parametrize("value", ["", "soon", "now+", "25:00", True, None, [1]])
def test_a_time_that_is_none_is_refused_with_the_spellings(value):
    error = refusal(BEGIN, value)
    assert "--begin does not understand" in error.message
    assert "now+2h" in error.hint


@pytest.mark.parametrize("value", [1e300, 1e15, -1e15, float("inf"), float("nan"), "now+999999999w"], ids=str)
def test_a_time_beyond_the_calendar_is_refused(value):
    refusal(BEGIN, value)


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

REFERENCES = ["0", "17", "42_3", "42_0", "g116", "@", "@~0", "@~1", "@~999"]
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
    "@~1_x",
    "@@",
    "~1",
    "\u0663",
    "@~\u0663",
    "9" * 19,
    "g",
    "g1_2",
    "g" + "9" * 13,
]


@pytest.mark.parametrize("text", REFERENCES)
def test_job_reference(text):
    assert is_job_reference(text)
    assert read(DEPENDS, text) == (text,)


@pytest.mark.parametrize("text", NO_REFERENCES)
def test_invalid_job_reference_is_refused_with_the_spellings(text):
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
def test_read_references_are_valid(text):
    try:
        references = read(DEPENDS, text)
    except UsageError:
        return
    assert references
    assert all(map(is_job_reference, references))
