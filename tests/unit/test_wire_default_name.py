import shlex
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.core.model import Spec
from gflow.core.state.runtime_estimates import what_of
from gflow.wire.default_name import _words_of, default_name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr 0.1", "train.py"),
        ("/usr/bin/python3.11 -u src/train.py", "train.py"),
        ("python -m pkg.train --data a.py", "pkg.train"),
        ("python -m torch.distributed.run train.py", "torch.distributed.run"),
        ("python train", "train"),
        ("python", "python"),
        ("./train --x 1", "train"),
        ("sleep 60", "sleep"),
        ("torchrun --nproc-per-node 4 train.py", "train.py"),
        ("accelerate launch --num_processes 2 run/train.py", "train.py"),
        ("uv run train.py", "train.py"),
        ("env A=1 python train.py", "train.py"),
        ("nice sleep 5", "sleep"),
        ("bash run.sh", "run.sh"),
    ],
)
def test_a_command_is_named_after_its_script_or_program(command, name):
    assert default_name(command.split(), "") == name


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("cd runs && ./all.sh > out.txt", "all.sh"),
        ("exit 3", "exit"),
        ("OMP_NUM_THREADS=1 python train.py | tee log", "train.py"),
        ("source .venv/bin/activate; python train.py", "train.py"),
        ("cd runs", "cd"),
        ("echo 'no end", "echo"),
        ("(true)", "true"),
        ("", ""),
    ],
)
def test_a_shell_line_is_named_after_its_first_real_command(line, name):
    assert default_name(["bash", "-c", line], "") == name


@given(st.text(string.ascii_letters + "09 \t\r\n\v;&|()<>'\"\\#$%+-*?~/.=,:@é", max_size=30))
def test_the_words_of_a_shell_line_are_those_of_shlex(line):
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace = " \t\r"
    try:
        expected = list(lexer)
    except ValueError:
        with pytest.raises(ValueError, match="No"):
            list(_words_of(line))
    else:
        assert list(_words_of(line)) == expected


def test_a_script_is_named_after_its_file():
    assert default_name(["--epochs", "3"], "/home/ann/runs/train.sh") == "train.sh"
    assert default_name(["python", "-c", "print(1)"], "") == "python"
    assert default_name([], "") == ""
    assert len(default_name(["x" * 500], "")) == 40
    assert default_name(["a\x1bb"], "") == ""


def test_a_default_name_does_not_change_what_counts_as_the_same_work():
    paths = ("a/train.py", "b/train.py")
    one, two = (Spec(command=("python", path), cwd="/", default_name="train.py") for path in paths)
    assert what_of(one) != what_of(two)
    assert what_of(one) == what_of(Spec(command=("python", "a/train.py"), cwd="/"))
