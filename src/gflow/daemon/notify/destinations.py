"""Destinations of notifications, from `[[notifications.webhooks]]` and `[[notifications.emails]]`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from gflow.config.load import Config
from gflow.core.model import Spec
from gflow.errors import UsageError
from gflow.wire.events import NOTIFICATION_NAMES

T = TypeVar("T", bound="Destination")
EVERYTHING = "*"


class Destination(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that webhooks and mailboxes have in common."""

    events: tuple[str, ...] = (EVERYTHING,)
    # Only about jobs of these users; () means all users.
    filter_users: tuple[str, ...] = ()
    timeout_secs: float = 10.0
    max_retries: int = 3

    @property
    def place(self) -> str:
        """A stable identity: it does not change when other settings of the destination change."""
        raise NotImplementedError

    @property
    def description(self) -> str:
        """A description for users, without secrets."""
        raise NotImplementedError

    def wants(self, name: str, user: str | None) -> bool:
        if EVERYTHING not in self.events and name not in self.events:
            return False
        return not self.filter_users or user in self.filter_users


class Webhook(Destination, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Notifications as JSON by POST."""

    url: str
    headers: dict[str, str] = {}
    # Key of the HMAC by which the receiver can verify the sender.
    secret: str = ""

    @property
    def place(self) -> str:
        return _digest("webhook", self.url)

    @property
    def description(self) -> str:
        parts = urlsplit(self.url)  # the path of many webhooks is a secret: the id tells two of them apart
        return f"webhook {parts.scheme}://{parts.hostname}/… (id {self.place[:6]})"


class Mailbox(Destination, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Notifications by mail: the server, the sender and the recipients."""

    smtp_url: str
    sender: str = msgspec.field(name="from")
    to: tuple[str, ...] = ()
    subject_prefix: str = "[gflow]"
    # Whether mail that jobs ask for (--notify-email) is sent through this server: true for the first mailbox.
    is_for_jobs: bool = False

    @property
    def place(self) -> str:
        return _digest("mail", self.smtp_url, *self.to)

    @property
    def description(self) -> str:
        parts = urlsplit(self.smtp_url)
        return (
            f"mail by {parts.scheme}://{parts.hostname} to {', '.join(self.to) or 'addresses given by jobs'}"
        )


def is_in_domain(address: str, domains: tuple[str, ...]) -> bool:
    """Whether an address is in one of these domains; True if there are no domains."""
    return not domains or address.rpartition("@")[2].lower() in {domain.lower() for domain in domains}


def mail_note(destinations: Iterable[Destination], specs: Iterable[Spec]) -> str:
    """A note about jobs that ask for mail which cannot be sent; empty if there are none."""
    asked = [spec for spec in specs if spec.notify_emails or spec.notify_on]
    if not asked:
        return ""
    if all(not spec.notify_emails for spec in asked):
        return "no mail will be sent: --notify-on (--mail-type) needs --notify-email"
    if any(isinstance(one, Mailbox) for one in destinations):
        return ""
    return "no mail will be sent: the daemon has no mail server (notifications.emails in gflow.toml)"


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def destinations_of(config: Config) -> tuple[Destination, ...]:
    """All configured destinations, checked; none if notifications are disabled."""
    webhooks = [_read(Webhook, "webhooks", table) for table in config["notifications.webhooks"]]
    mails = [_read(Mailbox, "emails", table) for table in config["notifications.emails"]]
    for webhook in webhooks:
        _check_url(webhook.url, "notifications.webhooks.url", ("http", "https"))
    for mail in mails:
        _check_url(mail.smtp_url, "notifications.emails.smtp_url", ("smtp", "smtps"))
    if mails:
        mails[0] = msgspec.structs.replace(mails[0], is_for_jobs=True)
    return (*webhooks, *mails) if config["notifications.enabled"] else ()


def _read(kind: type[T], name: str, table: Any) -> T:
    try:
        found = msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"notifications.{name}: {error}", hint="see docs/notifications.md") from None
    for event in found.events:
        if event != EVERYTHING and event not in NOTIFICATION_NAMES:
            raise UsageError(
                f"notifications.{name}: there is no event {event!a:.60}",
                hint="events: " + ", ".join(NOTIFICATION_NAMES),
            )
    if not 0 < found.timeout_secs <= 300 or not 0 <= found.max_retries <= 100:
        raise UsageError(f"notifications.{name}: timeout_secs is 1 to 300, max_retries 0 to 100")
    return found


def _check_url(url: str, where: str, schemes: tuple[str, ...]) -> None:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in schemes and bool(parts.hostname) and url.isprintable() and " " not in url
        _ = parts.port
    except ValueError:
        is_valid = False
    if not is_valid:
        raise UsageError(f"{where} takes a URL such as {schemes[0]}://host/, not {url!a:.60}")
