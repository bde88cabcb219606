"""Job selectors, and the expansion of sweeps."""

import pytest

from gflow.core.sweep_template import fill, fill_command
from gflow.errors import UsageError
from gflow.wire.job_selectors import Group, Numbers, Tasks, parse_selectors
from gflow.wire.requests import JobRequest, Reader


def shown(part):
    return f"{part.number}:{part.tasks}" if isinstance(part, Tasks) else part


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["17"], ["17"]),
        (["1,3,5-7"], ["1", "3", Numbers(5, 7)]),
        (["1 , 2"], ["1", "2"]),
        (["@", "@~2"], ["@", "@~2"]),
        (["42_3"], ["42_3"]),
        (["42_[1-5]"], ["42:1-5"]),
        (["42_[1,3-9:2],7"], ["42:1,3-9:2", "7"]),
        (["42_[1", "3]"], ["42:1,3"]),  # split at every comma
        (["7-7"], [Numbers(7, 7)]),
        (["x-y"], ["x-y"]),
        (["", ","], []),
        (["1-4000000000"], [Numbers(1, 4_000_000_000)]),
    ],
    ids=str,
)
def test_selectors_are_split(texts, found):
    assert [shown(part) for part in parse_selectors(texts)] == found


@pytest.mark.parametrize(
    "text", ["7-5", "42_[", "42_]", "42_[5-1]", "42_[a]", "42_[]", "42_[1]]", "42_[1-20000]"]
)
def test_invalid_selector_is_refused(text):
    with pytest.raises(UsageError):
        parse_selectors([text])


@pytest.mark.parametrize(
    "text", ["1," * 10_001, "1_[0-6000],2_[0-6000]", "a" * 1_000_000 + "]"], ids=["parts", "tasks", "length"]
)
def test_selector_of_too_many_jobs_is_refused(text):
    """The last one would be tried in every way that it could be cut."""
    with pytest.raises(UsageError):
        parse_selectors([text])


# ---------------------------------------------------------------- filling in


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("--lr={lr}", "--lr=0.1"),
        ("{lr}{lr}", "0.10.1"),
        ("{{lr}}", "{lr}"),
        ("{}", "{}"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("{0} {lr!r} { lr } ${lr}", "{0} {lr!r} { lr } $0.1"),
        ("{{{lr}}}", "{{lr}}"),
    ],
)
def test_only_names_in_braces_are_filled(text, filled):
    assert fill(text, {"lr": "0.1"}) == filled


def test_a_value_stays_one_word_of_a_shell_line():
    values = {"x": "a b; rm -r /"}
    assert fill_command(("bash", "-c", "echo {x}"), values) == ("bash", "-c", "echo 'a b; rm -r /'")
    assert fill_command(("echo", "{x}"), values) == ("echo", "a b; rm -r /")


def swept(**fields):
    request = JobRequest(**{"command": ["run", "{a}"], "cwd": "/"} | fields)
    return [found.spec for found in Reader(str).read_all(request)]


def test_a_sweep_is_every_row_with_every_combination():
    specs = swept(options={"param": ["a=1,2"], "name": "n{a}{b}"}, rows=[{"b": "x"}, {"b": "y"}])
    assert [spec.name for spec in specs] == ["n1x", "n2x", "n1y", "n2y"]
    assert specs[1].command == ("run", "2")
    assert specs[1].template == ("run", "{a}")
    assert dict(specs[1].parameters) == {"b": "x", "a": "2"}


def test_without_parameters_nothing_is_looked_at():
    (spec,) = swept(command=["run", "{a}"], options={"name": "{x}"})
    assert (spec.command, spec.template, spec.parameters, spec.name) == (("run", "{a}"), (), (), "{x}")


def test_sweep_of_huge_commands_is_refused_early():
    with pytest.raises(UsageError, match="64 MiB"):
        swept(command=["x" * 1_000_000, "{a}"], options={"param": "a=1:100"})


def test_a_group():
    assert parse_selectors(["g116,7"]) == [Group(116), "7"]
    assert parse_selectors(["G116", "g", "g1-2", "g1_2"]) == ["G116", "g", "g1-2", "g1_2"]
