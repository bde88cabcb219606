"""The launcher's checks in front of the real target, as root: a hostile scheduler gets no right of root.

What is judged is what the machine looks like afterwards: whose processes ran, which files exist, who lives.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gflow.privileged import checked_target
from gflow.privileged.accounts import look_up
from gflow.privileged.checked_target import (
    START_CHECKS,
    CheckedTarget,
    check_account,
    check_files,
    check_min_uid,
    check_user,
)
from gflow.targets.local.target import LocalTarget
from tests.fuzz.hostile_scheduler import World, attack
from tests.system import administer
from tests.user_accounts import people, shared_folder

COUNT = 200
PARTS = 10


class Scene(NamedTuple):
    """A machine under attack: where its jobs write, and what they must not touch."""

    root: Path
    world: World
    bystanders: list[subprocess.Popen[bytes]]

    def snapshot(self) -> dict[str, tuple[Any, ...]]:
        """Root's files, and the entries of the folder around them."""
        found = {}
        for path in [*self.root.iterdir(), *(self.root / "vault").rglob("*")]:
            status = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            found[str(path)] = (status.st_uid, status.st_mode, status.st_ino, content)
        return found

    def owners(self) -> set[int]:
        """The users as whom jobs ran."""
        return {path.stat().st_uid for path in (self.root / "out").iterdir()}


@pytest.fixture
def scene() -> Iterator[Scene]:
    with shared_folder() as root, people("ann", "bob", "carl", homes=root) as persons:
        administer("usermod", "--password", "!$6$x$y", persons[2].pw_name)
        for name, mode in {
            "vault": 0o700,
            "out": 0o1777,
            "leases": 0o1777,
            "work": 0o1777,
            "jobs": 0o711,
        }.items():
            (root / name).mkdir()
            (root / name).chmod(mode)
        (root / "run").mkdir(mode=0o700)
        (root / "vault/secret").write_text("secret")
        begun = [
            subprocess.Popen(["sleep", "300"], start_new_session=True),
            subprocess.Popen(["sleep", "300"], start_new_session=True, user=persons[1].pw_uid),
        ]
        uids = [0, 1, *(person.pw_uid for person in persons)]
        commands = [
            f"id -u > $(mktemp {root}/out/XXXXXX)",
            f"id -u > $(mktemp {root}/out/XXXXXX); kill -9 {begun[0].pid}; echo x > {root}/vault/secret",
        ]
        world = World(
            accounts={uid: account for uid in uids if (account := look_up(uid))},
            gpus={f"GPU-{index}": f"{root}/leases/GPU-{index}" for index in range(2)},
            vault=f"{root}/vault",
            files=(f"{root}/vault/secret", f"{root}/vault/new", f"{root}/new"),
            folder=f"{root}/work",
            jobs=60,
            commands=tuple(("sh", "-c", command) for command in commands),
        )
        try:
            yield Scene(root, world, begun)
        finally:
            for process in begun:
                process.kill()
                process.wait()


def run_attack(scene: Scene) -> None:
    """Attack a target that runs jobs, and wait for their ends."""

    async def act() -> None:
        local = LocalTarget(scene.root / "run", lambda ended: None, scene.root / "jobs")
        local.open()
        try:
            target = CheckedTarget(local, scene.world.rules._replace(account_of=look_up))
            for part in range(PARTS):
                attack(part, COUNT // PARTS, scene.world, target)
                await asyncio.sleep(0.05)
            for run in list(local._busy):
                local.stop(run, now=True)
            while local._busy:
                await asyncio.sleep(0.01)
        finally:
            local.close()

    asyncio.run(asyncio.wait_for(act(), 120))


def test_hostile_scheduler_gets_nothing_of_roots(scene: Scene) -> None:
    assert len(scene.world.ordinary) == 2, "the account that is locked is not among them"
    before = scene.snapshot()
    run_attack(scene)
    assert scene.owners() == set(scene.world.ordinary), "both ran jobs, and nobody else did"
    assert scene.snapshot() == before
    assert [process.poll() for process in scene.bystanders] == [None, None]
    assert {name.partition(".")[0] for name in os.listdir(scene.root / "leases")} <= {*scene.world.gpus}


@pytest.mark.parametrize(
    "check", [check_user, check_account, check_min_uid, check_files], ids=lambda check: check.__name__
)
def test_removal_of_a_check_gives_rights_of_others(
    scene: Scene, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = tuple(one for one in START_CHECKS if one is not check)
    monkeypatch.setattr(checked_target, "START_CHECKS", rest)
    before = scene.snapshot()
    run_attack(scene)
    if check is check_files:
        assert scene.snapshot() != before
    else:
        assert scene.owners() - set(scene.world.ordinary)
