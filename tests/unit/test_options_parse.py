import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.errors import UsageError
from gflow.options.commands.gqueue_options import OPTIONS as GQUEUE
from gflow.options.job_options import GBATCH, Option
from gflow.options.parse import parse, spellings

TABLE = (
    Option("gpus", "count", "", short="g", aliases=("gres",), low=0),
    Option("name", "name", "", short="n", aliases=("job-name",)),
    Option("wait", "flag", "", short="w"),
    Option("json", "flag", ""),
)


def refusal(*words, **how):
    with pytest.raises(UsageError) as caught:
        parse(list(words), TABLE, **how)
    return caught.value


@pytest.mark.parametrize(
    "words",
    [
        ["--gpus=2"],
        ["--gpus", "2"],
        ["-g2"],
        ["-g", "2"],
        ["--gres=2"],
        ["--gres", "2"],
        ["--gpus=1", "-g", "2"],  # the last one counts
    ],
    ids=" ".join,
)
def test_spellings_of_a_value(words):
    assert parse(words, TABLE) == ({"gpus": 2}, [])


@pytest.mark.parametrize(
    ("words", "values", "rest"),
    [
        ([], {}, []),
        (["a", "b"], {}, ["a", "b"]),
        (["--wait"], {"wait": True}, []),
        (["-w", "--json"], {"wait": True, "json": True}, []),
        (["a", "-g2", "b"], {"gpus": 2}, ["a", "b"]),
        (["-g2", "--", "--gpus", "x"], {"gpus": 2}, ["--gpus", "x"]),
        (["--", "--"], {}, ["--"]),
        (["-"], {}, ["-"]),
        ([""], {}, [""]),
        (["--name=a=b"], {"name": "a=b"}, []),
        (["-na=b"], {"name": "a=b"}, []),
        (["--name", "--wait"], {"name": "--wait"}, []),
        (["--name", "--"], {"name": "--"}, []),
        (["-n", "-"], {"name": "-"}, []),
    ],
)
def test_options_and_words_in_any_order(words, values, rest):
    assert parse(words, TABLE) == (values, rest)


@pytest.mark.parametrize(
    ("words", "values", "rest"),
    [
        (["-g2", "python", "-g3", "--json"], {"gpus": 2}, ["python", "-g3", "--json"]),
        (["python", "--unknown"], {}, ["python", "--unknown"]),
        (["-", "-g2"], {}, ["-", "-g2"]),
        (["-w", "--", "-g2", "x"], {"wait": True}, ["-g2", "x"]),
        (["echo", "--", "x"], {}, ["echo", "--", "x"]),
        (["-g2"], {"gpus": 2}, []),
    ],
)
def test_until_word_leaves_the_command_unparsed(words, values, rest):
    assert parse(words, TABLE, until_word=True) == (values, rest)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--gpu", "1"], "unknown option '--gpu'", "did you mean --gpus?"),
        (["--job=x"], "unknown option '--job'", "did you mean --job-name?"),
        (["--max=1"], "unknown option '--max'", "see --help"),
        (["--gpuss=1"], "unknown option '--gpuss'", "did you mean --gpus?"),
        (["--jobname=x"], "unknown option '--jobname'", "did you mean --job-name?"),
        (["--qqq"], "unknown option '--qqq'", "see --help"),
        pytest.param(
            ["--frobnicate"],
            "unknown option '--frobnicate'",
            "see --help",
        ),
        (["-x"], "unknown option '-x'", "see --help"),
        (["-x5"], "unknown option '-x'", "see --help"),
        (["-gpus", "1"], "unknown option '-gpus'", "did you mean --gpus?"),
        (["-name=x"], "unknown option '-name'", "did you mean --name?"),
        (["-gpu"], "--gpus takes a whole number, not 'pu'", ""),
        (["--=x"], "unknown option '--'", None),
        (["--\x1b[2J"], r"unknown option '--\x1b[2J'", None),
        (["--gpus"], "--gpus needs a value", ""),
        (["-g"], "--gpus needs a value", ""),
        (["--gpus="], "--gpus takes a whole number, not ''", ""),
        (["--gpus", "--wait"], "--gpus takes a whole number, not '--wait'", ""),
        (["--wait=yes"], "--wait takes no value", ""),
        (["--wait="], "--wait takes no value", ""),
        (["-wx"], "-w takes no value", ""),
    ],
)
def test_bad_command_lines_are_refused(words, message, hint):
    error = refusal(*words)
    assert error.message == message
    assert hint is None or error.hint == hint


def test_unknown_option_before_command_is_refused():
    assert refusal("--gpu", "1", "python", until_word=True).hint == "did you mean --gpus?"


def test_lists_that_are_given_twice_add_up():
    """A dependency that is silently forgotten starts a job too early."""
    values, _ = parse(["-d", "1,2", "--depends-on", "2,@", "--dependency", "afterok:7", "x"], GBATCH)
    assert values["depends-on"] == ("1", "2", "@", "7")
    values, _ = parse(["-j", "1,2", "-s", "R", "--jobs=5-9"], GQUEUE)
    assert values == {"jobs": "1,2,5-9", "states": "R"}


def test_words_are_not_changed():
    words = ["-g", "2", "x"]
    parse(words, TABLE)
    assert words == ["-g", "2", "x"]


def test_spellings_lead_to_their_option():
    gpus = TABLE[0]
    spelled = spellings(TABLE)
    assert [spelled[text] for text in ("--gpus", "--gres", "-g")] == [gpus] * 3
    assert "-" not in spelled


@given(st.lists(st.text(max_size=8)))
def test_after_two_dashes_every_word_is_left_as_it_is(words):
    assert parse(["-w", "--", *words], TABLE) == ({"wait": True}, words)


@given(st.lists(st.text(max_size=8)))
def test_a_command_is_never_looked_into(words):
    assert parse(["-g1", "python", *words], TABLE, until_word=True) == ({"gpus": 1}, ["python", *words])


@given(st.integers(0, 10**9), st.sampled_from(["--gpus={}", "--gres={}", "-g{}", "--gpus {}", "-g {}"]))
def test_all_spellings_mean_the_same(number, form):
    assert parse(form.format(number).split(), TABLE) == ({"gpus": number}, [])


@given(st.lists(st.sampled_from(sorted(spellings(GBATCH))) | st.text("-=@g2 ", max_size=5), max_size=6))
def test_any_command_line_is_understood_or_refused(words):
    try:
        values, rest = parse(words, GBATCH)
    except UsageError as error:
        assert error.message.isprintable()
    else:
        assert values.keys() <= {option.name for option in GBATCH}
        assert len(rest) <= len(words)
