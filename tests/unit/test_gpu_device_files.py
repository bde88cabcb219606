"""Rules about device files: which numbers a job may open."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gflow.gpu.device_files import KEEP_S, DeviceFiles

FIRST, SECOND = "GPU-aaaa", "GPU-bbbb"
# In place of the devices of a machine with two cards: path, major, minor.
FILES = {"nvidia0": (195, 0), "nvidia1": (195, 1), "nvidiactl": (195, 255), "nvidia-uvm": (511, 0)}
FILES |= {"dri/card1": (226, 1), "dri/renderD129": (226, 129), "nvidia-caps/nvidia-cap3": (510, 3)}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two cards; the second has a screen and one MIG slice."""
    for name, uuid, bus in (("0", FIRST, "0000:01:00.0"), ("1", SECOND, "0000:02:00.0")):
        card = tmp_path / f"proc/driver/nvidia/gpus/{bus}"
        card.mkdir(parents=True)
        (card / "information").write_text(
            f"Model: \t\t NVIDIA X\nGPU UUID: \t {uuid}\nDevice Minor: \t {name}\n"
        )
    access = tmp_path / "proc/driver/nvidia/capabilities/gpu1/mig/gi1/access"
    access.parent.mkdir(parents=True)
    access.write_text("DeviceFileMinor: 3\nDeviceFileMode: 292\n")
    for name in ("card1", "renderD129"):
        (tmp_path / "sys/bus/pci/devices/0000:02:00.0/drm" / name).mkdir(parents=True)
    (tmp_path / "proc/devices").write_text(
        "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n226 drm\n510 nvidia-caps\n511 nvidia-uvm\n"
        "\nBlock devices:\n195 nvidia\n  8 sd\n"
    )
    numbers = {str(tmp_path / "dev" / name): os.makedev(*pair) for name, pair in FILES.items()}
    real = os.stat

    def fake(path: str, **more: object) -> os.stat_result:
        if path not in numbers:
            return real(path, **more)  # type: ignore[arg-type]
        found = list(real(tmp_path))
        found[0] = stat.S_IFCHR | 0o666
        return os.stat_result(found, {"st_rdev": numbers[path]})

    monkeypatch.setattr(os, "stat", fake)
    return tmp_path


def judge(rules: str, major: int, minor: int) -> bool:
    """The answer of the kernel's program: the first rule that matches counts."""
    for line in rules.splitlines():
        word, first, second = line.split()
        if int(first) == major and second in ("*", str(minor)):
            return word == "allow"
    return True


@pytest.mark.parametrize(
    ("chosen", "opened"),
    [
        ((), set()),
        ((FIRST,), {"nvidia0", "nvidiactl", "nvidia-uvm"}),
        ((SECOND,), set(FILES) - {"nvidia0"}),
        ((FIRST, SECOND), set(FILES)),
    ],
)
def test_job_may_open_the_files_of_its_cards_only(
    root: Path, chosen: tuple[str, ...], opened: set[str]
) -> None:
    rules = DeviceFiles(str(root)).rules(chosen)
    assert {name for name, pair in FILES.items() if judge(rules, *pair)} == opened
    # A card or slice that appears later, and devices that are not of GPUs.
    assert not judge(rules, 195, 7) and not judge(rules, 510, 9)
    assert judge(rules, 1, 3) and judge(rules, 226, 0)


def test_machine_without_the_driver_has_no_rules(tmp_path: Path) -> None:
    assert DeviceFiles(str(tmp_path)).rules([]) == ""
    assert DeviceFiles(str(tmp_path)).rules([FIRST]) == ""


def test_new_card_is_noticed(root: Path) -> None:
    now = 0.0
    files = DeviceFiles(str(root), clock=lambda: now)
    files.rules([FIRST])
    card = root / "proc/driver/nvidia/gpus/0000:03:00.0"
    card.mkdir()
    (card / "information").write_text("GPU UUID: GPU-cccc\nDevice Minor: 2\n")
    before = files.rules([FIRST])
    files.rules(["GPU-cccc"])
    assert files.rules([FIRST]) == before  # it has no files yet; its number is denied with all of its major
    now = KEEP_S
    assert files.rules([]).count("deny 195 *") == 1
