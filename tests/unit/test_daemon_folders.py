"""Files that a user other than root could rewrite."""

import os

import pytest

from gflow.daemon.process.directories import rewritable


@pytest.mark.skipif(os.getuid() != 0, reason="only root has what is root's")
@pytest.mark.parametrize("how", ["theirs", "open", "fine", "sticky"])
def test_program_writable_by_others_is_found(tmp_path, how):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python").write_text("")
    for above in (tmp_path, tmp_path.parent):
        above.chmod(0o755)
    if how == "theirs":
        os.chown(folder, 65534, 65534)
    folder.chmod({"open": 0o777, "sticky": 0o1777}.get(how, 0o755))
    assert rewritable([folder / "python"]) == (folder if how in ("theirs", "open") else None)


@pytest.mark.skipif(os.getuid() != 0, reason="only root has what is root's")
@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_file_that_is_gone_counts_as_its_folder(tmp_path, mode):
    """Python gives a compiled module its name when it is written."""
    for above in (tmp_path, tmp_path.parent):
        above.chmod(0o755)
    (folder := tmp_path / "__pycache__").mkdir()
    folder.chmod(mode)
    assert rewritable([folder / "module.pyc.1397"]) == (folder if mode == 0o777 else None)


@pytest.mark.skipif(os.getuid() != 0, reason="only root has what is root's")
@pytest.mark.parametrize(
    ("uid", "gid", "mode", "is_fine"),
    [
        (0, 0, 0o644, True),
        (0, 0, 0o664, True),
        (0, 100, 0o644, True),
        (65534, 0, 0o644, False),
        (0, 100, 0o664, False),
        (0, 0, 0o646, False),
    ],
)
def test_file_that_others_own_or_may_write_is_found(tmp_path, uid, gid, mode, is_fine):
    for above in (tmp_path, tmp_path.parent):
        above.chmod(0o755)
    file, link = tmp_path / "module.py", tmp_path / "link.py"
    file.touch()
    os.chown(file, uid, gid)
    file.chmod(mode)
    link.symlink_to(file)
    assert rewritable([file]) == (None if is_fine else file)
    assert rewritable([link]) == (None if is_fine else link)


@pytest.mark.skipif(os.getuid() != 0, reason="only root has what is root's")
def test_link_of_another_user_is_found(tmp_path):
    for above in (tmp_path, tmp_path.parent):
        above.chmod(0o755)
    link = tmp_path / "link.py"
    link.symlink_to("/etc/passwd")
    os.chown(link, 65534, 65534, follow_symlinks=False)
    assert rewritable([link]) == link
