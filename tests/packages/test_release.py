"""scripts/release: what each check refuses; a commit that is ready is built, and nothing is uploaded."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gflow
from tests.packages.machine import ROOT

RELEASE = runpy.run_path(str(ROOT / "scripts/release"))
CHANGELOG = """# Changelog

## Unreleased

## 1.2.3 (2026-12-24)

### Added

- A thing.

## 1.2.2 (2026-12-01)
"""


def test_changelog_with_a_section_of_the_version_is_accepted() -> None:
    assert list(RELEASE["check_changelog"](CHANGELOG, "1.2.3")) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (CHANGELOG.replace("1.2.3 (2026-12-24)", "1.2.3"), "no section '## 1.2.3 (YYYY-MM-DD)'"),
        (CHANGELOG.replace("- A thing.\n", ""), "nothing below 1.2.3 (2026-12-24)"),
        (CHANGELOG.replace("## Unreleased\n", "## Unreleased\n\n- Forgotten.\n"), "entries below Unreleased"),
    ],
)
def test_changelog_that_is_not_ready_is_refused(text: str, problem: str) -> None:
    (found,) = RELEASE["check_changelog"](text, "1.2.3")
    assert problem in found


def test_files_with_another_version_are_refused() -> None:
    assert list(RELEASE["check_versions"](ROOT, gflow.__version__)) == []
    assert len(list(RELEASE["check_versions"](ROOT, "9.9.9"))) == 2


def test_failed_tests_are_refused(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite tests="3" failures="0" errors="0"/></testsuites>')
    assert list(RELEASE["check_tests"](report)) == []
    report.write_text('<testsuites><testsuite tests="3" failures="1" errors="2"/></testsuites>')
    assert "1 tests failed and 2 had errors" in next(RELEASE["check_tests"](report))
    report.write_text("<testsuites/>")
    assert "has no tests" in next(RELEASE["check_tests"](report))
    assert "is no report" in next(RELEASE["check_tests"](tmp_path / "absent.xml"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the sources as a repository of one commit."""
    folder = tmp_path / "checkout"
    line = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in names:
        if name and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "sources")
    return folder


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=Ann", "-c", "user.email=ann@lab.example", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True)


def release(checkout: Path, version: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(checkout / "scripts/release"), version, str(folder)]
    return subprocess.run(line, capture_output=True, text=True)


def make_ready(checkout: Path) -> None:
    """Give the changelog a section of the version, as a person who releases does."""
    path = checkout / "CHANGELOG.md"
    text = path.read_text()
    title = f"## Unreleased\n\n## {gflow.__version__} (2026-12-24)\n"
    path.write_text(text.replace("## Unreleased\n", title, 1))
    git(checkout, "commit", "--quiet", "--all", "--message", "release")


@pytest.mark.slow
def test_commit_that_is_ready_is_built_and_not_uploaded(checkout: Path, tmp_path: Path) -> None:
    make_ready(checkout)
    done = release(checkout, gflow.__version__, tmp_path / "dist")
    assert done.returncode == 0, done.stderr
    assert "Nothing was tagged or uploaded." in done.stdout and "tests were not checked" in done.stdout
    assert len(list((tmp_path / "dist").iterdir())) == 3
    tags = subprocess.run(["git", "tag"], cwd=checkout, capture_output=True, text=True, check=True)
    assert tags.stdout == ""


@pytest.mark.slow
def test_every_problem_is_named_and_nothing_is_built(checkout: Path, tmp_path: Path) -> None:
    (checkout / "stray.txt").write_text("")
    done = release(checkout, "9.9.9", tmp_path / "dist")
    assert done.returncode == 1 and not (tmp_path / "dist").exists()
    for problem in ("not committed, the first: ?? stray.txt", "has version", "no section '## 9.9.9"):
        assert problem in done.stderr


@pytest.mark.slow
def test_package_with_bad_metadata_is_refused(packages: Path, tmp_path: Path) -> None:
    (wheel,) = packages.glob("*-none-any.whl")
    bad = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(bad, "w") as target:
        for item in source.infolist():
            data = source.read(item)
            if item.filename.endswith("METADATA"):
                data = data.replace(b"Summary:", b"X-Summary:").replace(b"License-File: LICENSE\n", b"")
            target.writestr(item, data)
    assert list(RELEASE["check_package"](wheel, gflow.__version__)) == []
    problems = list(RELEASE["check_package"](bad, "9.9.9"))
    assert [problem.split(":")[0] for problem in problems] == [
        "it has no Summary",
        f"its version is {gflow.__version__}",
        "licences are missing",
    ]
