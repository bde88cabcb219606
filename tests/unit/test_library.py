"""The library without a daemon: keyword arguments, tables of jobs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Unpack, get_type_hints

import gflow
from gflow.library.jobs import spell_keywords
from gflow.library.submit_keywords import SubmitKeywords
from gflow.options.job_options import CAPTURE, JOB


def test_every_option_is_a_typed_keyword() -> None:
    table = JOB + CAPTURE
    names = {name for option in table for name in (option.name, *option.aliases) if len(name) > 1}
    assert set(SubmitKeywords.__annotations__) == {name.replace("-", "_") for name in names}
    for function in (gflow.submit, gflow.sweep, gflow.aio.submit, gflow.map, gflow.Executor.__init__):
        assert get_type_hints(function)["options"] == Unpack[SubmitKeywords]


def test_notebooks_complete_the_keywords() -> None:
    def submit(command: str, **options: object) -> None: ...

    spell_keywords(submit)
    shown = inspect.signature(submit).parameters
    assert next(iter(shown)) == "command" and {"gpus", "max_retries", "chdir"} < set(shown)


def test_importing_gflow_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import gflow; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['gflow']"
