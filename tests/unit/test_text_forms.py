import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from gflow.core.forecast.explain import Blocker
from gflow.core.model import Moment
from gflow.text.csv_yaml import CSV, csv_cells, csv_writer, yaml_item

from .builders import NOON, job, running

LINE = csv_writer()


def test_the_first_columns_of_csv_are_those_of_old():
    assert ",".join(CSV).startswith("id,name,state,time,gpus,user,submitted_at,reason,")


def test_a_waiting_and_a_running_job():
    waits = LINE(csv_cells((job(2, gpus=4, name='a,"b"'), Blocker("Resources")), Moment(NOON, 0.0)))
    assert waits == '2,"a,""b""",Queued,,4,ann,2025-06-15T15:06:40.000Z,Resources,,,,,,0,10\n'
    runs = LINE(csv_cells((running(1, 0, 3, task=7), None), Moment(NOON + 70, 70.0)))
    assert runs.startswith("1_7,job-1_7,Running,00:01:00,2,ann,")
    assert ",0 3," in runs


@given(st.lists(st.text(max_size=20), min_size=2, max_size=4))
def test_csv_has_one_line_per_job(cells):
    text = LINE(cells)
    assert text.count("\n") == 1
    assert text.removesuffix("\n").isprintable()
    (read,) = csv.reader(io.StringIO(text))
    assert len(read) == len(cells)


def test_yaml_is_a_list_of_json_values():
    view = {"id": 1, "name": "yes: no\n- x", "ids": [0, 1], "reason": None, "is": True}
    assert yaml_item(view) == '- id: 1\n  name: "yes: no\\n- x"\n  ids: [0,1]\n  reason: null\n  is: true\n'
