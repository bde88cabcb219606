"""Facts that are declared in two places agree."""

from __future__ import annotations

import re
from pathlib import Path

import gflow
from gflow.config.table import SETTINGS
from gflow.core.policy import Policy
from gflow.gpu.settings import GpuSettings
from gflow.store.backup import Retention
from gflow.targets.local.protocol import Order

DEFAULTS = {setting.key: setting.default for setting in SETTINGS}


def test_settings_have_the_defaults_of_the_table():
    for section, struct in (("gpu", GpuSettings()), ("retention", Retention())):
        for name in struct.__struct_fields__:
            said = DEFAULTS[f"{section}.{name}"]
            assert getattr(struct, name) == (tuple(said) if isinstance(said, list | tuple) else said), name


def test_the_policy_is_that_of_the_table():
    usual = Policy()
    assert usual.strategy == DEFAULTS["daemon.gpu_allocation_strategy"]
    assert usual.order == DEFAULTS["policy.order"]
    assert usual.fair_share == DEFAULTS["policy.fair_share"]
    assert usual.half_life_s == DEFAULTS["policy.half_life_days"] * 86400
    assert usual.patience == DEFAULTS["policy.patience"]


def test_an_order_has_the_fields_that_the_plain_shim_reads():
    header = Path(gflow.__file__).parent / "targets/local/native/shim.h"
    listed = re.search(r"enum Field \{(.*?)\}", header.read_text(), re.S)
    assert listed
    names = [name.strip().lower() for name in listed[1].split(",")]
    assert names[0] == "kind" and names[-1] == "fields"
    # On the wire a script that is not there must differ from an empty one.
    shown = [{"grace": "grace_s"}.get(name, name) for name in names[1:-1] if name != "has_script"]
    assert shown == list(Order._fields)
