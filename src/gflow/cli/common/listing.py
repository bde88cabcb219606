"""Options that commands share: --since, and --user with --me."""

from __future__ import annotations

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any


def since_of(text: str) -> str:
    """The value of --since as a Unix time. Parsed by the client, in the user's time zone."""
    from gflow.config import timezone
    from gflow.options.times import parse_since

    timezone.use_configured()
    return str(int(parse_since(text)))


def add_me(values: dict[str, Any]) -> None:
    """Replace --me by --user with the caller's name."""
    if values.pop("me", False):
        import posix
        import pwd

        uid = posix.geteuid()
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:  # a uid without an account; the daemon calls it by its number
            name = str(uid)
        values["user"] = f"{values['user']},{name}" if "user" in values else name
