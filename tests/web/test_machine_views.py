"""The views Machine, Usage, Clusters and Overview in a browser."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from gflow.store.samples import Batch, Mean, Samples
from tests.harness import wait_until
from tests.web.conftest import Site
from tests.web.test_page import check_clean, go

PHONE = {"width": 390, "height": 844}


def reservations(site: Site) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.box.api("GET", "/reservations?active=1")[1]["reservations"]
    return found


def test_faults_and_drains_are_listed_as_they_happen(site: Site) -> None:
    page = site.logged_in("machine")
    page.get_by_text("No fault, drain or slow clock.").wait_for()
    site.gpus[1].xid = 79
    page.locator(".events li", has_text="Xid 79: fell off the bus").wait_for()
    page.get_by_role("button", name="Drain GPU 0").click()
    dialog = page.get_by_role("dialog")
    assert "gctl drain --gpu 0" in dialog.inner_text()
    dialog.get_by_role("button", name="Drain").click()
    page.locator(".events li", has_text=re.compile("Drained.*GPU 0")).wait_for()
    assert page.locator(".timeline b.is-blocked").count() == 1
    site.gpus[1].xid = 0
    site.box.ok("gctl", "resume", "--gpu", "0")
    page.get_by_role("button", name="Resume GPU 1").click()
    dialog.get_by_role("button", name="Resume").click()
    page.locator(".events li", has_text=re.compile("Resumed.*GPU 0")).wait_for()
    page.locator(".events li", has_text=re.compile("Available.*GPU 1")).wait_for()
    check_clean(page)


def test_history_of_a_gpu_is_drawn_for_a_day_and_a_week(site: Site) -> None:
    now = int(time.time())
    samples = Samples(site.box.data / "samples.db")
    rows = [
        (gpu, Mean(now - at, 10, 40.0 + gpu, 90, 1000, 300.0, 60, 1700.0, 0))
        for gpu in (0, 1)
        for at in range(6 * 86_400, 600, -3600)
    ]
    samples.write(Batch(rows, [], []))
    samples.close()
    page = site.logged_in("machine")
    chart = page.locator(".chart [role=img]").first
    chart.wait_for()
    counts = {}
    for period in ("day", "week"):
        page.get_by_role("button", name=period, exact=True).click()
        page.get_by_role("heading", name=f"Events of the last {period}").wait_for()
        hours = {"day": 24, "week": 168}[period]
        counts[period] = len(site.box.api("GET", f"/gpus/history?hours={hours}&gpu=1")[1]["points"])
        wait_until(lambda: "GPU 1: from" in chart.get_attribute("aria-label"))
    assert 20 <= counts["day"] <= 30 and counts["week"] > 120
    page.get_by_label("GPU", exact=True).select_option("1")
    wait_until(lambda: "GPU 0" not in chart.get_attribute("aria-label"))
    assert "41 %" in chart.get_attribute("aria-label")


def test_reservation_is_made_moved_by_keys_and_drag_and_deleted(site: Site) -> None:
    job = site.box.submit("--gpus", "1", "sleep", "600")
    wait_until(lambda: site.box.job(job)["state"] == "Running")
    gpu = site.box.job(job)["gpu_ids"][0]
    page = site.logged_in("machine")
    page.get_by_role("button", name="Reserve").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("User").fill("daemon")  # an account that every machine has
    dialog.get_by_label("Or these GPUs").fill(str(gpu))
    dialog.get_by_label("Hours").fill("4")
    dialog.get_by_text(f"Stops when it begins: job {job}").wait_for()
    assert f"gctl reserve create --user daemon --gpu-spec {gpu} --duration 4h" in dialog.inner_text()
    dialog.get_by_role("button", name="Back").click()
    assert reservations(site) == []
    page.get_by_role("button", name="Reserve").click()
    dialog.get_by_label("User").fill("daemon")
    dialog.get_by_label("Or these GPUs").fill(str(1 - gpu))
    later = time.strftime("%Y-%m-%dT%H:%M", time.localtime(time.time() + 86_400))
    dialog.get_by_label("From").fill(later)
    dialog.get_by_text("No running job is stopped.").wait_for()
    dialog.get_by_role("button", name="Reserve").click()
    bar = page.get_by_role("button", name=re.compile("^reservation 1 of daemon"))
    bar.wait_for()
    check_moves(site, page, bar)
    page.get_by_role("button", name="Delete reservation 1").click()
    assert "gctl reserve cancel 1" in dialog.inner_text()
    dialog.get_by_role("button", name="Delete it").click()
    wait_until(lambda: reservations(site) == [])
    site.box.ok("gcancel", "--now", str(job))
    check_clean(page)


def test_reserved_gpu_is_not_shown_as_free(site: Site) -> None:
    site.box.ok("gctl", "reserve", "create", "-u", "daemon", "-g", "1", "-s", "now", "-d", "9h")
    job = site.box.submit("--gpus", "2", "--name", "needs-both", "true")
    page = site.logged_in(viewport={"width": 1280, "height": 500})
    tile = page.locator(".tiles li", has_text="GPU 1")
    tile.locator(".pill", has_text="Reserved").wait_for()
    assert "Reserved for daemon until" in tile.inner_text() and "Free" not in tile.inner_text()
    assert "GPU 1" in page.locator("li", has_text="needs-both").locator(".why").inner_text()
    tile.get_by_role("link", name="GPU 1").click()
    panel = page.locator("section", has=page.get_by_role("heading", name="GPU 1"))
    panel.get_by_text("for daemon until").wait_for()
    wait_until(lambda: page.evaluate("scrollY") > 0, what="the panel of the GPU in view")
    site.box.ok("gcancel", str(job))
    for one in reservations(site):
        site.box.ok("gctl", "reserve", "cancel", str(one["id"]))


def check_moves(site: Site, page: Any, bar: Any) -> None:
    """Move a reservation by the keyboard, then with the mouse."""
    dialog, (made,) = page.get_by_role("dialog"), reservations(site)
    label = bar.get_attribute("aria-label")
    bar.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    dialog.get_by_text("No running job is stopped.").wait_for()
    assert re.search(r"gctl reserve update 1 --gpu-spec \d --start \S+ --duration 8h", dialog.inner_text())
    dialog.get_by_role("button", name="Change").click()
    wait_until(lambda: reservations(site)[0]["start_time"] > made["start_time"] + 2 * 3600)
    moved = reservations(site)[0]
    assert abs(moved["start_time"] - made["start_time"] - 3 * 3600) <= 900

    dialog.wait_for(state="hidden")
    wait_until(lambda: bar.get_attribute("aria-label") != label, what="the bar at its new place")
    place = bar.bounding_box()
    page.mouse.move(place["x"] + 5, place["y"] + 5)
    page.mouse.down()
    page.mouse.move(place["x"] + 205, place["y"] + 5, steps=5)
    page.mouse.up()
    dialog.get_by_role("button", name="Change").click()
    wait_until(lambda: reservations(site)[0]["start_time"] > moved["start_time"] + 12 * 3600)


def test_usage_has_days_users_and_idle_jobs(site: Site) -> None:
    job = site.box.submit("--gpus", "1", "--name", "idler", "sleep", "600")
    wait_until(lambda: site.box.job(job)["state"] == "Running")
    user = site.box.job(job)["user"]
    page = site.logged_in("people")
    chart = page.locator("svg.days")
    chart.wait_for()
    assert chart.get_attribute("aria-label").startswith("GPU-hours by day. ")
    page.get_by_role("region", name="usage by user").get_by_role("rowheader", name=user).wait_for()
    page.get_by_role("button", name="year").click()
    page.wait_for_url(re.compile("since=365d"))
    wait_until(lambda: chart.get_attribute("aria-label").startswith("GPU-hours by week. "))
    site.box.ok("gcancel", "--now", str(job))
    check_clean(page)


def test_cluster_that_does_not_answer_is_named_with_its_error(site: Site) -> None:
    page = site.logged_in()
    down = {
        "name": "lab", "state": "down", "running": 1, "waiting": 2, "answered_at": "2026-01-01T10:00:00.000Z",
        "error": "slurm_load_jobs error: Unable to contact slurm controller", "partition": "gpu",
        "account": None,
    }  # fmt: skip
    here = {**down, "name": "local", "state": "here", "error": None, "answered_at": None, "partition": None}
    page.route("**/targets", lambda route: route.fulfill(json={"targets": [here, down]}))
    go(page, "clusters")
    panel = page.locator("section", has_text="Does not answer")
    panel.wait_for()
    text = panel.inner_text()
    assert "Unable to contact slurm controller" in text and "1 running, 2 waiting" in text


def test_first_view_needs_few_requests(site: Site) -> None:
    page = site.page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.partition("/web/#")[0]))
    page.goto(site.link())
    page.wait_for_selector(".tiles li")
    page.locator(".link", has_text="Live").wait_for()
    data = [url.split("/", 3)[3] for url in asked if "/web/" not in url and not url.endswith("#")]
    assert sorted({url.partition("?")[0] for url in data} - {""}) == ["events", "me", "overview"]


def test_what_needs_attention_is_on_the_first_view(site: Site) -> None:
    site.box.ok("gctl", "drain", "--reason", "new rack")
    page = site.logged_in()
    panel = page.locator(".attention")
    panel.get_by_text("the machine is drained, so no job starts: new rack").wait_for()
    assert "gctl resume" in panel.inner_text()
    site.box.ok("gctl", "resume")
    wait_until(lambda: "new rack" not in page.inner_text("main"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_machine_views_have_no_serious_findings_on_a_phone(site: Site, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python")
    source = next(Path(axe.__file__).parent.rglob("axe.min.js")).read_text()
    site.box.ok("gctl", "reserve", "create", "-u", "daemon", "-g", "1", "-s", "now+5h", "-d", "9h")
    page = site.logged_in(color_scheme=scheme, viewport=PHONE, has_touch=True)
    for path in ("", "machine", "people", "clusters", "submit"):
        go(page, path)
        page.locator("h1").first.wait_for()
        page.wait_for_timeout(300)
        width = "document.documentElement.scrollWidth"
        wait_until(lambda: page.evaluate(width) <= PHONE["width"], what=f"{path} to fit a phone")
        page.evaluate(source)
        assert serious(page) == [], path
    go(page, "machine")
    page.get_by_role("button", name=re.compile("^Change reservation")).first.click()
    page.get_by_role("dialog").get_by_text("No running job is stopped.").wait_for()
    page.evaluate(source)
    assert serious(page) == []
    check_clean(page)
    for one in reservations(site):
        site.box.ok("gctl", "reserve", "cancel", str(one["id"]))


def serious(page: Any) -> list[Any]:
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (one["id"], [node["html"][:160] for node in one["nodes"]][:3])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
