"""The TCP port: open only if configured, and only with a token. Attacks by web pages and strangers."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Box, UnixConnection, free_port, wait_until
from tests.system import System, system


class Caller:
    """A client at the port, with headers of its choice."""

    def __init__(self, port: int, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.port, self.token, self.tls = port, token, tls

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        if self.tls is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        else:
            connection = http.client.HTTPSConnection("localhost", self.port, timeout=20, context=self.tls)
        mine = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        data = body if isinstance(body, bytes | type(None)) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, mine | (headers or {}))
            answer = connection.getresponse()
            text = answer.read()
            found = json.loads(text) if text[:1] in (b"{", b"[") else text
            return answer.status, found, {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()


def patiently(caller: Caller, *asked: Any) -> tuple[int, Any, dict[str, str]]:
    """An answer other than that one asks too often."""
    return wait_until(lambda: (found := caller.ask(*asked))[0] != 429 and found)


def inet_sockets(pid: int) -> list[str]:
    """Sockets of this process that are not Unix sockets."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            meant = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:  # closed meanwhile
            continue
        match = re.fullmatch(r"socket:\[(\d+)\]", meant)
        inodes |= {match[1]} if match else set()
    found = []
    for name in ("tcp", "tcp6", "udp", "udp6"):
        lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        found += [line for line in lines if line.split()[9] in inodes]
    return found


@pytest.fixture
def port(box: Box) -> Iterator[int]:
    number = free_port()
    box.up("--simulate-gpus", "1x80G", env={"GFLOW_DAEMON__PORT": str(number)})
    yield number


def made_token(box: Box, *words: str) -> str:
    return box.ok("gctl", "token", "create", *words).split("\n")[0]


def job_of(box: Box, *command: str) -> dict[str, Any]:
    return {"token": os.urandom(8).hex(), "jobs": [box.job_request(command)]}


def test_port_is_closed_unless_configured(box: Box) -> None:
    box.up("--simulate-gpus", "1x80G")
    assert box.daemon is not None
    assert inet_sockets(box.daemon.pid) == []
    assert "does not listen on a port yet" in box.ok("gctl", "token", "create")


def test_request_without_token_is_refused(box: Box, port: int) -> None:
    assert box.daemon is not None
    (line,) = inet_sockets(box.daemon.pid)
    assert line.split()[1].startswith("0100007F:")  # 127.0.0.1
    good = made_token(box, "--name", "laptop")
    number, secret = good.split("_")[1], good.split("_", 2)[2]
    for token in ("", "x", good[:-1], good + "x", f"gflow_{number}_{'A' * 43}", f"gflow_00000000_{secret}"):
        for method, path in (("GET", "/jobs"), ("GET", "/health"), ("POST", "/jobs")):
            body = {} if method == "POST" else None
            status, answer, headers = patiently(Caller(port, token), method, path, body)
            assert (status, answer["code"]) == (401, "unauthorized")
            assert headers["www-authenticate"] == "Bearer"
    status, answer, _ = Caller(port, good).ask("POST", "/jobs", job_of(box, "true"))
    assert status == 201
    job = answer["jobs"][0]["id"]
    assert box.finished(job)["state"] == "Finished"
    assert f"token {number} from 127.0.0.1" in json.dumps(box.api("GET", f"/jobs/{job}/history")[1])


def test_token_is_stored_as_private_hash(box: Box, port: int) -> None:
    secret = made_token(box).split("_", 2)[2]
    path = box.data / "tokens.json"
    assert path.stat().st_mode & 0o777 == 0o600
    for folder, _, files in os.walk(box.data):
        for name in files:
            if Path(folder, name).is_file():
                assert secret.encode() not in Path(folder, name).read_bytes()


def test_a_revoked_or_expired_token_is_good_for_nothing(box: Box, port: int) -> None:
    first, second = made_token(box, "--days", "1"), made_token(box, "--name", "second")
    assert Caller(port, first).ask("GET", "/jobs")[0] == 200
    listed = box.ok("gctl", "token", "list")
    assert [line.split()[0] for line in listed.splitlines()[1:]] == [
        first.split("_")[1],
        second.split("_")[1],
    ]
    assert first.split("_", 2)[2] not in listed
    assert "is revoked" in box.ok("gctl", "token", "revoke", first.split("_")[1])
    assert Caller(port, first).ask("GET", "/jobs")[0] == 401
    box.kill9()
    tokens = json.loads((box.data / "tokens.json").read_text())
    assert [token["name"] for token in tokens] == ["second"]
    box.up(env={"GFLOW_DAEMON__PORT": str(port)})
    assert Caller(port, second).ask("GET", "/jobs")[0] == 200
    box.down()
    tokens[0]["expires_at"] = time.time() - 1
    (box.data / "tokens.json").write_text(json.dumps(tokens))
    box.up(env={"GFLOW_DAEMON__PORT": str(port)})
    assert Caller(port, second).ask("GET", "/jobs")[0] == 401
    assert box.ok("gctl", "token", "list") == "No tokens.\n"
    done = box.run("gctl", "token", "revoke", second.split("_")[1])
    assert (done.returncode, "you have no token" in done.stderr) == (1, True)


