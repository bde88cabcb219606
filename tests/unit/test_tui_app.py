"""gflow top as a program: keys, mouse, dialogs, sizes. No daemon: views are given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gflow.tui.job_rows import Listing
from gflow.tui.line import length
from gflow.tui.log_feed import LogView
from gflow.tui.queue_feed import QueueFeed, View
from tests.unit.test_tui_lines import HOSTILE, gpu, job

textual = pytest.importorskip("textual")

from textual import events  # noqa: E402

from gflow.tui import job_actions, top_app  # noqa: E402
from gflow.tui.dialogs import FullLog, Help, Question  # noqa: E402
from gflow.tui.panels import LinePanel  # noqa: E402
from gflow.tui.top_app import TopApp  # noqa: E402

LISTING = Listing(
    running=[job(1, "Running", name="train")],
    waiting=[job(2, name="next", reason="Resources"), job(3, name="[b]evil[/b]", reason=HOSTILE)],
    ended=[job(n, "Failed", name="sweep", group_id=4, reason="ExitCode:1") for n in (4, 5)],
    running_total=1,
    waiting_total=2,
)
VIEW = View(LISTING, (gpu(0), gpu(1)), None, "1.0")


class Quiet(QueueFeed):
    """A feed that asks no daemon."""

    def start(self) -> None:
        pass


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[job_actions.Action]:
    """Actions that were performed; nothing else leaves the program."""
    done: list[job_actions.Action] = []
    monkeypatch.setattr(top_app.LogFeed, "start", lambda self: None)
    monkeypatch.setattr(
        job_actions.Action, "perform", lambda self: done.append(self) or f"{self.command}: done"
    )
    return done


def play(
    scene: Callable[[TopApp, Any], Awaitable[None]], view: View = VIEW, size: tuple[int, int] = (80, 24)
) -> None:
    async def run() -> None:
        app = TopApp(Quiet(), view)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await scene(app, pilot)

    asyncio.run(run())


def shown(app: TopApp, panel: str = "jobs") -> str:
    lines = app.screen_stack[0].query_one(f"#{panel}", LinePanel).lines
    return "\n".join("".join(text for text, _ in line) for line in lines)


def chosen(app: TopApp) -> str:
    return app.chosen.reference if app.chosen else ""


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (30, 8)])
def test_everything_is_on_the_screen_at_any_size(size: tuple[int, int]) -> None:
    async def scene(app: TopApp, pilot: Any) -> None:
        page = app.export_screenshot()
        assert "gflow&#160;top" in page and "train" in page
        for panel in ("header", "gpus", "jobs", "log", "keys"):
            assert app.query_one(f"#{panel}").size.height >= 1

    play(scene, size=size)


def test_keys_move_between_jobs_and_sections_and_fold_groups() -> None:
    async def scene(app: TopApp, pilot: Any) -> None:
        assert chosen(app) == "1"
        await pilot.press("down")
        assert chosen(app) == "2", "the heading is passed over"
        await pilot.press("tab")
        assert chosen(app) == "g4"
        await pilot.press("space", "down")
        assert chosen(app) == "4"
        await pilot.press("up", "space")
        assert "▸ g4" in shown(app)
        await pilot.press("home")
        assert chosen(app) == "1"
        await pilot.press("end", "k", "k")
        assert chosen(app) == "2"

    play(scene)


def test_the_log_is_that_of_the_selected_job_or_of_the_failure_in_a_group() -> None:
    ended = [job(n, state, group_id=4) for n, state in ((4, "Finished"), (5, "Failed"))]

    async def scene(app: TopApp, pilot: Any) -> None:
        assert app.log_feed.wanted == ("1", True)
        await pilot.press("down")
        assert app.log_feed.wanted == ("2", False), "why it waits"
        await pilot.press("tab")
        assert app.log_feed.wanted == ("5", True)

    play(scene, VIEW._replace(listing=LISTING._replace(ended=ended)))


def test_the_filter_works_as_it_is_typed() -> None:
    async def scene(app: TopApp, pilot: Any) -> None:
        await pilot.press("slash", "n", "e", "x")
        assert "next" in shown(app) and "train" not in shown(app)
        assert "filter: nex" in shown(app, "keys")
        await pilot.press("q", "backspace", "backspace", "enter")
        assert "filter: ne" in shown(app, "keys"), "q is a letter here"
        await pilot.press("escape")
        assert "train" in shown(app)
        await pilot.press("slash", "z", "z")
        assert "No job matches 'zz'" in shown(app)

    play(scene)


def test_cancel_asks_first_and_names_the_command(sent: list[job_actions.Action]) -> None:
    async def scene(app: TopApp, pilot: Any) -> None:
        await pilot.press("c")
        assert isinstance(app.screen, Question)
        await pilot.press("x", "n")
        assert not sent
        await pilot.press("c", "y")
        await pilot.pause(0.2)
        assert [one.command for one in sent] == ["gcancel 1"]
        assert "gcancel 1: done" in shown(app, "keys")

    play(scene)


def test_hold_redo_and_priority_are_sent_for_the_selected_job(sent: list[job_actions.Action]) -> None:
    async def scene(app: TopApp, pilot: Any) -> None:
        await pilot.press("h")
        assert "does not wait" in shown(app, "keys")
        await pilot.press("down", "h", "plus")
        await pilot.press("tab", "space", "down", "d")
        assert isinstance(app.screen, Question) and "Do job 4 (sweep) again" in str(
            app.screen.query_one(LinePanel).lines
        )
        await pilot.press("y")
        await pilot.pause(0.2)
        assert sorted(one.command for one in sent) == [
            "gjob hold 2",
            "gjob redo 4",
            "gjob update 2 --priority 11",
        ]

    play(scene)


def test_the_mouse_selects_and_scrolls() -> None:
    async def scene(app: TopApp, pilot: Any) -> None:
        at = shown(app).splitlines().index(next(x for x in shown(app).splitlines() if "next" in x))
        await pilot.click("#jobs", offset=(5, at))
        assert chosen(app) == "2"
        await pilot.click("#jobs", offset=(5, 0))
        assert chosen(app) == "2", "a heading is no job"

    play(scene)


def test_help_and_full_log_open_and_close() -> None:
    async def scene(app: TopApp, pilot: Any) -> None:
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help)
        await pilot.press("x")
        app.show_log(LogView("1", "Log of 1", tuple(f"line {n}" for n in range(100))))
        await pilot.press("enter")
        assert isinstance(app.screen, FullLog)
        full = app.screen.query_one(LinePanel)
        assert "line 99" in str(full.lines)
        await pilot.press("pageup")
        assert "line 99" not in str(full.lines)
        app.show_log(LogView("1", "Log of 1", tuple(f"line {n}" for n in range(101))))
        assert "line 100" not in str(full.lines), "the text stays while the user reads"
        await pilot.press("end")
        assert "line 100" in str(full.lines)
        await pilot.press("escape")
        assert len(app.screen_stack) == 1

    play(scene)


@pytest.mark.parametrize(
    ("key", "quick"),
    [("question_mark", ("escape", "down")), ("question_mark", ("x", "x")), ("c", ("y", "y")),
     ("c", ("n", "escape")), ("enter", ("q", "escape"))],
)  # fmt: skip
def test_two_quick_keys_close_a_dialog_once(
    key: str, quick: tuple[str, ...], sent: list[job_actions.Action]
) -> None:
    async def scene(app: TopApp, pilot: Any) -> None:
        await pilot.press(key)
        assert len(app.screen_stack) == 2
        for one in quick:  # both are in the queue of the dialog before it handles the first
            app.screen.post_message(events.Key(one, one if len(one) == 1 else None))
        await pilot.pause(0.2)
        assert len(app.screen_stack) == 1 and app.is_running
        assert len(sent) == (quick[0] == "y")

    play(scene)


def test_every_key_of_the_help_is_readable_at_80_columns() -> None:
    async def scene(app: TopApp, pilot: Any) -> None:
        await pilot.press("question_mark")
        panel = app.screen.query_one(LinePanel)
        assert max(length(line) for line in panel.lines) <= panel.size.width
        assert len(panel.lines) <= panel.size.height

    play(scene)


def test_cause_of_a_failure_is_above_its_log() -> None:
    async def scene(app: TopApp, pilot: Any) -> None:
        app.show_log(LogView("5", "Log of 5", ("line",), cause="Cause: the GPU ran out of memory."))
        await pilot.pause()
        lines = str(app.query_one("#log", LinePanel).lines)
        assert lines.index("Log of 5") < lines.index("Cause: the GPU ran") < lines.index("'line'")

    play(scene)


def test_markup_and_control_characters_are_shown_as_text() -> None:
    async def scene(app: TopApp, pilot: Any) -> None:
        app.show_log(LogView("1", "Log", ("[bold]plain[/bold]",)))
        await pilot.pause()
        page = app.export_screenshot()
        assert "[b]evil[/b]" in page and "[bold]plain[/bold]" in page
        assert "\\x1b" in shown(app) and "\x1b" not in page

    play(scene)


def test_the_selection_stays_with_its_job_when_the_list_changes() -> None:
    async def scene(app: TopApp, pilot: Any) -> None:
        await pilot.press("down")
        before = [job(n, "Running", name="new") for n in range(10, 30)]
        app.show_view(VIEW._replace(listing=LISTING._replace(running=before, running_total=20)))
        assert chosen(app) == "2"
        assert "next" in shown(app), "the list scrolls to it"
        app.show_view(VIEW._replace(listing=Listing()))
        assert chosen(app) == "" and "No jobs." in shown(app)
        await pilot.press("c", "down", "space")

    play(scene)


def test_it_says_when_the_daemon_is_away_and_leaves_with_q() -> None:
    async def scene(app: TopApp, pilot: Any) -> None:
        app.show_view(VIEW._replace(away="12:00:00"))
        assert "daemon away since 12:00:00" in shown(app, "header")
        await pilot.press("m", "e")
        assert "ended jobs are hidden" in shown(app, "keys") and "sweep" not in shown(app)
        await pilot.press("q")
        assert app.return_value == 0

    play(scene)
