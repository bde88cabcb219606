"""The error classes of gflow. A class has the code, HTTP status and exit code of its errors.

The docstring of a class is its default message. Command line, API, library and MCP server map `exit_code`
and `http_status`; they never reword a message. A hint of the engine is data (`Hint`), which
`wire.shell_words` renders for the command line.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing costs 15 ms to import, and every command loads this module
if TYPE_CHECKING:
    from collections.abc import Iterable

# Unprintable characters that are allowed in pages.
LAYOUT = {ord("\n"): None, ord("\t"): None}
# Terminals with fewer columns do not know their size, or are too narrow to fold lines for.
NARROWEST = 20


class Hint:
    """A hint as data: a text that names fields, and a key and values for which a face has its own words."""

    def __init__(self, key: str, text: str, **values: str) -> None:
        self.key = key
        self.text = text
        self.values = values


class GflowError(Exception):
    """Something went wrong inside gflow."""

    code = "internal"
    http_status = 500
    exit_code = 1

    def __init__(self, message: str | None = None, *, hint: str | Hint = "") -> None:
        # Messages may quote untrusted input, and are printed to terminals.
        self.message = clean(message or (type(self).__doc__ or "").strip())
        # The hint as data, from which a face renders its own words; None: there is only the text.
        self.advice = hint if isinstance(hint, Hint) else None
        self.hint = hint.text if isinstance(hint, Hint) else hint
        super().__init__(self.message)
        if self.hint:  # for tracebacks; the command line prints message and hint itself
            self.add_note(f"hint: {self.hint}")


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
    """Too many requests at once."""

    code = "too_many"
    http_status = 429
    exit_code = 1


class WrongType(UsageError):
    """The content type of the request is not supported."""

    code = "wrong_type"
    http_status = 415


class NoSuchRoute(UsageError):
    """There is nothing at this address."""

    code = "no_such_route"
    http_status = 404


class WrongMethod(UsageError):
    """This address does not support this method."""

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


def no_job(label: str, purpose: str = "") -> NotFound:
    """The error for a job that does not exist, and for one that the caller may not see."""
    array, _, task = label.partition("_")
    hint = Hint("list_jobs", "list the jobs, with those that have ended")
    if task:
        hint = Hint("show_array", f"see the tasks of array {array}", array=array)
    return NotFound(f"there is no job {label}{purpose}", hint=hint)


def no_gpu(index: int) -> Refused:
    """The error for a GPU that this machine does not have."""
    return Refused(f"there is no GPU {index} here", hint=Hint("list_gpus", "see which GPUs there are"))


class Unauthorized(GflowError):
    """The gflow daemon requires a valid token, or a session of the web page."""

    code = "unauthorized"
    http_status = 401


class LinkNotValid(GflowError):
    """This link to the web page was used before, is too old, or is not complete."""

    code = "link_not_valid"
    http_status = 401


class Forbidden(GflowError):
    """This belongs to another user."""

    code = "forbidden"
    http_status = 403


class Unreachable(GflowError):
    """The gflow daemon is not running."""

    code = "unreachable"
    http_status = 503
    exit_code = 3


class ReadOnly(GflowError):
    """The daemon cannot write its database and accepts no changes until it can."""

    code = "read_only"
    http_status = 503


class StoreError(GflowError):
    """The database cannot be used."""

    code = "store"


class TransitionError(GflowError):
    """The engine was asked for a transition that the state table does not allow."""

    code = "transition"


def clean(text: str) -> str:
    """`text` with every unprintable character replaced by an escape sequence."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def clean_page(text: str) -> str:
    """As `clean`, but newlines and tabs are kept."""
    if text.translate(LAYOUT).isprintable():
        return text
    return "".join(c if c in "\n\t" else clean(c) for c in text)


def fold(text: str, columns: int) -> str:
    """`text` for a terminal: long lines continue after a comma or sentence, so that commands stay whole."""
    return "".join(_fold_line(line, columns) for line in text.splitlines(keepends=True))


def _fold_line(line: str, columns: int) -> str:
    if columns < NARROWEST or len(line.rstrip("\n")) <= columns:
        return line
    for at in range(columns, 0, -1):
        if line[at] == " " and (line[at - 1] in ",;." or line[at + 1] == "("):
            return line[:at] + "\n" + _fold_line(line[at + 1 :], columns)
    return line


def clean_json(content: bytes) -> bytes:
    """Equivalent JSON in which every unprintable character is escaped: \\u202e."""
    if content.isascii() and b"\x7f" not in content:
        return content
    text = content.decode()
    # Test each distinct character once: a listing has up to a million characters, but few distinct ones.
    table = {
        ord(char): _json_escape(char) for char in set(text) if not char.isprintable() and char not in "\n\t\r"
    }
    return text.translate(table).encode() if table else content


def _json_escape(char: str) -> str:
    """JSON escape: UTF-16 code units of four hexadecimal digits."""
    digits = char.encode("utf-16-be").hex()
    return "".join("\\u" + digits[at : at + 4] for at in range(0, len(digits), 4))


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known name nearest to `name`; empty: none is as similar as `cutoff` (0 to 1)."""
    import difflib

    folded = {text.lower(): text for text in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else ""


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Hint for an unknown name: the nearest known one, else `otherwise`."""
    close = nearest(name, known)
    return f"did you mean {close}?" if close else otherwise


def unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is not in `known`. The hint has the nearest name, else all of them."""
    names = list(known)
    shown = ascii(name if len(name) <= 60 else name[:57] + "...")
    return UsageError(
        f"unknown {what} {shown}", hint=did_you_mean(name, names, f"choose from: {', '.join(names)}")
    )
