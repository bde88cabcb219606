"""The library without a daemon: keyword arguments, tables of jobs."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Unpack, get_type_hints

import pytest

import gflow
from gflow.library import wait_display
from gflow.library.jobs import description, spell_keywords
from gflow.library.submit_keywords import RedoKeywords, SubmitKeywords
from gflow.options.job_options import CAPTURE, JOB, PARAM_FILE, Option
from gflow.options.sweeps import parameters
from gflow.options.update import REDOABLE


def keywords_of(table: tuple[Option, ...]) -> set[str]:
    names = {name for option in table for name in (option.name, *option.aliases) if len(name) > 1}
    return {name.replace("-", "_") for name in names}


def test_every_option_is_a_typed_keyword() -> None:
    assert set(SubmitKeywords.__annotations__) == keywords_of(JOB + CAPTURE)
    assert set(RedoKeywords.__annotations__) == keywords_of(REDOABLE)
    for again in (gflow.Job.redo, gflow.Sweep.redo_failed):
        assert get_type_hints(again)["options"] == Unpack[RedoKeywords]
    for function in (gflow.submit, gflow.sweep, gflow.aio.submit, gflow.map, gflow.Executor.__init__):
        assert get_type_hints(function)["options"] == Unpack[SubmitKeywords]


def test_notebooks_complete_the_keywords() -> None:
    def submit(command: str, **options: object) -> None: ...

    spell_keywords(submit)
    shown = inspect.signature(submit).parameters
    assert next(iter(shown)) == "command" and {"gpus", "max_retries", "chdir"} < set(shown)

    def redo(job: object, *, cascade: bool = False, **options: object) -> None: ...

    spell_keywords(redo, RedoKeywords)
    again = inspect.signature(redo).parameters
    assert list(again)[:2] == ["job", "cascade"] and "gpus" in again and "chdir" not in again


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


def attached(monkeypatch: pytest.MonkeyPatch, *rows: dict[str, Any]) -> gflow.Sweep:
    """A sweep whose daemon answers with these results."""
    unset = {"name": "x", "metrics": {}, "state": "Finished", "reason": None, "exit_code": 0, "run_s": 1.5}
    answer = [{"id": at, **unset, "attempts": 1, **row} for at, row in enumerate(rows, 1)]
    monkeypatch.setattr("gflow.client.http.get", lambda path, **query: {"results": answer})
    return gflow.Sweep(1)


def test_rows_have_a_column_for_each_parameter_and_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = attached(
        monkeypatch,
        {"parameters": {"lr": "1e-4", "seed": "1", "id": "a", "v": "01"}, "metrics": {"loss": 0.5}},
        {"parameters": {"lr": "2", "seed": "20"}, "metrics": {"lr": 3.0}, "state": "Failed", "exit_code": 1},
    )
    end = {"state": "Finished", "reason": None, "exit_code": 0, "run_s": 1.5, "attempts": 1}
    first = {"id": 1, "name": "x", "parameters.lr": 1e-4, "seed": 1, "parameters.id": "a", "v": "01"}
    second = {"id": 2, "name": "x", "parameters.lr": 2.0, "seed": 20, "parameters.id": None, "v": None}
    rows = sweep.rows()
    assert rows[0] == first | {"loss": 0.5, "metrics.lr": None} | end
    assert rows[1] == second | {"loss": None, "metrics.lr": 3.0} | end | {"state": "Failed", "exit_code": 1}
    assert list(rows[0]) == list(rows[1]) and type(rows[0]["seed"]) is int


def test_results_are_a_data_frame_if_pandas_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = attached(monkeypatch, {"parameters": {"lr": "1"}})
    monkeypatch.setitem(sys.modules, "pandas", None)  # not installed
    assert sweep.results() == sweep.rows()
    pandas = ModuleType("pandas")
    pandas.__dict__["DataFrame"] = lambda rows: ("frame", rows)
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert sweep.results() == ("frame", sweep.rows())


def test_the_best_job_has_the_smallest_metric_of_those_that_did_not_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweep = attached(
        monkeypatch,
        {"parameters": {}, "metrics": {"loss": 0.1, "acc": 0.9}, "state": "Failed"},
        {"parameters": {}, "metrics": {"loss": 0.3, "acc": 0.8}},
        {"parameters": {}, "metrics": {"loss": 0.2, "acc": 0.7}, "state": "Running"},
        {"parameters": {}},
    )
    assert sweep.best() == sweep[2] and sweep.best("acc", mode="max") == gflow.Job(2)
    with pytest.raises(ValueError, match="no job of g1 that runs or finished has reported 'f1'"):
        sweep.best("f1")
    with pytest.raises(ValueError, match="'min' or 'max'"):
        sweep.best(mode="least")


def test_a_sweep_is_a_list_of_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = attached(monkeypatch, *[{"parameters": {}}] * 3)
    assert sweep == [gflow.Job(1), gflow.Job(2), gflow.Job(3)] and len(sweep) == 3
    assert sweep[1:] == [gflow.Job(2), gflow.Job(3)] and isinstance(sweep[1:], gflow.JobList)
    assert repr(sweep) == "Sweep('g1', 3 jobs)" and gflow.Job(2) in sweep


class Tensor:
    """A scalar of an array library."""

    shape = ()

    def item(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (range(1, 4), ("1", "2", "3")),
        ((str(i) for i in (1, 2)), ("1", "2")),
        ({3}, ("3",)),
        ({"a": 1}.keys(), ("a",)),
        (["a,b", "c", " d", "1:5"], ("a,b", "c", " d", "1:5")),
        ([Tensor(), True, None, 0.1, Path("x")], ("7", "True", "None", "0.1", "x")),
        (Tensor(), ("7",)),
        ("1:3", ("1", "2", "3")),
        ("a,b", ("a", "b")),
        (0.1, ("0.1",)),
    ],
)
def test_values_of_a_parameter_arrive_unchanged(values: object, texts: tuple[str, ...]) -> None:
    sent = json.loads(description(["true"], {"param": {"x": values}}))
    assert sent["options"]["param"] == [["x", list(texts)]]
    assert parameters(sent["options"]["param"], PARAM_FILE) == (("x", texts),)


def test_a_list_of_texts_is_a_parameter_each() -> None:
    sent = json.loads(description(["true"], {"param": ["a=1,2", "b=1:2"]}))
    assert sent["options"]["param"] == [["a", ["1", "2"]], ["b", ["1", "2"]]]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([[1, 2], [3]], "takes numbers and texts for x, not [1, 2] (list)"),
        ({"a": 1}, "not {'a': 1} (dict)"),
        (b"ab", "(bytes)"),
        ([object], "(type)"),
        (itertools.count(), "more than 10,000 values for x"),
        ((), "has an empty value for x"),
        ([""], "has an empty value for x"),
    ],
)
def test_values_without_a_spelling_are_refused(values: object, says: str) -> None:
    with pytest.raises(gflow.UsageError, match=re.escape(says)):
        description(["true"], {"param": {"x": values}})
