"""The hot path of the command line, in a few milliseconds of Python: the daemon reads the words and renders
the text; this sends the words and prints the bytes. `client.c` does the same in one millisecond.

Imports only builtin C modules: no os, json, socket or re. `gflow.entry` hands what the daemon does not serve
to `gflow.cli`.
"""

from __future__ import annotations

import posix
import sys
from _json import encode_basestring_ascii as quote
from _socket import AF_UNIX, SOCK_STREAM, socket
from binascii import b2a_base64

from gflow import paths

TYPE_CHECKING = False  # typing costs 15 ms to import, and this runs inside every gbatch
if TYPE_CHECKING:
    from typing import Any, NoReturn

RECEIVE = 1 << 16
OCTETS = "application/octet-stream"
CUT_OFF = "the daemon closed the connection in the middle of its answer"


def leave(code: int) -> NoReturn:
    """Exit without cleaning up: nothing is left to clean up, and finding that out takes a millisecond."""
    try:
        sys.stdout.flush()
    except OSError:
        code = code or 1
    posix._exit(code)


# ---------------------------------------------------------------- commands that the daemon reads

# As in client.c.
IN_DAEMON = ("gbatch", "gqueue", "ginfo", "gjob", "gcancel")
# Most words of which the daemon gets to know what they name.
LOOKED_UP = 16


def run_in_daemon(program: str, words: list[str], lost: str) -> int | None:
    """Let the daemon run a command line, print the answer, return the exit code. None: it is for `gflow.cli`.

    `lost`: the token of a request of the native client whose answer was lost; empty: there was none.
    """
    if program not in IN_DAEMON or lost == "-":
        return None
    call = describe_call(program, words, lost or posix.urandom(16).hex())
    try:
        if lost:
            raise ConnectionResetError
        status, headers, content = request("POST", "/command", call, media=OCTETS)
    except Exception as error:
        if not isinstance(error, ConnectionError) or isinstance(error, ConnectionRefusedError):
            return None  # there is no daemon
        if program != "gbatch":
            raise
        from gflow.client.retry import retry

        status, headers, content = retry(lambda: request("POST", "/command", call, media=OCTETS), error)
    if status != 200:
        return None
    errors = int(headers.partition(b"\r\nx-gflow-stderr: ")[2].partition(b"\r\n")[0])
    write(2, content[:errors])
    write(1, content[errors:])
    return exit_code(headers, 0)


def describe_call(program: str, words: list[str], token: str) -> bytes:
    """A command line and what its meaning depends on: the fields of `daemon.api.command_lines`."""
    is_plain = getenv("NO_COLOR") or getenv("TERM") == "dumb"
    facts = "".join(map(look_up, words[:LOOKED_UP])) if program == "gbatch" else ""
    fields = (
        program, token, working_folder(), str(umask()), columns(1), columns(2), "0" if is_plain else "1",
        facts, str(len(words)), *words, "",
    )  # fmt: skip
    call = "\0".join(fields).encode(errors="surrogateescape")
    return call + environment() if program == "gbatch" else call


def look_up(word: str) -> str:
    """What a word names: 1 a file, 2 a program on the PATH, 4 an ELF executable."""
    if word.startswith("-"):
        return "0"
    return str(is_file(word) + (4 * is_binary(word) if "/" in word else 2 * is_on_path(word)))


def columns(fd: int) -> str:
    return str(posix.get_terminal_size(fd).columns) if posix.isatty(fd) else "-1"


def is_on_path(word: str) -> bool:
    return any(can_execute(folder + "/" + word) for folder in (getenv("PATH") or "").split(":"))


