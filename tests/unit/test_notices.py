"""Events and texts of notifications."""

import asyncio
from types import SimpleNamespace

import pytest

from gflow.core.ids import job_key
from gflow.core.model import AuditEntry, JobState
from gflow.daemon.notify.destinations import Mailbox, Webhook
from gflow.daemon.notify.messages import Notice, mail, payload
from gflow.daemon.notify.notifier import MailRules, Notifier, recipients, wants_mail
from gflow.testing.builders import job
from gflow.wire.events import NOTIFICATION_NAMES, notification_event

ASKED = (
    "job_submitted", "job_updated", "job_started", "job_completed", "job_failed", "job_cancelled",
    "job_timeout", "job_held", "job_released", "gpu_available", "reservation_created",
    "reservation_cancelled",    "scheduler_online",
)  # fmt: skip


def line(what, detail="", key=None):
    return AuditEntry(1000.0, key, None, "daemon", what, detail)


@pytest.mark.parametrize("name", ASKED)
def test_every_notified_entry_has_a_name(name):
    assert name in NOTIFICATION_NAMES


@pytest.mark.parametrize(
    ("what", "detail", "name"),
    [
        ("finished", "", "job_completed"),
        ("daemon started", "version 1", "scheduler_online"),
        ("gpu", "GPU 0: available", "gpu_available"),
        ("gpu", "GPU 0: Unmanaged: by ann", None),
        ("allowed_gpus", "all", None),
    ],
)
def test_notification_event_of_an_audit_entry(what, detail, name):
    assert notification_event(line(what, detail)) == name


def notice(event="job_failed", what="failed", **fields):
    one = job(1, state=JobState.FAILED, **fields)
    return Notice(7, event, line(what, key=job_key(1)), one, "lab1")


def test_a_payload_tells_the_state_at_the_event():
    told = payload(notice("job_started", "started"))
    assert told["job"]["state"] == "Running"
    assert told["id"] == "lab1-7"


def test_a_name_cannot_break_a_mails_head():
    broken = notice(name="a\nBcc: all@lab.example")
    message = mail(broken, "g@lab.example", "ann@lab.example", "[lab]")
    assert message["Bcc"] is None
    assert message["Subject"] == "[lab] Job failed: job #1 (a?Bcc: all@lab.example)"


def test_name_that_looks_like_an_encoded_word_is_not_decoded():
    """Neither here nor by the program that shows the mail."""
    odd = notice(name="hi =?utf-8?q?inj=0Aected?= x")
    message = mail(odd, "g@lab.example", "ann@lab.example", "[lab]")
    raw = message.as_bytes().partition(b"\r\n\r\n")[0]
    assert b"=?" not in raw and b"Aected" in raw
    assert "= ?utf-8?q?inj=0Aected?= x" in message["Subject"]


def test_mail_is_plain_ascii_whatever_a_name_has():
    message = mail(notice(name="größe"), "g@lab.example", "ann@lab.example", "[lab]")
    assert message.as_bytes().isascii()
    assert "größe" in message["Subject"] and "größe" in message.get_content()


def test_each_recipient_gets_a_message_id_that_stays_the_same():
    ids = [mail(notice(), "g@x.y", to, "")["Message-ID"] for to in ("ann@x.y", "bob@x.y", "ann@x.y")]
    assert ids[0] == ids[2] != ids[1]


def test_mail_rate_limits_jobs_not_administrators():
    notes = []
    loop = SimpleNamespace(add_audit_entry=lambda what, detail: notes.append((what, detail)))
    lab = Mailbox(smtp_url="smtp://x", sender="g@x.y", to=("lab@x.y",), is_for_jobs=True)
    notifier = Notifier(loop, None, (lab,), 1, MailRules(hourly=3))
    asked = notice(notify_emails=("ann@x.y", "bob@x.y"))
    found = [notifier.addresses(lab, asked) for _ in range(4)]
    assert found == [["lab@x.y", "ann@x.y", "bob@x.y"], ["lab@x.y", "ann@x.y"], ["lab@x.y"], ["lab@x.y"]]
    assert len(notes) == 1 and "3 mails" in notes[0][1]


def test_mail_to_domain_no_longer_allowed_is_not_sent():
    lab = Mailbox(smtp_url="smtp://x", sender="g@x.y", to=("lab@x.y",), is_for_jobs=True)
    notifier = Notifier(SimpleNamespace(), None, (lab,), 1, MailRules(domains=("lab.example",)))
    asked = notice(notify_emails=("ann@lab.example", "x@elsewhere.example"))
    assert notifier.addresses(lab, asked) == ["lab@x.y", "ann@lab.example"]


def test_recipients_of_a_mail():
    lab = Mailbox(
        smtp_url="smtp://x", sender="g@x.y", to=("lab@x.y",), events=("job_failed",), is_for_jobs=True
    )
    own = notice(notify_emails=("ann@x.y", "lab@x.y"))
    assert recipients(lab, own) == (("lab@x.y",), ("ann@x.y",))
    assert recipients(lab, own._replace(name="job_completed")) == ((), ("ann@x.y", "lab@x.y"))
    assert recipients(lab, own._replace(name="job_held")) == ((), ())


def test_webhook_filters_events_and_users():
    hook = Webhook(url="http://x/", events=("job_failed",), filter_users=("ann",))
    assert hook.wants("job_failed", "ann")
    assert not hook.wants("job_failed", "bob")
    assert not hook.wants("job_held", "ann")


