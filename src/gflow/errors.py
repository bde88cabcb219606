"""The one error base. A class carries all that a shell needs to report it.

The docstring of a class is its default message. Shells map `exit_code` and
`http_status`; they never re-word a message.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing costs 15 ms to import, and this is loaded by commands in a hurry
if TYPE_CHECKING:
    from collections.abc import Iterable

# What a page may hold besides what is printable.
LAYOUT = {ord("\n"): None, ord("\t"): None}


class GflowError(Exception):
    """Something went wrong inside gflow."""

    code = "internal"
    http_status = 500
    exit_code = 1

    def __init__(self, message: str | None = None, *, hint: str = "") -> None:
        # It may quote what somebody sent, and goes to terminals.
        self.message = clean(message or (type(self).__doc__ or "").strip())
        self.hint = hint
        super().__init__(self.message)


class UsageError(GflowError):
    """The request cannot be understood."""

    code = "usage"
    http_status = 400
    exit_code = 2


class TooLarge(UsageError):
    """The request is too large."""

    code = "too_large"
    http_status = 413


class TooMany(UsageError):
    """You ask for too much at once."""

    code = "too_many"
    http_status = 429
    exit_code = 1


class WrongType(UsageError):
    """The request is not of the right type."""

    code = "wrong_type"
    http_status = 415


class NoSuchRoute(UsageError):
    """There is nothing at this address."""

    code = "no_such_route"
    http_status = 404


class WrongMethod(UsageError):
    """This address does not take this method."""

    code = "wrong_method"
    http_status = 405


class Refused(GflowError):
    """The request is understood and refused."""

    code = "refused"
    http_status = 409


class NotFound(GflowError):
    """No such job."""

    code = "not_found"
    http_status = 404


def no_job(label: str) -> NotFound:
    """What is answered about a job that is not there, and about one that the caller is not to know of."""
    return NotFound(f"there is no job {label}")


class Unauthorized(GflowError):
    """This gflow daemon does not know you: send a token that is still good."""

    code = "unauthorized"
    http_status = 401


class Forbidden(GflowError):
    """This belongs to somebody else."""

    code = "forbidden"
    http_status = 403


class Unreachable(GflowError):
    """The gflow daemon is not running."""

    code = "unreachable"
    http_status = 503
    exit_code = 3


class ReadOnly(GflowError):
    """The daemon cannot write its database, so it takes no changes until it can."""

    code = "read_only"
    http_status = 503


class StoreError(GflowError):
    """The database cannot be used."""

    code = "store"


class TransitionError(GflowError):
    """The engine was asked for a change that the state table does not know."""

    code = "transition"


def clean(text: str) -> str:
    """`text` with everything that is not printable written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def clean_page(text: str) -> str:
    """The same for a page: its lines and tabs stay."""
    if text.translate(LAYOUT).isprintable():
        return text
    return "".join(c if c in "\n\t" else clean(c) for c in text)


def clean_json(content: bytes) -> bytes:
    """JSON of the same value in which every character that is not printable is an escape: \\u202e."""
    if content.isascii() and b"\x7f" not in content:
        return content
    text = content.decode()
    # Looked for once each: a listing may have a million characters, but only some hundred different ones.
    table = {
        ord(char): _json_escape(char) for char in set(text) if not char.isprintable() and char not in "\n\t\r"
    }
    return text.translate(table).encode() if table else content


def _json_escape(char: str) -> str:
    """As JSON has it: UTF-16, four digits each."""
    digits = char.encode("utf-16-be").hex()
    return "".join("\\u" + digits[at : at + 4] for at in range(0, len(digits), 4))


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, or nothing."""
    import difflib

    folded = {text.lower(): text for text in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1)
    return folded[close[0]] if close else ""


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint for a name that is not known."""
    close = nearest(name, known)
    return f"did you mean {close}?" if close else otherwise


def unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is none of `known`: the nearest in its hint, or all of them."""
    names = list(known)
    shown = ascii(name if len(name) <= 60 else name[:57] + "...")
    return UsageError(
        f"unknown {what} {shown}", hint=did_you_mean(name, names, f"there are: {', '.join(names)}")
    )
