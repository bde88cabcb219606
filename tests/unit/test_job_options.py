import importlib
import pkgutil
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

import gflow.cli
import gflow.options.commands
from gflow.core.model import DEFAULT_SPEC, Spec
from gflow.errors import UsageError
from gflow.options.commands import gjob_options
from gflow.options.job_options import CAPTURE, COMMON, GBATCH, JOB, JSON, SLURM, SUBMIT, JobOption, Option
from gflow.options.rules import check_rule
from gflow.options.update import REDO, UPDATE
from gflow.options.values import READERS, read

# What a submission captures by itself.
CAPTURED = {
    "limits", "command", "cwd", "umask", "environ", "script", "script_path", "group", "template",
    "name_template", "redone_from", "gpu_memory_from", "default_name", "depends_earlier",
    "snapshot", "chdir",
}  # fmt: skip


def tables():
    """Every table of options that a command declares, by module and name."""
    found = {
        "gbatch": GBATCH,
        "gjob update": (*UPDATE, JSON, *COMMON),
        "gjob redo": (*REDO, JSON, *COMMON),
        **{f"gjob {name}": (*table, JSON, *COMMON) for name, table in gjob_options.OPTIONS.items()},
    }
    modules = (
        *pkgutil.iter_modules(gflow.cli.__path__, "gflow.cli."),
        *pkgutil.iter_modules(gflow.options.commands.__path__, "gflow.options.commands."),
    )
    for module in modules:
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, tuple) and value and all(isinstance(part, Option) for part in value):
                found[f"{module.name.rpartition('.')[2]}.{name}"] = value
    return found


TABLES = tables()


def each(table):
    return pytest.mark.parametrize("option", table, ids=lambda option: option.name)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_no_spelling_is_declared_twice(table):
    names = [name for option in table for name in (option.name, *option.aliases)]
    shorts = [option.short for option in table if option.short]
    twice = [text for text, count in (Counter(names) + Counter(shorts)).items() if count > 1]
    assert not twice


def test_no_command_declares_options_outside_of_the_package_options():
    sources = {path.name: path.read_text() for path in Path(gflow.cli.__file__).parent.rglob("*.py")}
    assert not [name for name, text in sources.items() if re.search(r'\bOption\(\s*"', text)]


def test_gbatch_understands_all_there_is():
    assert GBATCH == JOB + CAPTURE + SUBMIT + SLURM + COMMON


@each(JOB)
def test_a_job_option_fills_a_field_of_the_spec(option):
    assert option.field in Spec.__struct_fields__


@each(SUBMIT + SLURM + COMMON)
def test_other_options_fill_none(option):
    assert option.field == ""


def test_every_field_that_is_not_captured_has_exactly_one_option():
    assert Counter(option.field for option in JOB) == Counter(set(Spec.__struct_fields__) - CAPTURED)


@each(GBATCH)
def test_an_option_is_declared_whole(option):
    assert option.kind in READERS or option in SLURM
    assert option.help and option.help == option.help.strip()
    assert option.is_flag == (option.metavar == ""), "what takes a value shows one in the help"
    assert len(option.short) <= 1


@each(GBATCH)
def test_names_are_lower_case_words(option):
    for name in (option.name, *option.aliases):
        assert name.isascii() and (name == name.lower() or len(name) == 1)
        assert name.replace("-", "").isalnum() and not name.startswith("-")


@each([option for option in JOB if option.kind == "count"])
def test_the_default_of_a_count_is_within_its_bounds_or_nothing(option):
    default = getattr(Spec(command=(), cwd=""), option.field)
    assert not default or read(option, default) == default


def test_every_slot_of_an_option_is_filled():
    assert [name for name in Option.__slots__ + JobOption.__slots__ if not hasattr(JOB[0], name)] == []


FACTS = {"field": "x", "shown": "X: {}", "seen_by": "all", "changes": "waiting", "changed_by": "owner"}


@pytest.mark.parametrize("fact", FACTS)
def test_a_job_option_without_one_of_its_facts_cannot_be_made(fact):
    with pytest.raises(TypeError, match=fact):
        JobOption("x", "flag", "help", **{name: FACTS[name] for name in FACTS if name != fact})


@each(JOB)
def test_the_facts_of_a_job_option_have_known_values(option):
    assert option.seen_by in ("all", "owner")
    assert option.changes in ("never", "redo", "waiting", "running", "remote")
    assert option.changed_by in ("owner", "operators")
    assert option.only_on in ("", "here", "cluster")
    others = {name for need in option.requires + option.excludes for name in need.split(" or ")}
    assert others <= {other.name for other in JOB} - {option.name}
    assert bool(others) == bool(option.because)


@each([option for option in JOB if option.requires or option.excludes])
def test_rules_between_options_name_them(option):
    def refusal(*names):
        given = {row.field: "given" for row in JOB if row.name in (option.name, *names)}
        with pytest.raises(UsageError) as refused:
            check_rule(option, msgspec.structs.replace(DEFAULT_SPEC, **given), DEFAULT_SPEC)
        assert refused.value.hint == option.because
        return refused.value.message

    first = [need.split(" or ")[0] for need in option.requires]
    if option.requires:
        assert refusal().startswith(f"--{option.name} needs --{first[0]}")
    for other in option.excludes:
        assert refusal(*first, other) == f"--{option.name} cannot be combined with --{other}"
