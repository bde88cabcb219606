"""The table of job states: its rows agree, and every consumer derives from it.

`covered` inserts two rows into the table, an active and a final state, in an interpreter of its own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gflow import job_states
from gflow.core.queries.usage_report import Usage
from gflow.job_states import ENDED, FINAL, RUNS, WAITS, JobState
from gflow.options.job_options import JOB
from gflow.store.sqlite import SqliteStore

ROWS = [state.row for state in JobState]
# What the database demands of a job, by phase of its state.
CHECKS = {
    RUNS: "finished_at IS NULL AND attempt > 0 AND started_at IS NOT NULL",
    WAITS: "finished_at IS NULL AND stopping IS NULL",
    ENDED: "finished_at IS NOT NULL AND stopping IS NULL",
}
EXTRA = """
    SUSPENDED = StateRow(
        "Suspended", "S", "35", RUNS, "Jobs that are suspended.", {"suspended": ("job_suspended", CHANGED)},
        figure="running", alias="paused",
    )
    EXPIRED = StateRow(
        "Expired", "DL", "36", ENDED, "Jobs that missed their deadline.",
        {"expired": ("job_expired", "job_too_late", CHANGED, ATTEMPT_ENDED)}, figure="failed", exit_code=77,
    )

"""
PROGRAM = """
import asyncio, json, sys, types
from types import SimpleNamespace as Space

module = sys.modules["gflow.job_states"] = types.ModuleType("gflow.job_states")
exec(sys.stdin.read(), module.__dict__)

from gflow.options.commands.help_pages import about_gqueue
from gflow.cli.common import terminal
from gflow.cli.tools import completion, events as cli_events
from gflow.client import wait
from gflow.core import transitions
from gflow.core.state.state import State
from gflow.daemon.api import request, routes
from gflow.daemon.api.handlers import metrics
from gflow.daemon.loop.counters import COUNTED, Meters
from gflow.library import executor, job
from gflow.options import lists, slurm
from gflow.store import rows, statistics
from gflow.text import queue
from gflow.wire import events

meters = Meters()
meters.users["expired", "ann"] = 1
loop = Space(state=State(cpus=0, memory_mib=1024), meters=meters, read_only="")
context = Space(loop=loop, watch=None, started_boot=0.0, job=None)
context.settings = Space(is_system=False, is_private=False)
asked = Space(app=Space(state=Space(context=context)), scope={"state": {"uid": 0}})
scrape = asyncio.run(metrics.show_metrics(asked)).body.decode()
schemas = json.loads(routes.document())["components"]["schemas"]

print(json.dumps({
    "gqueue --help": about_gqueue(),
    "gqueue colours": list(queue.STYLES),
    "gqueue order": [state.value for state in queue._RANK],
    "gqueue -s": list(request._STATE_NAMES),
    "completion": list(dict(completion._source("states", None))),
    "OpenAPI": schemas["JobView"]["properties"]["state"]["enum"],
    "metrics": [line.split()[2] for line in scrape.splitlines() if line.startswith("# TYPE gflow_jobs_")],
    "counters": [*COUNTED, *(state.value for state in meters.apart)],
    "events": list(events.EVENTS),
    "resource events": list(events.MOVES),
    "notifications": list(events.NOTIFICATION_NAMES),
    "state of an event": events.LEADS_TO,
    "second names": list(cli_events.REPEATED),
    "--notify-on": list(lists.EVENTS),
    "--mail-type END": list(slurm.MAIL["END"]),
    "--mail-type FAIL": list(slurm.MAIL["FAIL"]),
    "exit codes": wait.CODES,
    "library": list(job.FINAL_NAMES),
    "futures": list(executor.END_EVENTS),
    "terminals": list(terminal.ACTIVE_NAMES),
    "statistics": statistics._ACTIVE.groups,
    "stored jobs": list(rows._STATES),
    "audit entries": list(transitions.ENDED.values()),
}))
"""
COVERED = {
    "gqueue --help": ("S Suspended", "DL Expired"),
    "gqueue colours": ("S", "Suspended", "DL", "Expired"),
    "gqueue order": ("Suspended", "Expired"),
    "gqueue -s": ("suspended", "s", "paused", "expired", "dl"),
    "completion": ("Suspended", "Expired"),
    "OpenAPI": ("Suspended", "Expired"),
    "metrics": ("gflow_jobs_suspended", "gflow_jobs_expired_total"),
    "counters": ("Suspended", "expired"),
    "events": ("job_suspended", "job_expired", "job_too_late"),
    "resource events": ("suspended", "expired"),
    "notifications": ("job_suspended", "job_expired"),
    "state of an event": ("suspended", "expired"),
    "second names": ("job_too_late",),
    "--notify-on": ("job_suspended", "job_expired"),
    "--mail-type END": ("job_expired",),
    "--mail-type FAIL": ("job_expired",),
    "exit codes": ("Expired",),
    "library": ("Expired",),
    "futures": ("job_expired",),
    "terminals": ("Suspended",),
    "statistics": ("sum(state IN ('Failed', ", ", 'Expired'))", ", 'Suspended'))"),
    "stored jobs": ("Suspended", "Expired"),
    "audit entries": ("expired",),
}


@pytest.fixture(scope="module")
def covered() -> dict[str, object]:
    """What every consumer has, with two more rows in the table."""
    source = Path(job_states.__file__).read_text()
    table, mark, rest = source.partition("    def __new__")
    assert mark
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=table + EXTRA + mark + rest, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("consumer", COVERED)
def test_consumer_covers_an_added_state(covered: dict, consumer: str) -> None:
    for text in COVERED[consumer]:
        assert text in covered[consumer]


def test_every_consumer_is_expected(covered: dict) -> None:
    assert set(covered) == set(COVERED)


@pytest.mark.parametrize("field", ["name", "short", "metric", "entry", "event"])
def test_rows_differ(field: str) -> None:
    assert len({getattr(row, field) for row in ROWS}) == len(ROWS)


def test_names_for_gqueue_are_unambiguous() -> None:
    names = [name.lower() for row in ROWS for name in {row.name, row.short, row.alias} - {""}]
    assert len(set(names)) == len(names)


def test_audit_entry_leads_to_one_state() -> None:
    entries = [what for row in ROWS for what in row.events]
    assert len(set(entries)) == len(entries)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_figure_exists_in_usage(row: job_states.StateRow) -> None:
    assert row.figure in Usage.__struct_fields__[1:7]


def test_help_of_notify_on_names_the_default() -> None:
    (option,) = (option for option in JOB if option.name == "notify-on")
    first, *others = job_states.END_EVENTS
    shown = ", ".join([first, *(event.removeprefix("job") for event in others)])
    assert f"(default: {shown})" in option.help


def test_database_check_has_every_state(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "gflow.db")) as store:
        (sql,) = store._db.execute("SELECT sql FROM sqlite_schema WHERE name = 'jobs'").fetchone()
    found = dict(re.findall(r"WHEN '(\w+)' THEN (.+)", sql))
    assert found == {row.name: CHECKS[row.phase] for row in ROWS}


def test_ends_are_final() -> None:
    assert {state.row.event for state in FINAL} == set(job_states.END_EVENTS)
