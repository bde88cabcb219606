"""The web page with many jobs. `benchmarks/web.py` measures how fast it is."""

from __future__ import annotations

import pytest

from tests.harness import wait_until
from tests.web.conftest import Site

pytestmark = pytest.mark.slow
JOBS, BATCH = 100_000, 10_000
FILLED = """() => !document.querySelector(".row.is-missing")
    && document.querySelectorAll(".row").length > 10"""


def test_hundred_thousand_jobs_in_the_list(site: Site) -> None:
    site.box.down()
    site.box.flags = ["--cpus", "8"]  # without --paranoid, which checks all jobs after every step
    site.box.up(env=site.gpus.env)
    job = site.box.job_request(["true"], hold=True, name="many")
    environ = job.pop("environ")
    for part in range(JOBS // BATCH):
        body = {"token": f"many-jobs-{part}", "jobs": [job] * BATCH, "environ": environ}
        status, answer = site.box.api("POST", "/jobs", body)
        assert status == 201, answer
    page = site.logged_in("jobs?state=waiting")
    page.locator(".row .job-link").first.wait_for()
    assert f"{JOBS:,} jobs" in page.inner_text("main")
    for part in (0.1, 0.5, 0.9, 1.0, 0.0):
        page.evaluate("part => scrollTo(0, part * document.body.scrollHeight)", part)
        wait_until(lambda: page.evaluate(FILLED))
        assert page.locator(".row").count() < 150
    ids = page.locator(".row .job-link .id")
    first = int(ids.first.inner_text())
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    wait_until(lambda: abs(int(ids.last.inner_text()) - first) == JOBS - 1)
