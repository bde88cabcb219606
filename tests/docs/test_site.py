"""The documentation site: navigation and links (fast); a strict build and its search (slow)."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import runpy
import shutil
import sys
import threading
import time
import tomllib
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Box, wait_until

ROOT = Path(__file__).parents[2]
SITE = runpy.run_path(str(ROOT / "scripts/docs-site"))
CHROMIUM = os.environ.get("GFLOW_CHROMIUM", "/usr/bin/chromium")
# What a user types, and the page that has the answer.
QUESTIONS = {
    "hyper parameter sweep": "howto/hyper-parameter-sweep",
    "share a gpu": "howto/share-a-gpu",
    "resume after time limit": "howto/resume-after-time-limit",
    "slurm over ssh": "howto/slurm-over-ssh",
    "why did my job die": "howto/why-did-my-job-die",
    "why does my job wait": "howto/why-does-my-job-wait",
    "lab machine for ten people": "people",
    "jupyter": "howto/shell-on-a-gpu",
    "JobArrayTaskLimit": "reference/reasons",
    "exit code 124": "reference/exit-codes",
    "nohup": "migrate/from-nohup",
    "submitit": "migrate/from-submitit",
    "upgrade without killing jobs": "howto/survive-reboots-and-upgrades",
    "cuda out of memory": "howto/will-it-fit",
    "email when job ends": "howto/get-notified",
    "how do I run the same script with 20 learning rates?": "questions",
    "Is my job really using the GPU": "questions",
    "use 2 of the 4 GPUs only at night": "questions",
    "get my results back from the cluster": "questions",
    "my job was preempted, is my progress lost": "questions",
    "job killed by OOM killer although the GPU has memory left": "questions",
    "will my jobs start again after the server reboots": "questions",
    "limit each student to one GPU": "questions",
    "resume huggingface Trainer from checkpoint": "questions",
    "do I still need tmux": "migrate/from-nohup",
}


def test_every_page_is_in_the_navigation_and_links_work() -> None:
    assert SITE["check_pages"](ROOT) == []


def test_the_site_has_four_parts() -> None:
    parts = [next(iter(one)) for one in tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]]
    assert parts == ["Home", "Get started", "How-to", "Explain", "Reference"]


@pytest.mark.parametrize(
    ("page", "text", "problem"),
    [
        ("docs/index.md", "\n[x](nowhere.md)\n", "docs/index.md: nowhere.md is no file in docs/"),
        ("docs/index.md", "\n[x](../README.md)\n", "docs/index.md: ../README.md is no file in docs/"),
        (
            "docs/index.md",
            "\n[x](people.md#nobody)\n",
            "docs/index.md: people.md#nobody: there is no such heading",
        ),
        ("docs/new.md", "# New\n", "docs/new.md is not in the navigation (zensical.toml)"),
    ],
)
def test_check_names_what_is_wrong(tmp_path: Path, page: str, text: str, problem: str) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    with (tmp_path / page).open("a") as file:
        file.write(text)
    assert SITE["check_pages"](tmp_path) == [problem]


def test_check_names_a_page_of_the_navigation_that_is_gone(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "zensical.toml").write_text(
        (ROOT / "zensical.toml").read_text().replace("people.md", "crowd.md")
    )
    assert "crowd.md of the navigation (zensical.toml) does not exist" in SITE["check_pages"](tmp_path)


def test_content_of_other_servers_is_noticed() -> None:
    page = (
        '<script src="https://unpkg.com/x.js"></script><link href=//fonts.googleapis.com/css rel=stylesheet>'
    )
    assert len(SITE["LOADED"].findall(page)) == 2
    assert not SITE["LOADED"].findall('<a href="https://zensical.org">x</a><script src="./x.js"></script>')


def test_every_reason_of_the_engine_is_explained() -> None:
    pages = runpy.run_path(str(ROOT / "scripts/reference_pages.py"))
    told = set(pages["WAIT_REASONS"]) | set(pages["JOB_REASONS"]) | set(pages["GPU_REASONS"])
    assert pages["reason_codes"]() - told == set()
    source = "".join(path.read_text() for path in (ROOT / "src/gflow").rglob("*.py"))
    assert [code for code in told if not re.search(rf'"{code}[":]', source)] == []


def test_every_metric_is_listed(daemon: Box) -> None:
    pages = runpy.run_path(str(ROOT / "scripts/reference_pages.py"))
    listed = {name for name, *_ in pages["collect_metrics"]()}
    status, text = daemon.api("GET", "/metrics")
    assert status == 200
    assert set(re.findall(r"^# TYPE (\S+)", text.decode(), re.MULTILINE)) <= listed


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy of the pages."""
    if not (Path(sys.executable).parent / "zensical").exists():
        pytest.skip("zensical is not installed (make docs-site)")
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    assert SITE["build"](folder) == []
    return folder / ".site"


