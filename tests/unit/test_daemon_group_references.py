"""Groups among the parents of a job."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gflow.core.ids import JobKey, job_key
from gflow.daemon.api import request
from gflow.errors import UsageError
from gflow.wire.requests import References


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Groups that were looked up; each has 6,000 jobs."""
    found: list[int] = []

    async def members(context: Any, viewer: Any, group: int) -> list[JobKey]:
        found.append(group)
        return [job_key(number) for number in range(group, group + 6000)]

    monkeypatch.setattr(request, "group_keys", members)
    monkeypatch.setattr(request, "context_of", lambda asked: None)
    monkeypatch.setattr(request, "viewer_of", lambda asked: None)
    return found


def expand(all_of: tuple[str, ...], any_of: tuple[str, ...] = ()) -> References:
    return asyncio.run(request.expand_groups(None, References(all_of, any_of)))  # type: ignore[arg-type]


def test_a_group_becomes_its_jobs_without_duplicates(asked: list[int]) -> None:
    all_of, any_of, *_ = expand(("g10", "11", "@", "7_2"), ("g3",))
    assert all_of == (*map(str, range(10, 6010)), "@", "7_2") and any_of == tuple(map(str, range(3, 6003)))
    assert asked == [10, 3]


def test_references_without_a_group_stay_the_same_object(asked: list[int]) -> None:
    given = References(("1", "@~2"), ())
    assert asyncio.run(request.expand_groups(None, given)) is given and asked == []  # type: ignore[arg-type]


def test_more_parents_than_a_job_may_have_are_refused(asked: list[int]) -> None:
    with pytest.raises(UsageError, match="at most 10,000 jobs, not 12,000"):
        expand(("g1", "g6001"))
