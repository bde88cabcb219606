"""The hot path of the command line: `gbatch` in a few milliseconds of Python.

Imports only builtin C modules and the option table: no os, json, socket or re. The daemon
renders the text; this prints its bytes. `gflow.entry` hands any other command to `gflow.cli`.
"""

from __future__ import annotations

import posix
import sys
from _json import encode_basestring_ascii as quote
from _socket import AF_UNIX, SOCK_STREAM, socket
from binascii import b2a_base64

from gflow import paths
from gflow.options.job_options import CAPTURE, GBATCH, JOB, PER_UNIT
from gflow.options.parse import parse

TYPE_CHECKING = False  # typing costs 15 ms to import, and this runs inside every gbatch
if TYPE_CHECKING:
    from typing import Any, NoReturn

# Characters that make a single argument a shell command line instead of a program name.
SHELL = set(" \t\n;&|<>()$`\\\"'*?[]{}~#!=")
RECEIVE = 1 << 16
# The working folder is taken from $PWD, so a job can be submitted through a link.
LINK_TO_FOLDER = 'enter the folder through a link: ln -s "$PWD" ~/link; cd ~/link'
CUT_OFF = "the daemon closed the connection in the middle of its answer"


def leave(code: int) -> NoReturn:
    """Exit without cleaning up: nothing is left to clean up, and finding that out takes a millisecond."""
    try:
        sys.stdout.flush()
    except OSError:
        code = code or 1
    posix._exit(code)


# ---------------------------------------------------------------- submit


def submit(words: list[str]) -> int | None:
    """Submit one job, print the answer and return the exit code. None if this is no plain submission."""
    if words and words[0] in ("completion", "new"):
        return None
    values, command = parse(words, GBATCH, until_word=True)
    if values.keys() & SLOW or (values and has_sbatch_variables()):
        return None
    if not is_plain(command):
        return None
    note_letter(values, words)
    note_options_of_command(values, command)
    note_parameters(values)
    token = posix.urandom(16).hex()
    body = submission(token, job_body(values, command))
    status, headers, answer = deliver(body, target(values))
    return show(status, headers, answer)


def note_letter(values: dict[str, Any], words: list[str]) -> None:
    """Note that -n with a number names the job: in Slurm it is the number of tasks."""
    name = values.get("name", "")
    if name.isdigit() and ("-n" in words or "-n" + name in words):
        write(2, f"gbatch: the job is called {name}: -n is --name here; Slurm's -n is --ntasks\n".encode())


def note_options_of_command(values: dict[str, Any], command: list[str]) -> None:
    """Note on a terminal that --gpus after the command is passed to it, if the job asks for no GPU."""
    for at, word in enumerate(command):
        if word.startswith("--gpus") and word[6:7] in ("", "="):
            if posix.isatty(2) and not values.keys() & {"gpus", "shape", "race"}:
                given = word if word[6:] else " ".join(command[at : at + 2])
                program = command[0].rpartition("/")[2]
                text = f"{given} goes to {program}; the job asks for no GPU. Put options before the command."
                write_folded(2, f"gbatch: {text}\n".encode(errors="replace"))
            return


def note_parameters(values: dict[str, Any]) -> None:
    """Note on a terminal that a parameter has one value that looks like a range."""
    if "param" in values and posix.isatty(2):
        from gflow.options.sweeps import note_range

        if text := note_range(values["param"]):
            write_folded(2, f"gbatch: {text}\n".encode(errors="replace"))


def target(values: dict[str, Any]) -> str:
    """The path to POST to; its query selects the format of the answer."""
    if "parsable" in values:
        return "/jobs?parsable"
    return "/jobs?named" if posix.isatty(1) else "/jobs"


def is_plain(command: list[str]) -> bool:
    """Whether the words are a program and its arguments: no script, no shell command line."""
    if not command:
        return False
    word = command[0]
    if "/" in word:
        return len(command) > 1 and is_binary(word)
    if len(command) == 1 and (SHELL.intersection(word) or is_file(word)):
        return False
    return is_on_path(word)


def has_sbatch_variables() -> bool:
    """Whether the environment has variables of sbatch, which options may override."""
    return any(name.startswith(b"SBATCH_") for name in posix.environ)


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


