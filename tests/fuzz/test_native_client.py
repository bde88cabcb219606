"""The native client against a hostile daemon, for a few seconds; `tests.fuzz.native_client` runs longer."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.fuzz import native_client
from tests.fuzz.conftest import EXAMPLES
from tests.waiting import wait_until

# `make fuzz` asks for more, with another seed each time.
ANSWERS = 15 * EXAMPLES
SEED = int(os.environ.get("GFLOW_FUZZ_SEED", "5"))
# Starts the Python client: gqueue, in a Python that has the package.
GQUEUE = "import sys; sys.argv[:] = ['gqueue']; from gflow.entry import main; main('gqueue')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    made = tmp_path_factory.mktemp("client")
    native_client.build(made)
    return made


@contextmanager
def listening_at(*addresses: str) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        listeners = []
        for address in addresses:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen()
            listeners.append(listener)
        yield listeners


def has_connection(listener: socket.socket) -> bool:
    return bool(select.select([listener], [], [], 0)[0])


def test_hostile_answers_do_no_harm(folder: Path) -> None:
    assert native_client.fuzz(folder, seed=SEED, most=ANSWERS) == ""


def test_whole_output_is_written_when_pipe_does_not_block(folder: Path) -> None:
    content = b"".join(b"%d\n" % number for number in range(100_000))
    path = folder / "large"
    with listening_at(str(path)) as (listener,):

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(
                    b"%bcontent-length: %d\r\n\r\n%b" % (native_client.OK, len(content), content)
                )

        threading.Thread(target=serve, daemon=True).start()
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        process = subprocess.Popen([folder / "gqueue"], env={"GFLOW_SOCKET": str(path)}, stdout=writer)
        os.close(writer)
        wait_until(lambda: unread(reader) == fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ), what="a full pipe")
        with open(reader, "rb") as file:
            assert file.read() == content
        assert process.wait(20) == 0


def unread(pipe: int) -> int:
    """The number of bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4), sys.byteorder)


def test_answer_is_printed_before_the_connection_closes(folder: Path) -> None:
    path, is_over = folder / "open", threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            connection.recv(1 << 16)
            connection.sendall(native_client.WHOLE[0])
            is_over.wait(30)
            connection.close()

        threading.Thread(target=serve, daemon=True).start()
        try:
            done = subprocess.run(
                [folder / "gqueue"], env={"GFLOW_SOCKET": str(path)}, capture_output=True, timeout=20
            )
        finally:
            is_over.set()
    assert (done.returncode, done.stderr, done.stdout) == (2, b"err", b"\nout")


@pytest.mark.parametrize("address", ["", " \n", "gflowd.sock", "./gflowd.sock", "\0gflowd.sock", "\0" * 107])
@pytest.mark.parametrize("client", ["native", "python"])
def test_address_that_is_not_absolute_is_never_connected_to(
    folder: Path, tmp_path: Path, client: str, address: str
) -> None:
    """Any user can listen at an abstract name, and a power failure may leave the file empty."""
    home = tmp_path / "gflow"
    home.mkdir()
    (home / "address").write_text(address)
    command = [sys.executable, "-c", GQUEUE] if client == "python" else [str(folder / "gqueue")]
    with listening_at("\0" * 108, "\0gflowd.sock", str(tmp_path / "gflowd.sock")) as listeners:
        done = subprocess.run(
            command, cwd=tmp_path, env={"XDG_DATA_HOME": str(tmp_path), "HOME": "/"},
            capture_output=True, timeout=60,
        )  # fmt: skip
        assert [has_connection(one) for one in listeners] == [False] * 3
    assert (done.stdout, done.returncode) == (b"", 3 if client == "python" else native_client.HANDED_OVER)
