"""The file that tells clients where the daemon's socket is."""

import os
from pathlib import Path
from types import SimpleNamespace

from gflow.daemon.main import _write_address


def test_address_is_durable_before_it_is_in_place(tmp_path, monkeypatch):
    steps, sync, rename = [], os.fsync, Path.rename

    def note_sync(fd):
        steps.append(("sync", os.readlink(f"/proc/self/fd/{fd}")))
        sync(fd)

    def note_rename(old, new):
        steps.append(("rename", str(new)))
        return rename(old, new)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    address = tmp_path / "address"
    _write_address(SimpleNamespace(data=tmp_path, socket=Path("/run/x.sock")))
    assert address.read_text() == "/run/x.sock"
    assert steps[:2] == [("sync", f"{address}.new"), ("rename", str(address))]
