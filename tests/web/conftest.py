"""One daemon with stand-in GPUs and one browser for all tests of the web page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_mock import MockGpus
from tests.harness import Box

# Debian's Chromium: the browsers of Playwright itself need another download.
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VIOLATIONS = """
window.violations = [];
const keep = (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`);
addEventListener("securitypolicyviolation", keep);
"""


def new_page(browser: Any, **more: Any) -> Any:
    """A page of a browser that knows nothing yet. It collects errors and violations of the policy."""
    page = browser.new_context(reduced_motion="reduce", **more).new_page()
    page.set_default_timeout(60_000)
    page.add_init_script(VIOLATIONS)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda said: said.type == "error" and page.errors.append(said.text))
    return page


def wait_for_overview(page: Any) -> None:
    """Wait until a login has led to the first view; fails with what the page shows instead."""
    try:
        page.wait_for_selector(".tiles li")
    except Exception as error:
        raise AssertionError(f"{page.url}: {page.inner_text('body')!r} {page.errors}") from error


class Site:
    """The daemon, and pages that are logged in to it."""

    def __init__(self, box: Box, gpus: MockGpus, browser: Any) -> None:
        self.box, self.gpus, self.browser = box, gpus, browser

    def link(self) -> str:
        found: str = json.loads(self.box.ok("gflow", "web", "--json"))["url"]
        return found

    def page(self, **more: Any) -> Any:
        return new_page(self.browser, **more)

    def logged_in(self, path: str = "", **more: Any) -> Any:
        page = self.page(**more)
        link = self.link()
        page.goto(link)
        wait_for_overview(page)
        page.base = link.partition("#")[0]
        if path:
            page.goto(page.base + path)
        return page


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with driver.sync_playwright() as playwright:
        args = ["--no-sandbox", "--disable-dev-shm-usage"]
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=args, timeout=180_000)
        yield made
        made.close()


@pytest.fixture(autouse=True)
def close_pages(request: pytest.FixtureRequest) -> Iterator[None]:
    """Close the pages of a test after it: an open page draws every later change of the daemon."""
    yield
    if "browser" in request.fixturenames:
        for context in request.getfixturevalue("browser").contexts:
            context.close()


@pytest.fixture(scope="package")
def site(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if shutil.which("gcc") is None:
        pytest.skip("there is no C compiler for the stand-in GPUs")
    root: Path = tmp_path_factory.mktemp("web")
    box, gpus = Box(root), MockGpus(root, 2)
    try:
        gpus.env["GFLOW_LEASE_DIR"] = str(root / "leases")
        box.up("--cpus", "8", env=gpus.env)
        yield Site(box, gpus, browser)
    finally:
        box.clean_up()
