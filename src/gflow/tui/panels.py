"""Widgets that draw prepared lines. A panel is drawn again only if its lines changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gflow.tui.line import STYLES, Line

RICH = {name: Style.parse(words) if words else Style() for name, words in STYLES.items()}
CHOSEN = RICH["chosen"]


def strip_of(line: Line, columns: int, over: Style | None = None) -> Strip:
    """A line as a strip of exactly this width. `over`: a style on top of its own."""
    pieces = [Segment(text, RICH[style] + over if over else RICH[style]) for text, style in line]
    return Strip(pieces).adjust_cell_length(columns, over)


class LinePanel(Widget):
    """Shows lines from the top."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []

    @property
    def lines(self) -> list[Line]:
        return self._lines

    def show(self, lines: Sequence[Line]) -> None:
        if list(lines) != self._lines:
            self._lines = list(lines)
            self.refresh()

    def render_line(self, y: int) -> Strip:
        line = self._lines[y] if y < len(self._lines) else ()
        return strip_of(line, self.size.width)


class JobPanel(LinePanel):
    """The job list: a window on its rows, with one row chosen. The app makes the lines of the window."""

    class Clicked(Message):
        """A line of the panel was clicked, or the wheel was turned."""

        def __init__(self, y: int, steps: int = 0) -> None:
            super().__init__()
            self.y, self.steps = y, steps

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._chosen = -1

    def show_rows(self, lines: Sequence[Line], chosen: int) -> None:
        """Show these lines. `chosen`: the line of the selected row; -1: none."""
        if chosen != self._chosen:
            self._chosen = chosen
            self.refresh()
        self.show(lines)

    def render_line(self, y: int) -> Strip:
        line = self._lines[y] if y < len(self._lines) else ()
        return strip_of(line, self.size.width, CHOSEN if y == self._chosen else None)

    def on_click(self, event: events.Click) -> None:
        self.post_message(self.Clicked(event.y))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.post_message(self.Clicked(event.y, 3))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.post_message(self.Clicked(event.y, -3))