def is_binary(path: str) -> bool:
    """Whether `path` is an ELF executable."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    except (OSError, ValueError):
        return False
    try:
        return posix.read(fd, 4) == b"\x7fELF"
    except OSError:  # a folder
        return False
    finally:
        posix.close(fd)


def submission(token: str, job: str) -> bytes:
    return f'{{"token":"{token}","jobs":[{job}]}}'.encode()


def deliver(body: bytes, path: str, accept: str = "text/plain") -> tuple[int, bytes, bytes]:
    """POST a submission; if the answer is lost, retry with the same token."""
    try:
        return request("POST", path, body, accept)
    except ConnectionError as error:
        from gflow.client.retry import retry

        return retry(lambda: request("POST", path, body, accept), error)


def working_folder() -> str:
    """$PWD if it names the current folder (it keeps links), else getcwd()."""
    shown = getenv("PWD") or ""
    try:
        if shown.startswith("/"):
            mine, here = posix.stat(shown), posix.stat(".")
            if (mine.st_dev, mine.st_ino) == (here.st_dev, here.st_ino):
                return shown
        return posix.getcwd()
    except OSError:
        from gflow.errors import UsageError

        raise UsageError("the current folder no longer exists", hint="cd to another folder first") from None


def umask() -> int:
    old = posix.umask(0o077)
    posix.umask(old)
    return old


def environment() -> bytes:
    return b"\0".join(name + b"=" + value for name, value in posix.environ.items())


# ---------------------------------------------------------------- HTTP


def request(
    method: str,
    path: str,
    body: bytes = b"",
    accept: str = "text/plain",
    within: float | None = None,
    media: str = "application/json",
) -> tuple[int, bytes, bytes]:
    """One exchange with the daemon: status, raw headers, body. `within`: seconds until TimeoutError."""
    sock = connect()
    if within is not None:
        sock.settimeout(within)
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: gflow\r\nAccept: {accept}\r\nConnection: close\r\n"
        f"Content-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        sock.sendall(head.encode() + body)
    except BrokenPipeError:  # reserved for a closed pipe on our own output
        raise ConnectionResetError("the daemon closed the connection") from None
    received = []
    while chunk := sock.recv(RECEIVE):
        received.append(chunk)
    sock.close()
    headers, found, content = b"".join(received).partition(b"\r\n\r\n")
    if not found:
        raise ConnectionResetError("the daemon closed the connection before it answered")
    return int(headers[9:12]), headers, read_body(headers, content)


def read_body(headers: bytes, content: bytes) -> bytes:
    """The body of an answer; raises if a part of it is missing."""
    if headers[9:12] == b"204":  # has no body
        return b""
    at = headers.find(b"\r\ncontent-length: ")
    if at < 0:
        return join_chunks(content)
    length = headers[at + 18 :].partition(b"\r\n")[0]
    if not length.isdigit() or len(content) < int(length):
        raise ConnectionResetError(CUT_OFF)
    return content[: int(length)]


def join_chunks(content: bytes) -> bytes:
    """Decode a chunked body: each chunk is preceded by its length, the last one is empty."""
    at, chunks = 0, list[bytes]()
    while (end := content.find(b"\r\n", at)) >= 0:
        length = int(content[at:end], 16)
        if not length:
            return b"".join(chunks)
        at = end + 2 + length
        chunks.append(content[end + 2 : at])
        at += 2
    raise ConnectionResetError(CUT_OFF)


def connect(path: str = "") -> socket:
    """Connect to the daemon at this socket, or of `find_socket`."""
    path = path or find_socket()
    sock = socket(AF_UNIX, SOCK_STREAM)
    try:
        if len(path) <= paths.SOCKET_PATH_MAX:
            sock.connect(path)
        else:
            folder, _, name = path.rpartition("/")
            fd = posix.open(folder, posix.O_PATH | posix.O_CLOEXEC)
            sock.connect(f"/proc/self/fd/{fd}/{name}")
            posix.close(fd)
    except (ConnectionError, FileNotFoundError) as error:
        sign = path if path == paths.system_socket(getenv) else paths.address_file(getenv)
        if not exists(sign):
            unreachable(path, error)
        # The daemon was not stopped properly: it may be restarting.
        raise ConnectionRefusedError(path) from None
    except OSError as error:
        unreachable(path, error)
    if not is_ours(sock, path):
        unreachable(path, PermissionError())
    return sock


def is_ours(sock: socket, path: str) -> bool:
    """Whether to trust the daemon at this socket: its peer is root or this user, or the user named it.

    Other users may be able to write to the socket's folder, and a submission contains the environment.
    """
    if getenv("GFLOW_SOCKET") or path == paths.system_socket(getenv):
        return True
    uid = int.from_bytes(sock.getsockopt(1, 17, 12)[4:8], sys.byteorder)  # SOL_SOCKET, SO_PEERCRED
    return uid in (0, posix.geteuid())


def find_socket() -> str:
    """Path of the socket: $GFLOW_SOCKET, the system-wide daemon, or the user's own."""
    chosen = getenv("GFLOW_SOCKET")
    if chosen:
        return chosen
    system = paths.system_socket(getenv)
    return system if exists(system) else own_address()


