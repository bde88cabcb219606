"""Sends one notification. Blocks for as long as the receiver takes, so it runs in a thread."""

from __future__ import annotations

import hashlib
import hmac
import json
import smtplib
import ssl
import urllib.error
import urllib.request
from email.message import EmailMessage
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urlsplit

from gflow import __version__
from gflow.daemon.notify.destinations import Mailbox, Webhook

# HTTP errors after which a retry may succeed.
RETRYABLE = frozenset({408, 425, 429})
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class NotSent(Exception):
    """The delivery failed. `for_good`: a retry is useless."""

    def __init__(self, why: str, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they would send headers, which may contain secrets, to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(webhook: Webhook, data: dict[str, Any]) -> None:
    """Send one POST; any answer but success is an error."""
    body = json.dumps(data).encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"gflow/{__version__}/webhooks",
        "X-Gflow-Event": data["event"],
        "X-Gflow-Delivery": data["id"],
        **webhook.headers,
    }
    if webhook.secret:
        digest = hmac.new(webhook.secret.encode(), body, hashlib.sha256).hexdigest()
        headers["X-Gflow-Signature"] = f"sha256={digest}"
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        request = urllib.request.Request(webhook.url, body, headers, method="POST")
        opener.open(request, timeout=webhook.timeout_secs).close()
    except urllib.error.HTTPError as error:
        for_good = error.code < 500 and error.code not in RETRYABLE
        raise NotSent(f"HTTP {error.code} {error.reason}", for_good=for_good) from None
    except (OSError, ValueError, HTTPException) as error:  # URLError is an OSError
        raise NotSent(str(getattr(error, "reason", error))) from None


def send(mailbox: Mailbox, message: EmailMessage) -> None:
    """Send one mail. Passwords are sent only encrypted, or to this machine."""
    parts = urlsplit(mailbox.smtp_url)
    host, user = parts.hostname or "", unquote(parts.username or "")
    try:
        with _connect(parts.scheme, host, parts.port or 0, mailbox.timeout_secs) as server:
            if user:
                if not isinstance(server.sock, ssl.SSLSocket) and host not in LOCAL:
                    raise NotSent(f"{host} offers no encryption, and a password is set", for_good=True)
                server.login(user, unquote(parts.password or ""))
            server.send_message(message)
    except smtplib.SMTPNotSupportedError as error:  # for example an address with é, without SMTPUTF8
        raise NotSent(str(error), for_good=True) from None
    except smtplib.SMTPResponseException as error:
        raise NotSent(f"SMTP {error.smtp_code}", for_good=error.smtp_code >= 500) from None
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        raise NotSent(f"the server takes no mail for {', '.join(error.recipients)}",
                      for_good=min(codes) >= 500) from None  # fmt: skip
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise NotSent(str(error) or type(error).__name__) from None


def _connect(scheme: str, host: str, port: int, timeout: float) -> smtplib.SMTP:
    context = ssl.create_default_context()
    if scheme == "smtps":
        return smtplib.SMTP_SSL(host, port or 465, timeout=timeout, context=context)
    server = smtplib.SMTP(host, port or 25, timeout=timeout)
    server.ehlo()
    if server.has_extn("starttls"):
        server.starttls(context=context)
    return server
