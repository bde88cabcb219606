"""Local snapshots of a project: the files as they were at the submission."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gflow.errors import Refused
from gflow.targets.slurm.files import local_snapshots
from gflow.targets.slurm.files.local_snapshots import LocalSnapshots, Taken, parse_id, project_name
from tests.unit.test_file_selection import HOSTILE


class Project:
    """A folder with files, and its snapshots."""

    def __init__(self, folder: Path) -> None:
        self.root, self.store = folder / "proj", folder / "snapshots"
        self.root.mkdir()
        self.snapshots = LocalSnapshots(self.store)

    def write(self, name: str, text: str = "x") -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def take(self, limit: int = 0) -> Taken:
        return self.snapshots.take(str(self.root), limit)

    def path(self, taken: Taken) -> Path:
        return self.snapshots.path(parse_id(taken.id))

    def age(self) -> None:
        """Let all files be old enough that an equal mtime means equal content."""
        old = time.time() - 100
        for path in self.root.rglob("*"):
            os.utime(path, (old, old), follow_symlinks=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    # The ctime of a file cannot be set: a short margin instead.
    monkeypatch.setattr(local_snapshots, "RACY_NS", 0)
    return Project(tmp_path)


def content(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = b"-> " + os.fsencode(os.readlink(path))
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def test_snapshot_has_the_files_and_nobody_else_may_read_it(project: Project) -> None:
    project.write("run.sh", "echo")
    project.write("d/e/model.py", "m")
    (project.root / "link").symlink_to("d/e")
    (project.root / "run.sh").chmod(0o755)
    (project.root / "d/e/model.py").chmod(0o664)
    path = project.path(project.take())
    assert content(path) == {"run.sh": b"echo", "d/e/model.py": b"m", "link": b"-> d/e"}
    modes = {one: stat.S_IMODE((path / one).stat().st_mode) for one in ("", "run.sh", "d", "d/e/model.py")}
    assert modes == {"": 0o700, "run.sh": 0o700, "d": 0o700, "d/e/model.py": 0o600}
    assert (path / "run.sh").stat().st_mtime_ns == (project.root / "run.sh").stat().st_mtime_ns


def test_unchanged_project_uses_the_last_snapshot_again(project: Project) -> None:
    project.write("a")
    first, second = project.take(), project.take()
    assert project.path(first) == project.path(second)
    assert first.id != second.id and second.new_bytes == 0


def test_unchanged_files_are_links_and_changed_ones_are_copies(project: Project) -> None:
    project.write("same", "s" * 100)
    project.write("edited", "1")
    first = project.path(project.take())
    project.write("edited", "22")
    taken = project.take()
    second = project.path(taken)
    assert (first / "same").stat().st_ino == (second / "same").stat().st_ino
    assert (content(first)["edited"], content(second)["edited"]) == (b"1", b"22")
    assert taken.new_bytes == 2


def test_edit_in_place_of_the_same_size_and_mtime_leaves_earlier_snapshots(project: Project) -> None:
    project.write("a", "old")
    status = (project.root / "a").stat()
    first = project.path(project.take())
    with open(project.root / "a", "r+b") as file:
        file.write(b"new")
    os.utime(project.root / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    second = project.path(project.take())
    assert (content(first)["a"], content(second)["a"]) == (b"old", b"new")


def test_edit_just_after_a_snapshot_is_noticed_whatever_its_time(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for turn in range(20):  # within one tick of the file system's clock mtime and ctime stay the same
        project.write("a", f"{turn:04}")
        assert content(project.path(project.take()))["a"] == f"{turn:04}".encode()


def test_removed_file_and_changed_mode_make_a_new_snapshot(project: Project) -> None:
    project.write("a")
    project.write("b")
    first = project.path(project.take())
    (project.root / "b").unlink()
    second = project.path(project.take())
    assert content(second).keys() == {"a"} and content(first).keys() == {"a", "b"}
    (project.root / "a").chmod(0o755)
    assert os.access(project.path(project.take()) / "a", os.X_OK)


def test_file_that_becomes_a_link_or_a_folder_is_taken_as_such(project: Project) -> None:
    project.write("a")
    project.write("b")
    project.take()
    (project.root / "a").unlink()
    (project.root / "a").symlink_to("b")
    (project.root / "b").unlink()
    project.write("b/c", "c")
    assert content(project.path(project.take())) == {"a": b"-> b", "b/c": b"c"}


def test_hostile_names_are_copied(project: Project) -> None:
    for name in HOSTILE:
        with open(os.fsencode(project.root) + b"/" + name, "wb") as file:
            file.write(name)
    first = os.fsencode(project.path(project.take()))
    project.write("more")
    second = os.fsencode(project.path(project.take()))
    assert set(os.listdir(first)) == set(HOSTILE) and set(os.listdir(second)) == {*HOSTILE, b"more"}


def test_large_first_snapshot_is_refused_and_names_the_largest_folders(project: Project) -> None:
    project.write("data/big", "x" * 5_000_000)
    project.write("weights/w", "x" * 2_000_000)
    project.write("a.py")
    with pytest.raises(
        Refused, match=r"6\.7 MiB to send, more than 1\.0 MiB; the largest: data 4\.8 MiB, weights"
    ) as caught:
        project.take(1 << 20)
    assert "--sync-size 7M" in str(caught.value.hint)
    assert not project.store.exists()
    project.take(7 << 20)
    project.write("a.py", "print()")
    assert project.take(1 << 20).new_bytes == 7


def test_links_that_leave_the_folder_are_named_once(project: Project) -> None:
    project.write("a")
    (project.root / "data").symlink_to("/mnt/data")
    assert project.take().note == "sent as links that leave the folder: data"
    project.write("b")
    assert project.take().note == ""


def test_unreadable_file_is_one_sentence_and_leaves_no_snapshot(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("secret")

    def refuse(source: int, copy: int) -> None:
        raise PermissionError(13, "Permission denied", b"secret")

    monkeypatch.setattr(local_snapshots, "_copy_bytes", refuse)
    with pytest.raises(Refused, match="could not be copied: Permission denied: 'secret'"):
        project.take()
    assert list(project.store.glob("*/*")) == []


def test_empty_folder_is_refused(project: Project) -> None:
    with pytest.raises(Refused, match="there are no files to send"):
        project.take()


def test_file_that_changes_while_it_is_copied_is_copied_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("a", "first")
    copy_bytes, calls = local_snapshots._copy_bytes, []

    def copy_and_change(source: int, copy: int) -> None:
        copy_bytes(source, copy)
        calls.append(1)
        if len(calls) == 1:
            project.write("a", "second")

    monkeypatch.setattr(local_snapshots, "_copy_bytes", copy_and_change)
    assert content(project.path(project.take())) == {"a": b"second"}
    assert len(calls) == 2


def test_last_snapshot_of_which_files_are_gone_is_completed(project: Project) -> None:
    project.write("a")
    project.write("b")
    (project.path(project.take()) / "a").unlink()
    project.write("b", "bb")
    assert content(project.path(project.take())) == {"a": b"x", "b": b"bb"}


def test_snapshot_of_which_a_crash_lost_a_part_is_not_whole(project: Project) -> None:
    project.write("a", "text")
    taken = project.take()
    assert project.snapshots.is_whole(parse_id(taken.id))
    (project.path(taken) / "a").write_text("")
    assert not project.snapshots.is_whole(parse_id(taken.id))
    (project.path(taken) / "a").unlink()
    assert not LocalSnapshots(project.store).is_whole(parse_id(taken.id))


def test_prune_keeps_used_young_and_last_snapshots(project: Project) -> None:
    taken = []
    for turn in range(4):
        project.write("a", "x" * turn)
        taken.append(project.take())
    names = [taken[turn].id.partition(".")[0] for turn in range(4)]
    project.snapshots.prune(set(), time.time(), set())
    assert all(project.path(one).exists() for one in taken)  # young
    later = time.time() + 10_000
    project.snapshots.prune({names[1]}, later, {names[1], names[2]})
    assert [project.path(one).exists() for one in taken] == [False, True, False, True]
    read = [bool(LocalSnapshots(project.store).read_index(*name.split("/"))) for name in names]
    assert read == [False, True, True, True]
    assert content(project.path(taken[3])) == {"a": b"xxx"}


def test_half_made_snapshot_of_a_killed_daemon_is_not_used(project: Project) -> None:
    project.write("a")
    half = project.store / project_name(str(project.root)) / ".20990101-000000-0000"
    half.mkdir(parents=True)
    assert content(project.path(project.take())) == {"a": b"x"}
    project.snapshots.prune(set(), time.time() + 10_000, set())
    assert not half.exists()


def test_project_name_is_safe_and_unique(tmp_path: Path) -> None:
    names = [project_name(str(tmp_path / name)) for name in ("a b", "a-b", "-x", "...", "ä/$(x)", "n" * 300)]
    assert len(set(names)) == len(names)
    for name in names:
        assert parse_id(f"{name}/20261118-144132-027f.f9d4af").project == name


@pytest.mark.parametrize(
    "text", ["", "a", "../x/20261118-1-1.a", "a/b", "-a/20261118-144132-027f.f9", "a/1-1-1.g"]
)
def test_other_texts_are_no_snapshot_ids(text: str) -> None:
    with pytest.raises(ValueError, match="not a snapshot"):
        parse_id(text)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from("abcd"), st.sampled_from(["", "1", "22", "rm", "ln", "in place"]))
        ),
        max_size=6,
    )
)
def test_each_snapshot_stays_as_the_project_was(
    tmp_path_factory: pytest.TempPathFactory, turns: list[list[tuple[str, str]]]
) -> None:
    project = Project(tmp_path_factory.mktemp("turns"))
    project.write("always")
    expected: list[tuple[Path, dict[str, bytes]]] = []
    for changes in turns:
        for name, action in changes:
            path = project.root / name
            if action == "in place":
                if path.is_file() and not path.is_symlink():
                    with open(path, "r+b") as file:
                        file.write(b"IN PLACE")
                continue
            path.unlink(missing_ok=True)
            if action == "ln":
                path.symlink_to("always")
            elif action != "rm":
                path.write_text(action)
        expected.append((project.path(project.take()), content(project.root)))
    assert [content(path) for path, _ in expected] == [wanted for _, wanted in expected]
