import msgspec
import pytest

from gflow.errors import UsageError
from gflow.options.commands.gqueue_options import OPTIONS as GQUEUE
from gflow.options.commands.gqueue_query import PASSED
from gflow.wire.queries import EventsQuery, JobsQuery, Query, StatsQuery, SubmitQuery, read_query


def refusal(given, into):
    with pytest.raises(UsageError) as caught:
        read_query(given, into)
    return caught.value


@pytest.mark.parametrize(
    ("given", "into", "near"),
    [
        ({"states": "Running", "stats": "1"}, JobsQuery, "states"),
        ({"state": "Running"}, JobsQuery, "states"),
        ({"users": "ann"}, StatsQuery, "user"),
        ({"dryrun": ""}, SubmitQuery, "dry-run"),
        ({"dry_run": ""}, SubmitQuery, "dry-run"),
    ],
)
def test_a_misspelt_name_is_refused_and_the_right_one_named(given, into, near):
    error = refusal(given, into)
    assert error.message == f"unknown name in the query {list(given)[-1]!r}"
    assert near in error.hint


@pytest.mark.parametrize(("text", "is_on"), [("", True), ("1", True), ("true", True), ("0", False)])
def test_a_flag_is_on_when_it_is_there_unless_it_says_0(text, is_on):
    assert read_query({"all": text}, JobsQuery).all is is_on
    assert read_query({"follow": text}, EventsQuery).follow is is_on


def test_a_flag_is_nothing_else():
    assert "1 or 0" in refusal({"all": "ann"}, JobsQuery).hint


def test_missing_flags_are_off():
    assert read_query({}, JobsQuery) == JobsQuery()
    assert not read_query({}, JobsQuery).all


def test_gqueue_uses_every_query_parameter():
    """Its options are the query's names; how text is to look, it sees at the terminal. It has no pages."""
    names = {field.encode_name for field in msgspec.structs.fields(JobsQuery)}
    assert {*PASSED.values(), "since", "form", "after", "width", "color"} == names
    assert PASSED.keys() <= {option.name for option in GQUEUE}


def test_every_query_says_what_it_is_for():
    assert all(query.__doc__ and query.__doc__.startswith("`") for query in Query.__subclasses__())
