"""The lines of gflow top, without a terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from gflow.core.model import Job, Spec
from gflow.text.table import near_moment
from gflow.tui.gpu_lines import GpuHistory, gpu_lines
from gflow.tui.job_actions import Action, action_of
from gflow.tui.job_rows import Listing, Row, columns_of, row_line, rows_of
from gflow.tui.layout import first_frame, header_line, heights_of
from gflow.tui.line import Line, ansi, bar, cell, length, sparkline
from gflow.tui.log_feed import MOST_BYTES, read_end, safe_lines
from gflow.tui.queue_feed import View
from gflow.wire.answers.jobs import job_view
from gflow.wire.encoding import rfc3339

NOW = time.time()
HOSTILE = "\x1b]0;owned\x07\x1b[2J[red]x[/red]\u202e\n"


def job(number: int, state: str = "Queued", **fields: Any) -> dict[str, Any]:
    """A job as in the JSON of the API."""
    made = Job(
        key=number << 20, spec=Spec(command=("true",), cwd="/"), uid=1, user="ann", submitted_at=NOW - 60
    )
    view: dict[str, Any] = msgspec.to_builtins(job_view(made))
    return view | {"state": state, "name": f"job{number}", "reason": None} | fields


def gpu(index: int = 0, **fields: Any) -> dict[str, Any]:
    usual = {
        "index": index, "model": "NVIDIA A100", "memory_mib": 81920, "simulated": False, "available": True,
        "reason": None, "used_mib": 40960, "utilisation": 50, "temperature": 60, "power_w": 300.0,
        "holders": [], "reserved": [],
    }  # fmt: skip
    return usual | fields


def text(line: Line) -> str:
    return "".join(piece for piece, _ in line)


def lines_of(listing: Listing, wanted: str = "", opened: frozenset[str] = frozenset()) -> list[str]:
    rows = rows_of(listing, wanted, opened)
    widths = columns_of(rows, 80)
    return [text(row_line(row, widths, NOW)).rstrip() for row in rows]


def test_bars_and_sparklines_have_their_width() -> None:
    assert bar(0.5, 8) == ("████", "░░░░")
    assert bar(0.001, 8)[0] == "█", "a little is not nothing"
    assert bar(7.0, 4) == ("████", "")
    assert sparkline([0, 50, 100, None], 6) == "  ▁▅█ "
    assert len(sparkline(list(range(100)), 12)) == 12


def test_a_gpu_line_fits_and_shows_bars_readings_and_holder() -> None:
    history = GpuHistory()
    mine = gpu(3, holders=[{"id": 7, "name": "train", "user": "ann"}], available=False)
    history.add([mine])
    for columns in (80, 200):
        (line,) = gpu_lines([mine], history, columns, 8)
        assert length(line) == columns
        assert "40/80G" in text(line) and " 50% " in text(line) and "7 train (ann)" in text(line)


def test_gpus_beyond_the_room_are_counted() -> None:
    lines = gpu_lines([gpu(index) for index in range(16)], GpuHistory(), 80, 8)
    assert len(lines) == 8
    assert text(lines[-1]) == "9 more GPUs, 9 free: ginfo"


def test_rows_are_in_sections_with_headings_progress_and_reasons() -> None:
    progress = {"step": 40, "percent": 40, "left_s": 90.0, "loss": 0.5, "at": None}
    running = job(1, "Running", started_at=None, gpu_ids=[0, 1], progress=progress)
    waiting = job(2, reason="Resources")
    ended = job(3, "Failed", reason="ExitCode:1", ran_s=5.0)
    found = lines_of(Listing([running], [waiting], [ended], 1, 401))
    assert found[0].startswith("Running (1)") and found[0].endswith("PROGRESS")
    assert "████░░░░░░  40% 00:01:30 left loss 0.5" in found[1]
    assert found[2].startswith("Waiting (401)")
    assert found[3].endswith("Resources") and "00:01:0" in found[3]
    assert found[4] == "    400 more: gqueue"
    assert found[-1].endswith("Failed: ExitCode:1") and "00:00:05" in found[-1]


def test_waiting_tasks_of_an_array_count_one_by_one_and_in_words() -> None:
    tasks = {"pending": "1-4", "waiting": 4, "active": 0, "finished": 0, "failed": 0, "cancelled": 0}
    array, last = job(2, array_id=2, tasks=tasks), job(3, array_id=3, tasks=tasks | {"waiting": 1})
    begun = job(5, array_id=5, tasks=tasks | {"active": 3})
    found = lines_of(Listing((), [array, last, job(4)], (), 0, 6))
    assert found[0].startswith("Waiting (6)") and not found[-1].endswith("more: gqueue")
    assert "4 tasks: " in found[1] and "1 task: " in found[2]
    cancel = [action_of("c", row) for row in rows_of(Listing((), [last, begun]), "", frozenset())[1:]]
    assert [one.question for one in cancel if isinstance(one, Action)] == [
        "Cancel array 3 with 1 task (job3)?",
        "Cancel array 5 with 7 tasks (job5)?",
    ]
    assert text(gpu_lines([gpu(0), gpu(1), gpu(2)], GpuHistory(), 80, 2)[-1]) == "2 more GPUs, 2 free: ginfo"
    assert "   1 GPU: " in text(header_line(View(gpus=(gpu(0),)), 80))


def test_a_wide_line_has_the_expected_start_of_a_waiting_job() -> None:
    at = rfc3339(NOW + 5)
    waiting = [job(2, reason="Resources", expected_at=at), job(3, reason="JobHeldUser", expected_at=None)]
    waiting += [job(n, group_id=5, reason="Resources", expected_at=at) for n in (5, 6)]
    rows = rows_of(Listing([job(1, "Running")], waiting, (), 1, 4), "", frozenset())
    wide = [text(row_line(row, columns_of(rows, 200), NOW)) for row in rows]
    assert {len(line) for line in wide} == {200}
    begin = wide[2].index("START")
    assert "START" not in wide[0] and wide[2].index("REASON") == wide[3].index("Resources") > begin
    assert wide[3][begin:].startswith(near_moment(NOW + 5, NOW)) and wide[4][begin:].startswith("- ")
    assert f"2 waiting, the first starts about {near_moment(NOW + 5, NOW)}: Resources" in wide[5]
    narrow = [text(row_line(row, columns_of(rows, 80), NOW)) for row in rows]
    assert "START" not in narrow[2] and "starts about" not in narrow[5]


def test_jobs_of_a_group_are_one_row_until_it_is_opened() -> None:
    jobs = [job(n, group_id=5, reason="Resources") for n in range(5, 9)]
    assert [line.split()[0] for line in lines_of(Listing((), jobs, (), 0, 4))] == ["Waiting", "▸"]
    opened = lines_of(Listing((), jobs, (), 0, 4), opened=frozenset({"Wgroup:g5"}))
    assert opened[1].startswith("▾ g5") and "4 waiting: Resources" in opened[1]
    assert [line.split()[0] for line in opened[2:]] == ["5", "6", "7", "8"]


def test_an_opened_sweep_shows_parameters_and_failures_first() -> None:
    jobs = [
        job(n, state, group_id=4, name="sweep", parameters={"lr": f"0.{n}"})
        for n, state in ((4, "Finished"), (5, "Finished"), (6, "Failed"))
    ]
    opened = lines_of(Listing((), (), jobs), opened=frozenset({"Egroup:g4"}))
    assert "2 Finished, 1 Failed" in opened[1]
    assert [line.split()[:2] for line in opened[2:]] == [["6", "lr=0.6"], ["4", "lr=0.4"], ["5", "lr=0.5"]]


def test_the_filter_takes_words_of_several_fields() -> None:
    jobs = [job(1, name="Train-A", reason="Resources"), job(2, name="eval"), job(3, name="train-b")]
    listing = Listing((), jobs, (), 0, 3)
    assert [line.split()[0] for line in lines_of(listing, "train")[1:]] == ["1", "3"]
    assert [line.split()[0] for line in lines_of(listing, "train RESOURCES")[1:]] == ["1"]
    assert lines_of(listing, "nothing") == []


def test_hostile_names_stay_text_on_one_line() -> None:
    evil = job(1, name=HOSTILE, user=HOSTILE, reason=HOSTILE)
    rows = rows_of(Listing((), [evil, job(2)], (), 0, 2), "", frozenset())
    for row in rows:
        line = text(row_line(row, columns_of(rows, 80), NOW))
        assert line.isprintable() and len(line) <= 80
    holder = {"id": 1, "name": HOSTILE, "user": HOSTILE}
    (line,) = gpu_lines([gpu(holders=[holder], model=HOSTILE)], GpuHistory(), 200, 8)
    assert text(line).isprintable()


def test_log_lines_lose_control_sequences_and_keep_the_last_state() -> None:
    content = b"\x1b[32mgreen\x1b[0m\n 10%\r 50%\r100%\r\nt\tab\n\x1b]0;title\x07a[b]c[/b]\xff\x07\n"
    assert safe_lines(content) == ("green", "100%", "t       ab", "a[b]c[/b]\ufffd\\x07")
    assert safe_lines(b"") == ()


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n" + b"x" * MOST_BYTES + b"\nlast\n")
    assert read_end(str(path)) == ("last",)


def test_actions_name_the_command_and_refuse_what_makes_no_sense() -> None:
    waiting, ended = Row("Waiting", "2", (job(2),)), Row("Ended", "3", (job(3, "Failed"),))
    cancel = action_of("c", waiting)
    assert isinstance(cancel, Action) and cancel.command == "gcancel 2" and cancel.question
    assert action_of("c", ended) == "3 has ended already"
    assert action_of("d", waiting) == "2 has not ended: only an ended job can be done again"
    redo, more = action_of("d", ended), action_of("plus", waiting)
    assert isinstance(redo, Action) and redo.body["job"] == "3"
    assert isinstance(more, Action) and more.body["options"] == {"priority": 11}
    group = Row("Waiting", "Wgroup:g5", (job(5), job(6)), is_group=True)
    held = action_of("h", group)
    assert isinstance(held, Action) and held.body == {"jobs": ["5", "6"]}


def test_the_first_frame_fills_the_screen_and_has_no_colours_without_them() -> None:
    view = View(Listing((), [job(2, reason="Resources")], (), 0, 1), (gpu(),), None, "1.0")
    for columns, height in ((80, 24), (200, 50), (40, 10)):
        frame = first_frame(view, columns, height, has_colours=False)
        assert frame.count("\r\n") == height - 1
        assert "\x1b[3" not in frame
        assert sum(heights_of(height, 1)) + 2 >= min(height, 9)
    assert "Resources" in first_frame(view, 80, 24, has_colours=True)
    assert "\x1b[33m" in ansi((("x", "wait"),), has_colours=True)


def test_the_header_says_that_the_daemon_is_away_or_drained() -> None:
    assert "daemon away since 12:00:00" in text(header_line(View(away="12:00:00"), 80))
    assert "drained: new fans" in text(header_line(View(drained="new fans"), 80))
    assert cell("日本語", 5) == "日本…"
