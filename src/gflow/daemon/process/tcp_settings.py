"""Settings of the TCP port that the daemon serves besides its Unix socket."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from functools import lru_cache

import msgspec

from gflow.config.load import Config
from gflow.errors import Refused, UsageError

MOST_PORT = 65_535
ANYWHERE = {"0.0.0.0", "::", ""}
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ListenSettings(msgspec.Struct, kw_only=True, frozen=True):
    """A TCP port to listen on; `port` 0: none."""

    port: int = 0
    host: str = LOOPBACK[0]
    certificate: str = ""
    key: str = ""
    # Further host names under which clients reach it.
    names: tuple[str, ...] = ()

    @property
    def hosts(self) -> frozenset[str]:
        """The accepted values of the Host header, against DNS rebinding: a web site that resolves its name
        to this machine sends another value."""
        known = {*LOOPBACK, *self.names, socket.gethostname(), socket.getfqdn()}
        return frozenset(name.lower() for name in known | ({self.host} - ANYWHERE))

    def tls(self) -> ssl.SSLContext | None:
        """The context with the certificate, loaded once: later this process may not be able to read it."""
        return _load_tls(self.certificate, self.key) if self.certificate else None


@lru_cache(maxsize=1)
def _load_tls(certificate: str, key: str) -> ssl.SSLContext:
    _check_key(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"daemon.tls_cert {certificate} and daemon.tls_key {key} cannot be used: {error}"
        ) from None
    return context


def _check_key(path: str) -> None:
    """Refuse a private key that other users can read: they could impersonate this daemon."""
    try:
        found = os.stat(path)
    except OSError:
        return  # loading it reports the error
    if found.st_uid not in (0, os.getuid()):
        raise Refused(f"daemon.tls_key {path} belongs to another user", hint=f"chown {os.getuid()} {path}")
    if found.st_mode & 0o077:
        raise Refused(
            f"daemon.tls_key {path} can be used by other users (mode {found.st_mode & 0o777:04o})",
            hint=f"chmod 600 {path}",
        )


def listen_settings_of(config: Config) -> ListenSettings:
    """The configured port; refused if it would not be safe."""
    found = ListenSettings(
        port=config["daemon.port"],
        host=config["daemon.host"],
        certificate=config["daemon.tls_cert"],
        key=config["daemon.tls_key"],
        names=config["daemon.allowed_hosts"],
    )
    if found.port > MOST_PORT:
        raise UsageError(f"daemon.port must be at most {MOST_PORT}, not {found.port}")
    if bool(found.certificate) != bool(found.key):
        raise UsageError("daemon.tls_cert and daemon.tls_key go together")
    if found.port and not found.certificate and not _is_loopback(found.host):
        raise UsageError(
            f"daemon.host {found.host!a} is reachable from other machines, and tokens would be unencrypted",
            hint="set daemon.tls_cert and daemon.tls_key, or stay on 127.0.0.1 behind a proxy that has TLS",
        )
    return found


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
