"""Which files of a project are sent to a cluster."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from gflow.errors import Refused
from gflow.targets.slurm.files import file_selection
from gflow.targets.slurm.files.file_selection import select

HOSTILE = [
    b"new\nline",
    b"quote'\"",
    b"-rf",
    b"not utf-8 \xff\xfe",
    b"with space ",
    b"$(touch x)",
    b"semi;colon",
    b"back\\slash",
    b"*.py",
    b"tab\there",
    b"#comment",
    b"!bang",
    b":colon",
    b" lead",
]


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def paths(folder: Path) -> list[str]:
    return [os.fsdecode(entry.path) for entry in select(str(folder)).entries]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    write(tmp_path, "train.py", "src/model.py", ".env", "runs/1/log", "data/a.bin")
    (tmp_path / ".gitignore").write_text("runs/\n.env\n")
    git(tmp_path, "add", "train.py", "src")
    return tmp_path


def test_tracked_and_untracked_files_are_selected_and_ignored_ones_are_not(repository: Path) -> None:
    assert paths(repository) == [".gitignore", "data/a.bin", "src/model.py", "train.py"]


def test_tracked_file_that_gitignore_matches_is_selected(repository: Path) -> None:
    git(repository, "add", "-f", "runs/1/log")
    assert "runs/1/log" in paths(repository)
    (repository / ".gflowignore").write_text("*.bin\n")
    assert "runs/1/log" in paths(repository) and "data/a.bin" not in paths(repository)


def test_deleted_tracked_file_is_left_out(repository: Path) -> None:
    (repository / "train.py").unlink()
    assert "train.py" not in paths(repository)


def test_subfolder_of_a_repository_has_paths_of_its_own(repository: Path) -> None:
    write(repository, "src/runs/log")
    assert paths(repository / "src") == ["model.py"]


@pytest.mark.parametrize("is_repository", [True, False])
def test_gflowignore_has_the_syntax_of_gitignore(tmp_path: Path, is_repository: bool) -> None:
    if is_repository:
        git(tmp_path, "init", "-q")
    write(tmp_path, "a/x.log", "a/keep.log", "big/1", "big/2", "top", "sub/top", "deep/er/big/3")
    (tmp_path / ".gflowignore").write_text("# a comment\n*.log\n!keep.log\n/big/\n/top\n")
    write(tmp_path, "deep/er/x.tmp")
    (tmp_path / "deep/.gflowignore").write_text("*.tmp\n")
    if is_repository:
        git(tmp_path, "add", "a", "top")
    assert paths(tmp_path) == [
        ".gflowignore",
        "a/keep.log",
        "deep/.gflowignore",
        "deep/er/big/3",
        "sub/top",
    ]


def test_gflowignore_in_a_subfolder_that_is_sent_alone_is_relative_to_it(repository: Path) -> None:
    write(repository, "src/data/x", "src/deep/data/x")
    (repository / "src/.gflowignore").write_text("/data\n")
    assert paths(repository / "src") == [".gflowignore", "deep/data/x", "model.py"]


@pytest.mark.parametrize("is_repository", [True, False])
def test_hostile_names_are_selected_as_they_are(tmp_path: Path, is_repository: bool) -> None:
    folder = os.fsencode(tmp_path)
    if is_repository:
        git(tmp_path, "init", "-q")
    for name in HOSTILE:
        os.makedirs(folder + b"/d" + name)
        for path in (name, b"d" + name + b"/" + name):
            with open(folder + b"/" + path, "wb"):
                pass
    wanted = sorted([*HOSTILE, *(b"d" + name + b"/" + name for name in HOSTILE)])
    assert [entry.path for entry in select(str(tmp_path)).entries] == wanted
    (tmp_path / ".gflowignore").write_text("nothing\n")
    assert [entry.path for entry in select(str(tmp_path)).entries] == sorted([*wanted, b".gflowignore"])


@pytest.mark.parametrize("is_repository", [True, False])
def test_dot_git_is_never_selected_and_repositories_inside_are(tmp_path: Path, is_repository: bool) -> None:
    if is_repository:
        git(tmp_path, "init", "-q")
    write(tmp_path, "main.py", "lib/inner.py", "lib/secret")
    git(tmp_path / "lib", "init", "-q")
    (tmp_path / "lib/.gitignore").write_text("secret\n")
    assert paths(tmp_path) == ["lib/.gitignore", "lib/inner.py", "main.py"]


def test_submodule_is_selected_with_its_files(tmp_path: Path) -> None:
    other, main = tmp_path / "other", tmp_path / "main"
    for folder in (other, main):
        folder.mkdir()
        git(folder, "init", "-q")
    write(other, "lib.py")
    git(other, "add", ".")
    git(other, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")
    git(main, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "vendor")
    assert paths(main) == [".gitmodules", "vendor/lib.py"]


def test_links_are_kept_and_those_that_leave_the_folder_are_named(tmp_path: Path) -> None:
    write(tmp_path, "d/file")
    for name, target in {
        "in": "d/file",
        "d/up": "../d",
        "d/out": "../../x",
        "data": "/mnt/data",
        "gone": "no",
    }.items():
        (tmp_path / name).symlink_to(target)
    selection = select(str(tmp_path))
    assert [entry.path for entry in selection.entries if entry.is_link] == [
        b"d/out", b"d/up", b"data", b"gone", b"in",
    ]  # fmt: skip
    assert selection.leaving == [b"d/out", b"data"]


def test_sockets_and_pipes_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, "file")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        selection = select(str(tmp_path))
    assert [entry.path for entry in selection.entries] == [b"file"]
    assert selection.skipped == [b"pipe", b"s"]


def test_missing_git_is_one_sentence_with_a_hint(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Refused, match="git is not installed") as caught:
        select(str(repository))
    assert "--no-sync" in str(caught.value.hint)


def test_damaged_repository_is_one_sentence(repository: Path) -> None:
    (repository / ".git/index").write_bytes(b"junk")
    with pytest.raises(Refused, match="git cannot list the files to send: "):
        select(str(repository))


def test_variables_of_a_git_hook_do_not_lead_to_another_repository(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("other")))
    assert "train.py" in paths(repository)
    assert file_selection.IGNORE_FILE == b".gflowignore"