def own_address() -> str:
    """The socket of the user's own daemon: the one in its file, if that is absolute, or the usual one."""
    try:
        fd = posix.open(paths.address_file(getenv), posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return paths.own_socket(getenv)
    address = posix.read(fd, 4096).decode(errors="surrogateescape").strip()
    posix.close(fd)
    return address if address.startswith("/") else paths.own_socket(getenv)


def use_socket(path: str) -> None:
    """Use the daemon at this socket from now on."""
    posix.environ[b"GFLOW_SOCKET"] = path.encode(errors="surrogateescape")


def unreachable(path: str, error: OSError) -> NoReturn:
    from gflow.client.no_daemon import unreachable as absent
    from gflow.errors import Forbidden

    if isinstance(error, PermissionError):
        raise Forbidden(f"the gflow daemon at {path} belongs to another user") from None
    raise absent(getenv) from None


def print_note(headers: bytes, program: str = "gbatch") -> None:
    """Print the daemon's note, if any, on standard error: standard output may be read by a program."""
    at = headers.find(b"\r\nx-gflow-note: ")
    if at >= 0:
        write_folded(2, program.encode() + b": " + headers[at + 16 :].partition(b"\r\n")[0] + b"\n")


def write_folded(fd: int, data: bytes) -> None:
    """Write sentences; on a terminal, long lines continue on further lines."""
    if posix.isatty(fd):
        from gflow.errors import fold

        text = fold(data.decode(errors="surrogateescape"), posix.get_terminal_size(fd).columns)
        data = text.encode(errors="surrogateescape")
    write(fd, data)


def terminal() -> dict[str, str]:
    """Query parameters for text on a terminal: its width, and colour unless NO_COLOR is set."""
    if not posix.isatty(1):
        return {}
    query = {"width": str(posix.get_terminal_size(1).columns)}
    return query if getenv("NO_COLOR") or getenv("TERM") == "dumb" else query | {"color": "1"}


def exit_code(headers: bytes, otherwise: int = 1) -> int:
    """The exit code in the header of an answer."""
    at = headers.find(b"\r\nx-gflow-exit: ")
    return int(headers[at + 16 : at + 19].partition(b"\r")[0] or otherwise) if at >= 0 else otherwise


def write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[posix.write(fd, rest) :]
        except BrokenPipeError:  # `gqueue | head`: the reader has closed the pipe
            leave(1)
        except BlockingIOError:  # a pipe that does not block is full
            from select import select

            select([], [fd], [])


# ---------------------------------------------------------------- replacements for os and json


def getenv(name: str) -> str | None:
    value = posix.environ.get(name.encode())
    return None if value is None else value.decode(errors="surrogateescape")


def exists(path: str) -> bool:
    try:
        posix.stat(path)
    except OSError:
        return False
    return True


def is_file(path: str) -> bool:
    """Whether `path` exists and is not a folder."""
    try:
        return posix.stat(path).st_mode & 0o170000 != 0o040000
    except (OSError, ValueError):
        return False


def can_execute(path: str) -> bool:
    return posix.access(path, posix.X_OK) and is_file(path)


def base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


def dumps(value: Any) -> str:
    """Encode the types of option values as JSON."""
    if isinstance(value, str):
        return str(quote(value))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{quote(name)}:{dumps(item)}" for name, item in value.items()) + "}"
    return "[" + ",".join(map(dumps, value)) + "]"
