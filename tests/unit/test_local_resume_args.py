"""--resume-args: which checkpoint is the newest, and how the words get into the command."""

from __future__ import annotations

import os

import pytest

from gflow.targets.local.shim.resume_args import add_words, fill_template, latest


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


def put(path: str, age: float = 0.0) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").close()
    os.utime(path, (1_750_000_000 - age,) * 2)


def test_the_newest_of_those_that_look_like_one():
    put("checkpoints/epoch=1.ckpt", 50)
    put("checkpoints/epoch=2.ckpt", 10)
    put("checkpoints/epoch=3.ckpt.tmp")
    put("checkpoints/log.txt")
    assert latest("checkpoints") == "checkpoints/epoch=2.ckpt"


def test_link_named_latest_wins():
    put("checkpoints/step-1/state.pt", 5)
    put("checkpoints/step-2/state.pt")
    os.symlink("step-1", "checkpoints/latest")
    assert latest("checkpoints") == "checkpoints/step-1"
    os.unlink("checkpoints/latest")
    put("checkpoints/last.ckpt", 500)
    assert latest("checkpoints") == "checkpoints/last.ckpt"


def test_patterns_and_files():
    put("runs/a/last.ckpt", 9)
    put("runs/b/last.ckpt", 3)
    assert latest("runs/*/last.ckpt") == "runs/b/last.ckpt"
    assert latest("runs/a/last.ckpt") == "runs/a/last.ckpt"
    assert latest("gone") == latest("runs/*.pt") == latest("checkpoints") == ""


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("--ckpt_path {latest}", ["--ckpt_path", "checkpoints/a b.pt"]),
        ("--resume={latest} -v", ["--resume=checkpoints/a b.pt", "-v"]),
        ("--resume_from_checkpoint {latest:runs/*}", None),
        ("--resume", ["--resume"]),
        ("'--x {latest}'", ["--x checkpoints/a b.pt"]),
    ],
)
def test_words_are_filled(template, words):
    put("checkpoints/a b.pt")
    assert fill_template(template) == words


def test_resume_words_are_inserted_into_the_command():
    words = ["--ckpt", "a b"]
    assert add_words(["python", "train.py"], words) == ["python", "train.py", "--ckpt", "a b"]
    assert add_words(["bash", "-c", "cd x && python t.py"], words) == [
        "bash", "-c", "cd x && python t.py --ckpt 'a b'",
    ]  # fmt: skip
