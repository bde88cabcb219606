"""The folder of a user's MPS server."""

import os
import shutil

import pytest

from gflow.daemon.execution import mps
from gflow.daemon.execution.mps import Mps


@pytest.mark.parametrize("how", ["theirs", "link", "open"])
def test_folder_prepared_by_another_user_is_not_used(tmp_path, monkeypatch, how):
    """In /tmp others may have been faster: jobs would speak to their server."""
    if how == "theirs" and os.getuid():
        pytest.skip("only root can give a folder away")
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/false")
    monkeypatch.setattr(mps, "CONTROL", "false")
    folder = tmp_path / "mps"
    if how == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o777 if how == "open" else 0o700)
    if how == "theirs":
        os.chown(folder, 65534, 65534)
    assert Mps(tmp_path, "tag")._start().endswith("could have been prepared by another user")
    assert not (folder / "pipe").exists()
