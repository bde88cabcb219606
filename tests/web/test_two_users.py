"""Two users and an operator in the browser, on a daemon in system mode."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.harness import Box, wait_until
from tests.system import System, system
from tests.web.conftest import new_page, wait_for_overview
from tests.web.test_page import check_clean

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def machine() -> Iterator[System]:
    with system() as found:
        yield found.up()


def logged_in(browser: Any, machine: System, person: Box, path: str = "", *, operator: bool = False) -> Any:
    status, answer = machine.ask(person, "POST", "/web/links", {"operator": operator})
    assert status == 201, answer
    page = new_page(browser)
    page.goto(answer["url"])
    wait_for_overview(page)
    page.base = answer["url"].partition("#")[0]
    if path:
        page.goto(page.base + path)
    return page


def test_user_sees_jobs_of_others_without_command_log_and_buttons(browser: Any, machine: System) -> None:
    job = machine.ann.submit("--name", "anns-job", "bash", "-c", "echo a secret; sleep 600")
    wait_until(lambda: machine.log_of(machine.ann, job))
    own = logged_in(browser, machine, machine.ann, f"jobs/{job}")
    own.locator(".log-view", has_text="a secret").wait_for()
    own.get_by_role("button", name="Cancel", exact=True).wait_for()
    assert "echo a secret" in own.inner_text("main")
    other = logged_in(browser, machine, machine.bob)
    other.get_by_text("anns-job").first.wait_for()
    other.goto(other.base + f"jobs/{job}")
    other.get_by_role("heading", name="anns-job").wait_for()
    text = other.inner_text("main")
    assert "a secret" not in text and machine.ann.person.pw_name in text
    assert other.get_by_role("button", name=re.compile("Cancel|Hold|Change|Run again")).count() == 0
    other.goto(other.base + "machine")
    other.get_by_role("heading", name="Machine").wait_for()
    other.get_by_role("heading", name="GPU 0").wait_for()
    assert other.get_by_role("button", name=re.compile("Drain|Reserve")).count() == 0
    machine.ann.ok("gcancel", "--now", str(job))


def test_page_asks_for_nothing_private_before_it_knows_the_caller(browser: Any, machine: System) -> None:
    from playwright.sync_api import Error

    job = machine.ann.submit("--name", "anns-own", "bash", "-c", "echo a secret")
    machine.ann.ok("gjob", "wait", str(job))
    page = logged_in(browser, machine, machine.bob)
    held: list[Any] = []
    page.route("**/me", lambda route: held.append(route))
    page.goto(page.base + f"jobs/{job}")
    page.get_by_role("heading", name="anns-own").wait_for()
    assert held and page.get_by_role("button", name="Run again").count() == 0
    page.unroute("**/me")
    for route in held:  # the first may be a request of the view that was left
        with suppress(Error):
            route.continue_()
    page.locator(".account", has_text=machine.bob.person.pw_name).wait_for()  # type: ignore[union-attr]
    check_clean(page)


def test_operator_session_drains_and_an_ordinary_session_of_the_operator_cannot(
    browser: Any, machine: System
) -> None:
    plain = logged_in(browser, machine, machine.opal, "machine")
    plain.get_by_role("heading", name="Machine").wait_for()
    plain.get_by_role("heading", name="GPU 0").wait_for()
    assert plain.get_by_role("button", name=re.compile("Drain")).count() == 0
    ended, waits = machine.ann.submit("true"), machine.ann.submit("--hold", "true")
    machine.ann.ok("gjob", "wait", str(ended))
    page = logged_in(browser, machine, machine.opal, f"jobs/{waits}", operator=True)
    page.locator(".account", has_text="operator").wait_for()
    page.get_by_role("button", name="Cancel", exact=True).wait_for()
    page.goto(page.base + f"jobs/{ended}")
    page.locator(".page-head .badge", has_text="Finished").wait_for()
    assert page.get_by_role("button", name="Run again").count() == 0  # only for its owner
    machine.ann.ok("gcancel", str(waits))
    page.goto(page.base + "machine")
    page.get_by_role("button", name="Drain the machine").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    page.locator(".notice", has_text="Drained").wait_for()
    plain.locator(".notice", has_text="Drained").wait_for()
    page.locator(".events li", has_text=f"by {machine.opal.person.pw_name}").first.wait_for()
    page.get_by_role("button", name="Resume the machine").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    wait_until(lambda: page.locator(".notice").count() == 0)
    check_clean(page)


def test_link_of_another_session_and_a_made_up_link_are_refused(browser: Any, machine: System) -> None:
    answer = machine.ask(machine.bob, "POST", "/web/links", {})[1]
    page = new_page(browser)
    page.goto(answer["url"][:-5] + "AAAAA")
    page.get_by_role("heading", name="This link is not valid any more").wait_for()
    page.goto(answer["url"].partition("#")[0])
    page.get_by_role("heading", name="You are not logged in").wait_for()
