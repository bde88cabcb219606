"""Screens on top of the list: a question, the keys, and a log in full size."""

from __future__ import annotations

from typing import TypeVar

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen

from gflow.tui.line import Line, amount, cell, plain, wrapped
from gflow.tui.log_feed import LogView
from gflow.tui.panels import LinePanel

KEYS = (
    ("↑ ↓, j k", "choose a job; also PgUp, PgDn, Home, End and the mouse"),
    ("Tab", "next section: running, waiting, ended"),
    ("Space", "list the jobs of a group or an array, or fold them"),
    ("Enter, l", "log of the job in full size, or why it waits"),
    ("/", "filter by id, name, user, state or reason; Esc ends it"),
    ("m", "only your jobs, or those of all users"),
    ("e", "hide or show ended jobs"),
    ("c", "cancel the job or the group, after a question"),
    ("h", "hold a waiting job: it does not start"),
    ("r", "release a held job"),
    ("d", "do an ended job again, as a new job, after a question"),
    ("+ -", "raise or lower the priority of a waiting job"),
    ("?", "these keys"),
    ("q", "quit; jobs continue"),
)


# Lines of the border and the padding of a dialog.
FRAME = 4
Answer = TypeVar("Answer")


class Dialog(ModalScreen[Answer]):
    """A screen that closes once, although the keys of a fast user are already in its queue."""

    def close(self, answer: Answer) -> None:
        if self.app.screen is self:
            self.dismiss(answer)


class Question(Dialog[bool]):
    """A question that is answered with y or n."""

    def __init__(self, text: str, command: str) -> None:
        super().__init__()
        self._text, self._command = text, command

    def compose(self) -> ComposeResult:
        yield LinePanel(id="dialog")

    def on_mount(self) -> None:
        panel = self.query_one(LinePanel)
        panel.styles.height = 4 + FRAME
        panel.show([plain(self._text, "bold"), plain(f"The same as: {self._command}", "dim"), (), _answers()])

    def on_key(self, event: events.Key) -> None:
        event.stop()
        if event.key in ("y", "Y"):
            self.close(True)
        elif event.key in ("n", "N", "escape", "q"):
            self.close(False)


def _answers() -> Line:
    return (("y", "key"), (" yes   ", ""), ("n", "key"), (" no", ""))


class Help(Dialog[None]):
    """All keys."""

    def compose(self) -> ComposeResult:
        yield LinePanel(id="dialog")

    def on_mount(self) -> None:
        lines = [plain("Keys", "head"), *(((cell(key, 10), "key"), (what, "")) for key, what in KEYS)]
        panel = self.query_one(LinePanel)
        panel.styles.height = len(lines) + 2 + FRAME
        panel.show([*lines, (), plain("any key closes this", "dim")])

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.close(None)

    def on_click(self) -> None:
        self.close(None)


class FullLog(Dialog[None]):
    """A log in full size. It follows the end unless the user scrolls up."""

    def __init__(self, log: LogView) -> None:
        super().__init__()
        self._title, self._text = log.title, log.lines
        # Lines between the last one shown and the end.
        self._back = 0

    def compose(self) -> ComposeResult:
        yield LinePanel(id="full")

    def on_mount(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def show_log(self, log: LogView) -> None:
        """New content. The text on the screen stays if the user scrolled up."""
        if self._back:
            self._back += max(0, len(log.lines) - len(self._text))
        self._title, self._text = log.title, log.lines
        self._draw()

    def on_key(self, event: events.Key) -> None:
        event.stop()
        page = max(1, self.size.height - 3)
        steps = {
            "up": 1, "k": 1, "down": -1, "j": -1, "pageup": page, "pagedown": -page, "space": -page,
            "home": len(self._text), "g": len(self._text), "end": -len(self._text), "G": -len(self._text),
        }.get(event.key)  # fmt: skip
        if steps is not None:
            self._scroll(steps)
        elif event.key in ("escape", "q", "l", "enter"):
            self.close(None)

    def on_mouse_scroll_up(self) -> None:
        self._scroll(3)

    def on_mouse_scroll_down(self) -> None:
        self._scroll(-3)

    def _scroll(self, steps: int) -> None:
        room = max(1, self.size.height - 2)
        self._back = min(max(0, self._back + steps), max(0, len(self._text) - room))
        self._draw()

    def _draw(self) -> None:
        columns, room = self.size.width, max(1, self.size.height - 2)
        end = len(self._text) - self._back
        # At most `room` lines of the log fit, and fewer if some are wrapped.
        shown = wrapped(self._text[max(0, end - room) : end], columns)[-room:]
        place = f"{amount(self._back, 'line')} below" if self._back else "at the end"
        keys = f" ↑↓ PgUp PgDn Home End scroll, Esc closes; {place}"
        lines: list[Line] = [((cell(f" {self._title}", columns), "title"),)]
        lines += [plain(line) for line in shown] + [()] * (room - len(shown))
        self.query_one(LinePanel).show([*lines, ((cell(keys, columns), "dim"),)])
