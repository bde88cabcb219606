"""The Debian package, installed and removed in a copy of this system: an overlay that is gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages.conftest import WHEEL
from tests.packages.machine import ROOT

pytestmark = pytest.mark.slow
# Mounts a writable copy of the system and runs the script in it. Nothing of it is visible outside. Prints the
# files of gflow that exist afterwards and did not before: character devices stand for deleted files.
OVERLAY = """
set -e
mount --make-rprivate /
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc none "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs none "$1/root/run"
mount -t tmpfs none "$1/root/tmp"
cp "$2" "$1/root/tmp/gflow.deb"
chroot "$1/root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root \
  MANPAGER=cat bash -ec "$3"
cd "$1/upper"
echo CHANGED
find . -ipath '*gflow*' ! -type c ! -path './var/lib/dpkg/*'
"""
REMOVED = """
dpkg -i /tmp/gflow.deb
gflow --version
man -w gbatch
test -e /usr/lib/systemd/system/gflowd.service
dpkg -r gflow-scheduler
if command -v gbatch; then exit 1; fi
"""
FIRST_JOB = """
dpkg -i /tmp/gflow.deb > /dev/null
useradd --create-home ann
gflowd up --system --simulate-gpus 2x80G > /dev/null
cd /home/ann
runuser -u ann -- gbatch --wait --gpus 1 'id -un; echo GPU $CUDA_VISIBLE_DEVICES'
runuser -u ann -- gjob log 1
gflowd down --system > /dev/null
dpkg -r gflow-scheduler
"""
UNIT = """
dpkg -i /tmp/gflow.deb > /dev/null
systemd-analyze verify /usr/lib/systemd/system/gflowd.service 2>&1
"""


@pytest.fixture(scope="session")
def package(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Debian package of this checkout."""
    if shutil.which("dpkg-deb") is None or not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("no Debian, or no python3 of Debian")
    (wheel,) = packages.glob(WHEEL)
    line = [sys.executable, ROOT / "scripts/build-deb", wheel, tmp_path_factory.mktemp("deb")]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def run_in_copy(script: str, package: Path, folder: Path) -> str:
    """Run a script of root in a copy of the system, with processes of its own."""
    line = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "sh", "-c", OVERLAY, "sh"]
    done = subprocess.run(
        [*line, str(folder), str(package), script], capture_output=True, text=True, timeout=120,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if "mount: " in done.stderr or "unshare: " in done.stderr:
        pytest.skip(f"a copy of the system cannot be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_removal_leaves_nothing(package: Path, tmp_path: Path) -> None:
    text = run_in_copy(REMOVED, package, tmp_path)
    assert "/usr/share/man/man1/gbatch.1.gz" in text and "systemctl enable --now gflowd" in text
    assert text.partition("CHANGED\n")[2].splitlines() == []


def test_system_daemon_of_the_package_runs_a_job_of_a_user(package: Path, tmp_path: Path) -> None:
    text = run_in_copy(FIRST_JOB, package, tmp_path)
    assert "Submitted batch job 1\nann\nGPU 0\n" in text
    assert "/var/lib/gflow is kept" in text
    assert "./var/lib/gflow" in text.partition("CHANGED\n")[2].splitlines()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_unit_of_the_package_is_valid(package: Path, tmp_path: Path) -> None:
    assert "gflowd" not in run_in_copy(UNIT, package, tmp_path).partition("CHANGED\n")[0]
