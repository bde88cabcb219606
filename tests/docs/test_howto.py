"""The pages for newcomers run as they are: Get started, how-to, migration. The long pages: test_docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_docs import BLOCK, ROOT, SHORT, play
from tests.harness import Box


@pytest.mark.parametrize(
    "path", [path for path in SHORT if BLOCK.search(path.read_text())], ids=lambda path: path.stem
)
def test_a_page_does_what_it_says(box: Box, path: Path) -> None:
    play(box, path)


def test_how_to_pages_are_short() -> None:
    """One task on one screen or two; the rest is on the page that it links to."""
    for path in (ROOT / "docs/howto").glob("*.md"):
        assert len(path.read_text().splitlines()) <= 60, path.name
        assert "](../" in path.read_text(), f"{path.name} links to no long page"
