import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.text.table import NARROW, Sheet, clean, cut, fit, table, width

WIDE = "\u8a13\u7df4"  # two characters, four columns
ACCENT = "e\u0301"  # two characters, one column


def test_columns_are_padded_to_their_widest_cell():
    assert table(("ID", "NAME"), [["1", "a"], ["100", "long name"]]) == (
        "ID   NAME\n"  # as the rows
        "1    a\n"
        "100  long name\n"
    )


def test_without_rows_there_is_the_header():
    assert table(("ID", "NAME"), []) == "ID  NAME\n"


def test_wide_characters_take_two_columns_and_accents_none():
    assert table(("NAME", "ST"), [[WIDE, "R"], [ACCENT, "PD"], ["abcde", "H"]]) == (
        f"NAME   ST\n{WIDE}   R\n{ACCENT}      PD\nabcde  H\n"
    )


@pytest.mark.parametrize("rows", [[["1", ""]], [["", ""]], [["1", ""], ["2", "x"]]])
def test_no_line_ends_in_spaces(rows):
    assert all(line == line.rstrip() for line in table(("ID", "REASON"), rows).split("\n"))


def test_rows_of_another_length_are_a_mistake():
    with pytest.raises(ValueError):
        table(("ID", "NAME"), [["1"]])


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("", 0),
        ("abc", 3),
        ("d\u00e9j\u00e0", 4),
        (ACCENT, 1),
        (WIDE, 4),
        ("a" + WIDE, 5),
        ("\uff21", 2),  # full-width A
        ("\uff71", 1),  # half-width katakana
        ("\U0001f680", 2),  # rocket
    ],
)
def test_text_width(text, columns):
    assert width(text) == columns


@pytest.mark.parametrize("text", ["\u0915\u0941", "\u0e01\u0e31"], ids=ascii)
def test_marks_that_do_not_move_the_cursor_have_no_width(text):
    assert width(text) == 1


plain = st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=12)
cells = plain | st.text(st.sampled_from(f"ab{WIDE}\u00e9\U0001f680"), max_size=6)


@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(cells, min_size=n, max_size=n), min_size=1)))
def test_any_table_is_aligned(lines):
    text = table(lines[0], lines[1:])
    shown = text.removesuffix("\n").split("\n")
    assert len(shown) == len(lines)
    assert all(line == line.rstrip() for line in shown)
    starts = [0]
    for column in zip(*lines, strict=True):
        starts.append(starts[-1] + max(map(width, column)) + 2)
    for line, row in zip(shown, lines, strict=True):
        grid = on_screen(line)
        for start, cell in zip(starts, row, strict=False):
            assert grid[start:].startswith(on_screen(cell).rstrip())


def on_screen(text):
    """One character for each column of the terminal."""
    wide = {c for c in text if unicodedata.east_asian_width(c) in "WF"}
    return "".join(c + "\0" if c in wide else c for c in text)


# ---------------------------------------------------------------- whatever a cell holds


anything = st.text(max_size=12)


@given(st.lists(st.lists(anything, min_size=3, max_size=3), max_size=5))
def test_a_cell_cannot_leave_its_line_or_move_the_cursor(rows):
    lines = table(("A", "B", "C"), rows).split("\n")
    assert len(lines) == len(rows) + 2
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\nb", "a\\nb"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("tab\there", "tab\\there"),
        ("\udcff", "\\udcff"),
        (WIDE, WIDE),
    ],
)
def test_unprintable_characters_are_escaped(text, shown):
    assert clean(text) == shown


@given(st.text(max_size=20).map(clean), st.integers(1, 20))
def test_a_cut_text_fits(text, columns):
    short = cut(text, columns)
    assert width(short) <= columns
    assert short == text or (short.endswith("…") and text.startswith(short[:-1]))


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(1, 200), st.data())
def test_columns_give_way_only_where_they_may(widths, columns, data):
    cuttable = data.draw(st.lists(st.integers(0, len(widths) - 1), unique=True))
    groups = [cuttable[: len(cuttable) // 2], cuttable[len(cuttable) // 2 :]]
    kept = fit(widths, columns, groups)
    total = sum(kept) + 2 * (len(kept) - 1)
    for index, (before, after) in enumerate(zip(widths, kept, strict=True)):
        assert after == before or (index in cuttable and NARROW <= after < before)
    could = [kept[index] for index in cuttable if kept[index] > NARROW]
    assert total <= columns or not could
    assert total >= columns or kept == widths
    # The second group gives way only when the first cannot any more.
    if any(kept[index] < widths[index] for index in groups[1]):
        assert all(kept[index] <= NARROW for index in groups[0])
    assert (
        kept == widths
        or all(kept[index] <= NARROW for index in groups[0])
        or kept == fit(widths, columns, groups[:1])
    )


def test_sheets_that_share_their_widths_are_aligned():
    widths = [0, 0]
    first, second = Sheet(("A", "B"), widths=widths), Sheet(("A", "B"), widths=widths)
    first.add(("1", "x"))
    second.add(("100", "y"))
    assert "".join(first.lines()) == "A    B\n1    x\n"
    assert "".join(second.lines()) == "A    B\n100  y\n"


# ---------------------------------------------------------------- wrapping


def _wrapped(columns, text):
    sheet = Sheet(("ID", "NAME", "REASON"))
    sheet.add(["1", "a", text])
    return "".join(sheet.lines(columns, [[1], [2]], wraps=True)).splitlines()


def test_the_last_column_wraps_where_the_terminal_is_too_narrow():
    assert _wrapped(40, "needs four GPUs, and only two of them are free") == [
        "ID  NAME  REASON",
        "1   a     needs four GPUs, and only two",
        "          of them are free",
    ]


def test_nothing_wraps_on_a_wide_terminal_or_in_a_pipe():
    text = "needs four GPUs, and only two of them are free"
    assert _wrapped(80, text) == _wrapped(0, text) == ["ID  NAME  REASON", f"1   a     {text}"]


def test_text_without_room_beside_its_row_goes_below_it():
    assert _wrapped(22, "needs four GPUs")[1:] == ["1   a", "       needs four GPUs"]
