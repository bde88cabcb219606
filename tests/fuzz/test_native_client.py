"""The native client against a hostile daemon, for a few seconds; `tests.fuzz.native_client` runs longer."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from tests.fuzz import native_client

ANSWERS = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    made = tmp_path_factory.mktemp("client")
    native_client.build(made)
    return made


def test_hostile_answers_do_no_harm(folder: Path) -> None:
    assert native_client.fuzz(folder, seed=5, most=ANSWERS) == ""


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
