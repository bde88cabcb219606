"""The notes about command lines of gbatch."""

import pytest

from gflow.options.job_options import GBATCH
from gflow.options.parse import parse
from gflow.options.plain_submission import absolute, terminal_notes


def note_of(words):
    values, command = parse(words.split(), GBATCH, until_word=True)
    return terminal_notes(values, command, values.get("param", ()))


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("seed=1-10", "gbatch: seed has one value, 1-10; the range is --param seed=1:10\n"),
        ("bs=16..64", "gbatch: bs has one value, 16..64; the range is --param bs=16:64\n"),
        ("bs=16-64,1", ""),
        ("lr=1e-5", ""),
        ("x=-1", ""),
        ("x=a-b", ""),
    ],
)
def test_a_value_that_looks_like_a_range_is_noted(text, note):
    assert note_of(f"--param {text} true") == note


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("python train.py --gpus 1", "--gpus 1 goes to python"),
        ("--name x /usr/bin/python train.py --gpus=2 --lr 1", "--gpus=2 goes to python"),
        ("train.sh --gpus", "--gpus goes to train.sh"),
    ],
)
def test_gpus_after_the_command_are_noted(words, given):
    assert note_of(words) == f"gbatch: {given}; the job asks for no GPU. Put options before the command.\n"


@pytest.mark.parametrize(
    "words",
    [
        "--gpus 1 python train.py --gpus 1",
        "--gres gpu:1 python train.py --gpus 1",
        "--shape big train.sh --gpus 1",
        "--gpus 0 python train.py --gpus 1",
        "python train.py --gpus-per-node 1",
        "python train.py --lr 1",
        "true",
    ],
)
def test_no_note_if_the_job_asks_for_gpus_or_the_word_is_another(words):
    assert note_of(words) == ""


@pytest.mark.parametrize(
    ("path", "folder", "found"),
    [
        ("/bin/../bin/env", "/work", "/bin/../bin/env"),
        ("./run", "/work", "/work/run"),
        ("a/run", "/", "/a/run"),
        ("../run", "/link", "/link/../run"),
    ],
)
def test_program_keeps_parent_folders_when_made_absolute(path, folder, found):
    assert absolute(path, folder) == found
