"""Files about the project itself: forms of issues, citation, security, versions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import gflow

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def read_yaml(path: Path) -> Any:
    return pytest.importorskip("yaml").safe_load(path.read_text())


@pytest.mark.parametrize(
    "path", [path for path in FORMS if path.name != "config.yml"], ids=lambda path: path.stem
)
def test_forms_of_issues_are_complete(path: Path) -> None:
    form = read_yaml(path)
    assert form["name"] and form["description"]
    names = [field["id"] for field in form["body"]]
    assert len(names) == len(set(names)) > 2
    assert any(field.get("validations", {}).get("required") for field in form["body"])
    for field in form["body"]:
        assert field["type"] in ("input", "textarea", "dropdown") and field["attributes"]["label"]


def test_workflow_runs_what_a_change_has_to_pass() -> None:
    (path,) = (ROOT / ".github/workflows").iterdir()
    (job,) = read_yaml(path)["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    for target in ("make demo", "make test", "make test-slow"):
        assert f"\n{target}\n" in (ROOT / ".ci/run").read_text()


def test_citation_names_this_version_and_licence() -> None:
    found = read_yaml(ROOT / "CITATION.cff")
    assert (found["cff-version"], found["version"], found["license"]) == ("1.2.0", gflow.__version__, "MIT")
    assert found["title"] == "gflow" and found["authors"]


def test_security_policy_leads_to_the_threat_model() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    links = re.findall(r"\]\(([^)#]+)", text)
    assert {"docs/security.md", "docs/versions.md"} <= set(links)
    assert all((ROOT / link).exists() for link in links)
    for section in ("What is protected", "What is not promised"):
        assert section in text and f"## {section}" in (ROOT / "docs/security.md").read_text()


def test_readme_fits_one_screen_and_shows_two_pictures() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 70
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert len(pictures) == 2
    assert sum((ROOT / picture).stat().st_size for picture in pictures) < 200_000
