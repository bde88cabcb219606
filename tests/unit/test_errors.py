import pytest

from gflow import errors
from gflow.errors import GflowError, NotFound, Unreachable, UsageError, fold

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]


def each(test):
    return pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)(test)


@each
def test_errors_have_one_base_class(kind):
    assert issubclass(kind, GflowError)


@each
def test_without_a_message_the_docstring_is_one(kind):
    error = kind()
    assert error.message == str(error) == kind.__doc__.strip()
    assert "\n" not in error.message
    assert error.hint == ""


@each
def test_message_and_hint_are_kept_as_given(kind):
    error = kind("job 7 is gone", hint="see gqueue")
    assert (error.message, str(error), error.hint) == ("job 7 is gone", "job 7 is gone", "see gqueue")


@each
def test_errors_have_exit_code_status_and_code(kind):
    assert kind.exit_code in (1, 2, 3)
    assert 400 <= kind.http_status < 600
    assert kind.code.replace("_", "").isalpha() and kind.code == kind.code.lower()


def test_every_code_belongs_to_one_error():
    assert len({kind.code for kind in KINDS}) == len(KINDS)


def test_exit_codes_of_the_contract():
    assert (NotFound.exit_code, UsageError.exit_code, Unreachable.exit_code) == (1, 2, 3)


def test_long_lines_of_a_terminal_continue_after_a_comma():
    text = "commands: " + ", ".join(["show", "release"] * 6) + "\n"
    folded = fold(text, 40)
    assert max(map(len, folded.splitlines())) <= 40
    assert folded.replace("\n", " ").strip() == text.strip()
    command = "quote the whole line: gbatch 'python train.py --lr 0.1 | tee log'\n"
    assert fold(command, 40) == command
    assert fold(text, 0) == fold(text, 200) == text


def test_traceback_shows_the_hint():
    import traceback

    text = "".join(traceback.format_exception(UsageError("no batch", hint="run.loader(data, 32)")))
    assert text.endswith("UsageError: no batch\nhint: run.loader(data, 32)\n")
    assert "hint" not in "".join(traceback.format_exception(UsageError("no batch")))
