"""The built page in the repository is what its sources give, and is small."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "src/gflow/web"
# Bytes that a browser loads, compressed.
MOST_BYTES = 150_000


def npm(*words: str) -> None:
    done = subprocess.run(["npm", *words], cwd=ROOT / "web", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_page_is_small() -> None:
    assert sum(len(gzip.compress(path.read_bytes())) for path in BUILT.iterdir()) < MOST_BYTES


def test_page_loads_nothing_from_elsewhere() -> None:
    text = "".join(path.read_text() for path in BUILT.iterdir())
    named = {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xhtml",
        "http://www.w3.org/1998/Math/MathML",
    }
    for name in named:
        text = text.replace(name, "")
    assert "http://" not in text and "https://" not in text


def test_built_files_equal_a_build_of_the_sources(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    if not (ROOT / "web/node_modules/.package-lock.json").exists():
        npm("ci", "--no-audit", "--no-fund")
    npm("run", "check")
    npm("run", "build", "--", "--outDir", str(tmp_path), "--emptyOutDir")
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_bytes() for path in BUILT.iterdir()}
    assert made.keys() == kept.keys()
    assert made == kept, "run `make web` and commit src/gflow/web"
