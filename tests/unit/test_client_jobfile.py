"""Job options in a training run's own file."""

import pytest

from gflow.client.jobfile import options_of
from gflow.errors import UsageError


def read(tmp_path, text, name="c.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return options_of(str(path))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("lr: 1\n", {}),
        ("", {}),
        ("gflow:\n", {}),
        ("gflow:\nlr: 1\n", {}),
        ("gflow:\n  gpus: 2\n  time: 1:00:00 # an hour\nlr: 1\n", {"gpus": 2, "time": 3600}),
        ("gflow:\n\n  # note\n  gpu_memory: 20G\n  shared: true\n  hold: false\n  gpus: 1\n",
         {"gpu-memory": 20480, "shared": True, "gpus": 1}),
        ("gflow: {gpus: 2, name: 'x'}\n", {"gpus": 2, "name": "x"}),
        ("gflow:\n  depends-on: [1, 2]\n", {"depends-on": ("1", "2")}),
        ("gflow:\n  depends-on:\n    - 1\n    - 2\n  gpus: 1\n", {"depends-on": ("1", "2"), "gpus": 1}),
        ("gflow:\n  depends-on:\n  - 1\n  - 2\n  gpus: 1\n", {"depends-on": ("1", "2"), "gpus": 1}),
        ("gflow:\n  param:\n    lr: [0.1, 0.2]\n    s: 1:2\n",
         {"param": (("lr", ("0.1", "0.2")), ("s", ("1", "2")))}),
        ("gflow:\n  param:\n    - a=1,2\n    - b=1:2\n",
         {"param": (("a", ("1", "2")), ("b", ("1", "2")))}),
        ('gflow:\n  name: "a # b"\n', {"name": "a # b"}),
        ("  gflow:\n    gpus: 9\nx:\n  gflow:\n    gpus: 9\ntext: |\n  gflow:\n    gpus: 9\n", {}),
        ("gflow_gpus: 2\n", {}),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)  # fmt: skip
def test_yaml_file_is_read(tmp_path, text, values):
    assert read(tmp_path, text) == values


def test_toml_and_json(tmp_path):
    assert read(tmp_path, 'x = 1\n[gflow]\ngpus = 2\nname = "a"\n', "c.toml") == {"gpus": 2, "name": "a"}
    assert read(tmp_path, '{"gflow": {"gpus": 2, "shared": false}, "x": []}', "c.json") == {"gpus": 2}
    assert read(tmp_path, "[1]", "c.json") == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gflow: 5\n", "must contain options"),
        ("gflow:\n  gpuss: 1\n", "did you mean --gpus?"),
        ("gflow:\n  gpus: many\n", "whole number"),
        ("gflow:\n  just words\n", "is not an option"),
        ("gflow:\n  name: |\n    text\n", "is not an option"),
        ("gflow:\n  gpus: &x 1\n", "YAML syntax that is not supported"),
        ("gflow:\n  depends-on: [1,\n    2]\n", "is not an option"),
        ("gflow:\n  cwd: /tmp\n", "unknown option"),
    ],
)
def test_bad_job_file_is_refused_in_one_sentence(tmp_path, text, says):
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert says in f"{caught.value.message} {caught.value.hint}"
