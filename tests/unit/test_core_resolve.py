"""`engine.resolve`: the job that a user means by `17`, `42_3`, `@` or `@~2`."""

import pytest

from gflow.core.ids import job_key
from gflow.core.job_reference import resolve
from gflow.core.state.job_tables import RECENT
from gflow.core.state.state import State
from gflow.errors import NotFound, Refused, UsageError

ANN, BOB = 1001, 1002


@pytest.fixture
def state():
    state = State(cpus=1, memory_mib=1024)
    for number, uid in [(1, ANN), (2, BOB), (3, ANN), (4, ANN)]:
        state.jobs.remember_recent(uid, job_key(number))
    return state


@pytest.mark.parametrize(
    ("uid", "text", "key"),
    [
        (ANN, "17", job_key(17)),
        (ANN, "42_3", job_key(42, 3)),
        (ANN, "@", job_key(4)),
        (ANN, "@~0", job_key(4)),
        (ANN, "@~1", job_key(3)),
        (ANN, "@~1_7", job_key(3, 7)),
        (ANN, "@_7", job_key(4, 7)),
        (ANN, "@~2", job_key(1)),
        (BOB, "@", job_key(2)),
    ],
)
def test_a_reference_means_one_of_my_jobs(state, uid, text, key):
    assert resolve(state, uid, text) == key


@pytest.mark.parametrize(("uid", "text"), [(ANN, "@~3"), (BOB, "@~1"), (0, "@"), (ANN, "@~" + "9" * 18)])
def test_further_back_than_i_have_jobs_is_refused(state, uid, text):
    with pytest.raises(Refused, match="means none of your jobs"):
        resolve(state, uid, text)


@pytest.mark.parametrize("text", ["", "x", "-1", "42_", "4_x", "1\n", "\u0661"])
def test_malformed_id_is_a_usage_error(state, text):
    with pytest.raises(UsageError, match="is not a job id"):
        resolve(state, ANN, text)


@pytest.mark.parametrize("text", ["1" * 13, "9" * 5000, "42_" + "9" * 8])
def test_id_larger_than_any_key_is_not_found(state, text):
    with pytest.raises(NotFound, match="there is no job"):
        resolve(state, ANN, text)


@pytest.mark.parametrize(
    "text",
    ["@1", "@x", "@@", "@~", "@~x", "@~-2", "@~-9", "@~ 1", "@~1_x", "@_", "@1_0", "@~1_0_1", "@~\u0661"],
)
def test_misspelled_reference_is_a_usage_error(state, text):
    with pytest.raises(UsageError, match="is not a job id"):
        resolve(state, ANN, text)


def test_the_refusal_does_not_count_jobs_that_are_out_of_reach(state):
    for number in range(1000, 1000 + RECENT + 50):
        state.jobs.remember_recent(ANN, job_key(number))
    with pytest.raises(Refused, match=f"@ reaches back {RECENT} jobs"):
        resolve(state, ANN, "@~120")
    assert resolve(state, ANN, f"@~{RECENT - 1}") == job_key(1050)
