"""Control groups: where ours go, and what is written and read there. A plain folder stands for the kernel."""

import fcntl
import os
from pathlib import Path

import pytest

from gflow.targets.local import cgroups
from gflow.targets.local.cgroups import Group, Layers, Mounted, find_layers, read_mounts

PROCS, SUBTREE = "cgroup.procs", "cgroup.subtree_control"


def place(folder: Path, controllers: str = "") -> Path:
    """A group as the kernel would show it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROCS).touch()
    (folder / SUBTREE).write_text(controllers)
    return folder


class Kernel:
    """Makes the files of each new group; a group that has processes takes no controllers."""

    def __init__(self, monkeypatch, root: Path) -> None:
        self.root = root
        self.with_processes: set[str] = set()
        make, write, remove = os.makedirs, cgroups._write, os.rmdir

        def makedirs(path, exist_ok=False):
            make(path, exist_ok=exist_ok)
            new = Path(path)
            (new / PROCS).touch()
            (new / "cgroup.kill").touch()
            if not (new / SUBTREE).exists():
                (new / SUBTREE).write_text("")

        def fake_write(path, text):
            file = Path(path)
            if file.name != SUBTREE:
                return write(path, text)
            name = text.removeprefix("+")
            above = (file.parent.parent / SUBTREE).read_text().split() if file.parent != root else [name]
            if str(file.parent) in self.with_processes or name not in above:
                raise OSError(16, "Device or resource busy")
            file.write_text(" ".join(sorted({*file.read_text().split(), name})))
            return None

        def rmdir(path):
            for file in Path(path).iterdir():
                file.unlink()
            remove(path)

        monkeypatch.setattr(cgroups.os, "makedirs", makedirs)
        monkeypatch.setattr(cgroups.os, "rmdir", rmdir)
        monkeypatch.setattr(cgroups, "_write", fake_write)
        monkeypatch.delenv("GFLOW_NO_CGROUPS", raising=False)


@pytest.fixture
def kernel(monkeypatch, tmp_path):
    place(tmp_path, "memory cpu")
    return Kernel(monkeypatch, tmp_path)


def test_groups_are_siblings_if_own_group_has_processes(kernel):
    """As under a service manager: the daemon's group cannot give limits to groups below it."""
    service = place(place(kernel.root / "app.slice", "memory cpu") / "gflowd.service")
    kernel.with_processes = {str(service)}
    layers = find_layers("tag", Mounted({"": str(service)}))
    base = f"{kernel.root}/app.slice/gflow-tag"
    assert layers == Layers(base, base, 2, base, 2)
    assert not (service / "gflow-tag").exists()


def test_groups_are_children_if_own_group_is_exclusive(kernel):
    own = place(kernel.root / "own")
    layers = find_layers("tag", Mounted({"": str(own)}))
    assert (layers.memory, layers.memory_version) == (f"{own}/gflow-tag", 2)


def test_groups_without_limits_can_be_killed(kernel):
    place(kernel.root, "")
    own = place(kernel.root / "session.scope")
    kernel.with_processes = {str(own), str(kernel.root)}
    layers = find_layers("tag", Mounted({"": str(own)}))
    assert layers == Layers(kill=f"{own}/gflow-tag")
    assert not (kernel.root / "gflow-tag").exists()


def test_version_1_beside_version_2(kernel):
    own, memory = place(kernel.root / "own"), place(kernel.root / "v1")
    kernel.with_processes = {str(own)}
    place(kernel.root, "")
    layers = find_layers("tag", Mounted({"": str(own), "memory": str(memory)}))
    assert (layers.kill, layers.memory, layers.memory_version) == (
        f"{own}/gflow-tag",
        f"{memory}/gflow-tag",
        1,
    )


@pytest.mark.parametrize(("module", "moment"), [(os, "open"), (fcntl, "flock")])
def test_a_folder_that_another_daemon_sweeps_away_is_made_again(kernel, monkeypatch, module, moment):
    """It stands empty and unheld for a moment. Without it, memory limits would only be watched, not held."""
    own = place(kernel.root / "memory")
    base, swept = str(own / "gflow-x"), []
    real = getattr(module, moment)

    def meanwhile(what, *more):
        if not swept and (module is fcntl or what == base):
            swept.append(base)
            os.rmdir(base)
        return real(what, *more)

    monkeypatch.setattr(module, moment, meanwhile)
    layers = find_layers("x", Mounted({"memory": str(own)}))
    assert swept == [base] and (layers.memory, layers.memory_version) == (base, 1)
    cgroups.remove_layers(layers)


def test_a_folder_that_is_swept_away_while_it_is_made_is_made_again(kernel, monkeypatch):
    own, make, refused = place(kernel.root / "memory"), os.makedirs, []

    def makedirs(path, exist_ok=False):
        if not refused:
            refused.append(path)
            raise FileExistsError(17, "File exists", path)  # it existed, and then it did not
        make(path, exist_ok=exist_ok)

    monkeypatch.setattr(cgroups.os, "makedirs", makedirs)
    layers = find_layers("x", Mounted({"memory": str(own)}))
    assert refused and layers.memory == str(own / "gflow-x")
    cgroups.remove_layers(layers)


def test_our_own_places_are_read_from_the_kernels_tables():
    mounts = (
        "30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
        "31 30 0:27 /jail /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    )
    assert read_mounts(mounts, "4:memory:/jail/a\n0::/b/c\n").folders == {
        "": "/sys/fs/cgroup/unified/b/c",
        "memory": "/sys/fs/cgroup/memory/a",
    }


# ---------------------------------------------------------------- one job's group


FILES = {
    1: ("memory.limit_in_bytes", "memory.oom_control", "memory.max_usage_in_bytes"),
    2: ("memory.max", "memory.events", "memory.peak"),
}


def test_shim_in_a_group_of_ours_finds_the_base_folder_above_it():
    inside = Mounted(
        {"pids": "/cg/pids/gflow-abc/shim-1-2", "": "/cg/gflow-abc", "cpu": "/cg/cpu/gflow-abcd"}
    )
    assert inside.outside("abc").folders == {"pids": "/cg/pids", "": "/cg", "cpu": "/cg/cpu/gflow-abcd"}


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_limits_and_tells(tmp_path, version):
    limit, events, peak = FILES[version]
    folder = tmp_path / "7.1"
    folder.mkdir()
    for name in (limit, "memory.oom.group", events, peak, "cpu.stat"):
        (folder / name).touch()
    base = str(tmp_path)
    group = Group(Layers(kill=base, memory=base, memory_version=version), "7.1")
    assert group.make(100, 0, 0)
    assert (folder / limit).read_text() == str(100 << 20)
    assert (folder / "memory.oom.group").read_text() == ("1" if version == 2 else "")
    assert (group.out_of_memory(), group.peak_kib(), group.cpu_ms()) == (False, None, 0)
    (folder / events).write_text("oom 3\noom_kill 0\n")
    assert not group.out_of_memory()
    (folder / events).write_text("oom 3\noom_kill 1\n")
    (folder / peak).write_text(f"{90 << 20}\n")
    (folder / "cpu.stat").write_text("usage_usec 1234567\nuser_usec 1\n")
    assert (group.out_of_memory(), group.peak_kib(), group.cpu_ms()) == (True, 90 << 10, 1234)


def test_a_limit_that_cannot_be_set_is_not_held(tmp_path):
    group = Group(Layers(memory=str(tmp_path), memory_version=2), "7.1")
    assert not group.make(100, 0, 0)
