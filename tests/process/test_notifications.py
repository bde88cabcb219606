"""Webhooks and mail, against real servers: with TLS, flaky, and with a daemon that dies in between."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

from tests.harness import Box, wait_until


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder / "cert.pem", folder / "key.pem"


def context_of(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


class Receiver:
    """An HTTPS server that keeps what it gets, after failing as often as it is told to."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.answers.pop(0) if receiver.answers else 200
                if status == 200:
                    receiver.got.append((dict(self.headers), body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("localhost", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def events(self) -> list[tuple[str, Any]]:
        told = [json.loads(body) for _, body in self.got]
        return [(one["event"], one.get("job", {}).get("id")) for one in told]


@pytest.fixture
def receiver(certificate: tuple[Path, Path]) -> Iterator[Receiver]:
    made = Receiver(context_of(certificate))
    yield made
    made.close()


class Postbox:
    """Takes mail from `gflow` with its password, only encrypted."""

    def __init__(self) -> None:
        self.mails: list[tuple[list[str], Message]] = []
        self.answers: list[str] = []
        self.refuses = ""

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address == self.refuses:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 fine"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        answer = self.answers.pop(0) if self.answers else "250 fine"
        if answer.startswith("250"):
            self.mails.append((envelope.rcpt_tos, message_from_bytes(envelope.content)))
        return answer


class AnyPort(Controller):
    """aiosmtpd's first connection goes to the port it was given, which here is 0."""

    def _trigger_server(self) -> None:
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@pytest.fixture
def postbox(certificate: tuple[Path, Path]) -> Iterator[tuple[Postbox, str]]:
    box = Postbox()

    def login(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        return AuthResult(success=(data.login, data.password) == (b"gflow", b"p@ss"), handled=False)

    controller = AnyPort(
        box, hostname="localhost", port=0, tls_context=context_of(certificate), require_starttls=True,
        authenticator=login, auth_required=True, enable_SMTPUTF8=False,
    )  # fmt: skip
    controller.start()
    yield box, f"smtp://gflow:p%40ss@localhost:{controller.port}"
    controller.stop()


def configured(box: Box, certificate: tuple[Path, Path], text: str) -> Box:
    configure(box, text)
    box.env["SSL_CERT_FILE"] = str(certificate[0])
    return box.up("--simulate-gpus", "2x80G", "--cpus", "4")


def configure(box: Box, text: str) -> None:
    folder = box.home / ".config/gflow"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gflow.toml").write_text("[notifications]\nenabled = true\n" + text)


def table(kind: str, **rows: Any) -> str:
    lines = [f"{key.rstrip('_')} = {json.dumps(value)}".replace("{", "{ ") for key, value in rows.items()]
    return f"[[notifications.{kind}]]\n" + "\n".join(lines).replace('": "', '" = "') + "\n"


def test_webhook_receives_job_events(box: Box, certificate: Any, receiver: Receiver) -> None:
    hook = table("webhooks", url=receiver.url, secret="sesame", headers={"X-Lab": "vision"})
    configured(box, certificate, hook)
    job = box.submit("--gpus", "1", "--name", "train", "bash", "-c", "echo hidden; exit 3")
    wait_until(lambda: ("job_failed", job) in receiver.events, what="the last event")
    assert set(receiver.events) >= {("job_submitted", job), ("job_started", job)}
    headers, body = next(got for got in receiver.got if json.loads(got[1])["event"] == "job_failed")
    told = json.loads(body)
    assert told["job"]["state"] == "Failed"
    assert told["job"]["exit_code"] == 3
    assert told["job"]["gpus"] == [0]
    user = told["job"]["user"]
    assert told["text"].startswith(f"Job failed: job #{job} (train) of {user}, exit code 3, ran ")
    assert headers["X-Lab"] == "vision"
    assert headers["X-Gflow-Delivery"] == told["id"]
    digest = hmac.new(b"sesame", body, hashlib.sha256).hexdigest()
    assert headers["X-Gflow-Signature"] == f"sha256={digest}"
    assert b"hidden" not in b"".join(body for _, body in receiver.got)


def test_a_flaky_receiver_is_asked_again_and_a_refusal_is_not(
    box: Box, certificate: Any, receiver: Receiver
) -> None:
    configured(box, certificate, table("webhooks", url=receiver.url, events=["job_completed"]))
    receiver.answers = [503]
    first = box.submit("true")
    wait_until(lambda: ("job_completed", first) in receiver.events, what="the second try")
    receiver.answers = [400]
    refused = box.submit("true")
    wait_until(lambda: not receiver.answers, what="the refusal")
    last = box.submit("true")
    wait_until(lambda: ("job_completed", last) in receiver.events, what="the next event")
    assert ("job_completed", refused) not in receiver.events
    assert "HTTP 400" in box.ok("gflow", "events", "--past", "--on", "notification_failed")


def test_invalid_webhook_answer_is_retried(box: Box, certificate: Any, receiver: Receiver) -> None:
    """Whatever one of them says, the others are told, and later it is again."""
    with socket.create_server(("localhost", 0)) as mute:
        answers = iter([b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
        heard = []

        def answer() -> None:
            for text in answers:
                caller, _ = mute.accept()
                heard.append(caller.recv(65536))
                caller.sendall(text)
                caller.close()

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://localhost:{mute.getsockname()[1]}/"
        configured(box, certificate, table("webhooks", url=url, events=["job_completed"]))
        box.submit("true")
        wait_until(lambda: len(heard) == 2, what="the second try")


def test_undelivered_notifications_are_sent_after_a_kill(
    box: Box, certificate: Any, receiver: Receiver
) -> None:
    configured(box, certificate, table("webhooks", url=receiver.url, events=["job_completed"]))
    receiver.answers = [503] * 1000
    jobs = [box.submit("true") for _ in range(3)]
    for job in jobs:
        box.finished(job)
    wait_until(lambda: len(receiver.answers) < 1000, what="a try that fails")
    box.kill9()
    assert receiver.events == []
    receiver.answers = []
    box.up()
    wait_until(lambda: {job for _, job in receiver.events} == set(jobs), what="all three")
    assert len({json.loads(body)["id"] for _, body in receiver.got}) == 3


def test_new_destination_gets_no_past_events(box: Box, certificate: Any, receiver: Receiver) -> None:
    box.up("--simulate-gpus", "1x80G")
    box.finished(box.submit("true"))
    box.down()
    configured(box, certificate, table("webhooks", url=receiver.url, events=["job_completed"]))
    job = box.submit("true")
    wait_until(lambda: receiver.events, what="the first event")
    assert receiver.events == [("job_completed", job)]


def mailbox(url: str, **more: Any) -> str:
    return table("emails", smtp_url=url, from_="gflow@lab.example", to=["lab@lab.example"], **more)


def test_mail_to_the_lab_and_to_whom_the_job_names(
    box: Box, certificate: Any, postbox: tuple[Postbox, str]
) -> None:
    server, url = postbox
    configured(box, certificate, mailbox(url, events=["job_failed"], subject_prefix="[lab]"))
    server.answers = ["451 later"]
    job = box.submit("--name", "train", "--notify-email", "ann@lab.example", "true")
    wait_until(lambda: len(server.mails) == 1, what="the mail to Ann")
    to, mail = server.mails[0]
    assert to == ["ann@lab.example"]
    assert mail["Subject"] == f"[lab] Job completed: job #{job} (train)"
    assert f"gjob show {job}" in mail.get_payload()
    box.submit("--notify-email", "ann@lab.example", "--notify-on", "job_failed", "false")
    wait_until(lambda: len(server.mails) == 3, what="the mails to both")
    assert sorted(to for to, _ in server.mails[1:]) == [["ann@lab.example"], ["lab@lab.example"]]
    for to, mail in server.mails:
        assert mail["To"] == to[0], "one is not told of the other"


def test_a_sweep_sends_mail_about_its_first_failure_and_its_end(
    box: Box, certificate: Any, postbox: tuple[Postbox, str]
) -> None:
    """One of each, though the daemon is killed before the last job ends; each job only if it is asked for.

    A mail may be delivered again after the kill, with the same id.
    """
    server, url = postbox
    configured(box, certificate, mailbox(url, events=[]))
    to_ann = ("--notify-email", "ann@lab.example", "--cpus", "0")
    hold = box.work / "go"
    wait = f"test {{code}} = 0 && while ! test -e {hold}; do sleep 0.05; done; exit {{code}}"
    box.ok("gbatch", *to_ann, "--name", "code{code}", "--param", "code=0,3,4", "bash", "-c", wait)
    wait_until(lambda: server.mails, what="the first failure")
    wait_until(lambda: sum(job["state"] == "Failed" for job in box.jobs().values()) == 2, what="both")
    box.kill9()
    box.up()
    hold.touch()
    box.finished(1)
    array = box.submit(*to_ann, "--array", "1-3", "--name", "tasks", "true")
    each = box.submit(*to_ann, "--array", "1-2", "--notify-on", "job_completed", "true")
    wait_until(lambda: len({mail["Message-ID"] for _, mail in server.mails}) == 6, what="all mails")
    mails = list({mail["Message-ID"]: mail for _, mail in server.mails}.values())
    subjects = [mail["Subject"] for mail in mails]
    assert subjects[0].startswith("[gflow] First failure of group g1: job #")
    assert subjects[1].startswith("[gflow] Group g1 (code{code}) ended: 1 finished, 2 failed in ")
    assert sorted(subjects[2:])[0].startswith(f"[gflow] Array {array} (tasks) ended: 3 finished in ")
    assert sorted(subject.split("#")[-1].split()[0] for subject in sorted(subjects[2:])[1:]) == [
        str(each), f"{each}_1", f"{each}_2",
    ]  # fmt: skip
    assert "failed: 2\n" in mails[1].get_payload().replace("\r", "")


def test_unreachable_address_does_not_delay_other_mail(
    box: Box, certificate: Any, postbox: tuple[Postbox, str]
) -> None:
    """The server knows no SMTPUTF8, and refuses one of the recipients."""
    server, url = postbox
    configured(box, certificate, mailbox(url, events=["job_completed"]))
    server.refuses = "gone@lab.example"
    box.submit("--notify-email", "é@lab.example", "--notify-email", "gone@lab.example", "true")
    wait_until(lambda: [to for to, _ in server.mails] == [["lab@lab.example"]], what="the mail to the lab")


def test_mail_to_other_domains_is_refused_where_some_are_allowed(box: Box, certificate: Any) -> None:
    configured(box, certificate, 'allowed_domains = ["lab.example"]\n')
    box.submit("--hold", "--notify-email", "ann@LAB.example", "true")
    done = box.run("gbatch", "--hold", "--notify-email", "ann@lab.example,x@elsewhere.example", "true")
    assert (done.returncode, "elsewhere.example" in done.stderr) == (1, True)
    assert box.run("gjob", "update", "@", "--notify-email", "x@elsewhere.example").returncode == 1


def test_a_test_tells_what_works_and_shows_no_secret(
    box: Box, certificate: Any, receiver: Receiver, postbox: tuple[Postbox, str]
) -> None:
    _, url = postbox
    hook = table("webhooks", url=receiver.url, secret="sesame")
    configured(box, certificate, hook + mailbox(url.replace("p%40ss", "wrong")))
    first, second = box.ok("gctl", "notify", "test").splitlines()
    assert first.startswith("webhook https://localhost/…") and first.endswith(": sent")
    assert "SMTP 535" in second
    shown = box.ok("gflowd", "config", "--json") + box.ok("gflowd", "status", "--json") + first + second
    assert "sesame" not in shown
    assert "wrong" not in shown


def test_notification_test_without_destinations_says_so(box: Box) -> None:
    box.up("--simulate-gpus", "1x80G")
    done = box.run("gctl", "notify", "test")
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, "gctl: no notifications are configured")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (table("webhooks", url="ftp://x/"), "takes a URL such as http://host/"),
        (table("webhooks", url="http://x/", event=["*"]), "contains unknown field `event`"),
        (table("webhooks", url="http://x/", events=["job_done"]), "there is no event"),
        (table("emails", smtp_url="smtp://x"), "missing required field `from`"),
        ("webhooks = 3\n", "takes tables in a file"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(box: Box, text: str, sentence: str) -> None:
    configure(box, text)
    done = box.run("gflowd", "run")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "note"),
    [
        (("--notify-email", "a@b.org"), "the daemon has no mail server (notifications.emails in gflow.toml)"),
        (("--mail-user", "a@b.org", "--mail-type", "END"), "the daemon has no mail server"),
        (("--notify-on", "job_failed"), "--notify-on (--mail-type) needs --notify-email"),
    ],
)
def test_mail_that_cannot_be_sent_is_noted_at_submission(
    daemon: Box, options: tuple[str, ...], note: str
) -> None:
    done = daemon.run("gbatch", *options, "true")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 1\n")
    assert done.stderr.startswith("gbatch: no mail will be sent: ") and done.stderr.count("\n") == 1
    assert note in done.stderr
    assert note in daemon.run("grun", *options, "true").stderr
    assert note in daemon.ok("gbatch", "--dry-run", *options, "true")
    assert daemon.run("gbatch", "true").stderr == ""
