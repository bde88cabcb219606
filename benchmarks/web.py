"""The web page: weight, first view, a list of 100,000 jobs, and what 50 open pages cost the daemon.

    .venv/bin/python -m benchmarks.web [--jobs 100000]

Needs chromium and playwright (`make test` installs them). Prints figures; asserts nothing.
"""

import argparse, gzip, http.client, json, os, shutil, statistics, tempfile, threading, time
from contextlib import suppress
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.gpu_mock import MockGpus
from tests.harness import Box, wait_until
from tests.process.test_web import Browser

PAGES, RUNNING, TRIALS, BATCH = 50, 100, 7, 5000
QUIET_S, OPEN_S = 20, 30
# Seconds between two loads of a page while events keep coming, and between two jobs.
PAUSE_S, EVERY_S = 3, 5
REPORT = "i=0; while :; do i=$((i + 1)); gflow report step=$i steps=1000 loss=0.$i; sleep 10; done"
# When the first row or tile was drawn, after the navigation began (ms).
DRAWN = """selector => new Promise(done => {
    const look = () => document.querySelector(selector)
        ? requestAnimationFrame(() => done(performance.now())) : requestAnimationFrame(look);
    look();
})"""
# Scrolls by so many pixels a second, as a fast wheel does, and counts the frames in which a row in view had no
# content.
SCROLL = """([speed, seconds]) => new Promise(done => {
    let count = 0, blank = 0, begun = performance.now(), before = begun;
    const step = now => {
        blank += [...document.querySelectorAll(".row.is-missing")].some(row => {
            const {top, bottom} = row.getBoundingClientRect();
            return bottom > 0 && top < innerHeight;
        });
        count++;
        scrollBy(0, speed * (now - before) / 1000);
        before = now;
        if (now - begun < seconds * 1000) requestAnimationFrame(step); else done([blank, count]);
    };
    requestAnimationFrame(step);
})"""
SPEED, SCROLL_S = 3000, 5


def figure(name, value):
    print(f"{name:<58} {value}", flush=True)


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def used_in(pid, seconds):
    before = cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - before) / seconds


def weight():
    built = Path(__file__).parents[1] / "src/gflow/web"
    size = sum(len(gzip.compress(path.read_bytes())) for path in built.iterdir())
    figure("page weight, compressed", f"{size / 1000:.0f} kB")


def first_view(page, base, path, selector):
    """From the navigation to the first drawn content, the page's files not cached: ms, and ms of CPU in the page."""
    page.goto("about:blank")
    meter = page.context.new_cdp_session(page)
    meter.send("Network.setCacheDisabled", {"cacheDisabled": True})
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(base + path, wait_until="commit")
    drawn = page.evaluate(DRAWN, selector)
    metrics = {one["name"]: one["value"] for one in meter.send("Performance.getMetrics")["metrics"]}
    meter.detach()
    return drawn, metrics["TaskDuration"] * 1000


def views(page, base, name, path, selector):
    found = [first_view(page, base, path, selector) for _ in range(TRIALS)]
    median, worst = statistics.median(one for one, _ in found), max(one for one, _ in found)
    cpu = statistics.median(one for _, one in found)
    figure(f"first view: {name}", f"median {median:.0f} ms, worst {worst:.0f} ms ({cpu:.0f} ms of CPU in the page)")


def many_jobs(box, page, base, jobs):
    one = box.job_request(["true"], hold=True, name="many")
    environ = one.pop("environ")
    for part in range(0, jobs, BATCH):
        body = {"token": f"bench-web-{part}", "jobs": [one] * min(BATCH, jobs - part), "environ": environ}
        status, answer = box.api("POST", "/jobs", body)
        assert status == 201, answer
    views(page, base, f"overview, {jobs:,} jobs wait", "", ".tiles li")
    views(page, base, f"list of {jobs:,} jobs", "jobs?state=waiting", ".row .job-link")
    blank, frames = page.evaluate(SCROLL, [SPEED, SCROLL_S])
    figure(f"blank frames while scrolling {SPEED:,} pixels a second", f"{blank} of {frames}")
    with suppress(TimeoutError):  # it goes on without the client; `main` waits for its end
        box.api("POST", "/jobs/cancel", {"all": True})


def listen(browser, stop):
    """An open page: it reads events and readings, and loads the overview again after events, with pauses."""
    connection = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=30)
    connection.request("GET", "/events?readings=1", headers=browser.headers)
    stream, loaded = connection.getresponse(), 0.0
    with suppress(ConnectionResetError):  # the daemon ends first
        while not stop.is_set():
            line = stream.readline()
            if line.startswith((b"event: job_", b"event: gpu_")) and time.monotonic() - loaded > PAUSE_S:
                loaded = time.monotonic()
                browser.ask("GET", "/overview?lists=8")
    connection.close()


def open_pages(box, url):
    for _ in range(RUNNING):
        box.submit("--cpus", "0", "bash", "-c", REPORT)
    wait_until(lambda: box.api("GET", "/status")[1]["running"] >= RUNNING, 120)
    browser, stop = Browser(url), threading.Event()
    browser.log_in()
    time.sleep(10)
    alone = used_in(box.daemon.pid, QUIET_S)
    threads = [threading.Thread(target=listen, args=(browser, stop), daemon=True) for _ in range(PAGES)]
    for thread in threads:
        thread.start()
    time.sleep(5)
    shared = used_in(box.daemon.pid, OPEN_S)
    churn = threading.Thread(target=submit_often, args=(box, stop), daemon=True)
    churn.start()
    busy = used_in(box.daemon.pid, OPEN_S)
    stop.set()
    churn.join()
    figure(f"daemon with {RUNNING} running jobs, no page", f"{alone:.1%} of a core")
    figure(f"daemon with {RUNNING} running jobs, {PAGES} pages", f"{shared:.1%} of a core")
    figure(f"cost of {PAGES} pages", f"{shared - alone:.1%} of a core")
    figure(f"the same, and a job starts and ends every {EVERY_S} s", f"{busy:.1%} of a core")
    box.ok("gcancel", "--all", "--now")


def submit_often(box, stop):
    while not stop.wait(EVERY_S):
        box.submit("--cpus", "0", "true")


def main():
    asked = argparse.ArgumentParser()
    asked.add_argument("--jobs", type=int, default=100_000)
    jobs = asked.parse_args().jobs
    figure("load of this machine", f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    weight()
    with tempfile.TemporaryDirectory(prefix="bench-web-") as folder, sync_playwright() as playwright:
        root = Path(folder)
        box, gpus = Box(root), MockGpus(root, 8, name="Simulated H100 80GB")
        gpus.env["GFLOW_LEASE_DIR"] = str(root / "leases")
        box.flags = ["--cpus", "64"]
        try:
            box.up(env=gpus.env)
            link = lambda: json.loads(box.ok("gflow", "web", "--json"))["url"]
            for number in range(40):
                box.submit("--name", f"job-{number}", "--gpus", "1", "true")
            chromium = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page, url = chromium.new_page(), link()
            page.goto(url)
            page.wait_for_selector(".tiles li")
            base = url.partition("#")[0]
            views(page, base, "overview", "", ".tiles li")
            views(page, base, "jobs", "jobs?state=all", ".row .job-link")
            views(page, base, "machine", "machine", ".gpu-panels section")
            many_jobs(box, page, base, jobs)
            chromium.close()
            wait_until(lambda: not box.api("GET", "/jobs?limit=1")[1]["total"], 600)
            open_pages(box, link())
        finally:
            box.clean_up()


if __name__ == "__main__":
    main()
