"""gflow.toml, variables and flags: what wins, what is refused, and that init writes what is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.config.load import load
from gflow.config.table import BY_KEY, SETTINGS
from gflow.config.template import render_file
from gflow.config.values import LIMITS
from gflow.errors import UsageError
from gflow.options.lists import parse_indices


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".config/gflow").mkdir(parents=True)
    return tmp_path


def file_of(home, text):
    (home / ".config/gflow/gflow.toml").write_text(text)


def read(home, flags=(), config_file="", **environ):
    return load(dict(flags), {"HOME": str(home)} | environ, config_file)


def refusal(home, *args, **more):
    with pytest.raises(UsageError) as caught:
        read(home, *args, **more)
    return caught.value


def test_settings_without_file_are_defaults(home):
    config = read(home)
    assert {key: found.origin for key, found in config.found.items()} == dict.fromkeys(BY_KEY, "default")
    assert (config.files, config.notes) == ((), ())
    assert config["retention.jobs_days"] == 365


def test_setting_precedence_file_environment_flags(home):
    file_of(home, "[daemon]\ncpus = 1\n")
    named = home / "other.toml"
    named.write_text("[daemon]\ncpus = 2\n")
    own = str(home / ".config/gflow/gflow.toml")
    variable = {"GFLOW_DAEMON__CPUS": "3"}
    steps = [
        (read(home), 1, own),
        (read(home, config_file=str(named)), 2, str(named)),
        (read(home, GFLOW_CONFIG_FILE=str(named)), 2, str(named)),
        (read(home, config_file=str(named), **variable), 3, "GFLOW_DAEMON__CPUS"),
        (read(home, {"cpus": "4"}, str(named), **variable), 4, "--cpus"),
    ]
    for config, value, origin in steps:
        assert config.found["daemon.cpus"] == (value, origin)


def test_the_named_file_adds_to_the_usual_one(home):
    file_of(home, "timezone = 'Europe/Berlin'\n[daemon]\ncpus = 1\n")
    named = home / "other.toml"
    named.write_text("[daemon]\ngpus = [3, 1]\n")
    config = read(home, config_file=str(named))
    assert (config["timezone"], config["daemon.cpus"], config["daemon.gpus"]) == ("Europe/Berlin", 1, (1, 3))
    assert len(config.files) == 2


def test_xdg_config_home_is_followed(tmp_path):
    (tmp_path / "gflow").mkdir()
    (tmp_path / "gflow/gflow.toml").write_text("[daemon]\ncpus = 7\n")
    assert load({}, {"HOME": "/nowhere", "XDG_CONFIG_HOME": str(tmp_path)})["daemon.cpus"] == 7


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("[daemon]\ngpu = [0]\n", "there is no setting 'daemon.gpu'", "did you mean daemon.gpus?"),
        ("[deamon]\ncpus = 1\n", "there is no setting 'deamon.cpus'", "did you mean daemon.cpus?"),
        ("cpus = 1\n", "there is no setting 'cpus'", "did you mean daemon.cpus?"),
        ("[daemon]\nxyzzy = 1\n", "there is no setting 'daemon.xyzzy'", "gflowd config"),
        ("[daemon]\ncpus = 'four'\n", "daemon.cpus takes a whole number, not 'four'", "CPU slots"),
        ("[daemon]\ncpus = -1\n", "daemon.cpus takes a whole number, not '-1'", ""),
        ("[daemon]\ncpus = true\n", "daemon.cpus takes a whole number, not 'True'", ""),
        ("[daemon]\ncpus = 1.5\n", "daemon.cpus takes a whole number, not '1.5'", ""),
        ("[daemon.cpus]\nx = 1\n", "daemon.cpus takes a whole number", ""),
        ("[daemon]\ngpu_poll_interval_secs = 0\n", "must be at least 1, not 0", ""),
        ("[daemon]\ngpus = []\n", "daemon.gpus takes GPU indices", ""),
        ("[daemon]\ngpus = [-1]\n", "daemon.gpus takes GPU indices", ""),
        ("[daemon]\ngpus = '3-1'\n", "daemon.gpus takes GPU indices", ""),
        (
            "[daemon]\ngpu_allocation_strategy = 'best'\n",
            "takes one of sequential, random, pack, topology",
            "",
        ),
        ("[projects]\nrequire_project = 'maybe'\n", "takes true or false, not 'maybe'", ""),
        ("[projects]\nknown_projects = [1]\n", "takes a list of names", ""),
        ("[projects]\nknown_projects = ['a', '']\n", "takes a list of names", ""),
        ("[projects.members]\na = 'ann'\n", "takes lists of users and groups", ""),
        ("[people]\nmax_priority = 9\n", "must be at least 10", ""),
        ("timezone = 'Mars/Olympus'\n", "timezone takes the name of a time zone", ""),
        ("timezone = '../../etc/passwd'\n", "timezone takes the name of a time zone", ""),
        ("timezone = 3\n", "timezone takes the name of a time zone", ""),
        ("[daemon\n", "is not valid TOML", ""),
        ("[daemon]\ncpus = 1\ncpus = 2\n", "is not valid TOML", ""),
        ("[quota]\ndefault_user = {max_jobs = 1}\n", "quota.default_user takes limits", "max_running_jobs"),
        ("[quota.users]\nann = {max_running_gpus = -1}\n", "quota.users takes limits by name", "by name"),
        ("[notifications]\nwebhooks = 'x'\n", "takes tables in a file", ""),
        ("[daemon.fair_share]\nenabled = true\n", "daemon.fair_share cannot be set", "remove it"),
    ],
)
def test_config_error_is_one_sentence_with_file(home, text, says, hint):
    file_of(home, text)
    error = refusal(home)
    assert says in error.message
    assert str(home / ".config/gflow/gflow.toml") in error.message
    assert hint in error.hint
    assert error.message.isprintable()


@pytest.mark.parametrize(
    ("name", "value", "says", "hint"),
    [
        ("GFLOW_DAEMON__CPUS", "x", "GFLOW_DAEMON__CPUS: daemon.cpus takes a whole number", ""),
        ("GFLOW_DAEMON__CPU", "1", "there is no setting 'daemon.cpu'", "did you mean daemon.cpus?"),
        ("GFLOW_DAEMON__PORT", "x", "daemon.port takes a whole number", ""),
        ("GFLOW_TIMEZONE", "Mars", "GFLOW_TIMEZONE: timezone takes", ""),
    ],
)
def test_bad_environment_variable_is_refused(home, name, value, says, hint):
    error = refusal(home, **{name: value})
    assert says in error.message
    assert hint in error.hint


def test_variables_of_jobs_and_empty_ones_are_not_settings(home):
    config = read(home, GFLOW_JOB_ID="7", GFLOW_SOCKET="/x", GFLOW_DAEMON__CPUS="", OTHER__THING="1")
    assert config["daemon.cpus"] == 0


def test_variables_have_the_same_kinds_as_files(home):
    config = read(
        home,
        GFLOW_DAEMON__GPUS="0,2-3",
        GFLOW_PROJECTS__KNOWN_PROJECTS="a, b",
        GFLOW_PROJECTS__REQUIRE_PROJECT="true",
        GFLOW_TIMEZONE="local",
        GFLOW_SIMULATE_GPUS="4x80G",
        GFLOW_GPU__DRAIN_XIDS="79, 48",
    )
    assert config["daemon.gpus"] == (0, 2, 3)
    assert config["projects.known_projects"] == ("a", "b")
    assert config["projects.require_project"] is True
    assert config["timezone"] == ""
    assert config["gpu.drain_xids"] == (79, 48)
    assert config.found["daemon.simulate_gpus"] == ("4x80G", "GFLOW_SIMULATE_GPUS")


def test_a_named_file_must_be_there_and_readable(home):
    assert "there is no file /no/such.toml" in refusal(home, config_file="/no/such.toml").message
    assert "cannot be read" in refusal(home, config_file=str(home)).message


def test_ignored_setting_is_reported(home):
    file_of(home, "[executor]\ntype = 'tmux'\n")
    (note,) = read(home).notes
    assert "executor.type is ignored" in note


@pytest.mark.parametrize(
    ("text", "found"),
    [("0", (0,)), ("0,2", (0, 2)), ("0-3", (0, 1, 2, 3)), ("2,0-1,1", (0, 1, 2)), ("", None), ("a", None),
     ("1-", None), ("-1", None), ("3-1", None), ("0,,1", None), ("9999", (9999,)),
     ("10000", None), ("9999-10000", None), ("0-99999999", None)],
)  # fmt: skip
def test_gpu_indices_are_parsed(text, found):
    assert parse_indices(text) == found


# ---------------------------------------------------------------- what init writes

TEXT = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=20)
LIMITED = st.dictionaries(st.sampled_from(LIMITS), st.integers(0, 10**8))
NAMES = st.lists(TEXT.map(str.strip).filter(lambda t: t and t.isprintable()), max_size=3).map(tuple)
BY_KIND = {
    "limits": LIMITED,
    "members": st.dictionaries(TEXT.filter(str.isprintable), NAMES, max_size=2),
    "quotas": st.dictionaries(TEXT.filter(str.isprintable), LIMITED, max_size=2),
    "flag": st.booleans(),
    "text": TEXT.filter(str.isprintable),
    "names": NAMES,
    "gpus": st.none() | st.sets(st.integers(0, 1023), min_size=1).map(lambda found: tuple(sorted(found))),
    "numbers": st.lists(st.integers(0, 99_999), max_size=3).map(tuple),
    "share": st.integers(0, 10**8) | st.integers(1, 100).map("{}%".format),
    "zone": st.sampled_from(["Europe/Berlin", "UTC"]),
    "named tables": st.just({"here": {"type": "slurm", "account": "lab"}}),
    "tables": st.lists(st.dictionaries(st.sampled_from(["url", "from"]), TEXT), max_size=2).map(tuple),
}


def values_of(setting):
    if setting.kind == "count":
        return st.integers(max(1, setting.low), 10**8)
    return st.sampled_from(setting.choices) if setting.choices else BY_KIND[setting.kind]


@given(st.fixed_dictionaries({}, optional={setting.key: values_of(setting) for setting in SETTINGS}))
def test_init_file_reads_back(tmp_path_factory, chosen):
    path = tmp_path_factory.mktemp("config") / "gflow.toml"
    path.write_text(render_file(chosen))
    config = load({}, {"HOME": "/nowhere"}, str(path))
    for key, found in config.found.items():
        assert found == ((chosen[key], str(path)) if key in chosen else (BY_KEY[key].default, "default"))


def test_every_line_that_is_commented_out_may_be_taken_in(tmp_path):
    """The examples in the file are themselves valid."""
    path = tmp_path / "gflow.toml"
    names = {setting.name for setting in SETTINGS}
    lines = [
        line.removeprefix("# ") if line.startswith("# ") and line[2:].split(" = ")[0] in names else line
        for line in render_file({}).splitlines()
    ]
    path.write_text("\n".join(lines))
    config = load({}, {"HOME": "/nowhere"}, str(path))
    assert {found.origin for found in config.found.values()} == {str(path)}


def test_every_setting_is_explained():
    assert all(setting.help for setting in SETTINGS)
    assert len(BY_KEY) == len(SETTINGS)
