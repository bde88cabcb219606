import pytest

from gflow.core.forecast.explain import Blocker
from gflow.core.model import JobProgress, JobState, Moment
from gflow.errors import UsageError
from gflow.testing import progress
from gflow.text.queue import (
    ALIASES,
    COLUMNS,
    DEFAULT,
    SORTS,
    columns_of,
    count_hosts,
    cuttable,
    display_id,
    queue_sheet,
    row_maker,
    short_state,
    sort_key,
    sort_of,
)

from .builders import NOON, ended, job, running

NOW = Moment(NOON + 70, 70.0)


def queue_table(entries, names, now, *, width=0, is_coloured=False):
    sheet = queue_sheet(names, is_coloured=is_coloured)
    for entry in entries:
        sheet.add(row_maker(names, now)(entry))
    return "".join(sheet.lines(width, cuttable(names)))


def cell(column, shown, why=None):
    return COLUMNS[column](shown, why, NOW)


def test_the_whole_table():
    entries = [
        (running(1, 0, 1, name="train"), None),
        (job(2, gpus=4), Blocker("Resources", "Need 4 GPUs, only 1 available")),
        (ended(3, JobState.FAILED, started_at=NOON + 95, reason="ExitCode:2"), None),
    ]
    assert queue_table(entries, DEFAULT, NOW) == (
        "JOBID  NAME   ST  TIME      NODES  NODELIST(REASON)\n"
        "1      train  R   00:01:00  2      0,1\n"
        "2      job-2  PD  -         4      (Resources: Need 4 GPUs, only 1 available)\n"
        "3      job-3  F   00:00:05  0      (ExitCode:2)\n"
    )


def array(pending, cap=0, **fields):
    return job(42, array="0-60", max_concurrent=cap, progress=progress(pending), **fields)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (job(42), "42"),
        (job(42, max_concurrent=2), "42"),
        (job(42, task=3), "42_3"),
        (array("4-60"), "42_[4-60]"),
        (array("4-60", 2), "42_[4-60%2]"),
        (array("0-90:10"), "42_[0-90:10]"),
        (array("1,3,5-7", 1), "42_[1,3,5-7%1]"),
        (array("7"), "42_[7]"),
        (array(""), "42"),
        (array("", 2, state=JobState.RUNNING), "42"),
    ],
)
def test_the_id_shows_which_tasks_wait(shown, text):
    assert display_id(shown) == cell("JOBID", shown) == text


def test_an_array_and_its_tasks_in_the_table():
    begun = array("4-60", 2, name="sweep", gpus=1, attempt=1, started_at=NOON + 10)
    task = running(42, 0, task=3, name="sweep", array="0-60")
    assert queue_table([(begun, Blocker("JobArrayTaskLimit")), (task, None)], DEFAULT, NOW) == (
        "JOBID        NAME   ST  TIME      NODES  NODELIST(REASON)\n"
        "42_[4-60%2]  sweep  PD  -         1      (JobArrayTaskLimit)\n"
        "42_3         sweep  R   00:01:00  1      0\n"
    )


def test_an_empty_queue_is_a_header():
    assert queue_table([], ("JOBID", "ST"), NOW) == "JOBID  ST\n"


FAILED = ended(7, JobState.FAILED, reason="ExitCode:2", exit_code=2, started_at=NOON, gpus=1, gpu_ids=(3,))