def job_body(
    values: dict[str, Any], command: list[str], script: str = "", captured: tuple[str, bytes] | None = None
) -> str:
    """One job of a submission as JSON.

    `script`: further members, already JSON. `captured`: folder and environment, if not the caller's.
    """
    options = {name: value for name, value in values.items() if name in JOB_NAMES}
    folder, block = captured or (working_folder(), environment())
    check_utf8("".join(command), "the command", "put it into a script")
    check_utf8(folder, "the name of the working folder", LINK_TO_FOLDER)
    parts = (
        '"command":' + dumps(command),
        '"cwd":' + dumps(folder),
        f'"umask":{umask()}',
        '"environ":"' + base64(block) + '"',
        '"options":' + dumps(options),
    )
    return "{" + ",".join(parts) + script + "}"


def check_utf8(text: str, what: str, hint: str) -> None:
    """Refuse text that is not UTF-8 (lone surrogates in Python), because JSON cannot carry it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        from gflow.errors import UsageError

        raise UsageError(f"{what} contains bytes that are not UTF-8", hint=hint) from None


def submission(token: str, job: str) -> bytes:
    return f'{{"token":"{token}","jobs":[{job}]}}'.encode()


def deliver(body: bytes, path: str, accept: str = "text/plain") -> tuple[int, bytes, bytes]:
    """POST a submission; if the answer is lost, retry with the same token."""
    try:
        return request("POST", path, body, accept)
    except ConnectionError as error:
        from gflow.client.retry import retry

        return retry(lambda: request("POST", path, body, accept), error)


# Options left to `gflow.cli`. `begin` is one, because times depend on the configured time zone.
SLOW = {
    "help", "version", "wait", "json", "begin", "dry-run", "test-only", "venv", "conda-env", "fit",
    "gpus-per-task", "wrap", "quiet", "ignored", *PER_UNIT, *[option.name for option in CAPTURE],
}  # fmt: skip
JOB_NAMES = {option.name for option in JOB}


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
    method: str, path: str, body: bytes = b"", accept: str = "text/plain", within: float | None = None
) -> tuple[int, bytes, bytes]:
    """One exchange with the daemon: status, raw headers, body. `within`: seconds until TimeoutError."""
    sock = connect()
    if within is not None:
        sock.settimeout(within)
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: gflow\r\nAccept: {accept}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
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
    at = headers.find(b"\r\ncontent-length: ")
    if at < 0:
        return join_chunks(content)
    if len(content) < int(headers[at + 18 :].partition(b"\r\n")[0]):
        raise ConnectionResetError(CUT_OFF)
    return content


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
    if path in (getenv("GFLOW_SOCKET"), paths.system_socket(getenv)):
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
    """Path of the socket of the user's own daemon."""
    try:
        fd = posix.open(paths.address_file(getenv), posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return paths.own_socket(getenv)
    address = posix.read(fd, 4096).decode(errors="surrogateescape").strip()
    posix.close(fd)
    return address


def use_socket(path: str) -> None:
    """Use the daemon at this socket from now on."""
    posix.environ[b"GFLOW_SOCKET"] = path.encode(errors="surrogateescape")


def unreachable(path: str, error: OSError) -> NoReturn:
    from gflow.client.no_daemon import unreachable as absent
    from gflow.errors import Forbidden

    if isinstance(error, PermissionError):
        raise Forbidden(f"the gflow daemon at {path} belongs to another user") from None
    raise absent(getenv) from None


def show(status: int, headers: bytes, body: bytes) -> int:
    """Print an answer; return the exit code."""
    if status < 400:
        print_note(headers)
        write(1, body)
        return 0
    write_folded(2, b"gbatch: " + body)
    return exit_code(headers)


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


def exit_code(headers: bytes) -> int:
    """The exit code of a refusal, from its header."""
    at = headers.find(b"\r\nx-gflow-exit: ")
    return int(headers[at + 16 : at + 18].strip() or 1) if at >= 0 else 1


def write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[posix.write(fd, rest) :]
        except BrokenPipeError:  # `gqueue | head`: the reader has closed the pipe
            leave(1)


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
