"""What somebody else than root could rewrite."""

import os

import pytest

from gflow.daemon.folders import rewritable


@pytest.mark.skipif(os.getuid() != 0, reason="only root has what is root's")
@pytest.mark.parametrize("how", ["theirs", "open", "fine", "sticky"])
def test_who_can_rewrite_a_program(tmp_path, how):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python").write_text("")
    for above in (tmp_path, tmp_path.parent):
        above.chmod(0o755)
    if how == "theirs":
        os.chown(folder, 65534, 65534)
    folder.chmod({"open": 0o777, "sticky": 0o1777}.get(how, 0o755))
    assert rewritable([folder / "python"]) == (folder if how in ("theirs", "open") else None)
