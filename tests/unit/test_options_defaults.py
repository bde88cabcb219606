"""Defaults are declared in the Spec. Texts and commands that repeat one agree with it."""

import re

import msgspec
import pytest

from gflow.config.table import BY_KEY
from gflow.core import sweep_template
from gflow.core.model import Spec
from gflow.options import slurm, values
from gflow.options.job_options import JOB

DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Spec)}
SAID = [(option, found[1]) for option in JOB if (found := re.search(r"\(default (\d+)\)", option.help))]


@pytest.mark.parametrize(("option", "said"), SAID, ids=lambda value: getattr(value, "name", value))
def test_help_says_the_default(option, said):
    assert int(said) == DEFAULTS[option.field]


def test_options_with_a_numeric_default_say_it():
    assert {option.name for option, _ in SAID} == {"gpus", "priority", "retry-delay", "grace", "nodes"}


def test_defaults_declared_elsewhere_agree():
    assert slurm.USUAL_PRIORITY == Spec(command=(), cwd="").priority
    assert sweep_template.NAME_LENGTH == values.NAME_LENGTH
    assert BY_KEY["jobs.grace_secs"].default == DEFAULTS["grace_s"]
