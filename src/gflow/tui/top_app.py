"""The program of gflow top: layout, keys, and the selected job."""

from __future__ import annotations

import asyncio
import gc
import os
import pwd
import threading
import time
from collections.abc import Callable
from typing import Any

from textual import events
from textual.app import App, ComposeResult

from gflow.tui import job_actions
from gflow.tui.dialogs import FullLog, Help, Question
from gflow.tui.gpu_lines import GpuHistory
from gflow.tui.job_rows import BAD, WAITING, Row, rows_of
from gflow.tui.layout import KEY_LINE, gpu_part, header_line, heights_of, job_lines, nothing_to_show
from gflow.tui.line import WIDE, Line, cell, join, plain, wrapped
from gflow.tui.log_feed import LogFeed, LogView
from gflow.tui.panels import JobPanel, LinePanel
from gflow.tui.queue_feed import QueueFeed, View

MESSAGE_S = 8.0


class TopApp(App[int]):
    """GPUs above, jobs in the middle, the log of the selected job below."""

    CSS = """
    Screen { layout: vertical; background: ansi_default; }
    LinePanel { width: 100%; background: ansi_default; }
    #header, #keys { height: 1; }
    #jobs { height: 1fr; }
    ModalScreen { align: center middle; background: transparent; }
    #dialog { width: 76; max-width: 100%; max-height: 100%; padding: 1 2; border: round ansi_cyan; }
    #full { height: 100%; }
    """
    TITLE = "gflow top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS = []

    def __init__(self, feed: QueueFeed, first: View) -> None:
        """`feed` publishes views; `first` is the first one."""
        super().__init__(ansi_color=True)
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self.feed = feed
        self.feed.publish = lambda view: self._from_thread(self.show_view, view)
        self.log_feed = LogFeed(lambda log: self._from_thread(self.show_log, log))
        self._first = first
        self.view = View()
        self.history = GpuHistory()
        self.log_view = LogView("", "", ())
        self._rows: list[Row] = []
        self._chosen, self._top = "", 0
        self._wanted, self._is_typing = "", False
        self._opened: frozenset[str] = frozenset()
        self._is_mine, self._has_ended = False, True
        self._message, self._message_until = "", 0.0

    def compose(self) -> ComposeResult:
        for panel in ("header", "gpus"):
            yield LinePanel(id=panel)
        yield JobPanel(id="jobs")
        for panel in ("log", "keys"):
            yield LinePanel(id=panel)

    def on_mount(self) -> None:
        self._event_loop = asyncio.get_running_loop()
        self._find_panels()
        self.show_view(self._first)
        self.feed.start()
        self.log_feed.start()
        self.set_interval(1.0, self.draw)
        gc.enable()

    def _find_panels(self) -> None:
        self._header_panel, self._gpus_panel, self._log_panel, self._keys_panel = (
            self.query_one(f"#{name}", LinePanel) for name in ("header", "gpus", "log", "keys")
        )
        self._list_panel = self.query_one(JobPanel)

    def on_unmount(self) -> None:
        self.feed.close()
        self.log_feed.close()

    def _from_thread(self, call: Callable[[Any], None], value: Any) -> None:
        if self._event_loop is not None and not self._event_loop.is_closed():
            self._event_loop.call_soon_threadsafe(call, value)

    # ------------------------------------------------------------ data

    def show_view(self, view: View) -> None:
        """Show what the daemon said."""
        self.view = view
        if not view.away:
            self.history.add(view.gpus)
        self._make_rows()
        self.draw()

    def show_log(self, log: LogView) -> None:
        """Show the log of the selected job."""
        self.log_view = log
        if isinstance(self.screen, FullLog):
            self.screen.show_log(log)
        self.draw()

    def _make_rows(self) -> None:
        listing = self.view.listing
        if not self._has_ended:
            listing = listing._replace(ended=())
        mine = pwd.getpwuid(os.geteuid()).pw_name if self._is_mine else ""
        before = next((at for at, row in enumerate(self._rows) if row.key == self._chosen), 0)
        self._rows = rows_of(listing, self._wanted, self._opened, mine)
        if self._place() is None:  # the selected job is gone: take the row at its place
            self._choose(min(before, len(self._rows) - 1))

    def _place(self) -> int | None:
        """The position of the selected row."""
        return next((at for at, row in enumerate(self._rows) if row.key == self._chosen), None)

    @property
    def chosen(self) -> Row | None:
        """The selected row."""
        place = self._place()
        return None if place is None else self._rows[place]

    def _choose(self, place: int, step: int = 1) -> None:
        """Select the row at this position, or the next one that is a job."""
        places = [at for at, row in enumerate(self._rows) if row.jobs]
        after = [at for at in places if at >= place] if step > 0 else [at for at in places if at <= place]
        if places:
            pick = (after[0] if step > 0 else after[-1]) if after else places[-1 if step > 0 else 0]
            self._chosen = self._rows[pick].key
        else:
            self._chosen = ""

    # ------------------------------------------------------------ drawing

    def on_resize(self) -> None:
        had_starts, self.feed.has_starts = self.feed.has_starts, self.size.width >= WIDE
        if self.feed.has_starts > had_starts:
            self.feed.look()
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Draw everything that changed."""
        if not hasattr(self, "_list_panel"):
            return
        columns, height = self.size
        gpus = gpu_part(self.view, self.history, columns, height)
        heights = heights_of(height, len(gpus))
        for panel, lines in ((self._gpus_panel, heights.gpus), (self._log_panel, heights.log)):
            if panel.styles.height is None or panel.styles.height.value != lines:
                panel.styles.height = lines
        self._header_panel.show([header_line(self.view, columns)])
        self._gpus_panel.show(gpus)
        self._draw_jobs(columns, heights.jobs)
        self._select_log()
        self._draw_log(heights.log)
        self._keys_panel.show([self._key_line(columns)])

    def _draw_jobs(self, columns: int, room: int) -> None:
        place = self._place()
        if place is not None:
            first = place - 1 if place and not self._rows[place - 1].jobs else place  # with its heading
            self._top = max(min(self._top, first), place - room + 1)
        self._top = max(0, min(self._top, len(self._rows) - room))
        lines = job_lines(self._rows, self._top, room, columns, nothing_to_show(self._wanted))
        self._list_panel.show_rows(lines, -1 if place is None else place - self._top)

    def _select_log(self) -> None:
        """Follow the log of the selected job; of a group that of its first failed job, else of its first."""
        row = self.chosen
        if row is not None:
            job = next((job for job in row.jobs if job["state"] in BAD), row.jobs[0])
            has_started = row.section != WAITING or (bool(job["attempt"]) and not job["tasks"])
            has_failed = job["state"] in BAD
            self.log_feed.select(str(job["id"]), has_started=has_started, has_failed=has_failed)

    def _draw_log(self, height: int) -> None:
        log = self.log_view
        cause = [((cell(log.cause, self.size.width), "bad"),)] if log.cause and height > 2 else []
        room = height - 1 - len(cause)
        lines = log.lines[-room:] if log.is_log else wrapped(log.lines, self.size.width)[:room]
        title = ((cell(f" {log.title or 'Log'}", self.size.width), "title"),)
        self._log_panel.show([title, *cause, *(plain(line) for line in lines)])

    def _key_line(self, columns: int) -> Line:
        if self._is_typing or self._wanted:
            cursor = "▏" if self._is_typing else ""
            hint = "Enter keeps it, Esc ends it" if self._is_typing else "/ changes it, Esc ends it"
            return join(
                (("filter: ", "key"), (f"{self._wanted}{cursor}", "bold")), plain(hint, "dim"), columns
            )
        if time.monotonic() < self._message_until:
            return ((cell(self._message, columns), "bold"),)
        return KEY_LINE

    def say(self, text: str) -> None:
        """Show a message in the last line for some seconds."""
        self._message, self._message_until = text, time.monotonic() + MESSAGE_S
        self.draw()

    # ------------------------------------------------------------ keys and mouse

    def on_key(self, event: events.Key) -> None:
        if len(self.screen_stack) > 1:
            return
        if self._is_typing:
            self._type(event)
        elif event.key in MOVES:
            self._move(event.key)
        elif event.key in job_actions.KEYS:
            self._act(event.key)
        elif event.key in COMMANDS:
            COMMANDS[event.key](self)
        else:
            return
        event.stop()
        event.prevent_default()

    def _type(self, event: events.Key) -> None:
        """A key while the filter is typed."""
        if event.key == "escape":
            self.end_filter()
            return
        if event.key in ("enter", "down", "up"):
            self._is_typing = False
        elif event.key == "backspace":
            self._wanted = self._wanted[:-1]
        elif event.key == "ctrl+u":
            self._wanted = ""
        elif event.character is not None and event.character.isprintable():
            self._wanted += event.character
        self._make_rows()
        self.draw()

    def _move(self, key: str) -> None:
        place = self._place() or 0
        page = max(1, self._list_panel.size.height - 1)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page}.get(key)
        if steps is not None:
            self._choose(max(0, min(len(self._rows) - 1, place + steps)), steps)
        elif key in ("home", "g"):
            self._choose(0)
        elif key in ("end", "G"):
            self._choose(len(self._rows) - 1, -1)
        else:  # the next section
            headings = [at for at, row in enumerate(self._rows) if row.key.startswith("heading:")]
            self._choose(next((at for at in headings if at > place), 0))
        self.draw()

    def on_job_panel_clicked(self, event: JobPanel.Clicked) -> None:
        if event.steps:
            self._choose(max(0, min(len(self._rows) - 1, (self._place() or 0) + event.steps)), event.steps)
        elif self._top + event.y < len(self._rows) and self._rows[self._top + event.y].jobs:
            row = self._rows[self._top + event.y]
            if row.key == self._chosen and row.is_group:
                self.fold()
            self._chosen = row.key
        self.draw()

    def _act(self, key: str) -> None:
        row = self.chosen
        if row is None:
            self.say("there is no job")
            return
        action = job_actions.action_of(key, row)
        if isinstance(action, str):
            self.say(action)
        elif action.question:
            self.push_screen(
                Question(action.question, action.command), lambda yes: self._perform(action) if yes else None
            )
        else:
            self._perform(action)

    def _perform(self, action: job_actions.Action) -> None:
        """Send a change in a thread, and show its answer."""

        def work() -> None:
            self._from_thread(self.say, action.perform())
            self.feed.look()

        threading.Thread(target=work, daemon=True).start()

    # ------------------------------------------------------------ commands

    def begin_filter(self) -> None:
        self._is_typing = True
        self.draw()

    def end_filter(self) -> None:
        self._is_typing, self._wanted = False, ""
        self._make_rows()
        self.draw()

    def fold(self) -> None:
        """List the jobs of the selected group, or fold them."""
        row = self.chosen
        if row is not None and row.is_group:
            self._opened ^= {row.key}
            self._make_rows()
            self.draw()

    def show_full_log(self) -> None:
        self.push_screen(FullLog(self.log_view))

    def show_help(self) -> None:
        self.push_screen(Help())

    def switch_mine(self) -> None:
        self._is_mine = not self._is_mine
        self._make_rows()
        self.say("only your jobs" if self._is_mine else "jobs of all users")

    def switch_ended(self) -> None:
        self._has_ended = not self._has_ended
        self._make_rows()
        self.say("ended jobs are shown" if self._has_ended else "ended jobs are hidden")

    def leave(self) -> None:
        self.exit(0)


MOVES = frozenset({"up", "down", "j", "k", "pageup", "pagedown", "home", "end", "g", "G", "tab"})
COMMANDS: dict[str, Callable[[TopApp], None]] = {
    "slash": TopApp.begin_filter,
    "escape": TopApp.end_filter,
    "space": TopApp.fold,
    "enter": TopApp.show_full_log,
    "l": TopApp.show_full_log,
    "m": TopApp.switch_mine,
    "e": TopApp.switch_ended,
    "question_mark": TopApp.show_help,
    "q": TopApp.leave,
}
