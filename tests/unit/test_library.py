"""The library without a daemon: keyword arguments, tables of jobs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Unpack, get_type_hints

import pytest

import gflow
from gflow.library import wait_display
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


def job(id: int, state: str, **fields: Any) -> dict[str, Any]:
    unset = {"reason": None, "gpus": 0, "gpu_ids": (), "parameters": {}, "progress": None, "ran_s": None}
    return {"id": id, "name": f"job-{id}", "user": "ann", "state": state, **unset, **fields}


def test_a_terminal_gets_one_line_that_is_rewritten(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    show = wait_display.terminal_display()
    show([job(1, "Finished"), job(2, "Running")], 2)
    show([job(1, "Finished"), job(2, "Failed")], 2)
    first, second = capsys.readouterr().err.split("\r")[1:]
    assert first == "[==========          ] 1 of 2\033[K" and second.endswith("\033[K\n")


def test_a_notebook_gets_a_table_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []
    handle = SimpleNamespace(update=pages.append)
    display = ModuleType("IPython.display")
    display.__dict__.update(HTML=str, display=lambda page, display_id: handle)
    notebook = ModuleType("IPython")
    notebook.__dict__["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    wait_display.choose_display()([job(1, "Finished", parameters={"lr": "0.1"}), job(2, "Queued")], 2)
    assert '<progress value="1" max="2">' in pages[0] and "<td>lr=0.1</td>" in pages[0]


def test_a_shell_without_a_kernel_is_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    shell = ModuleType("IPython")
    shell.__dict__["get_ipython"] = lambda: SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", shell)
    show = wait_display.choose_display()
    for _ in range(2):
        show([job(1, "Queued")], 1)
    assert capsys.readouterr().err == f"[{' ' * 20}] 0 of 1 ended, 1 Queued\n"