def test_a_token_makes_no_tokens(box: Box, port: int) -> None:
    caller = Caller(port, made_token(box))
    assert caller.ask("POST", "/tokens", {"days": 3650})[0] == 403
    number = caller.token.split("_")[1]
    assert caller.ask("POST", "/tokens/revoke", {"id": number})[0] == 403
    assert caller.ask("GET", "/tokens")[0] == 200


@pytest.mark.parametrize("words", [["make"], ["create", "x"], ["revoke"], ["create", "--days", "0"], []])
def test_bad_token_command_is_refused(box: Box, words: list[str]) -> None:
    done = box.run("gctl", "token", *words)
    assert done.returncode == 2
    assert done.stderr


# ---------------------------------------------------------------- what web pages try


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "localhost.evil.example", ""])
def test_foreign_host_header_is_refused(box: Box, port: int, host: str) -> None:
    """DNS rebinding: a page's own name suddenly means 127.0.0.1. Also with a token it gets nothing."""
    caller = Caller(port, made_token(box))
    status, answer, _ = caller.ask("POST", "/jobs", job_of(box, "true"), {"Host": host.format(port=port)})
    assert (status, answer["code"]) == (403, "forbidden")
    assert box.jobs() == {}
    for fine in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "LOCALHOST"):
        assert caller.ask("GET", "/jobs", headers={"Host": fine})[0] == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "http://127.0.0.1"])
def test_a_page_of_another_site_changes_nothing(box: Box, port: int, origin: str) -> None:
    """Cross-site requests: a form or a script of a page posts to the daemon."""
    job = box.submit("--hold", "true")
    caller = Caller(port, made_token(box))
    headers = {"Origin": origin, "Content-Type": "text/plain"}
    for who in (caller, Caller(port)):
        for kind in ({"Content-Type": "text/plain"}, {}):
            status, _, told = who.ask("POST", "/jobs/cancel", {"jobs": [str(job)]}, headers | kind)
            assert status == 403
            assert not any(name.startswith("access-control") for name in told)
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    status, _, told = caller.ask("OPTIONS", "/jobs/cancel", headers=asked)
    assert status == 403
    assert not any(name.startswith("access-control") for name in told)
    assert box.job(job)["state"] == "Hold"
    own = {"Origin": f"http://127.0.0.1:{port}"}
    assert caller.ask("POST", "/jobs/cancel", {"jobs": [str(job)]}, own)[0] == 200


# ---------------------------------------------------------------- what strangers try


def test_wrong_tokens_are_rate_limited(box: Box, port: int) -> None:
    for _ in range(30):
        status, _, _ = Caller(port, "gflow_wrong").ask("GET", "/jobs")
        if status == 429:
            break
    assert status == 429
    assert Caller(port, made_token(box)).ask("GET", "/jobs")[0] == 200  # others are not held up
    assert box.api("GET", "/health")[0] == 200


def test_a_body_has_a_limit(box: Box, port: int) -> None:
    token, size = made_token(box), 17 << 20
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(
            f"POST /jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Length: {size}\r\n\r\n".encode()
        )
        for _ in range(size >> 20):
            try:
                sock.sendall(b" " * (1 << 20))
            except OSError:
                break
        assert sock.recv(12) == b"HTTP/1.1 413"


@pytest.mark.parametrize("where", ["port", "socket"])
def test_a_head_has_a_limit(box: Box, port: int, where: str) -> None:
    if where == "port":
        sock = socket.create_connection(("127.0.0.1", port), 20)
    else:
        connection = UnixConnection(box.socket)
        connection.connect()
        sock = connection.sock
    with sock:
        sock.sendall(b"GET /health HTTP/1.1\r\n")
        answer = b""
        for number in range(2000):
            try:
                sock.sendall(f"X-{number}: {'a' * 1000}\r\n".encode())
            except OSError:
                break
        try:
            answer = sock.recv(12)
        except ConnectionResetError:
            answer = b"HTTP/1.1 431"  # it hung up while we were still talking
        assert answer == b"HTTP/1.1 431"
    assert box.api("GET", "/health")[0] == 200


def test_a_port_that_is_taken_is_said(box: Box) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        done = box.run("gflowd", "run", env={"GFLOW_DAEMON__PORT": str(other.getsockname()[1])})
    assert done.returncode == 1
    assert "cannot be used: Address already in use" in done.stderr


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"HOST": "0.0.0.0"}, "is reachable from other machines"),
        ({"HOST": "gpu1.lab.example"}, "is reachable from other machines"),
        ({"TLS_CERT": "/x.pem"}, "go together"),
        ({"TLS_CERT": "/x.pem", "TLS_KEY": "/y.pem"}, "cannot be used: [Errno 2]"),
        ({"PORT": "70000"}, "at most 65535"),
    ],
)
def test_a_port_that_would_not_be_safe_is_refused(box: Box, settings: dict[str, str], says: str) -> None:
    env = {"GFLOW_DAEMON__PORT": "1", **{f"GFLOW_DAEMON__{name}": text for name, text in settings.items()}}
    done = box.run("gflowd", "run", env=env)
    assert done.returncode == 2
    assert says in done.stderr