@pytest.mark.parametrize(
    ("column", "shown", "text"),
    [
        ("JOBID", job(42), "42"),
        ("JOBID", job(42, task=3), "42_3"),
        ("NAME", job(42), "job-42"),
        ("NAME", job(42, task=3), "job-42_3"),
        ("NAME", job(42, name="two words"), "two words"),
        ("ST", job(), "PD"),
        ("ST", running(1, stopping=JobState.TIMEOUT), "CG"),
        ("STATE", running(1, stopping=JobState.TIMEOUT), "Running"),
        ("TIME", job(), "-"),
        ("TIME", running(1), "00:01:00"),
        ("TIME", FAILED, "00:01:40"),
        ("TIME", ended(1, JobState.CANCELLED), "-"),
        ("TIMELIMIT", job(), "UNLIMITED"),
        ("TIMELIMIT", job(time_limit_s=90), "00:01:30"),
        ("NODES", job(gpus=2), "2"),
        ("GPUS", job(gpus=2), "2"),
        ("GPUIDS", job(gpus=2), "-"),
        ("GPUIDS", running(1, 2, 3), "2,3"),
        ("GPUIDS", FAILED, "3"),
        ("CPUS", job(), "1"),
        ("CPUS", job(gpus=1), "0"),
        ("ATTEMPT", running(1), "1"),
        ("TARGET", job(), "local"),
        ("COMMAND", job(command=("python", "a b.py")), "python 'a b.py'"),
        ("COMMAND", job(command=("-x",), script="0", script_path="/w/t.sh"), "/w/t.sh -x"),
        ("COMMAND", job(command=(), script="0"), "-"),
        ("WORKDIR", job(), "/work"),
        ("START", job(), "-"),
        ("END", running(1), "-"),
        ("EXIT", ended(1, JobState.FAILED, signal=9), "signal 9"),
        ("REASON", job(), "-"),
        ("REASON", FAILED, "ExitCode:2"),
        ("NODELIST(REASON)", job(), "-"),
        ("NODELIST(REASON)", running(1), "-"),
        ("NODELIST(REASON)", running(1, 0), "0"),
        ("NODELIST(REASON)", FAILED, "(ExitCode:2)"),
        ("NODELIST(REASON)", ended(1, gpu_ids=(0, 1)), "0,1"),
        ("NODELIST(REASON)", ended(1), "-"),
        ("USER", job(user="bob"), "bob"),
        ("PRIORITY", job(priority=99), "99"),
        ("PROJECT", job(), "-"),
        ("PROJECT", job(project="p1"), "p1"),
        ("MEMORY", job(), "-"),
        ("MEMORY", job(memory_mib=1536), "1.5 GiB"),
        ("MEMORY", job(memory_mib=512), "512 MiB"),
        ("REASON", job(state=JobState.HOLD, reason="JobHeldUser"), "JobHeldUser"),
        ("EXIT", job(), "-"),
        ("EXIT", ended(1, exit_code=0), "0"),
        ("EXIT", FAILED, "2"),
    ],
)
def test_column_text(column, shown, text):
    assert cell(column, shown) == text


@pytest.mark.parametrize(
    ("why", "text"),
    [
        (Blocker("Dependency"), "Dependency"),
        (Blocker("Resources", "Need 4 GPUs, only 1 available"), "Resources: Need 4 GPUs, only 1 available"),
        pytest.param(
            Blocker("Resources", "GPU 3 is Unmanaged (gflow of bob)"),
            "Resources: GPU 3 is Unmanaged (gflow of bob)",
        ),
    ],
    ids=str,
)
def test_wait_reason_is_in_brackets_or_own_column(why, text):
    assert cell("NODELIST(REASON)", job(), why) == f"({text})"
    assert cell("REASON", job(), why) == text


@pytest.mark.parametrize("state", JobState, ids=lambda state: state.value)
@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_shows_something_for_every_state(column, state):
    assert cell(column, job(state=state))


def test_the_short_states_of_the_contract():
    assert [short_state(job(state=state)) for state in JobState] == ["PD", "H", "R", "CD", "F", "CA", "TO"]


# ---------------------------------------------------------------- which columns


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", DEFAULT),
        ("JOBID", ("JOBID",)),
        ("jobid, st ,NodeList(Reason)", ("JOBID", "ST", "NODELIST(REASON)")),
        ("NODELIST,REASON", ("NODELIST(REASON)", "REASON")),
        ("ST,ST", ("ST", "ST")),
        (",".join(COLUMNS), tuple(COLUMNS)),
    ],
)
def test_columns_are_named_in_any_case(text, names):
    assert columns_of(text) == names


def test_the_default_columns_are_the_contracts():
    assert ",".join(DEFAULT) == "JOBID,NAME,ST,TIME,NODES,NODELIST(REASON)"


@pytest.mark.parametrize("text", ["COLOUR", "JOBID,COLOUR", "JOBID,", ",", " ", "\x1b[2J"])
def test_an_unknown_column_is_refused_with_those_there_are(text):
    with pytest.raises(UsageError, match="unknown column") as caught:
        columns_of(text)
    assert caught.value.message.isprintable()
    assert all(name in caught.value.hint for name in COLUMNS)


@pytest.mark.parametrize(
    ("text", "meant"), [("JOBIDD", "JOBID"), ("nmae", "NAME"), ("NODELIST(REASONS)", "NODELIST(REASON)")]
)
def test_misspelt_column_gets_a_suggestion(text, meant):
    with pytest.raises(UsageError) as caught:
        columns_of(text)
    assert caught.value.hint == f"did you mean {meant}?"


def test_other_names_of_columns_lead_to_columns():
    assert set(ALIASES.values()) <= set(COLUMNS)
    assert columns_of("id,Status,exit_code") == ("JOBID", "STATE", "EXIT")


