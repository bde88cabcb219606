"""The web page's server: links, sessions, headers, and the content of logs."""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.harness import Box, wait_until
from tests.process.test_port import inet_sockets
from tests.system import System, system

ROOTS = pytest.mark.skipif(os.getuid() != 0, reason="needs root")


class Browser:
    """A client of the page: keeps the cookie and the key of its session."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.port = parts.port or 0
        self.code = parts.fragment.removeprefix("login=")
        self.headers: dict[str, str] = {}

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            data = None if body is None else json.dumps(body).encode()
            sent = {"Content-Type": "application/json"} if data else {}
            connection.request(method, path, data, sent | self.headers | (headers or {}))
            answer = connection.getresponse()
            text = answer.read()
            found = json.loads(text) if text[:1] in (b"{", b"[") else text
            return answer.status, found, answer.headers
        finally:
            connection.close()

    def log_in(self) -> dict[str, Any]:
        status, answer, headers = self.ask("POST", "/web/session", {"code": self.code})
        assert status == 201, answer
        cookie = headers["set-cookie"]
        assert re.fullmatch(
            r"gflow_[0-9a-f]{16}=[\w-]{43}; HttpOnly; Max-Age=\d+; Path=/; SameSite=strict", cookie
        )
        self.headers = {"X-Gflow-Session": answer["session"], "Cookie": cookie.partition(";")[0]}
        found: dict[str, Any] = answer
        return found


def link(box: Box, *words: str) -> str:
    found: str = json.loads(box.ok("gflow", "web", "--json", *words))["url"]
    return found


@pytest.fixture
def browser(daemon: Box) -> Browser:
    made = Browser(link(daemon))
    made.log_in()
    return made


def test_link_opens_a_loopback_port_and_logs_in_once(box: Box) -> None:
    box.up("--simulate-gpus", "1x80G")
    assert box.daemon is not None
    assert inet_sockets(box.daemon.pid) == []
    url = link(box)
    (line,) = inet_sockets(box.daemon.pid)
    assert line.split()[1].startswith("0100007F:")  # 127.0.0.1
    browser = Browser(url)
    assert browser.ask("GET", "/jobs")[0] == 401
    browser.log_in()
    status, answer, _ = browser.ask("GET", "/me")
    assert status == 200 and answer["user"] == box.api("GET", "/me")[1]["user"]
    assert answer["session_ends_at"] is not None
    again = Browser(url)
    status, answer, _ = again.ask("POST", "/web/session", {"code": again.code})
    assert (status, answer["code"], answer["hint"]) == (401, "link_not_valid", "gflow web makes a new one")
    assert urlsplit(link(box)).port == browser.port
    (line,) = inet_sockets(box.daemon.pid)


def test_every_api_request_needs_both_secrets(browser: Browser) -> None:
    header, cookie = browser.headers["X-Gflow-Session"], browser.headers["Cookie"]
    assert browser.ask("GET", "/jobs")[0] == 200
    for some in ({}, {"X-Gflow-Session": header}, {"Cookie": cookie}):
        browser.headers = some
        for method, path in (("GET", "/jobs"), ("GET", "/events"), ("POST", "/jobs/cancel")):
            status, answer, _ = wait_until(lambda: (found := browser.ask(method, path))[0] != 429 and found)
            assert (status, answer["code"]) == (401, "unauthorized")


def test_other_sites_and_hosts_are_refused(browser: Browser) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
        assert browser.ask("GET", "/jobs", headers=headers)[0] == 403
        assert browser.ask("POST", "/web/session", {"code": "x"}, headers=headers)[0] == 403
    own = {"Origin": f"http://127.0.0.1:{browser.port}"}
    assert browser.ask("GET", "/jobs", headers=own)[0] == 200
    plain = {"Content-Type": "text/plain"}
    assert browser.ask("POST", "/web/session", {"code": "x"}, headers=plain)[0] == 415
    tunnel = {"Host": "localhost:8080", "Origin": "http://localhost:8080"}
    assert browser.ask("GET", "/jobs", headers=tunnel)[0] == 200


def test_files_need_no_session_and_all_answers_have_strict_headers(browser: Browser) -> None:
    session, browser.headers = browser.headers, {}
    status, page, headers = browser.ask("GET", "/web/jobs/17?x=1")
    assert status == 200 and b"<script" in page and headers["content-type"].startswith("text/html")
    assert browser.ask("GET", "/web/", headers={"If-None-Match": headers["etag"]})[0] == 304
    assert browser.ask("GET", "/")[2]["location"] == "/web/"
    assert browser.ask("GET", "/web/../../etc/passwd.html")[0] == 404
    assert browser.ask("GET", "/web/none.js")[0] == 404
    for path in ("/web/", "/web/app.js", "/jobs", "/web/none.js"):
        headers = browser.ask("GET", path, headers=session)[2]
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in policy and "unsafe" not in policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert browser.ask("GET", "/jobs", headers=session)[2]["cache-control"] == "no-store"


def test_session_acts_as_its_user_and_is_named_in_the_history(daemon: Box, browser: Browser) -> None:
    body = {"token": "web-test-1", "jobs": [daemon.job_request(["true"])]}
    status, answer, _ = browser.ask("POST", "/jobs", body)
    assert status == 201
    job = answer["jobs"][0]["id"]
    daemon.finished(job)
    assert "web page" in json.dumps(daemon.api("GET", f"/jobs/{job}/history")[1])
    for path in ("/web/links", "/tokens"):
        assert browser.ask("POST", path, {})[0] == 403  # a stolen session cannot renew itself


def test_logout_ends_one_session_or_all(daemon: Box, browser: Browser) -> None:
    other = Browser(link(daemon))
    other.log_in()
    assert browser.ask("POST", "/web/logout", {"this": True})[1] == {"ended": 1}
    assert browser.ask("GET", "/me")[0] == 401
    assert other.ask("GET", "/me")[0] == 200
    assert "1 session of the web page ended" in daemon.ok("gflow", "web", "--logout")
    assert other.ask("GET", "/me")[0] == 401


def test_session_survives_a_restart_and_ends_with_a_stop(box: Box) -> None:
    box.ok("gflowd", "up", "--simulate-gpus", "1x80G")
    try:
        browser = Browser(link(box))
        browser.log_in()
        box.ok("gflowd", "restart")
        assert wait_until(lambda: answers(browser)) == 200
        box.ok("gflowd", "reload")
        assert wait_until(lambda: answers(browser)) == 200
    finally:
        box.ok("gflowd", "down")
    assert not (box.data / "web.json").exists()
    box.up("--simulate-gpus", "1x80G")
    browser.port = urlsplit(link(box)).port or 0
    assert browser.ask("GET", "/me")[0] == 401


def answers(browser: Browser) -> int | None:
    try:
        return browser.ask("GET", "/me")[0]
    except OSError:
        return None


def test_command_prints_the_link_or_the_tunnel(daemon: Box) -> None:
    text = daemon.ok("gflow", "web")
    assert re.search(r"^  http://127\.0\.0\.1:\d+/web/#login=[\w-]{43}$", text, re.M)
    text = daemon.ok("gflow", "web", env={"SSH_CONNECTION": "10.0.0.2 50000 gpu1 22"})
    match = re.search(r"^  ssh -N -L (\d+):127\.0\.0\.1:(\d+) \S+@gpu1$", text, re.M)
    assert match and f"http://127.0.0.1:{match[1]}/web/#login=" in text
    assert daemon.run("gflow", "web", "now").returncode == 2
    assert "works once" in daemon.ok("gflow", "web", "--help")


def test_browser_gets_a_private_file_instead_of_the_link(daemon: Box) -> None:
    folder = daemon.root / "bin"
    folder.mkdir()
    opener = folder / "xdg-open"
    opener.write_text(f'#!/bin/sh\necho "$@" > {daemon.root}/opened\n')
    opener.chmod(0o755)
    env = {"DISPLAY": ":9", "PATH": f"{folder}:{daemon.env['PATH']}"}
    assert "#login" not in daemon.ok("gflow", "web", env=env)
    path = (daemon.root / "opened").read_text().strip()
    assert os.stat(path).st_mode & 0o777 == 0o600
    match = re.search(r"url=(http://\S+)\"", open(path).read())
    assert match
    Browser(match[1]).log_in()
    # A forwarded display would show a browser of this machine through the tunnel: over SSH none is opened.
    assert "ssh -N -L" in daemon.ok("gflow", "web", env=env | {"SSH_CONNECTION": "10.0.0.2 50000 gpu1 22"})
    # A browser that stays in the foreground does not hold the command.
    opener.write_text("#!/bin/sh\nsleep 30\n")
    assert "opens in your browser" in daemon.ok("gflow", "web", env=env)
    opener.write_text("#!/bin/sh\nexit 3\n")
    assert "#login=" in daemon.ok("gflow", "web", env=env)


def test_command_says_in_one_sentence_that_the_daemon_is_down(box: Box) -> None:
    for words in ((), ("--json",), ("--logout",)):
        done = box.run("gflow", "web", *words)
        text = done.stderr + done.stdout
        assert done.returncode == 3 and text.count("The gflow daemon is not running.") == 1
        assert "gflowd up" in text and "Traceback" not in text


def test_output_of_a_job_is_read_in_parts_and_followed(daemon: Box, browser: Browser) -> None:
    go = daemon.root / "go"
    line = f"echo first; printf 'caf\\303\\251\\n'; until [ -e {go} ]; do sleep 0.05; done; echo last"
    job = daemon.submit("bash", "-c", line)
    path = f"/jobs/{job}/output"
    found = wait_until(lambda: (one := browser.ask("GET", path)[1])["size"] == 12 and one)
    assert (found["text"], found["start"], found["end"], found["final"]) == ("first\ncafé\n", 0, 12, False)
    # The é has two bytes: a part that would begin or end inside it begins after and ends before it.
    assert browser.ask("GET", f"{path}?offset=0&limit=10")[1]["text"] == "first\ncaf"
    assert browser.ask("GET", f"{path}?offset=10")[1]["text"] == "\n"
    assert browser.ask("GET", f"{path}?offset=-3")[1]["text"] == "é\n"
    connection = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=20)
    connection.request("GET", f"{path}/stream?offset=6", headers=browser.headers)
    stream = connection.getresponse()
    go.touch()
    frames = stream.read().decode()
    connection.close()
    pieces = [json.loads(line[6:]) for line in frames.splitlines() if line.startswith("data: ")]
    assert "".join(piece["text"] for piece in pieces) == "café\nlast\n"
    assert frames.rstrip().splitlines()[-2] == "event: end" and pieces[-1]["final"]


def test_output_that_is_not_a_regular_file_is_refused(daemon: Box, browser: Browser) -> None:
    pipe = daemon.root / "pipe"
    os.mkfifo(pipe)
    job = daemon.submit("--hold", "--output", str(pipe), "true")
    status, answer, _ = browser.ask("GET", f"/jobs/{job}/output")
    assert status == 409 and "not a regular file" in answer["title"]
    array = daemon.submit("--hold", "--array", "1-3", "true")
    assert "each of its tasks has a log" in browser.ask("GET", f"/jobs/{array}/output")[1]["title"]


@pytest.fixture
def machine() -> Iterator[System]:
    with system() as found:
        yield found.up()


def session_of(machine: System, person: Box, *, operator: bool = False) -> Browser:
    status, answer = machine.ask(person, "POST", "/web/links", {"operator": operator})
    assert status == 201, answer
    browser = Browser(answer["url"])
    browser.log_in()
    return browser


@ROOTS
def test_sessions_have_the_rights_of_their_users(machine: System) -> None:
    job = machine.ann.submit("--hold", "sleep", "60")
    ann, bob = session_of(machine, machine.ann), session_of(machine, machine.bob)
    assert ann.port < 1024  # only root can listen there after the daemon has ended
    assert ann.ask("GET", f"/jobs/{job}")[1]["jobs"][0]["command"] == ["sleep", "60"]
    assert bob.ask("GET", f"/jobs/{job}")[1]["jobs"][0]["command"] == []
    assert bob.ask("GET", f"/jobs/{job}/output")[0] == 403
    assert bob.ask("POST", "/jobs/cancel", {"jobs": [str(job)]})[0] == 403
    assert bob.ask("POST", "/drain", {"on": True})[0] == 403
    assert machine.ask(machine.bob, "POST", "/web/links", {"operator": True})[0] == 403
    status, answer = machine.ask(machine.box, "POST", "/web/links", {})
    assert status == 403 and "root" in answer["title"]
    over_ssh = machine.bob.ok("gflow", "web", env={"SSH_CONNECTION": "10.0.0.2 50000 gpu1 22"})
    name = machine.bob.person.pw_name
    assert re.search(rf"ssh -N -L {ann.port + 20_000}:127\.0\.0\.1:{ann.port} {name}@gpu1", over_ssh)
    # An operator has the rights only in a session that asked for them.
    assert session_of(machine, machine.opal).ask("POST", "/drain", {"on": True})[0] == 403
    operator = session_of(machine, machine.opal, operator=True)
    assert operator.ask("GET", "/me")[1]["operator"]
    assert operator.ask("POST", "/drain", {"on": True})[0] == 200
    assert operator.ask("GET", f"/jobs/{job}/output")[0] == 403
    assert operator.ask("POST", "/jobs/cancel", {"jobs": [str(job)]})[0] == 200


@ROOTS
def test_log_is_read_as_its_owner(machine: System) -> None:
    secret, shared = machine.root / "secret.log", machine.root / "of-roots-group.log"
    for path, mode in ((secret, 0o600), (shared, 0o640)):
        path.write_text("root's secret\n")
        path.chmod(mode)
    ann = session_of(machine, machine.ann)
    for name, target in (
        ("a.log", secret),
        ("b.log", shared),
        ("c.log", "/etc/shadow"),
        ("d.log", "/dev/zero"),
    ):
        path = machine.ann.work / name
        path.symlink_to(target)
        job = machine.ann.submit("--hold", "--output", str(path), "true")
        status, answer, _ = ann.ask("GET", f"/jobs/{job}/output")
        assert status == 409, answer
        job = machine.ann.submit("--hold", "--output", str(target), "true")
        status, answer, _ = ann.ask("GET", f"/jobs/{job}/output")
        assert status == 409, answer
    own = machine.ann.submit("echo", "mine")
    wait_until(lambda: ann.ask("GET", f"/jobs/{own}/output")[1]["text"] == "mine\n")


def test_readings_and_progress_over_time(daemon: Box, browser: Browser) -> None:
    line = "gflow report step=4 steps=10 loss=0.25 accuracy=0.9; sleep 60"
    job = daemon.submit("bash", "-c", line)
    connection = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=20)
    connection.request("GET", "/events?readings=1", headers=browser.headers)
    stream = connection.getresponse()
    found: list[Any] = []
    while not found:
        text = stream.readline()
        if text.startswith(b"data: ") and b'"readings"' in text:
            found = json.loads(text[6:])["jobs"]
    connection.close()
    assert (found[0]["id"], found[0]["progress"]["percent"], found[0]["progress"]["loss"]) == (job, 40, 0.25)
    path = f"/jobs/{job}/progress"
    points = wait_until(lambda: browser.ask("GET", path)[1]["points"])
    assert [(one["step"], one["loss"], one["metrics"]) for one in points] == [(4, 0.25, {"accuracy": 0.9})]
    assert browser.ask("GET", "/gpus/history?hours=1")[1] == {"span_s": 10, "points": []}  # simulated
    daemon.ok("gcancel", "--now", str(job))