def test_tls_connection_works(box: Box) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    cert, key = box.root / "cert.pem", box.root / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    port = free_port()
    names = {"PORT": str(port), "HOST": "0.0.0.0", "TLS_CERT": str(cert), "TLS_KEY": str(key)}
    box.up("--simulate-gpus", "1x80G", env={f"GFLOW_DAEMON__{name}": text for name, text in names.items()})
    caller = Caller(port, made_token(box), ssl.create_default_context(cafile=cert))
    assert caller.ask("GET", "/jobs")[0] == 200
    caller.token = ""
    assert caller.ask("GET", "/jobs")[0] == 401
    with socket.create_connection(("127.0.0.1", port), 20) as plain:
        plain.sendall(b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" not in plain.recv(100)


# ---------------------------------------------------------------- many people


@pytest.fixture(scope="module")
def machine() -> Iterator[tuple[System, int]]:
    number = free_port()
    with system(env={"GFLOW_DAEMON__PORT": str(number)}) as made:
        yield made.up(), number


def test_a_token_is_its_person_and_no_operator(machine: tuple[System, int]) -> None:
    system, port = machine
    people = {box: Caller(port, made_token(box)) for box in system.persons}
    body = {"token": "0" * 16, "jobs": [{"command": ["id", "-un"], "cwd": "/", "environ": ""}]}
    jobs = {}
    for box, caller in people.items():
        status, answer, _ = caller.ask("POST", "/jobs", body)
        assert status == 201
        jobs[box] = answer["jobs"][0]["id"]
        assert system.box.finished(jobs[box])["user"] == box.person.pw_name
        assert system.log_of(box, jobs[box]) == f"{box.person.pw_name}\n"
    opal = people[system.opal]
    assert opal.ask("POST", "/drain", {"on": True})[0] == 403
    held = system.ann.submit("--hold", "true")
    for box in (system.bob, system.opal):
        assert people[box].ask("POST", "/jobs/cancel", {"jobs": [str(held)]})[0] == 403
        assert people[box].ask("GET", f"/jobs/{held}/log")[0] == 403
    assert people[system.ann].ask("POST", "/jobs/cancel", {"jobs": [str(held)]})[0] == 200


def test_tokens_of_others_are_not_seen_and_not_revoked(machine: tuple[System, int]) -> None:
    system, _ = machine
    number = made_token(system.ann, "--name", "anns").split("_")[1]
    for box in (system.bob, system.opal):
        assert number not in box.ok("gctl", "token", "list")
        assert box.run("gctl", "token", "revoke", number).returncode == 1
    assert number in system.box.ok("gctl", "token", "list")
    done = system.box.run("gctl", "token", "create")
    assert (done.returncode, "would give access to the whole machine" in done.stderr) == (1, True)
    system.box.ok("gctl", "token", "revoke", number)
    assert number not in system.ann.ok("gctl", "token", "list")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_tls_key_that_others_can_read_is_refused(box: Box, mode: int) -> None:
    key = box.root / "key.pem"
    key.write_text("no key")
    key.chmod(mode)
    names = {"PORT": str(free_port()), "TLS_CERT": str(key), "TLS_KEY": str(key)}
    done = box.run("gflowd", "run", env={f"GFLOW_DAEMON__{name}": text for name, text in names.items()})
    assert done.returncode == 1
    assert f"daemon.tls_key {key} can be used by other users (mode {mode:04o})" in done.stderr
    assert f"chmod 600 {key}" in done.stderr


def test_tls_key_of_another_user_is_refused(box: Box) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give files away")
    key = box.root / "key.pem"
    key.write_text("no key")
    key.chmod(0o600)
    os.chown(key, 12345, -1)
    names = {"PORT": str(free_port()), "TLS_CERT": str(key), "TLS_KEY": str(key)}
    done = box.run("gflowd", "run", env={f"GFLOW_DAEMON__{name}": text for name, text in names.items()})
    assert (done.returncode, "belongs to another user" in done.stderr) == (1, True)


def test_job_by_token_has_limits_of_token_creator(
    machine: tuple[System, int],
) -> None:
    system, port = machine
    made = subprocess.run(
        [*system.bob.prefix, "bash", "-c", "ulimit -n 321; ulimit -f 54321; exec gctl token create"],
        env=system.bob.env, cwd=system.bob.work, capture_output=True, text=True,
    )  # fmt: skip
    caller = Caller(port, made.stdout.split("\n")[0])
    job = {"command": ["bash", "-c", "ulimit -Hn; ulimit -Sn; ulimit -Hf"], "cwd": "/", "environ": ""}
    status, answer, _ = caller.ask("POST", "/jobs", {"token": os.urandom(8).hex(), "jobs": [job]})
    assert status == 201, answer
    number = answer["jobs"][0]["id"]
    system.box.finished(number)
    assert system.log_of(system.bob, number).split() == ["321", "321", "54321"]
