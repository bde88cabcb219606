import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.core.ids import TASK_MAX, job_key, label, number_of, parse_label, task_of

numbers = st.integers(0, 10**12 - 1)
tasks = st.none() | st.integers(0, TASK_MAX)
pairs = st.tuples(numbers, tasks)


def in_order(pair):
    """A job comes before its tasks, and they by their number."""
    number, task = pair
    return number, -1 if task is None else task


@given(numbers, tasks)
def test_a_key_is_taken_apart_into_what_made_it(number, task):
    key = job_key(number, task)
    assert (number_of(key), task_of(key)) == (number, task)


@given(numbers, tasks)
def test_a_label_reads_back(number, task):
    key = job_key(number, task)
    assert parse_label(label(key)) == key


@given(pairs, pairs)
def test_keys_sort_by_job_and_then_by_task(one, other):
    assert (job_key(*one) < job_key(*other)) == (in_order(one) < in_order(other))


@given(numbers, tasks)
def test_a_key_is_a_row_id_of_sqlite(number, task):
    assert 0 <= job_key(number, task) < 1 << 63


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (job_key(42), "42"),
        (job_key(42, 0), "42_0"),
        (job_key(42, 3), "42_3"),
        (job_key(42, TASK_MAX), f"42_{TASK_MAX}"),
    ],
)
def test_label_of_a_key(key, text):
    assert label(key) == text


@pytest.mark.parametrize(("text", "key"), [("042", job_key(42)), ("42_03", job_key(42, 3))])
def test_leading_zeros_do_not_matter(text, key):
    assert parse_label(text) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "_",
        "42_",
        "_3",
        "x",
        "4x",
        "-1",
        "+1",
        " 42",
        "42 ",
        "4.2",
        "@",
        "42_3_1",
        "42__3",
        "42_-3",
        "42_[1-3]",
        "\u0664\u0662",  # 42 in Arabic digits
        "42_\u0663",
        "\u00b2",
        "1" * 13,
        "9" * 5000,
        f"42_{TASK_MAX + 1}",
        "42_" + "9" * 5000,
    ],
)
def test_invalid_label_is_not_a_key(text):
    assert parse_label(text) is None


@given(st.text())
def test_any_text_is_a_label_or_not_and_never_an_error(text):
    key = parse_label(text)
    assert key is None or key >= 0