def reports(number, **values):
    loss = values.pop("loss", None)
    said = JobProgress(at=NOON, step=1, loss=loss, metrics=values)
    return running(number, 0, progress_report=said)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("JOBID,loss,accuracy", ("JOBID", "LOSS", "accuracy")),
        ("eval/f1,val_loss,metrics.AUC", ("eval/f1", "val_loss", "AUC")),
        ("metrics.nmae", ("nmae",)),
    ],
)
def test_a_metric_is_a_column(text, names):
    assert columns_of(text) == names
    assert len(row_maker(names, NOW)((job(1), None))) == len(names)


def test_the_column_of_a_metric_shows_its_last_value():
    row = row_maker(("JOBID", "LOSS", "accuracy"), NOW)
    assert row((reports(1, loss=0.31251, accuracy=0.5), None)) == ["1", "0.3125", "0.5"]
    assert row((reports(2, f1=0.5), None)) == ["2", "-", "-"]
    assert row((job(3), None)) == ["3", "-", "-"]


def test_an_unknown_column_in_capitals_may_be_a_metric_and_the_hint_says_how():
    with pytest.raises(UsageError, match="unknown column 'AUC'") as caught:
        columns_of("AUC")
    assert caught.value.hint.endswith("; metrics.AUC is a metric")


# ---------------------------------------------------------------- order


@pytest.mark.parametrize(
    ("text", "numbers"), [("loss", [2, 1, 3, 4]), ("-loss", [1, 2, 4, 3]), ("accuracy", [3, 1, 2, 4])]
)
def test_jobs_without_a_metric_come_last_in_both_orders(text, numbers):
    jobs = [reports(1, loss=0.5), reports(2, loss=0.25), reports(3, accuracy=1.0), job(4)]
    name, is_reversed = sort_of(text)
    key = sort_key(name, NOW, is_reversed=is_reversed)
    found = sorted([(one, None) for one in jobs], key=key, reverse=is_reversed)
    assert [shown.number for shown, _ in found] == numbers


def test_hidden_metrics_do_not_decide_the_order():
    jobs = [reports(1, loss=0.5), reports(2, loss=0.25)]
    key = sort_key("loss", NOW, sees_metrics=lambda shown: False)
    assert [shown.number for shown, _ in sorted([(one, None) for one in jobs], key=key)] == [1, 2]


def in_order(name, *jobs):
    return [shown.number for shown, _ in sorted([(one, None) for one in jobs], key=sort_key(name, NOW))]


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("id", [1, 2, 3, 4]),
        ("state", [3, 1, 2, 4]),
        ("time", [4, 3, 1, 2]),
        ("name", [4, 2, 1, 3]),
        ("gpus", [2, 3, 1, 4]),
        ("priority", [2, 1, 3, 4]),
    ],
)
def test_sort_orders(name, numbers):
    jobs = (
        job(4, state=JobState.FAILED, name="a", started_at=NOON),
        job(1, name="c"),
        running(3, 0, name="d"),
        job(2, name="b", gpus=2, priority=99),
    )
    assert in_order(name, *jobs) == numbers


def test_every_order_can_compare_all_jobs():
    jobs = [job(1, state=state, name=name) for state in JobState for name in ("", "x")] + [
        job(2, task=3),
        array("1-3"),
    ]
    for name in SORTS:
        assert len(in_order(name, *jobs)) == len(jobs)


# ---------------------------------------------------------------- on a terminal


def test_states_are_coloured_and_columns_stay_aligned():
    entries = [(running(1, 0, name="a"), None), (ended(2, JobState.FAILED, reason="ExitCode:2"), None)]
    text = queue_table(entries, ("JOBID", "ST", "NAME"), NOW, is_coloured=True)
    assert text == "JOBID  ST  NAME\n1      \x1b[1;32mR\x1b[0m   a\n2      \x1b[1;31mF\x1b[0m   job-2\n"


def test_long_line_is_cut_in_names_before_reasons():
    why = Blocker("Resources", "Need 4 GPUs, only 1 available")
    entries = [(job(1, name="a-very-long-name-of-a-job-" * 3, gpus=4), why), (job(2, gpus=4), why)]
    assert queue_table(entries, DEFAULT, NOW, width=80) == (
        "JOBID  NAME              ST  TIME  NODES  NODELIST(REASON)\n"
        "1      a-very-long-nam…  PD  -     4      (Resources: Need 4 GPUs, only 1 avail…\n"
        "2      job-2             PD  -     4      (Resources: Need 4 GPUs, only 1 avail…\n"
    )
    assert "…" not in queue_table(entries, DEFAULT, NOW, width=200)
    assert "…" not in queue_table(entries, DEFAULT, NOW)


@pytest.mark.parametrize(
    ("text", "count"), [("node1", 1), ("node[1-4]", 4), ("node[1-3,7],login,a[01-02]b", 7), ("", 0)]
)
def test_hosts_in_the_notation_of_slurm(text, count):
    assert count_hosts(text) == count