@pytest.mark.slow
def test_site_is_built_strictly_and_loads_nothing(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) >= 100
    assert not [path for path in pages if "fonts.googleapis" in path.read_text()]
    assert {
        item["location"].partition("#")[0] for item in json.loads((site / "search.json").read_text())["items"]
    }


@pytest.mark.slow
def test_strict_build_refuses_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    with (tmp_path / "docs/index.md").open("a") as file:
        file.write("\n[x](nowhere.md)\n")
    (problem,) = SITE["build"](tmp_path)
    assert "page does not exist" in problem


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The address of a web server on loopback that serves the site."""
    handler = functools.partial(QuietHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_questions_of_users_are_answered_by_one_search(address: str) -> None:
    driver = pytest.importorskip("playwright.sync_api")
    if not Path(CHROMIUM).exists():
        pytest.skip("there is no chromium")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=180_000)
        page = browser.new_page()
        elsewhere: list[str] = []
        page.on("request", lambda one: elsewhere.append(one.url) if not is_own(one.url, address) else None)
        found = {words: search(page, address, words) for words in QUESTIONS}
        browser.close()
    assert elsewhere == []
    missed = {
        words: found[words] for words, wanted in QUESTIONS.items() if f"{wanted}.html" not in found[words][:3]
    }
    assert missed == {}


def is_own(url: str, address: str) -> bool:
    return url.startswith((address, "data:", "blob:"))


# Links on the page, also those of the search, which is a shadow tree.
LINKS = """() => {
  const found = [];
  const visit = tree => {
    for (const link of tree.querySelectorAll("a[href]")) found.push(link.href);
    for (const one of tree.querySelectorAll("*")) if (one.shadowRoot) visit(one.shadowRoot);
  };
  visit(document);
  return found;
}"""


def search(page: Any, address: str, words: str) -> list[str]:
    """The pages that the search lists, best first. A result has the words in its address, as `h`."""
    page.goto(f"{address}/index.html")
    page.wait_for_selector("header")

    def has_field() -> bool:
        """Whether the field of the search has the focus; the key does nothing before the script is loaded."""
        has_focus = "() => !!document.activeElement.shadowRoot || document.activeElement.tagName == 'INPUT'"
        if not page.evaluate(has_focus):
            page.keyboard.press("Control+k")
            page.wait_for_timeout(500)  # a second press would close it
        return bool(page.evaluate(has_focus))

    wait_until(has_field, what="the field of the search")
    page.keyboard.type(words)
    asked = urllib.parse.urlencode({"h": words})

    def results() -> list[str]:
        links = [urllib.parse.urlsplit(link) for link in page.evaluate(LINKS)]
        return [link.path.removeprefix("/") for link in links if link.query == asked]

    seen: list[tuple[float, list[str]]] = [(0.0, [])]

    def settled() -> list[str]:
        """The results, once they have been the same for a second: the search ranks them repeatedly."""
        found = results()
        if found != seen[-1][1]:
            seen.append((time.monotonic(), found))
        return found if time.monotonic() - seen[-1][0] > 1 else []

    return list(dict.fromkeys(wait_until(settled, what=f"results of {words!r}")))
