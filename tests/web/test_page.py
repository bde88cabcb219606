"""The web page in a browser: login, live changes, actions, logs, hostile text, accessibility."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.harness import wait_until
from tests.web.conftest import Site

HOSTILE = "<img src=x onerror=window.pwned=1>"
# Writes a line with sequences for terminals, one with markup, and one with characters that turn text around.
HOSTILE_LOG = (
    r"printf '\033[31mred\033[0m \033]0;title\007plain\n%s\n' '<script>window.pwned=1</script>';"
    r" printf 'user \342\200\256nimda\342\200\254 end\n'; printf '10%%\r50%%\r100%%\n'"
)


def go(page: Any, path: str) -> None:
    """Show a view without loading the page again."""
    page.evaluate(
        """path => {
            history.pushState(null, "", "/web/" + path);
            dispatchEvent(new PopStateEvent("popstate"));
        }""",
        path,
    )


def check_clean(page: Any) -> None:
    """No script failed, and the content security policy had nothing to refuse."""
    assert page.evaluate("window.violations") == []
    assert [error for error in page.errors if "401" not in error] == []


def test_link_logs_in_once_and_leaves_the_address(site: Site) -> None:
    page, link = site.page(), site.link()
    page.goto(link)
    page.wait_for_selector(".tiles li")
    assert page.url == link.partition("#")[0]
    page.locator(".link", has_text="Live").wait_for()
    check_clean(page)
    page.reload()
    page.wait_for_selector(".tiles li")
    other = site.page()
    other.goto(link)
    other.get_by_role("heading", name="This link is not valid any more").wait_for()
    assert "gflow web" in other.inner_text("main")
    other.goto(link.partition("#")[0] + "jobs")
    other.get_by_role("heading", name="You are not logged in").wait_for()


def test_log_out_ends_the_session(site: Site) -> None:
    page = site.logged_in()
    page.locator(".account summary").click()
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("heading", name="You are not logged in").wait_for()
    page.reload()
    page.get_by_role("heading", name="You are not logged in").wait_for()


WATCH = """name => {
    window.seen = 0;
    const main = document.querySelector("main");
    const look = () => main.innerText.includes(name) && (window.seen ||= Date.now());
    const what = {subtree: true, childList: true, characterData: true};
    new MutationObserver(look).observe(document.body, what);
}"""


def test_change_is_shown_within_a_second_of_its_event(site: Site) -> None:
    """The fastest of several counts: the machine of the tests may be busy."""
    page = site.logged_in()
    page.locator(".link", has_text="Live").wait_for()
    delays: list[float] = []
    while len(delays) < 15 and min(delays, default=9.9) >= 1.0:
        name = f"live-job-{len(delays)}"
        page.evaluate(WATCH, name)
        job = site.box.submit("--name", name, "sleep", "60")
        wait_until(lambda: page.evaluate("window.seen"), 60)
        started = datetime.fromisoformat(site.box.job(job)["started_at"]).timestamp()
        delays.append(page.evaluate("window.seen") / 1000 - started)
        site.box.ok("gcancel", "--now", str(job))
    assert min(delays) < 1.0, delays


def test_job_is_submitted_and_cancelled(site: Site) -> None:
    page = site.logged_in("submit")
    page.get_by_label("Command").fill("echo from the page; sleep 60")
    page.get_by_label("Name").fill("page-job")
    page.get_by_label("GPUs", exact=True).fill("1")
    line = page.locator(".command code").inner_text()
    assert re.fullmatch(
        r"cd \S+ && gbatch --export NONE --name page-job --gpus 1 'echo from the page; sleep 60'", line
    )
    page.get_by_role("button", name="Submit").click()
    page.get_by_role("heading", name="page-job").wait_for()
    page.locator(".page-head .badge", has_text="Running").wait_for()
    page.locator(".log-view", has_text="from the page").wait_for()
    job = int(page.url.rpartition("/")[2])
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    assert f"gcancel {job}" in dialog.inner_text()
    page.keyboard.press("Escape")
    assert site.box.job(job)["state"] == "Running"
    page.get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button", name="Cancel").click()
    page.locator(".page-head .badge", has_text="Cancelled").wait_for()
    page.get_by_role("button", name="Run again").click()
    page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    page.wait_for_url(re.compile(rf"/jobs/(?!{job}$)\d+$"))
    site.box.ok("gcancel", "--now", page.url.rpartition("/")[2])
    check_clean(page)


def test_refusal_is_shown_with_its_hint(site: Site) -> None:
    page = site.logged_in("submit")
    page.get_by_label("Command").fill("true")
    page.get_by_label("GPUs", exact=True).fill("99")
    page.get_by_role("button", name="Submit").click()
    page.get_by_role("alert").wait_for()
    assert "99 GPUs" in page.get_by_role("alert").inner_text()


def test_lost_answer_does_not_make_a_second_job(site: Site) -> None:
    """The daemon gets a request, and its answer does not arrive: the user presses the button again."""
    page = site.logged_in("submit")

    def lose(route: Any) -> None:
        route.fetch()
        route.abort()

    page.get_by_label("Command").fill("true")
    page.get_by_label("Name").fill("asked-twice")
    page.get_by_label("GPUs", exact=True).fill("0")
    page.route("**/jobs", lose, times=1)
    page.get_by_role("button", name="Submit").click()
    page.get_by_role("alert").filter(has_text="does not answer").wait_for()
    page.get_by_role("button", name="Submit").click()
    page.locator(".page-head .badge", has_text="Finished").wait_for()
    page.route("**/jobs/redo", lose, times=1)
    page.get_by_role("button", name="Run again").click()
    dialog, before = page.get_by_role("dialog"), page.url
    dialog.get_by_role("button", name="Run again").click()
    dialog.get_by_role("alert").filter(has_text="does not answer").wait_for()
    dialog.get_by_role("button", name="Run again").click()
    page.wait_for_url(lambda url: url != before)
    assert site.box.api("GET", "/jobs?all=1&names=asked-twice")[1]["total"] == 2


def test_held_job_is_released(site: Site) -> None:
    job = site.box.submit("--hold", "--name", "to-release", "sh", "-c", "true\ntrue")
    page = site.logged_in(f"jobs/{job}")
    page.locator(".facts code").first.wait_for()
    assert page.locator(".facts code").first.inner_text() == "sh -c 'true\ntrue'"
    page.get_by_role("button", name="Change", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Time limit").fill("0:30:00")
    assert f"gjob update {job} --time 0:30:00" in dialog.inner_text()
    dialog.get_by_role("button", name="Change").click()
    page.locator(".facts", has_text="30 min").first.wait_for()
    page.get_by_role("button", name="Release", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Release").click()
    page.locator(".page-head .badge", has_text="Finished").wait_for()


def test_log_is_followed_and_searched(site: Site) -> None:
    go_on = site.box.root / "go-on"
    wait = f"until [ -e {go_on} ]; do sleep 0.05; done"
    line = f"seq 1 3000; echo ValueError: bad label; {wait}; echo the next part; sleep 600"
    job = site.box.submit("bash", "-c", line)
    page = site.logged_in(f"jobs/{job}")
    page.locator(".log-view", has_text="ValueError: bad label").wait_for()
    assert page.locator(".log-lines pre div").count() < 200  # only what is in view
    page.get_by_label("search the log").fill("299")
    page.get_by_text("0 of 13").wait_for()
    page.keyboard.press("Enter")
    page.locator(".log-lines .is-chosen", has_text="299").wait_for()
    page.get_by_role("button", name="First error").click()
    page.locator(".log-lines .is-chosen", has_text="ValueError: bad label").wait_for()
    go_on.touch()
    page.get_by_role("button", name="Follow").click()
    page.locator(".log-view", has_text="the next part").wait_for()
    assert site.box.job(job)["state"] == "Running"  # otherwise the log was only read again at its end
    site.box.ok("gcancel", "--now", str(job))


def test_hostile_names_and_logs_are_text(site: Site) -> None:
    job = site.box.submit("--name", HOSTILE, "--comment", HOSTILE, "bash", "-c", HOSTILE_LOG)
    site.box.finished(job)
    page = site.logged_in(f"jobs/{job}")
    page.get_by_role("heading", name=HOSTILE).wait_for()
    page.locator(".log-view", has_text="100%").wait_for()
    lines = page.locator(".log-lines pre div").all_inner_texts()
    assert lines[:4] == [
        "red plain",
        "<script>window.pwned=1</script>",
        "user \\u202enimda\\u202c end",
        "100%",
    ]
    for path in ("", "jobs?state=all", f"jobs/{job}"):
        go(page, path)
        page.get_by_text(HOSTILE).first.wait_for()
        assert page.locator("img").count() == 0
    assert page.evaluate("window.pwned") is None
    check_clean(page)


def test_search_and_errors_are_found_in_the_whole_log(site: Site) -> None:
    line = "echo needle-1; echo RuntimeError: early; seq -f 'filler %06.0f' 1 100000; echo needle-2"
    job = site.box.submit("bash", "-c", line)
    site.box.finished(job)
    page = site.logged_in(f"jobs/{job}")
    page.locator(".log-view", has_text="needle-2").wait_for()
    chosen = page.locator(".log-lines .is-chosen")
    assert page.locator(".log-lines div", has_text="needle-2").get_attribute("data-line") == "100003"
    page.get_by_label("search the log").fill("NEEDLE")
    page.get_by_text("0 of 2").wait_for()
    page.keyboard.press("Enter")
    chosen.filter(has_text="needle-1").wait_for()
    page.keyboard.press("Enter")
    chosen.filter(has_text="needle-2").wait_for()
    page.get_by_role("button", name="First error").click()
    chosen.filter(has_text="RuntimeError: early").wait_for()
    assert chosen.get_attribute("data-line") == "2"
    page.get_by_role("button", name="To the end").click()
    page.locator(".log-view", has_text="needle-2").wait_for()
    check_clean(page)


def test_cause_of_a_failure_leads_to_its_line(site: Site) -> None:
    line = "seq 1 40000; echo \"ModuleNotFoundError: No module named 'einops'\"; seq 1 90; exit 1"
    job = site.box.submit("bash", "-c", line)
    site.box.finished(job)
    page = site.logged_in(f"jobs/{job}")
    page.locator(".cause", has_text="einops").wait_for()
    assert page.locator(".cause li").count() > 0
    page.locator(".evidence").get_by_role("button").click()
    page.locator(".log-lines .is-chosen", has_text="ModuleNotFoundError").wait_for()
    waiting = site.box.submit("--hold", "--name", "parent", "true")
    child = site.box.submit("--depends-on", str(waiting), "--name", "child", "true")
    go(page, f"jobs/{waiting}")
    page.locator(".graph").get_by_role("link", name=f"{child} child, Waiting").click()
    page.get_by_role("heading", name="child").wait_for()
    site.box.ok("gcancel", str(waiting))
    check_clean(page)


def test_array_is_one_row_with_a_heat_map(site: Site) -> None:
    line = "[ $GFLOW_ARRAY_TASK_ID != 3 ] || { echo no such fold; exit 4; }"
    array = site.box.submit("--array", "1-6", "--name", "folds", "bash", "-c", line)
    site.box.finished(array)
    page = site.logged_in("jobs?state=all")
    row = page.locator(".row", has_text="folds")
    row.locator(".heat").wait_for()
    assert row.count() == 1
    assert row.locator(".heat").get_attribute("aria-label") == "5 finished, 1 failed"
    assert row.locator(".heat i").count() == 6
    row.get_by_role("button").click()
    page.locator(".row.depth-1", has_text=f"{array}_3").wait_for()
    assert page.locator(".row.depth-1").count() == 6
    page.get_by_role("link", name=re.compile(f"^{array} ?folds")).click()
    page.locator(".verdict", has_text=f"1 task failed: {array}_3 (Exit code 4)").wait_for()
    page.get_by_role("button", name="Run failed again").click()
    assert f"gjob redo '{array}_[3]'" in page.get_by_role("dialog").inner_text()
    page.keyboard.press("Escape")
    cells = page.get_by_role("group", name="tasks: 5 finished, 1 failed").get_by_role("button")
    page.get_by_role("heading", name=f"Task {array}_3").wait_for()
    cells.first.focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    page.locator(".log-view", has_text="no such fold").wait_for()
    assert cells.nth(2).get_attribute("aria-pressed") == "true"
    for key in ("ArrowRight", "Enter"):
        page.keyboard.press(key)
    page.get_by_role("heading", name=f"Task {array}_4").wait_for()
    assert cells.nth(3).get_attribute("aria-pressed") == "true"
    check_clean(page)


def test_running_tasks_of_an_array_are_one_row_of_the_overview(site: Site) -> None:
    array = site.box.submit("--array", "1-6%4", "--name", "crowd", "sleep", "600")
    page = site.logged_in()
    panel = page.locator(".panel", has=page.get_by_role("heading", name="Running"))
    row = panel.locator("li", has_text="crowd")
    row.get_by_text("4 jobs").wait_for()
    assert row.count() == 1
    row.get_by_role("link", name=f"{array} crowd").click()
    page.locator(".page-head .badge", has_text="Running").wait_for()
    site.box.ok("gcancel", "--now", str(array))


def test_waiting_jobs_of_a_sweep_are_one_row_of_the_overview(site: Site) -> None:
    words = ("--hold", "--parsable", "--name", "queued-sweep", "--param", "x=1:20", "true")
    group = "g" + site.box.ok("gbatch", *words).split()[0]
    page = site.logged_in()
    row = page.locator(".panel", has=page.get_by_role("heading", name="Waiting")).locator(
        "li", has_text="queued-sweep"
    )
    row.get_by_role("link", name=group).wait_for()
    assert row.count() == 1
    site.box.ok("gcancel", group)


def test_groups_are_rows_in_long_lists(site: Site) -> None:
    words = ("--hold", "--parsable")
    sweep = site.box.ok("gbatch", *words, "--name", "wide", "--param", "x=1:700", "echo", "{x}").split()[0]
    array = site.box.submit("--hold", "--array", "1-3000", "--name", "long", "true")
    page = site.logged_in("jobs?state=waiting")
    row = page.locator(".row", has_text="wide")
    row.locator(".task-bar", has_text="700 held").wait_for()
    assert "701 jobs" in page.inner_text("main") and page.locator(".row", has_text="long").count() == 1
    row.get_by_role("button").click()
    page.locator(".row.depth-1", has_text="x=1").first.wait_for()
    last = page.locator(".row.depth-1", has_text="x=700")
    bottom = "scrollTo(0, document.body.scrollHeight)"
    wait_until(lambda: page.evaluate(bottom) or last.count(), what="the last run")  # the list may still grow
    page.locator(".row:not(.depth-1)", has_text="long").wait_for()
    go(page, f"sweeps/g{sweep}")
    page.get_by_role("heading", name="wide").wait_for()
    assert page.locator(".runs .row").count() < 100  # only what is in view
    site.box.ok("gcancel", f"g{sweep}", str(array))


def test_sweep_marks_its_best_run_and_runs_failed_ones_again(site: Site) -> None:
    script = 'gflow report step=1 steps=1 loss=0.$1 accuracy=0.$1; [ "$1" != 5 ] || exit 3'
    (site.box.root / "run.sh").write_text(script)
    words = ("--name", "grid", "--parsable", "--param", "x=3,5,7", "--param", "kind=a,b")
    group = site.box.ok("gbatch", *words, "bash", str(site.box.root / "run.sh"), "{x}").split()[0]
    wait_until(lambda: site.box.api("GET", f"/groups/g{group}")[1]["finished_at"])
    page = site.logged_in(f"sweeps/g{group}")
    page.locator(".runs .row.is-best", has_text=group).wait_for()
    page.locator(".verdict", has_text="2 runs failed").get_by_text("x=5 kind=a: Exit code 3").wait_for()
    page.get_by_label("metric").select_option("accuracy")
    page.locator(".runs .row.is-best", has_text="0.7").wait_for()
    assert page.locator(".parallel path.is-best").count() == 1
    assert "metric=accuracy" in page.url
    page.get_by_role("columnheader", name="x").get_by_role("button").click()
    page.locator(".runs [aria-sort=ascending]", has_text="x").wait_for()
    page.get_by_role("button", name="Run failed again").click()
    dialog = page.get_by_role("dialog")
    assert f"gjob redo g{group} --failed" in dialog.inner_text()
    dialog.get_by_role("button", name="Run failed again").click()
    page.wait_for_url(re.compile(r"/jobs/\d+$"))
    check_clean(page)


def test_jobs_of_a_sweep_are_held_released_and_cancelled(site: Site) -> None:
    words = ("--name", "trio", "--parsable", "--gpus", "2", "--param", "x=1,2,3")
    group = "g" + site.box.ok("gbatch", *words, "sleep", "600").split()[0]

    def states() -> list[str]:
        return [job["state"] for job in site.box.api("GET", f"/jobs?all=1&jobs={group}&sort=id")[1]["jobs"]]

    wait_until(lambda: states() == ["Running", "Queued", "Queued"])
    page = site.logged_in(f"sweeps/{group}")
    dialog = page.get_by_role("dialog")
    for name, about, command, then in (
        ("Hold", "Hold 2 waiting jobs", "gjob hold", ["Running", "Hold", "Hold"]),
        ("Release", "Release 2 held jobs", "gjob release", ["Running", "Queued", "Queued"]),
        ("Cancel", "Cancel 3 jobs", "gcancel", ["Cancelled"] * 3),
    ):
        page.get_by_role("button", name=name, exact=True).click()
        assert about in dialog.inner_text() and f"{command} {group}" in dialog.inner_text()
        dialog.get_by_role("button", name=name, exact=True).click()
        wait_until(lambda: states() == then, what=name)
    wait_until(lambda: page.locator(".actions button").count() == 0, what="the end of what can be done")
    check_clean(page)


def test_charts_are_drawn_from_samples(site: Site) -> None:
    site.gpus[0].busy, site.gpus[1].busy = 87, 87
    job = site.box.submit("--gpus", "1", "--name", "sampled", "sleep", "60")
    wait_until(lambda: len(site.box.api("GET", f"/jobs/{job}/usage")[1]["samples"]) > 3)
    page = site.logged_in(f"jobs/{job}")
    page.locator(".chart canvas").first.wait_for()
    label = page.locator(".chart [role=img]").first.get_attribute("aria-label")
    assert label.startswith("GPU utilisation. GPU 0: from") and "87 %" in label
    ink = """canvas => {
        const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return data.some(one => one);
    }"""
    wait_until(lambda: page.locator(".chart canvas").first.evaluate(ink), what="the chart to be drawn")
    site.box.ok("gcancel", "--now", str(job))


def test_filter_is_in_the_address(site: Site) -> None:
    site.box.finished(site.box.submit("--name", "needle-1", "false"))
    page = site.logged_in("jobs")
    page.get_by_role("button", name="Failed").click()
    page.get_by_label("search jobs by name or id").fill("needle")
    page.wait_for_url(re.compile(r"state=failed.*q=needle|q=needle.*state=failed"))
    page.locator(".row .job-link", has_text="needle-1").wait_for()
    page.reload()
    page.locator(".row .job-link", has_text="needle-1").wait_for()
    assert page.locator(".row .job-link").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_views_have_no_serious_accessibility_findings(site: Site, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python")
    source = next(Path(axe.__file__).parent.rglob("axe.min.js")).read_text()
    waiting = site.box.submit("--gpus", "1", "--hold", "--name", "held-job", "true")
    failed = site.box.submit("--name", "failed-job", "bash", "-c", "echo RuntimeError; exit 1")
    site.box.finished(failed)
    array = site.box.submit("--array", "1-3", "false")
    sweep = site.box.ok("gbatch", "--parsable", "--param", "x=1,2", "echo", "{x}").split()[0]
    site.box.finished(array)
    page = site.logged_in(color_scheme=scheme)
    for path in (
        "",
        "jobs?state=all",
        f"jobs/{waiting}",
        f"jobs/{failed}",
        f"jobs/{array}",
        f"sweeps/g{sweep}",
        "submit",
        "machine",
        "people",
        "clusters",
    ):
        go(page, path)
        page.locator("h1").first.wait_for()
        page.evaluate(source)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [
            (one["id"], [node["html"][:120] for node in one["nodes"]][:3])
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == [], path
    check_clean(page)
    site.box.ok("gcancel", str(waiting))


def test_page_reconnects_after_a_restart_of_the_daemon(site: Site) -> None:
    page = site.logged_in()
    site.box.kill9()
    page.locator(".link", has_text="Reconnecting").wait_for()
    site.box.up(env=site.gpus.env)
    page.locator(".link", has_text="Live").wait_for()
    job = site.box.submit("--name", "after-restart", "sleep", "30")
    page.get_by_text("after-restart").first.wait_for()
    site.box.ok("gcancel", "--now", str(job))
