import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.errors import UsageError
from gflow.options.directives import read
from gflow.options.job_options import JOB
from gflow.options.parse import parse


def refusal(script):
    with pytest.raises(UsageError) as caught:
        read(script, "job.sh")
    return caught.value


@pytest.mark.parametrize(
    ("script", "values"),
    [
        ("", {}),
        ("#!/bin/bash\necho hi\n", {}),
        ("# GFLOW --gpus 2\n", {"gpus": 2}),
        ("# GFLOW --gpus 2", {"gpus": 2}),
        ("#!/bin/bash\r\n# GFLOW --gpus 2\r\necho hi\r\n", {"gpus": 2}),
        ("# GFLOW --gpus=2 --time 4:00:00\n", {"gpus": 2, "time": 14400}),
        ("# GFLOW -g2\n# GFLOW -p 7\n", {"gpus": 2, "priority": 7}),
        ("# GFLOW --gpus 1\n# GFLOW --gpus 2\n", {"gpus": 2}),
        ("# GFLOW --name 'two words'\n", {"name": "two words"}),
        ('# GFLOW --name "a # b"\n', {"name": "a # b"}),
        ("# GFLOW --gpus 2 # more is not needed\n", {"gpus": 2}),
        ("# GFLOW --depends-on @,17\n", {"depends-on": ("@", "17")}),
        ("# GFLOW --shared --gpu-memory 20G -m 1G\n", {"shared": True, "gpu-memory": 20480, "memory": 1024}),
        ("# GFLOW --conda-env=vision -P lab\n", {"conda-env": "vision", "project": "lab"}),
        ("# GFLOW --begin 2030-01-01T00:00Z\n", {"begin": 1893456000.0}),
        ("#GFLOW --gpus 2 --name 'a GFLOW b'\n", {"gpus": 2, "name": "a GFLOW b"}),
        ("## GFLOW --gpus 2\n", {}),
        ("##GFLOW --gpus 2\n", {}),
        ("#GFLOWER --gpus 2\n", {}),
        ("# GFLOW \n", {}),
        ("# GFLOWER --gpus 2\n", {}),
        ("echo # GFLOW --gpus 2\n", {}),
        ("  # GFLOW --gpus 2\n", {}),
    ],
)
def test_options_of_a_script(script, values):
    assert read(script, "job.sh") == values


def test_a_hash_inside_a_word_is_no_comment():
    assert read("# GFLOW --name run#3 --gpus 2\n", "job.sh") == {"name": "run#3", "gpus": 2}


@pytest.mark.parametrize("mark", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_only_newlines_end_a_line(mark):
    assert read(f"echo 'page one{mark}# GFLOW --gpus 2'\n", "job.sh") == {}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("# GFLOW --gpus two\n", "--gpus takes a whole number, not 'two'"),
        ("# GFLOW --gpus\n", "--gpus needs a value"),
        ("# GFLOW --help\n", "unknown option '--help'"),
        ("# GFLOW --wait\n", "unknown option '--wait'"),
        ("# GFLOW 2\n", "'2' in a # GFLOW line is not an option"),
        ("# GFLOW --gpus 1 -- x\n", "'x' in a # GFLOW line is not an option"),
        ("#!/bin/bash\n# GFLOW --name 'open\n", "line 2: No closing quotation"),
    ],
)
def test_refusals_name_the_script(script, message):
    text = refusal(script).message
    assert text.startswith("job.sh") and text.endswith(message)


def test_a_misspelled_option_comes_with_a_suggestion():
    assert refusal("# GFLOW --gpu 2\n").hint == "did you mean --gpus?"


@given(name=st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1).filter(str.strip))
def test_a_shell_quoted_value_arrives_as_it_was(name):
    words = ["--name", name[:200]]
    assert read(f"# GFLOW {shlex.join(words)}\n", "job.sh") == parse(words, JOB)[0]


@given(st.text())
def test_any_script_is_read_or_refused(script):
    for text in (script, f"# GFLOW {script}"):
        try:
            values = read(text, "job.sh")
        except UsageError as error:
            assert error.message.startswith("job.sh")
        else:
            assert values.keys() <= {option.name for option in JOB}
