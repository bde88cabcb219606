"""A job that is stopped before its process has made its session ends at once, not after its grace time."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gflow.targets.local.cgroups import Layers
from gflow.targets.local.native_shim import NATIVE_SHIM
from gflow.targets.local.protocol import Order, pack, to_fields, unpack
from gflow.targets.local.shim import process_tree, spawn

SLOW_SETSID = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
pid_t setsid(void) {
    usleep(700000);
    return ((pid_t (*)(void))dlsym(RTLD_NEXT, "setsid"))();
}
"""


def order_to_sleep(folder: Path) -> Order:
    return Order(
        key=1, attempt=1, record=str(folder / "1.run"), cwd=str(folder), umask=0o22,
        log=str(folder / "1.log"), error_log=str(folder / "1.log"), log_cap=0, grace_s=60, stop_file="",
        memory_mib=0, cpus=0, limits=(), leases=(), sharing="",
        command=("sleep", "60"), script=None, script_path="",
        environ=b"PATH=/usr/bin:/bin\0", extra=b"", uid=None, snapshot="",
    )  # fmt: skip


def test_python_shim_stops_a_process_without_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_session = os.setsid
    monkeypatch.setattr(os, "setsid", lambda: (time.sleep(0.7), make_session()))
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # as in a shim
    (tmp_path / "1.run").touch()
    try:
        pid = spawn.launch(order_to_sleep(tmp_path), Layers()).pid
        process_tree.send_group(pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            time.sleep(0.02)
        if not ended[0]:
            os.kill(pid, signal.SIGKILL)
            ended = os.waitpid(pid, 0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert os.waitstatus_to_exitcode(ended[1]) == -signal.SIGTERM


@pytest.mark.skipif(not os.access(NATIVE_SHIM, os.X_OK), reason="the native shim is not built")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here, which delays setsid()")
def test_native_shim_stops_a_process_without_session(tmp_path: Path) -> None:
    source, library = tmp_path / "slow.c", tmp_path / "slow.so"
    source.write_text(SLOW_SETSID)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    ours, theirs = socket.socketpair()
    fd = theirs.fileno()
    line = [NATIVE_SHIM, str(fd), "", "", sys.executable, "-c", "pass"]
    with subprocess.Popen(line, pass_fds=[fd], env={"LD_PRELOAD": str(library)}) as shim, ours:
        theirs.close()
        ours.settimeout(30)
        ours.sendall(pack(to_fields(order_to_sleep(tmp_path))) + pack([b"stop", b"1", b"1", b"0"]))
        received, messages = bytearray(), []
        while not messages or messages[-1][0] != b"end":
            received += ours.recv(1 << 16)
            messages += unpack(received)
        ours.close()
        shim.wait(30)
    assert messages[-1][3:5] == [b"-", b"%d" % signal.SIGTERM]
