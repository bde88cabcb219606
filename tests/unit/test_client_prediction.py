"""`--fit FILE`: plans and predictions, and files that are neither."""

import json

import pytest

from gflow.client.capture import predicted_mib
from gflow.errors import UsageError
from gflow.ml.fit.plan import Way

MIB = 1 << 20


def written(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize(
    ("content", "mib"),
    [
        ({"chosen": {"gpus": 2, "bytes": 5 * MIB}}, 5),
        ({"chosen": {"gpus": 2, "bytes": 5 * MIB + 1}}, 6),
        ({"process_bytes": 7 * MIB, "confidence": "high"}, 7),
        ({"chosen": {"bytes": 3 * MIB}, "process_bytes": 9 * MIB}, 3),
    ],
)
@pytest.mark.parametrize("gpus", [2, None])
def test_the_figure_of_a_file(tmp_path, content, mib, gpus):
    assert predicted_mib(written(tmp_path, content), gpus) == mib


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "it is not JSON"),
        ("{", "it is not JSON"),
        ("\xff", "it is not JSON"),
        ("[]", "contains no prediction"),
        ("7", "contains no prediction"),
        ({}, "contains no prediction"),
        ({"chosen": []}, "contains no prediction"),
        ({"chosen": {"bytes": "5G"}}, "contains no prediction"),
        ({"chosen": {"bytes": 0}}, "contains no prediction"),
        ({"chosen": {"bytes": True}}, "contains no prediction"),
        ({"chosen": {"bytes": 1.5}}, "contains no prediction"),
        ({"process_bytes": -1}, "contains no prediction"),
        ({"chosen": {"gpus": 4, "bytes": 5 * MIB}}, "is a plan for 4 GPUs, and the job asks for 2"),
    ],
)
def test_invalid_prediction_is_refused(tmp_path, content, said):
    with pytest.raises(UsageError, match=said):
        predicted_mib(written(tmp_path, content), 2)


def test_the_names_are_those_of_a_plan():
    assert {"gpus", "bytes"} <= set(Way.__struct_fields__)
