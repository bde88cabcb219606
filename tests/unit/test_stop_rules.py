"""The grammar of --stop-when, and the option that reads it."""

from __future__ import annotations

import pytest

from gflow.errors import UsageError
from gflow.options.values import read
from gflow.stop_rules import MOST_RULES, StopRule, parse_rule
from gflow.wire.requests import OPTIONS


@pytest.mark.parametrize(
    ("text", "canonical", "rule"),
    [
        ("loss > 2 at step 500", "loss > 2 at step 500", StopRule("loss", ">", 2.0, "at", 500)),
        ("loss>2.5", "loss > 2.5", StopRule("loss", ">", 2.5)),
        (" eval/f1  <=  1e-3  AFTER step 10 ", "eval/f1 <= 0.001 after step 10",
         StopRule("eval/f1", "<=", 0.001, "after", 10)),
        ("acc >= -1", "acc >= -1", StopRule("acc", ">=", -1.0)),
        ("loss is NaN", "loss is nan", StopRule("loss", "is nan")),
        ("loss above median at step 5", "loss above median at step 5",
         StopRule("loss", "above median", 0.0, "at", 5)),
        ("acc below median at step 0", "acc below median at step 0",
         StopRule("acc", "below median", 0.0, "at", 0)),
    ],
)  # fmt: skip
def test_rule_has_one_canonical_text(text, canonical, rule):
    assert parse_rule(text) == rule
    assert str(rule) == canonical and parse_rule(canonical) == rule
    assert read(OPTIONS["stop-when"], text) == (canonical,)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("loss", "is not a rule"),
        ("loss = 2", "is not a rule"),
        ("loss > ", "is not a rule"),
        ("> 2", "is not a rule"),
        ("2x > 2", "is not a rule"),
        ("loss > 2 at 500", "is not a rule"),
        ("loss > 2 at step -1", "is not a rule"),
        ("loss > 2 at step 5 or so", "is not a rule"),
        ("loss > two", "which is not a number"),
        ("loss > nan", "which is not a number"),
        ("loss > 1e999", "which is not a number"),
        ("loss above median", "needs a step"),
        ("loss above median after step 5", "needs a step"),
        ("loss worse than median at step 5", "does not say which values are worse"),
        ("", "must not be empty"),
    ],
)
def test_bad_rule_gets_one_sentence(text, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        read(OPTIONS["stop-when"], text)
    assert "\n" not in caught.value.message


def test_several_rules_and_too_many():
    assert read(OPTIONS["stop-when"], ["loss>1", "acc<2", "loss > 1"]) == ("loss > 1", "acc < 2")
    assert read(OPTIONS["stop-when"], "loss>1, acc<2") == ("loss > 1", "acc < 2")
    with pytest.raises(UsageError, match="at most"):
        read(OPTIONS["stop-when"], [f"loss > {index}" for index in range(MOST_RULES + 1)])