def test_a_job_without_addresses_wants_no_mail():
    assert not wants_mail(job(1), "job_failed")
    assert not wants_mail(None, "job_failed")


def test_the_path_of_a_webhook_is_not_shown():
    """It is the password of many a one."""
    hook = Webhook(url="https://hooks.example.org/services/T0/sesame")
    assert "sesame" not in hook.description and "hooks.example.org" in hook.description


def test_failed_notification_does_not_block_the_next():
    async def main():
        told, notes = [], []

        class Odd(Notifier):
            async def _send(self, destination, notice, to):
                told.append(notice.number)
                if notice.number == 1:
                    raise IndexError("an address")

        loop = SimpleNamespace(add_audit_entry=lambda what, detail: notes.append((what, detail)))
        odd = Odd(loop, None, (), 1)
        for number in (1, 2):
            await odd._deliver(Webhook(url="http://x/"), notice()._replace(number=number))
        return told, notes

    told, notes = asyncio.run(main())
    assert told == [1, 2]
    assert [what for what, _ in notes] == ["notification failed"]


@pytest.mark.parametrize(
    ("what", "fields", "text"),
    [
        ("failed", {"state": JobState.FAILED, "exit_code": 3, "reason": "ExitCode:3", "started_at": 0.0,
                    "finished_at": 12.4}, "Job failed: job #1 (train) of ann, exit code 3, ran 12 s"),
        ("failed", {"state": JobState.FAILED, "reason": "Signal:9"},
         "Job failed: job #1 (train) of ann, Signal:9"),
        ("started", {"state": JobState.FAILED, "exit_code": 3}, "Job started: job #1 (train) of ann"),
        ("finished", {"state": JobState.FINISHED, "exit_code": 0},
         "Job completed: job #1 (train) of ann, exit code 0"),
        ("cancelled", {"state": JobState.CANCELLED, "exit_code": 0, "reason": "StoppedEarly: loss 3 > 2"},
         "Job cancelled: job #1 (train) of ann, StoppedEarly: loss 3 > 2"),
    ],
)  # fmt: skip
def test_text_has_user_exit_code_and_run_time(what, fields, text):
    entry = line(what, key=job_key(1))
    made = Notice(7, notification_event(entry), entry, job(1, name="train", **fields), "lab1")
    assert payload(made)["text"] == text


def group_end(**fields):
    entry = line(
        "group ended", "group g1: 195 finished, 5 timed out in 2 h, best loss 0.31 (job 7)", job_key(2)
    )
    made = job(2, state=JobState.FINISHED, group=1, name="lr0.1", name_template="lr{lr}", **fields)
    return Notice(7, notification_event(entry), entry, made, "lab1", is_in_group=True)


def test_notice_of_a_group_has_its_counts():
    told = payload(group_end())
    assert told["event"] == "group_end"
    assert told["text"] == (
        "Group g1 (lr{lr}) ended: 195 finished, 5 timed out in 2 h, best loss 0.31 (job 7)"
    )
    assert told["group"] == {"id": 1, "user": "ann", "jobs": 200, "finished": 195, "timed_out": 5}
    body = mail(group_end(), "g@x.y", "ann@x.y", "").get_content()
    assert "timed out: 5\n" in body and body.endswith("More: gjob show g1\n")


def test_first_failure_names_the_job_and_the_group():
    entry = line("group failure", "group g1: ExitCode:3", job_key(2))
    failed = job(2, state=JobState.FAILED, group=1, name="train", exit_code=3, reason="ExitCode:3")
    told = payload(Notice(7, notification_event(entry), entry, failed, "lab1"))
    assert told["text"] == "First failure of group g1: job #2 (train) of ann, exit code 3"


@pytest.mark.parametrize(
    ("notify_on", "in_group", "wanted"),
    [
        ((), False, {"job_completed", "job_failed", "job_timeout", "job_cancelled"}),
        ((), True, {"group_first_failure", "group_end"}),
        (("job_failed",), True, {"job_failed"}),
        (("job_failed", "group_end"), True, {"job_failed", "group_end"}),
        (("group_end",), True, {"group_end"}),
        (("group_end",), False, {"job_completed", "job_failed", "job_timeout", "job_cancelled", "group_end"}),
    ],
)
def test_mail_of_a_group_is_about_the_group_unless_events_are_named(notify_on, in_group, wanted):
    asked = job(1, notify_emails=("ann@x.y",), notify_on=notify_on)
    assert {name for name in NOTIFICATION_NAMES if wants_mail(asked, name, in_group)} == wanted


@pytest.mark.parametrize(
    ("number", "group", "neighbour", "is_in"),
    [
        (5, 0, 0, False),
        (5, -5, 0, True),
        (6, 5, 0, True),
        (5, 5, 5, True),
        (5, 5, 6, False),
        (5, 5, None, False),
    ],
)
def test_job_is_in_a_group_if_it_is_not_alone(number, group, neighbour, is_in):
    jobs = {} if neighbour is None else {job_key(6): job(6, group=neighbour)}
    loop = SimpleNamespace(state=SimpleNamespace(jobs=jobs))
    notifier = Notifier(loop, SimpleNamespace(job=lambda key: None), (), 1)
    assert notifier._is_in_group(job(number, group=group)) is is_in
